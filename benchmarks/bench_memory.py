"""How many models a server and a client hold in memory at once, wire apart.

    python benchmarks/bench_memory.py

A model of 100 MB of float32, in 4 and in 200 arrays. The server: ScheduledStrategy around FedAvg
with a run directory and a checkpoint in each round, three replies, each in memory of its own; they
come from a ClientApp in the same process, so that no wire counts. The client: our ClientApp on a
network of that size, one step on two images. Peaks are of the resident memory beyond what the same
process had after the same with a model of a few numbers, in models. Linux; half a minute.
"""

from __future__ import annotations

import gc
import math
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
MODEL_MB = 100
NUM_REPLIES, NUM_ROUNDS, NUM_MESSAGES = 3, 4, 3
CASES = {  # most models at once
    ("server", "4"): 2 + NUM_REPLIES,
    ("server", "200"): 2 + NUM_REPLIES,
    ("client", "4"): 2.5,
    ("client", "200"): 2.5,
}


def main() -> None:
    print(f"{platform.machine()}, Python {platform.python_version()}, {MODEL_MB} MB")
    print(f"{'peak [models]':<44}{'ours':>8}{'target':>8}")
    failed = False
    for (side, num_arrays), target in CASES.items():
        done = subprocess.run(
            [sys.executable, __file__, "--case", side, num_arrays],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        models = float(done.stdout.split()[-1])
        failed |= models > target
        what = f"server, {NUM_REPLIES} replies" if side == "server" else "client"
        print(f"{f'{what}, in {num_arrays} arrays':<44}{models:>8.2f}{f'<= {target:g}':>8}")
    sys.exit(failed)


def measure(side: str, num_arrays: str) -> None:
    """Print the peak of one case."""
    run: Callable[[int, int], int] = {"server": serve, "client": train}[side]
    run(100, int(num_arrays))
    gc.collect()
    before = resident_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    num_bytes = run(MODEL_MB * 10**6 // 4, int(num_arrays))
    print((resident_mb("VmHWM") - before) * 1e6 / num_bytes)


def resident_mb(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(key)]
    return int(line.split()[1]) * 1024 / 10**6


# --- server ---------------------------------------------------------------------------------------


def serve(num_values: int, num_arrays: int) -> int:
    """Run rounds with a model of so many values; return its bytes."""
    from flwr.app import Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedAvg

    from flower_scheduling import ScheduledStrategy
    from flower_scheduling.client.wire.arrays import decode_array, encode_array
    from flower_scheduling.simulation.engine.virtual_grid import VirtualGrid
    from flower_scheduling.simulation.environments.paper import Environment

    app = ClientApp()

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        arrays = message.content["arrays"]
        for key in list(arrays):
            arrays[key] = encode_array(decode_array(arrays[key]))
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    nodes: list[dict[str, Any]] = [{"name": f"client-{k}"} for k in range(NUM_REPLIES)]
    grid = VirtualGrid(app, Environment(num_arms=NUM_REPLIES), nodes, {})
    with tempfile.TemporaryDirectory() as folder:
        strategy = ScheduledStrategy(
            FedAvg(fraction_evaluate=0.0),
            "random",
            num_selected=NUM_REPLIES,
            tau_max_s=100.0,
            run_dir=folder,
        )
        strategy.start(grid, model(num_values, num_arrays), NUM_ROUNDS)
    return 4 * num_values


def model(num_values: int, num_arrays: int) -> Any:
    from flwr.app import ArrayRecord

    from flower_scheduling.client.wire.arrays import encode_array

    record = ArrayRecord()
    for number in range(num_arrays):
        record[f"{number}.weight"] = encode_array(
            np.ones(max(1, num_values // num_arrays), np.float32)
        )
    return record


# --- client ---------------------------------------------------------------------------------------


def train(num_values: int, num_arrays: int) -> int:
    """Answer messages with a network of about so many weights; return its bytes."""
    import torch
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

    from flower_scheduling._flwr import take_identity
    from flower_scheduling.client.app import app
    from flower_scheduling.client.learning.models import MODELS, ModelSpec
    from flower_scheduling.client.wire.arrays import encode_array

    class Wide(torch.nn.Module):
        """As many matrices as asked for, one after the other, between 784 pixels and 10 labels."""

        def __init__(self, spec: object = None) -> None:
            super().__init__()
            width = max(1, int((num_values / num_arrays) ** 0.5))
            layer = torch.nn.Linear
            middle = [layer(width, width, bias=False) for _ in range(num_arrays)]
            ends = layer(784, width, bias=False), layer(width, 10, bias=False)
            self.layers = torch.nn.Sequential(torch.nn.Flatten(), ends[0], *middle, ends[1])

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.layers(images)
            return result

    name = f"wide-{num_values}"
    MODELS[name] = ModelSpec(name, Wide, "")  # type: ignore[index]
    take_identity(1)
    config = {"model": name, "batch-size": 2, "learning-rate": 1e-3, "local-steps": 1}
    config |= {"partitioner": "iid", "seed": 0, "data-dir": ""}
    context = Context(1, 9, {"partition-id": 0, "num-partitions": 20}, RecordDict(), config)
    with torch.device("meta"):  # shapes alone
        shapes = {key: tuple(value.shape) for key, value in Wide().state_dict().items()}
    for number in range(1, NUM_MESSAGES + 1):
        arrays = ArrayRecord()
        for key, shape in shapes.items():
            arrays[key] = encode_array(np.zeros(shape, np.float32))
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": number})})
        message = Message(content, dst_node_id=9, message_type="train")
        del arrays, content
        app(message, context)
    return 4 * sum(map(math.prod, shapes.values()))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    if sys.argv[1:2] == ["--case"]:
        measure(*sys.argv[2:])
    else:
        main()
