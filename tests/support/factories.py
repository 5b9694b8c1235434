"""Records of rounds, arms and models, as several test files want them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from flower_scheduling.columns import columns
from flower_scheduling.strategies.flower import Arm, ArmResult, RoundRecord


def round_record(round: int = 1, selected: Sequence[int] = (0, 1), **values: Any) -> RoundRecord:
    """Make the record of a round of a second: arms a, b and c are there, all that was sent came.

    ``names`` and the columns of an arm's result are lists, a value per selected arm.
    """
    names = values.pop("names", [chr(ord("a") + arm) for arm in selected])
    lists: dict[str, Sequence[Any]] = {"name": names, "rtt_s": [1.0] * len(selected)}
    lists |= {name: values.pop(name) for name in columns(ArmResult) if name in values}
    results = [
        ArmResult(arm, **{name: each[place] for name, each in lists.items()})
        for place, arm in enumerate(selected)
    ]
    whole: dict[str, Any] = {"time_s": float(round), "round_s": 1.0, "num_arms": 3}
    whole |= {"available": [0, 1, 2], "stepped": True, **values}
    return RoundRecord(round=round, results=results, **whole)


def half_failed(round: int = 1, **changes: Any) -> RoundRecord:
    """Make the record of a round of 1.5 s in which arm a did as asked and arm c was too late."""
    values: dict[str, Any] = {
        "time_s": 1.5,
        "round_s": 1.5,
        "selected": [0, 2],
        "rtt_s": [1.5, None],
        "reason": [None, "timeout"],
        "compute_s": [1.0, None],
        "link_s": [0.5, None],
    }
    return round_record(round, **{**values, **changes})


def small_model(value: float = 0.0) -> ArrayRecord:
    """Make a model of one array, ``w``, of two equal values."""
    return ArrayRecord({"w": Array(np.full(2, value, dtype=np.float32))})


def three_arms() -> list[Arm]:
    """Make arms a, b and c with 10, 20 and 30 examples."""
    return [Arm(i, f"key{i}", 100 + i, name, 10 * (i + 1)) for i, name in enumerate("abc")]
