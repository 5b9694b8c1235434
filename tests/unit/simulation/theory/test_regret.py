"""Readings of the regret and the paper's bounds, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flower_scheduling.errors import ConfigError
from flower_scheduling.simulation.environments.paper import Environment
from flower_scheduling.simulation.theory.regret import (
    best_set_regret_s,
    cs_ucb_bound_s,
    cs_ucb_q_bound_s,
    literal_regret_s,
    pseudo_regret_s,
    regret_s,
    reward_gaps,
)


def test_readings_by_hand():
    means = [[0.3, 0.1, 0.2], [0.5, 0.5, 0.4]]
    time_s = [[2.0, 5.0], [3.0, 7.0]]
    assert literal_regret_s(time_s, [5, 10], means, 2) == pytest.approx(
        np.array([[1.0, 3.0], [0.5, 2.0]])
    )
    assert pseudo_regret_s([[1.5, 2.5]], [5, 10], means[:1], 2) == pytest.approx(
        np.array([[0.5, 0.5]])
    )
    assert best_set_regret_s(time_s, [5, 10], [0.4, 0.6]) == pytest.approx(
        np.array([[0.0, 1.0], [0.0, 1.0]])
    )
    assert regret_s([2.0, 5.0], [5, 10], 0.4) == pytest.approx([0.0, 1.0])


def test_gaps_by_hand():
    smallest, largest = reward_gaps([0.1, 0.2, 0.5, 0.9], 2, 2.0)
    assert smallest == pytest.approx(0.15)  # 0.2 for 0.5
    assert largest == pytest.approx(0.55)  # both for 0.5 and 0.9
    # Ties at the cut are optimal too: the smallest difference is then inside.
    assert reward_gaps([0.1, 0.2, 0.2, 0.9], 2, 1.0)[0] == pytest.approx(0.1)
    assert [float(gap) for gap in reward_gaps([0.3, 0.3, 0.3], 2, 1.0)] == [0.0, 0.0]
    assert [float(gap) for gap in reward_gaps([0.1, 0.9], 2, 1.0)] == [0.0, 0.0]


def test_first_bound_by_hand():
    # K = 3, N = 1, gaps 0.1 and 0.3 in units of the reward.
    bound = cs_ucb_bound_s([1, 100], [[1.0, 1.5, 2.5]], 1, 5.0)
    assert bound.shape == (1, 2)
    start = 3 + 1 + 3 + math.pi**2 / 3 * 3
    grows = 4 * 1 * 2 * 3 * math.log(100) / 0.1**2
    assert bound[0] == pytest.approx([5 * 0.3 * start, 5 * 0.3 * (start + grows)])
    assert cs_ucb_bound_s(7, [1.0, 1.0], 1, 5.0).tolist() == [0.0]


def test_first_bound_is_vacuous_at_the_papers_settings():
    means = Environment(num_arms=20, batch_shape=(50,), seed=1).expected_time_s(5.0)
    bound_s = cs_ucb_bound_s([5000], means, 5, 5.0)[:, 0]
    _, largest = reward_gaps(means, 5, 5.0)
    assert np.median(bound_s / 5.0 / largest) > 1e10
    assert (bound_s > 5000 * 5.0).all()  # more than if every round took until the deadline


def test_second_bound_by_hand():
    bound = cs_ucb_q_bound_s([1, 20_000], [0.6, 0.5, 0.4], 2, 5.0, [0.0, 1e-3, 1.0])
    omega = 0.36 + 0.25 + 0.36
    first = (math.pi**2 / 3 + 1) * 3
    later = first + 4 * math.sqrt(2 * 3 * 2 * 20_000 * math.log(20_000))
    assert bound == pytest.approx(
        5.0
        * np.array(
            [
                [first, later],
                [5e-4 * omega + 0.999 * first, 10 * omega + 0.999 * later],
                [omega / 2, 10_000 * omega],
            ]
        )
    )


def test_numbers_far_beyond_any_run():
    rounds = np.array([2**31 - 1], dtype=np.int32)
    assert np.isfinite(cs_ucb_bound_s(rounds, [0.1, 0.2], 1, 5.0)).all()
    assert cs_ucb_q_bound_s(rounds, [0.5] * 100, 50, 5.0, 1e-3)[0] > 0
    assert np.isfinite(cs_ucb_q_bound_s([10**15], [0.5], 1, 5.0, 0.1)).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda: regret_s([1.0], [1, 2], 0.1),
        lambda: regret_s([1.0], [0], 0.1),
        lambda: regret_s([1.0], [1.5], 0.1),
        lambda: regret_s([1.0], [[1]], 0.1),
        lambda: regret_s([np.nan], [1], 0.1),
        lambda: regret_s([1.0], [1], [0.1, 0.1]),
        lambda: regret_s(["late"], [1], 0.1),
        lambda: literal_regret_s([1.0], [1], [0.1], 2),
        lambda: literal_regret_s([1.0], [1], [-0.1], 1),
        lambda: pseudo_regret_s([1.0], [1], [0.1], 0),
        lambda: best_set_regret_s([-1.0], [1], 0.1),
        lambda: reward_gaps([0.1], 1, 0.0),
        lambda: cs_ucb_bound_s([1], [0.1], 2, 5.0),
        lambda: cs_ucb_q_bound_s([1], [1.0], 1, 5.0, 0.1),
        lambda: cs_ucb_q_bound_s([1], [0.5], 1, 5.0, 1.1),
        lambda: cs_ucb_q_bound_s([1], [0.5], 0, 5.0, 0.1),
    ],
)
def test_wrong_arguments(call):
    with pytest.raises(ConfigError) as caught:
        call()
    assert "\n" not in str(caught.value)
