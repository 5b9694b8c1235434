"""Flower apps in folders, as users have them: one of numpy, one of torch."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

_PROJECT: Final = """
[project]
name = "an-app"
version = "1.0.0"
license = "Apache-2.0"
description = ""

[tool.flwr.app]
publisher = "somebody"

[tool.flwr.app.components]
serverapp = "{name}.server_app:app"
clientapp = "{name}.client_app:app"

[tool.flwr.app.config]
num-server-rounds = 6
noise = 0.1
"""

NUMPY_SERVER: Final = """
import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flower_scheduling import ScheduledStrategy

app = ServerApp()

def accuracy(server_round, arrays):
    (weights,) = arrays.to_numpy_ndarrays()
    return MetricRecord({"accuracy": float(np.exp(-abs(weights - 1).mean()))})

@app.main()
def main(grid, context):
    print("the server prints")
    start = ArrayRecord([np.random.rand(4)])
    strategy = FedAvg(fraction_evaluate=0.0)
    strategy = ScheduledStrategy(strategy, "cs-ucb-q", num_selected=2, tau_max_s=4, beta=0.01)
    rounds = context.run_config["num-server-rounds"]
    strategy.start(grid, start, num_rounds=rounds, evaluate_fn=accuracy)
"""
PLAIN_SERVER: Final = "".join(
    line for line in NUMPY_SERVER.splitlines(keepends=True) if "ScheduledStrategy" not in line
)
"""The same, whose strategy is not wrapped."""

NUMPY_CLIENT: Final = """
import os
import random
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    print("a client prints")
    number, noise = context.node_config["partition-id"], context.run_config["noise"]
    assert number < context.node_config["num-partitions"]
    calls = context.state.get("calls", ConfigRecord({"count": 0}))
    calls["count"] += 1
    context.state["calls"] = calls
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    weights += 0.5 * (1 - weights) + noise * np.random.randn(4)
    metrics = MetricRecord({"num-examples": 10 * (number + 1), "draw": random.random()})
    records = {"arrays": ArrayRecord([weights]), "metrics": metrics}
    np.random.seed(0)
    random.seed(0)
    os.chdir("/")
    return Message(RecordDict(records), reply_to=message)
"""

TORCH_SERVER: Final = """
import torch
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flower_scheduling import ScheduledStrategy

app = ServerApp()

@app.main()
def main(grid, context):
    model = torch.nn.Linear(3, 1)
    strategy = ScheduledStrategy(FedAvg(), num_selected=2)
    rounds = context.run_config["num-server-rounds"]
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=rounds)
"""

TORCH_CLIENT: Final = """
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.utils.data import DataLoader, TensorDataset

app = ClientApp()

def loader(context):
    size = 8 * (context.node_config["partition-id"] + 1)
    inputs = torch.randn(size, 3, generator=torch.Generator().manual_seed(size))
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), 8, shuffle=True,
                      num_workers={workers})

def answer(message, metrics, model=None):
    records = {{"metrics": MetricRecord(metrics)}}
    if model is not None:
        records["arrays"] = ArrayRecord(model.state_dict())
    return Message(RecordDict(records), reply_to=message)

def received(message):
    model = torch.nn.Linear(3, 1)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model

@app.train()
def train(message, context):
    model, batches = received(message), loader(context)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in batches:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return answer(message, {{"num-examples": len(batches.dataset)}}, model)

@app.evaluate()
def evaluate(message, context):
    model, batches = received(message), loader(context)
    inputs, targets = batches.dataset.tensors
    loss = torch.nn.functional.mse_loss(model(inputs), targets).item()
    return answer(message, {{"num-examples": len(inputs), "loss": loss}})
"""


def write_app(parent: Path, server: str = NUMPY_SERVER, client: str = NUMPY_CLIENT) -> Path:
    """Write an app into a new folder, its modules of a name of their own; return the folder."""
    name = f"app_{secrets.token_hex(4)}"
    package = parent / name / name
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "server_app.py").write_text(server)
    (package / "client_app.py").write_text(client)
    (parent / name / "pyproject.toml").write_text(_PROJECT.format(name=name))
    return parent / name
