"""What ``--compress`` costs and saves: processor time per megabyte, and accuracy.

    python benchmarks/bench_compression.py [--accuracy [--seeds 5]]

The first table is of one float32 array of 16 MB, weights as a trained layer has them (normal, 0.05)
and an update of a fiftieth of their size: megabytes of the array per second of processor time to
encode and to restore it, and the bytes that cross. Takes a few seconds.

``--accuracy`` trains: the league's task ``dirichlet`` in simulations, 300 rounds of 5 of 20 clients
with a mixture of digits of their own, ten steps each, over the paper's radio cell with the model's
real size on its links. The policy is ``random``, which selects the same clients whatever their
times, so that all kinds have the same rounds. It prints a table for the documentation; about 20
minutes of one core.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SIZE = 4 * 2**20  # float32 values
REPEATS = 5
KINDS = ("", "zstd", "bfloat16", "up=int8", "up=int8,down=bfloat16")
TRAINING = {
    "strategy": "random",
    "fairness": "none",
    "rounds": 300,
    "eval-every": 5,
    "payload-bits": "model",
    "tau-max-s": 600.0,
}
TARGET = 0.86


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the least processor time of some calls [s], and what they return."""
    least, result = np.inf, None
    for _ in range(REPEATS):
        begin = time.process_time()
        result = call()
        least = min(least, time.process_time() - begin)
    return least, result


def speed() -> None:
    from flwr.app import ArrayRecord, RecordDict

    from flower_scheduling.client.wire.arrays import encode_array
    from flower_scheduling.client.wire.compression import (
        SentModel,
        UpdateEncoder,
        restore,
        value_encoder,
    )

    rng = np.random.default_rng(1)
    weights = (0.05 * rng.standard_normal(SIZE)).astype(np.float32)
    update = (0.001 * rng.standard_normal(SIZE)).astype(np.float32)
    before, after = encode_array(weights), encode_array(weights + update)
    model = SentModel(RecordDict({"arrays": ArrayRecord({"w": before})}))
    rows = [("down", kind, value_encoder(kind), before) for kind in ("bfloat16", "zstd")]
    rows += [
        ("up", kind, UpdateEncoder().encoder(kind, model), after)
        for kind in ("bfloat16", "int8", "zstd")
    ]
    rows += [("up", "any, unchanged", UpdateEncoder().encoder("zstd", model), before)]
    megabytes = weights.nbytes / 2**20
    print(f"{'':<22}{'encode [MB/s]':>14}{'restore [MB/s]':>16}{'bytes':>8}")
    for direction, kind, encoder, array in rows:
        assert encoder is not None
        encode_s, found = seconds(lambda: encoder("arrays", "w", array))  # noqa: B023
        code, data = found
        restore_s, _ = seconds(lambda: restore(code, data, "float32", (SIZE,), before))  # noqa: B023
        print(
            f"{direction + ' ' + kind:<22}{megabytes / encode_s:>14.0f}"
            f"{megabytes / restore_s:>16.0f}{len(data) / weights.nbytes:>8.1%}"
        )


def accuracy(seeds: Sequence[int]) -> None:
    from flower_scheduling.simulation.benchmark.training_track import TASKS
    from flower_scheduling.simulation.engine.runner import Simulation
    from flower_scheduling.simulation.settings import SimulationConfig

    print(
        f"| `--compress` | accuracy after {TRAINING['rounds']} rounds | rounds to {TARGET:.0%} "
        f"| seconds to {TARGET:.0%} | kB down a round | kB up a round |\n|---|---|---|---|---|---|"
    )
    for kind in KINDS:
        last, rounds, times, down, up = [], [], [], [], []
        for seed in seeds:
            config = SimulationConfig.from_mapping(
                {**TASKS["dirichlet"].settings, **TRAINING, "seed": seed, "compress": kind}
            )
            records = Simulation(config).run().records
            last.append(np.mean([r.accuracy for r in records[-50:] if r.accuracy is not None]))
            first = next(r for r in records if (r.accuracy or 0) >= TARGET)
            rounds.append(first.round)
            times.append(first.time_s)
            whole = 31_400 + 2 * 128  # bytes of the arrays and their headers, to each client
            down.append(mean(r.sent_bytes or whole * len(r.results) for r in records) / 1000)
            up.append(mean(r.received_bytes or whole * len(r.results) for r in records) / 1000)
        low, high = min(last), max(last)
        print(
            f"| {f'`{kind}`' if kind else 'none'} | {mean(last):.2%} ({low:.1%} to {high:.1%}) "
            f"| {mean(rounds):.0f} | {mean(times):.0f} | {mean(down):.0f} | {mean(up):.0f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--accuracy", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.accuracy:
        accuracy(range(arguments.seeds))
    else:
        speed()


if __name__ == "__main__":
    import sys

    sys.path.insert(0, str(ROOT))
    main()
