"""Run directories as the page finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from factories import round_record, small_model

from flower_scheduling.server.runs.directory import RunDirectory
from flower_scheduling.strategies import Explanation
from flower_scheduling.strategies.flower import Arm, ArmResult, Pick, RoundRecord

MODEL = small_model()
NAMES = ["a", "<script>alert(1)</script>", "c"]
CONFIG: dict[str, Any] = {
    "strategy": "cs-ucb-q",
    "num-selected": 2,
    "tau-max-s": 5.0,
    "rounds": 10,
    "target-accuracy": 0.9,
    "checkpoint-every": 0,
    "explain": True,
}


def record(number: int, **changes: Any) -> RoundRecord:
    value = np.array([0.5, 0.25, 0.125])
    explanation = Explanation("largest", "", {"mean": value, "queue": value * number})
    values: dict[str, Any] = {
        "time_s": 2.0 * number,
        "round_s": 2.0,
        "available": [0, 1],
        "names": NAMES[:2],
        "rtt_s": [0.5 * number, 2.0],
        "compute_s": [0.25, 1.5],
        "link_s": [0.125, 0.25],
        "explanation": explanation,
        "queue": value,
    }
    return round_record(number, **{**values, **changes})


def pick(arm: int, begin_s: float, score: list[float], idle: list[int] | None = None) -> Pick:
    """Make a pick of the smallest score among idle arms, all by default."""
    there = np.zeros(len(score), dtype=np.bool_)
    there[list(range(len(score))) if idle is None else idle] = True
    explanation = Explanation("smallest", "s", {"mean": np.array(score)})
    return Pick(arm, begin_s, there, explanation, np.zeros(len(score)))


def step(
    number: int,
    ended: list[tuple[int, float, float | None]],
    picks: list[Pick],
    **changes: Any,
) -> RoundRecord:
    """Make a buffered step in which work has ended: arm, begin and length [s], or none: lost."""
    results = [
        ArmResult(arm, NAMES[arm], taken, None if taken else "timeout", staleness=0, begin_s=begin)
        for arm, begin, taken in ended
    ]
    values: dict[str, Any] = {
        **{"time_s": float(number), "round_s": 1.0, "num_arms": 3, "available": [0, 1, 2]},
        **{"stepped": True, "buffered": True, "picks": picks, "queue": np.zeros(3)},
        "explanation": picks[-1].explanation if picks else None,
    }
    return RoundRecord(number, results=results, **{**values, **changes})


class Run:
    """A run directory that is being written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.directory = RunDirectory(path, CONFIG)

    def write(self, *records: RoundRecord) -> None:
        for each in records:
            self.directory.write_round(each, MODEL)
        arms = [Arm(i, f"key{i}", 100 + i, name, 10 * (i + 1)) for i, name in enumerate(NAMES)]
        self.directory.note_arms(arms, [0.5, 0.25, 0.0])
