"""The league's training track: seconds to an accuracy, not only seconds per round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from rich.table import Table

from simulation.config import SCENARIOS, SimulationConfig
from simulation.paper.estimate import estimate
from simulation.paper.pieces import Arrays, Piece

TARGET: Final = 0.8
LINEAR_PROGRAM: Final = "linear-program"
"""No policy but the optimum of the paper's linear program, which knows the law of every time."""
POLICIES_SHOWN: Final = (
    *("cs-ucb-q-adaptive", "cs-ucb-q", "cs-ucb-adaptive", "local-accuracy"),
    *("oort", "random", "round-robin", LINEAR_PROGRAM),
)
"""The leading policies, those to beat, and the shortest rounds that the floors allow."""
_ROUNDS: Final = 6000
_PIECE_S: Final = 12.0


def pieces_of(policies: Sequence[str], num_seeds: int) -> list[Piece]:
    """Return the work: one run of the paper's non-ideal scenario per policy and seed."""
    return [
        Piece(f"training-{name}-{seed:02}", partial(_train, name, seed), _PIECE_S)
        for name in policies
        for seed in range(num_seeds)
    ]


def rows(
    policies: Sequence[str], num_seeds: int, results: Mapping[str, Arrays]
) -> list[dict[str, Any]]:
    """Return one row per policy; ``reached`` counts the runs that reached the target.

    Of a policy that did not reach it in some run, seconds and rounds are ``None``: a mean over the
    others would flatter it.
    """
    found = []
    for name in policies:
        runs = [results[f"training-{name}-{seed:02}"] for seed in range(num_seeds)]
        seconds = np.array([float(run["seconds"]) for run in runs])
        rounds = np.array([float(run["rounds"]) for run in runs])
        reached = int(np.isfinite(seconds).sum())
        whole = estimate(seconds) if reached == num_seeds else None
        found.append(
            {
                "policy": name,
                "target": TARGET,
                "reached": reached,
                "runs": num_seeds,
                "seconds": whole and round(whole.mean, 1),
                "low": whole and round(whole.low, 1),
                "high": whole and round(whole.high, 1),
                "rounds": whole and round(float(rounds.mean()), 1),
                "best_accuracy": round(float(np.mean([run["best"] for run in runs])), 4),
            }
        )
    return found


def table(found: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows for people."""
    shown = Table(title=f"Seconds to {TARGET:.0%} in the paper's non-ideal scenario")
    shown.add_column("policy")
    for column in ("seconds", "95 %", "rounds", "runs that reach it", f"best in {_ROUNDS} rounds"):
        shown.add_column(column, justify="right")
    for row in found:
        known = row["seconds"] is not None
        shown.add_row(
            row["policy"],
            f"{row['seconds']:.0f}" if known else "",
            f"{row['low']:.0f} to {row['high']:.0f}" if known else "",
            f"{row['rounds']:.0f}" if known else "",
            f"{row['reached']} of {row['runs']}",
            f"{row['best_accuracy']:.3f}",
        )
    return shown


def markdown(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a table for documentation."""
    lines = [
        "| policy | seconds | 95 % interval | rounds | runs that reach it |",
        "|---|---|---|---|---|",
    ]
    for row in found:
        numbers = ["", "", ""]
        if row["seconds"] is not None:
            interval = f"{row['low']:.0f} to {row['high']:.0f}"
            numbers = [f"{row['seconds']:.0f}", interval, f"{row['rounds']:.0f}"]
        runs = f"{row['reached']} of {row['runs']}"
        lines.append(f"| `{row['policy']}` | {' | '.join(numbers)} | {runs} |")
    return "\n".join(lines) + "\n"


def _train(name: str, seed: int) -> Arrays:
    from simulation.batched import run_batched  # takes seconds: torch

    from .linear_program import linear_program

    known = name == LINEAR_PROGRAM
    settings = {
        **SCENARIOS["non-ideal"],
        "strategy": SCENARIOS["non-ideal"]["strategy"] if known else name,
        "seed": seed,
        "rounds": _ROUNDS,
        "target-accuracy": TARGET,
    }
    config = SimulationConfig.from_mapping(settings)
    curve = run_batched(config, policy=linear_program(config) if known else None)
    reached = curve.accuracy >= TARGET
    first = int(reached.argmax())
    return {
        "seconds": np.array(curve.time_s[first] if reached.any() else np.inf),
        "rounds": np.array(curve.rounds[first] if reached.any() else np.inf),
        "best": np.array(curve.accuracy.max()),
    }
