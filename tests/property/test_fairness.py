"""Feasibility of floors against brute force over subsets and availability sets."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import examples

import flower_scheduling.strategies.fairness as fairness
from flower_scheduling.strategies import check_feasibility


def served_by_brute_force(subset, num_selected, alpha):
    """E min(N, |A and S|), summed over every availability set."""
    total = 0.0
    for present in itertools.product([False, True], repeat=len(subset)):
        chance = math.prod(
            alpha[arm] if here else 1 - alpha[arm]
            for arm, here in zip(subset, present, strict=True)
        )
        total += chance * min(num_selected, sum(present))
    return total


def tightest_by_brute_force(floors, num_selected, alpha):
    """max over non-empty S of asked - served."""
    arms = range(len(floors))
    return max(
        sum(floors[arm] for arm in subset) - served_by_brute_force(subset, num_selected, alpha)
        for size in range(1, len(floors) + 1)
        for subset in itertools.combinations(arms, size)
    )


problems = st.integers(1, 6).flatmap(
    lambda k: st.tuples(
        st.lists(st.sampled_from([0.0, 0.2, 0.35, 0.5, 0.8, 0.95]), min_size=k, max_size=k),
        st.integers(1, 4),
        st.lists(st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]), min_size=k, max_size=k),
    )
)


@examples(200)
@given(problem=problems)
def test_exact_check_equals_brute_force(problem):
    floors, num_selected, alpha = problem
    excess = tightest_by_brute_force(floors, num_selected, alpha)
    result = check_feasibility(floors, num_selected, alpha)
    assert result.exact
    assert result.feasible == (excess <= 1e-9)
    if not result.feasible:
        assert result.asked == pytest.approx(sum(floors[arm] for arm in result.arms))
        served = served_by_brute_force(result.arms, num_selected, alpha)
        assert result.served == pytest.approx(served, abs=1e-9)
        assert result.asked - result.served == pytest.approx(excess, abs=1e-9)


@examples(100)
@given(problem=problems)
def test_necessary_condition_never_refuses_what_is_feasible(problem):
    floors, num_selected, alpha = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fairness, "_MAX_COMBINATIONS", 1)
        result = check_feasibility(floors, num_selected, alpha)
    if not result.feasible:
        assert tightest_by_brute_force(floors, num_selected, alpha) > 0
        served = served_by_brute_force(result.arms, num_selected, alpha)
        assert sum(floors[arm] for arm in result.arms) > served
        assert result.served == pytest.approx(served, abs=1e-9)


def test_a_thousand_arms_take_no_time_to_check():
    floors = np.full(1000, 0.04)
    assert check_feasibility(floors, 50, 0.9).feasible
    assert not check_feasibility(floors, 39, 0.9).feasible
    assert not check_feasibility(floors, 39, np.linspace(0.5, 1.0, 1000)).feasible
