"""How fast the simulation runs, against other simulators and a plain torch loop.

    python benchmarks/bench_simulation.py

All sides do the same work: 20 clients hold MNIST, and in each round 5 of them, chosen at random,
take one SGD step of logistic regression on two images; the server averages. Ours is the whole
simulation, files included; batched is our trainer for figures, which sends no messages and gives
the same rounds. The Ray engine runs the same ClientApp under Flower's FedAvg, with Flower's default
resources. FedLab runs its standalone pipeline, FedJAX its federated averaging; neither has
messages, checks or files. The torch loop knows no framework. Nobody evaluates in the timed rounds.
A speed-up is ours over the peer's.

Each measurement is a process of its own, and the sides take turns, so that a noisy machine is
noisy for all of them. Needs `pip install -e '.[bench]'` for the peers; what is not installed is
left out, and said so. Takes three to five minutes.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import logging
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    from flwr.app import ArrayRecord, Context, Message
    from flwr.serverapp import Grid

    from flower_scheduling.server.settings.run import ServerConfig
    from flower_scheduling.simulation.settings import SimulationConfig
    from flower_scheduling.strategies.flower import RoundRecord

ROOT = Path(__file__).resolve().parents[1]
SEED = 1
NUM_CLIENTS, NUM_SELECTED = 20, 5
REPEATS = 5
ROUNDS = {
    "ours": 2000,
    "batched": 10_000,
    "ray": 50,
    "fedlab": 1000,
    "fedjax": 1000,
    "torch": 2000,
}
WARM_UP = {
    "ours": 200,
    "batched": 1000,
    "ray": 10,
    "fedlab": 100,
    "fedjax": 100,
    "torch": 200,
}
PEERS = {"ray": "ray", "fedlab": "fedlab", "fedjax": "fedjax"}  # side: package
TARGET_RATIO = {"ours": 40, "batched": 250}
TARGET_OF_TORCH = 0.8
TARGET_START = 1.5  # of the time of an import of torch

FIRST_ROUND = "@first-round"
ROUNDS_PER_S = "@rounds-per-s"


# --- the sides, each in a process of its own ------------------------------------------------------


class Clock:
    """Takes the time at the end of each round."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def tick(self) -> None:
        self.ends.append(time.perf_counter())
        if len(self.ends) == 1:
            print(FIRST_ROUND, flush=True)

    def report(self, side: str) -> None:
        warm_up, rounds = WARM_UP[side], ROUNDS[side]
        spent = self.ends[warm_up + rounds - 1] - self.ends[warm_up - 1]
        print(ROUNDS_PER_S, rounds / spent, flush=True)


def settings() -> ServerConfig:
    """Return what all sides train: logistic regression, batch 2, one local step."""
    from flower_scheduling.server.settings.run import ServerConfig

    return ServerConfig(
        model="logistic",
        batch_size=2,
        local_steps=1,
        learning_rate=0.001,
        partitioner="iid",
        seed=SEED,
        num_selected=NUM_SELECTED,
        strategy="random",
        fairness="none",
        tau_max_s=1e6,  # nobody is late, so that all five do their work
    )


def simulation_settings(side: str, run_dir: str = "") -> SimulationConfig:
    from flower_scheduling.simulation.settings import SimulationConfig

    num_rounds = WARM_UP[side] + ROUNDS[side] + 1  # the last is evaluated, and not timed
    return SimulationConfig.from_mapping(
        {
            **settings().to_mapping(),
            "wait-s": SimulationConfig().wait_s,
            "checkpoint-every": SimulationConfig().checkpoint_every,
            "num-clients": NUM_CLIENTS,
            "rounds": num_rounds,
            "eval-every": num_rounds,
            "run-dir": run_dir,
        }
    )


def simulate() -> None:
    from flower_scheduling.simulation.engine.runner import Simulation

    clock = Clock()

    def hook(record: RoundRecord, arrays: ArrayRecord) -> None:
        assert record.completed == [True] * NUM_SELECTED
        assert record.stepped
        clock.tick()

    with tempfile.TemporaryDirectory() as folder:
        Simulation(simulation_settings("ours", str(Path(folder) / "run"))).run([hook])
    clock.report("ours")


def simulate_batched() -> None:
    from flower_scheduling.simulation.engine.batched import run_batched

    clock = Clock()

    def hook(server_round: int, selected: np.ndarray, completed: np.ndarray, time_s: float) -> None:
        assert completed.sum() == NUM_SELECTED
        clock.tick()

    run_batched(simulation_settings("batched"), hook)
    clock.report("batched")


