"""What floors cost in speed, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from flower_scheduling.strategies.flower.buffer.floor_cost import FloorCost

NAMES = ["dev-0", "dev-1", "dev-2"]


def timed(num_channels: int, *times_s: float) -> FloorCost:
    """Return what has noted three answers of each client."""
    cost = FloorCost(num_channels)
    for arm, time_s in enumerate(times_s):
        assert [cost.note(arm, time_s) for _ in range(3)] == [False, False, True]
    return cost


def test_a_slow_client_with_a_floor_is_named() -> None:
    # It makes an update in 20 s, and each tenth is to be its own: one in 2 s at most.
    line = timed(2, 20.0, 0.5, 0.5).line(np.array([0.1, 0.0, 0.0]), NAMES)
    assert line == (
        "floors leave at most 0.5 updates/s, without them 4: dev-0 takes 20 s and is guaranteed "
        "10.0% of all updates, so channels stay free while it works"
    )


def test_floors_that_take_the_time_of_the_channels_are_said_as_well() -> None:
    # 0.3 x (2 + 2) + 0.3 x 1 = 1.5 s of one channel an update; the fastest alone makes 1 a second.
    assert timed(1, 2.0, 2.0, 1.0).line(np.full(3, 0.3), NAMES) is None
    line = timed(1, 4.0, 4.0, 1.0).line(np.full(3, 0.3), NAMES)
    assert line is not None
    assert "at most 0.37 updates/s, without them 1: guaranteed updates take 2.7 s of" in line


def test_it_is_said_once_and_not_before_all_with_floors_are_known() -> None:
    floors = np.array([0.1, 0.1, 0.0])
    cost = timed(2, 20.0)
    assert cost.line(floors, NAMES) is None
    assert [cost.note(1, 0.1) for _ in range(3)] == [False, False, True]
    assert cost.line(floors, NAMES) is not None
    assert not any(cost.note(2, 0.1) for _ in range(3))


@pytest.mark.parametrize("floors", [np.zeros(3), np.array([0.0, 0.1, 0.1])])
def test_floors_that_cost_little_are_not_worth_a_line(floors: np.ndarray) -> None:
    assert timed(2, 20.0, 0.5, 0.5).line(floors, NAMES) is None
