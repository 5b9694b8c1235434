"""Comparisons: time to the target, never totals of runs of unequal length."""

from __future__ import annotations

from typing import Any

import pytest

from flower_scheduling.simulation.engine.runner import SimulationResult
from flower_scheduling.simulation.settings import SimulationConfig
from flower_scheduling.simulation.terminal.comparison import comparison


def result(
    strategy: str,
    *,
    target: float = 0.8,
    reached_s: float | None = None,
    time_s: float = 100.0,
    rounds: int = 50,
    accuracy: float | None = 0.5,
) -> SimulationResult:
    summary: dict[str, Any] = {
        "rounds": rounds,
        "time_s": time_s if reached_s is None else reached_s,
        "target_time_s": reached_s,
        "accuracy": accuracy,
    }
    config = SimulationConfig(strategy=strategy, target_accuracy=target)
    return SimulationResult(config, summary, [])


def test_the_first_at_the_target_is_named_and_who_missed_it() -> None:
    found = [
        result("random", time_s=1.0),
        result("cs-ucb-q", reached_s=150.0, rounds=40),
        result("round-robin", time_s=2.0),
        result("cs-ucb-q-loss", reached_s=100.0, rounds=30),
        result("cs-ucb", reached_s=124.0, rounds=30),
    ]
    assert comparison(found) == (
        "cs-ucb-q-loss reached 80.0% test accuracy first, after 100 s; cs-ucb took 1.24 times as "
        "long, cs-ucb-q 1.50; not reached by 2 of 5 in 50 rounds: random, round-robin."
    )


@pytest.mark.parametrize(
    ("accuracy", "end"), [(0.61, "by any of 2; cs-ucb came to 61.0%."), (None, "by any of 2.")]
)
def test_where_all_missed_it_no_time_is_compared(accuracy: float | None, end: str) -> None:
    found = [result("random", time_s=1.0, accuracy=None), result("cs-ucb", accuracy=accuracy)]
    assert comparison(found) == f"80.0% test accuracy: not reached {end}"


def test_without_a_target_runs_of_equal_length_are_compared() -> None:
    found = [result("random", target=0.0, time_s=30.0), result("cs-ucb", target=0.0, time_s=12.0)]
    assert comparison(found) == (
        "cs-ucb took the least time for 50 rounds, 12.0 s; random took 2.50 times as long."
    )


def test_without_a_target_runs_of_unequal_length_are_not() -> None:
    found = [result("random", target=0.0, rounds=30), result("cs-ucb", target=0.0, rounds=31)]
    assert "cannot be compared" in comparison(found)