def use_ray() -> None:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    from flower_scheduling.client.app import app
    from flower_scheduling.client.learning.models import initial_arrays

    config = settings()
    run_config = config.to_mapping()
    clock = Clock()
    server_app = ServerApp()

    class ConfiguredApp(ClientApp):
        """Our app; the engine's Python interface leaves its run configuration empty."""

        def __call__(self, message: Message, context: Context) -> Message:
            return app(message, dataclasses.replace(context, run_config=run_config))

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=NUM_SELECTED / NUM_CLIENTS,
            fraction_evaluate=0.0,
            min_train_nodes=NUM_SELECTED,
            min_available_nodes=NUM_CLIENTS,
        )

        def end_of_round(server_round: int, arrays: ArrayRecord) -> None:
            if server_round > 0:  # it is called once before the first round
                clock.tick()

        num_rounds = WARM_UP["ray"] + ROUNDS["ray"]
        initial = initial_arrays(config.model, config.seed)
        result = strategy.start(grid, initial, num_rounds, evaluate_fn=end_of_round)
        assert len(result.train_metrics_clientapp) == num_rounds

    logging.getLogger("flwr").setLevel(logging.WARNING)  # as in our simulation
    run_simulation(server_app, ConfiguredApp(), NUM_CLIENTS)
    clock.report("ray")


def client_data() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the clients' images, (num_examples, 784) float32, and their labels."""
    import torch

    from flower_scheduling.client.learning.images import scale_pixels
    from flower_scheduling.client.learning.mnist import load_mnist
    from flower_scheduling.client.learning.partitions import build_partition

    torch.set_num_threads(1)  # as in our simulation: threads cost more than they bring
    data = load_mnist()
    parts = build_partition(settings().partitioner, data.train_labels.numpy(), NUM_CLIENTS, SEED)
    images = [scale_pixels(data.train_images[part]).flatten(1) for part in parts]
    return images, [data.train_labels[part] for part in parts]


def use_fedlab() -> None:
    import logging

    import numpy as np
    from fedlab.contrib.algorithm import SGDSerialClientTrainer, SyncServerHandler
    from fedlab.core.standalone import StandalonePipeline
    from torch import nn

    config, clock = settings(), Clock()
    images, labels = client_data()
    rng = np.random.default_rng(SEED)
    logging.getLogger().setLevel(logging.WARNING)

    class Data:
        """Its loaders have the one minibatch of a round: torch's own would be slower."""

        def get_dataloader(self, client: int, batch_size: int) -> list[Any]:
            batch = rng.integers(len(labels[client]), size=batch_size)
            return [(images[client][batch], labels[client][batch])]

    class Pipeline(StandalonePipeline):  # type: ignore[misc]
        def evaluate(self) -> None:
            clock.tick()

    trainer = SGDSerialClientTrainer(nn.Linear(784, 10), NUM_CLIENTS)
    trainer.setup_dataset(Data())
    trainer.setup_optim(epochs=1, batch_size=config.batch_size, lr=config.learning_rate)
    num_rounds = WARM_UP["fedlab"] + ROUNDS["fedlab"]
    handler = SyncServerHandler(nn.Linear(784, 10), num_rounds, NUM_SELECTED / NUM_CLIENTS)
    Pipeline(handler, trainer).main()
    clock.report("fedlab")


def use_fedjax() -> None:
    import jax
    import jax.numpy as jnp

    jax.tree_map = jax.tree_util.tree_map  # fedjax 0.0.17 still uses it, jax 0.10 has dropped it
    import fedjax

    config, clock = settings(), Clock()
    images, labels = client_data()
    data = fedjax.InMemoryFederatedData(
        {
            str(client).encode(): {"x": images[client].numpy(), "y": labels[client].numpy()}
            for client in range(NUM_CLIENTS)
        }
    )

    def loss(params: Any, batch: Any, rng: Any) -> Any:
        logits = batch["x"] @ params["weight"] + params["bias"]
        of_label = jnp.take_along_axis(logits, batch["y"][:, None], axis=1)[:, 0]
        return (jax.nn.logsumexp(logits, axis=1) - of_label).mean()

    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.jit(jax.grad(loss)),
        fedjax.optimizers.sgd(config.learning_rate),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(config.batch_size, num_epochs=None, num_steps=1),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, NUM_SELECTED, SEED)
    state = algorithm.init({"weight": jnp.zeros((784, 10)), "bias": jnp.zeros(10)})
    for _ in range(WARM_UP["fedjax"] + ROUNDS["fedjax"]):
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
        clock.tick()
    clock.report("fedjax")


