"""Best sets, the linear program and regret against naive loops on small cases."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import examples
from scipy.optimize import linprog

from flower_scheduling.simulation.theory.optimum import (
    InfeasibleFloorsError,
    best_fixed_set,
    best_stationary_policy,
    mean_slowest,
    mean_slowest_of_law,
    slowest_mean,
)
from flower_scheduling.simulation.theory.regret import (
    best_set_regret_s,
    literal_regret_s,
    pseudo_regret_s,
    reward_gaps,
)


def subsets(arms, num_selected):
    return list(itertools.combinations(arms, min(num_selected, len(arms))))


def cost_of(cost, arms):
    return float(cost(np.array([arms]))[0]) if arms else 0.0


def naive_program(cost, floors, num_selected, chances):
    """The paper's linear program, one variable per (e, S), as dense rows; None if infeasible.

    `chances` maps availability sets, as tuples of arms, to their probabilities.
    """
    plays = [(e, play) for e in chances for play in subsets(e, num_selected)]
    objective = [chances[e] * cost_of(cost, play) for e, play in plays]
    meets = [[-chances[e] * (arm in play) for e, play in plays] for arm in range(len(floors))]
    whole = [[float(e == other) for e, _ in plays] for other in chances]
    result = linprog(
        objective, A_ub=meets, b_ub=-np.array(floors), A_eq=whole, b_eq=np.ones(len(chances))
    )
    return float(result.fun) if result.status == 0 else None


def all_chances(alpha):
    chances = {}
    for present in itertools.product([False, True], repeat=len(alpha)):
        chance = math.prod(a if here else 1 - a for a, here in zip(alpha, present, strict=True))
        if chance > 0:
            chances[tuple(np.flatnonzero(present).tolist())] = chance
    return chances


def served(arms, num_selected, alpha):
    """E min(N, number of available arms in the set)."""
    return sum(
        chance * min(num_selected, len(set(e) & set(arms)))
        for e, chance in all_chances(alpha).items()
    )


problems = st.integers(1, 4).flatmap(
    lambda k: st.tuples(
        st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.35, 0.5, 0.7]), min_size=k, max_size=k),
        st.integers(1, 3),
        st.lists(st.sampled_from([0.0, 0.5, 0.9, 1.0]), min_size=k, max_size=k),
        st.lists(st.integers(0, 20), min_size=k, max_size=k),
        st.integers(0, 2**32 - 1),
    )
)


@examples(60)
@given(problem=problems, by_means=st.booleans())
def test_program_equals_brute_force_or_comes_with_a_proof(problem, by_means):
    floors, num_selected, alpha, tenths, seed = problem
    means = np.array(tenths) / 10
    draws = np.random.default_rng(seed).exponential(means + 0.01, (20, len(floors)))
    cost = slowest_mean(means) if by_means else mean_slowest(draws)
    params = {
        "min_participation": floors,
        "num_selected": num_selected,
        "availability": alpha,
    }
    expected = naive_program(cost, floors, num_selected, all_chances(alpha))
    try:
        policy = best_stationary_policy(means if by_means else cost, **params)
    except InfeasibleFloorsError as error:
        proof = error.feasibility
        assert proof.asked == pytest.approx(sum(floors[arm] for arm in proof.arms))
        assert proof.served == pytest.approx(served(proof.arms, num_selected, alpha), abs=1e-9)
        assert proof.asked > proof.served
        assert expected is None
        return
    assert policy.cost_s == pytest.approx(expected, abs=1e-6)
    assert policy.cost_s == pytest.approx(policy.mean_cost_s(cost), abs=1e-9)
    assert (policy.fraction >= np.array(floors) - 1e-6).all()
    assert policy.fraction == pytest.approx(policy.probability @ policy.super_arm)
    assert not (policy.super_arm & ~policy.available).any()
    sizes = np.minimum(policy.available.sum(axis=1), num_selected)
    assert (policy.super_arm.sum(axis=1) == sizes).all()
    for e, chance in all_chances(alpha).items():
        rows = (policy.available == np.isin(np.arange(len(floors)), e)).all(axis=1)
        assert policy.probability[rows].sum() == pytest.approx(chance)


@examples(40)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_arms=st.integers(2, 6),
    num_selected=st.integers(1, 4),
    by_means=st.booleans(),
)
def test_generated_columns_solve_the_sampled_program(seed, num_arms, num_selected, by_means):
    """The same availability sets, drawn again here, in the naive program."""
    rng = np.random.default_rng(seed)
    means = rng.integers(1, 6, num_arms) / 10  # with ties
    cost = slowest_mean(means) if by_means else mean_slowest(rng.exponential(means, (20, num_arms)))
    drawn = np.random.default_rng(seed).random((30, num_arms)) < 0.8
    # Floors that a random choice on this sample meets.
    random_share = (
        drawn * np.minimum(num_selected / np.maximum(drawn.sum(1), 1), 1)[:, None]
    ).mean(axis=0)
    floors = rng.uniform(0, 1, num_arms) * random_share * 0.8
    chances: dict[tuple[int, ...], float] = {}
    for row in drawn:
        e = tuple(np.flatnonzero(row).tolist())
        chances[e] = chances.get(e, 0.0) + 1 / 30
    policy = best_stationary_policy(
        means if by_means else cost,
        min_participation=floors,
        num_selected=num_selected,
        availability=0.8,
        num_samples=30,
        rng=np.random.default_rng(seed),
    )
    expected = naive_program(cost, floors, num_selected, chances)
    assert expected is not None
    assert policy.cost_s == pytest.approx(expected, rel=1e-6)
    assert (policy.fraction >= floors - 1e-6).all()


@examples(60)
@given(seed=st.integers(0, 2**32 - 1), num_arms=st.integers(1, 7), data=st.data())
def test_best_fixed_set_equals_a_loop_over_all_sets(seed, num_arms, data):
    num_selected = data.draw(st.integers(1, num_arms))
    rng = np.random.default_rng(seed)
    survival = np.sort(rng.random((12, num_arms)), axis=0)[::-1]
    weight_s = rng.random(12)
    cost = mean_slowest_of_law(survival, weight_s)
    costs = {
        arms: sum(
            weight * (1 - math.prod(1 - row[arm] for arm in arms))
            for weight, row in zip(weight_s, survival, strict=True)
        )
        for arms in itertools.combinations(range(num_arms), num_selected)
    }
    best = best_fixed_set(cost, num_arms, num_selected)
    assert best.cost_s == pytest.approx(min(costs.values()))
    assert costs[best.arms] == pytest.approx(best.cost_s)
    found = best_fixed_set(cost, num_arms, num_selected, exhaustive=False)
    assert costs[found.arms] == pytest.approx(found.cost_s)
    by_means = tuple(sorted(np.argsort(weight_s @ survival, kind="stable")[:num_selected].tolist()))
    assert best.cost_s - 1e-9 <= found.cost_s <= costs[by_means] + 1e-9


@examples(50)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_seeds=st.integers(1, 3),
    num_arms=st.integers(1, 5),
    num_rounds=st.integers(1, 12),
    data=st.data(),
)
def test_readings_equal_a_naive_loop(seed, num_seeds, num_arms, num_rounds, data):
    num_selected = data.draw(st.integers(1, num_arms))
    rounds = sorted(data.draw(st.sets(st.integers(1, num_rounds), min_size=1, max_size=num_rounds)))
    rng = np.random.default_rng(seed)
    means = rng.random((num_seeds, num_arms))
    times = rng.exponential(means, (num_rounds, num_seeds, num_arms))
    played = rng.permuted(np.tile(np.arange(num_arms), (num_rounds, num_seeds, 1)), axis=2)
    played = played[..., :num_selected]
    best_s = rng.random(num_seeds)
    took, mean_took = (
        np.take_along_axis(values, played, axis=2).max(axis=2).cumsum(axis=0).T
        for values in (times, np.tile(means, (num_rounds, 1, 1)))
    )
    columns = np.array(rounds) - 1
    literal = literal_regret_s(took[:, columns], rounds, means, num_selected)
    pseudo = pseudo_regret_s(mean_took[:, columns], rounds, means, num_selected)
    honest = best_set_regret_s(took[:, columns], rounds, best_s)
    for row in range(num_seeds):
        slowest_of_best = min(
            max(means[row, arm] for arm in arms)
            for arms in itertools.combinations(range(num_arms), num_selected)
        )
        sums = [0.0, 0.0, 0.0]
        for t in range(1, num_rounds + 1):
            arms = played[t - 1, row]
            took_now = max(times[t - 1, row, arm] for arm in arms)
            sums[0] += took_now - slowest_of_best
            sums[1] += max(means[row, arm] for arm in arms) - slowest_of_best
            sums[2] += took_now - best_s[row]
            if t in rounds:
                column = rounds.index(t)
                found = [literal[row, column], pseudo[row, column], honest[row, column]]
                assert found == pytest.approx(sums, abs=1e-9)
    assert (pseudo >= -1e-9).all()


@examples(80)
@given(
    tenths=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    data=st.data(),
)
def test_gaps_equal_a_loop_over_all_sets(tenths, data):
    num_selected = data.draw(st.integers(1, len(tenths)))
    best = sum(sorted(tenths)[:num_selected])
    gaps = [sum(arms) - best for arms in itertools.combinations(tenths, num_selected)]
    smallest, largest = reward_gaps(np.array(tenths) / 10, num_selected, 2.0)
    assert smallest == pytest.approx(min((gap for gap in gaps if gap > 0), default=0) / 20)
    assert largest == pytest.approx(max(gaps) / 20)
