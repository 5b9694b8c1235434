"""Non-stationary environments: draws follow the parameters, and means are those of the draws."""

from __future__ import annotations

import numpy as np
import pytest

from flower_scheduling.errors import ConfigError
from flower_scheduling.simulation.environments.nonstationary import NonstationaryEnvironment
from flower_scheduling.simulation.environments.paper import Environment

TAU_MAX_S = 5.0
SHARED = {"num_arms": 6, "batch_shape": (3,), "seed": 5}


def mean_time_s(world: NonstationaryEnvironment, rounds: range) -> np.ndarray:
    times_s = [np.minimum(world.round(t).round_trip_time_s, TAU_MAX_S) for t in rounds]
    return np.mean(times_s, axis=0)


def test_a_tidy_world_is_the_papers() -> None:
    world, paper = NonstationaryEnvironment(**SHARED), Environment(**SHARED)
    for t in (1, 7, 3):
        assert np.array_equal(world.round(t).round_trip_time_s, paper.round(t).round_trip_time_s)
        assert np.array_equal(world.round(t).available, paper.round(t).available)
    assert np.array_equal(world.expected_time_s(TAU_MAX_S), paper.expected_time_s(TAU_MAX_S))
    assert np.array_equal(world.time_law(TAU_MAX_S)[0], paper.time_law(TAU_MAX_S)[0])


@pytest.mark.parametrize(
    "settings",
    [
        {"compute_law": "lognormal", "compute_shape": 0.8},
        {"compute_law": "pareto", "compute_shape": 2.5},
        {"compute_law": "pareto", "compute_shape": 3.0, "failure_probability": 0.1},
    ],
)
def test_expected_times_are_the_means_of_the_draws(settings: dict[str, object]) -> None:
    world = NonstationaryEnvironment(**SHARED, **settings)
    found = mean_time_s(world, range(1, 4001))
    assert found == pytest.approx(world.expected_time_s(TAU_MAX_S), rel=0.08)
    assert found.mean() == pytest.approx(world.expected_time_s(TAU_MAX_S).mean(), rel=0.02)


def test_ranks_are_reversed_from_their_round_on() -> None:
    world = NonstationaryEnvironment(**SHARED, reversed_from_round=11)
    before, after = (world.expected_time_s(TAU_MAX_S, t) for t in (10, 11))
    assert np.array_equal(np.sort(before), np.sort(after))
    assert np.array_equal(before.argsort(axis=1), after.argsort(axis=1)[:, ::-1])
    assert mean_time_s(world, range(11, 3011)) == pytest.approx(after, rel=0.15)
    plain = Environment(**SHARED).round(12).round_trip_time_s
    assert np.array_equal(np.sort(world.round(12).round_trip_time_s), np.sort(plain))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"drift": 0.7}, {"daily": 0.6}])
def test_speeds_swing_about_their_means(settings: dict[str, float]) -> None:
    world = NonstationaryEnvironment(**SHARED, period=100, **settings)
    for t in (1, 26, 51, 76):
        same_phase = range(t, t + 100 * 2000, 100)
        found = np.mean(
            [np.minimum(world.round(r).round_trip_time_s, TAU_MAX_S) for r in same_phase], axis=0
        )
        assert found == pytest.approx(world.expected_time_s(TAU_MAX_S, t), rel=0.2)
        assert found.mean() == pytest.approx(world.expected_time_s(TAU_MAX_S, t).mean(), rel=0.03)
    assert world.expected_time_s(TAU_MAX_S, 1) == pytest.approx(world.expected_time_s(5.0, 101))


def test_bursts_last_as_long_as_they_say_in_any_order_of_rounds() -> None:
    world = NonstationaryEnvironment(
        num_arms=50, seed=1, leave_probability=0.02, return_probability=0.05
    )
    there = np.array([world.round(t).available for t in range(1, 3001)])
    assert there.mean() == pytest.approx(0.05 / 0.07, abs=0.03)
    left = (there[:-1] & ~there[1:]).sum() / there[:-1].sum()
    assert left == pytest.approx(0.02, abs=0.003)
    again = NonstationaryEnvironment(
        num_arms=50, seed=1, leave_probability=0.02, return_probability=0.05
    )
    for t in (40, 7, 2000):
        assert np.array_equal(again.round(t).available, there[t - 1])


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"compute_law": "weibull"}, "compute_law"),
        ({"compute_law": "pareto", "compute_shape": 1.0}, "compute_shape"),
        ({"leave_probability": 0.1}, "return_probability"),
        ({"daily": 1.0}, "daily"),
        ({"slow_factor": 2.0}, "slow_factor"),
        ({"reversed_from_round": 0}, "reversed_from_round"),
    ],
)
def test_wrong_worlds_are_refused(settings: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        NonstationaryEnvironment(**SHARED, **settings)
    with pytest.raises(ConfigError, match="the paper's times"):
        NonstationaryEnvironment(**SHARED, drift=0.1).time_law(TAU_MAX_S)