def use_torch() -> None:
    import numpy as np
    import torch
    from torch import nn

    config = settings()
    images, labels = client_data()
    rng = np.random.default_rng(SEED)
    model = nn.Linear(784, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate)
    weights = {key: torch.zeros_like(value) for key, value in model.state_dict().items()}
    clock = Clock()
    for _ in range(WARM_UP["torch"] + ROUNDS["torch"]):
        updates = []
        for client in rng.choice(NUM_CLIENTS, NUM_SELECTED, replace=False):
            model.load_state_dict(weights)
            batch = rng.integers(len(labels[client]), size=config.batch_size)
            logits = model(images[client][batch])
            loss = nn.functional.cross_entropy(logits, labels[client][batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            updates.append({key: value.clone() for key, value in model.state_dict().items()})
        # The shares are equally large, so FedAvg's weights are too.
        weights = {key: torch.stack([u[key] for u in updates]).mean(0) for key in weights}
        clock.tick()
    clock.report("torch")


SIDES = {
    "ours": simulate,
    "batched": simulate_batched,
    "ray": use_ray,
    "fedlab": use_fedlab,
    "fedjax": use_fedjax,
    "torch": use_torch,
}


# --- measuring ------------------------------------------------------------------------------------


@dataclasses.dataclass
class Measured:
    """What one process took: seconds to its first round and its end, rounds per second."""

    first_round_s: float = 0.0
    end_s: float = 0.0
    rounds_per_s: float = 0.0


def measure(*arguments: str) -> Measured:
    """Run Python with these arguments."""
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    measured = Measured()
    with tempfile.TemporaryFile("w+") as errors:
        begin = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(FIRST_ROUND):
                    measured.first_round_s = time.perf_counter() - begin
                elif line.startswith(ROUNDS_PER_S):
                    measured.rounds_per_s = float(line.split()[1])
        measured.end_s = time.perf_counter() - begin
        if process.returncode != 0:
            errors.seek(0)
            raise SystemExit(f"{errors.read()}\nfailed: python {' '.join(arguments)}")
    return measured


def measure_command_line() -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        return measure("-m", "simulation", "--rounds", "1", "--run-dir", str(Path(folder) / "run"))


def row(
    label: str, values: list[float], digits: int, speed_up: str = "", batched_speed_up: str = ""
) -> None:
    spread = f"{min(values):.{digits}f} to {max(values):.{digits}f}"
    print(
        f"{label:<50} {median(values):>8.{digits}f} {spread:>18} {speed_up:>9} "
        f"{batched_speed_up:>9}".rstrip()
    )


def main() -> None:
    begin = time.perf_counter()
    there = [s for s in SIDES if s not in PEERS or importlib.util.find_spec(PEERS[s]) is not None]
    packages = ["flwr", "torch", "numpy", *(PEERS[side] for side in there if side in PEERS)]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    print(", ".join([f"Python {platform.python_version()}", *versions]))
    print(f"{platform.machine()}, {os.cpu_count()} cores, seed {SEED}, {REPEATS} processes each")

    measure_command_line()  # not counted: fetches the data if need be, and fills the disk's cache
    command_line: list[Measured] = []
    imports: list[Measured] = []
    sides: dict[str, list[Measured]] = {side: [] for side in there}
    for _ in range(REPEATS):
        command_line.append(measure_command_line())
        imports.append(measure("-c", "import torch"))
        for side, done in sides.items():
            done.append(measure(__file__, side))

    rate = {side: [m.rounds_per_s for m in done] for side, done in sides.items()}
    start_s, import_s = ([m.end_s for m in done] for done in (command_line, imports))
    labels = {
        "ours": "ours",
        "batched": "ours, batched",
        "ray": "Flower's Ray engine",
        "fedlab": "FedLab",
        "fedjax": "FedJAX",
        "torch": "plain torch loop",
    }
    print(f"\n{'':<50} {'median':>8} {'spread':>18} {'speed-up':>9} {'batched':>9}")
    print(f"rounds per second, {NUM_SELECTED} of {NUM_CLIENTS} clients")
    for side in SIDES:
        if side not in rate:
            print(f"  {labels[side]:<48} not installed: pip install -e '.[bench]'")
            continue
        ratios = []
        if side not in ("ours", "batched"):
            over = median(rate[side])
            ratios = [f"{median(rate[us]) / over:.2f}x" for us in ("ours", "batched")]
        row(f"  {labels[side]}", rate[side], 1, *ratios)
    print("start-up [s]")
    row("  ours: python -m simulation --rounds 1, to its end", start_s, 2)
    faster = f"{median(import_s) / median(start_s):.2f}x"
    row("  python -c 'import torch'", import_s, 2, faster)
    if "ray" in rate:
        ray_s = [m.first_round_s for m in sides["ray"]]
        faster = f"{median(ray_s) / median(start_s):.2f}x"
        row("  Flower's Ray engine, to the end of its round 1", ray_s, 2, faster)

    print()
    if "ray" in rate:
        for side, ratio in TARGET_RATIO.items():
            met = median(rate[side]) >= ratio * median(rate["ray"])
            target(f"{labels[side]}: {ratio}x Ray", met)
    ours, loop = median(rate["ours"]), median(rate["torch"])
    target(f"ours: {TARGET_OF_TORCH}x the torch loop", ours >= TARGET_OF_TORCH * loop)
    for side in ("fedlab", "fedjax"):
        if side in rate:
            target(f"ours: faster than {labels[side]}", ours > median(rate[side]))
    met = median(start_s) <= TARGET_START * median(import_s)
    target(f"start-up within {TARGET_START} times an import of torch", met)
    print(f"took {time.perf_counter() - begin:.0f} s")


def target(what: str, met: bool) -> None:
    print(f"target {what}: {'met' if met else 'MISSED'}")


if __name__ == "__main__":
    SIDES[sys.argv[1]]() if len(sys.argv) > 1 else main()
