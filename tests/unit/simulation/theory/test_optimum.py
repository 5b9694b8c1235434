"""Benchmarks: best sets and the linear program, by hand, by brute force and against the paper."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest

import flower_scheduling.simulation.theory.optimum as optimum
from flower_scheduling.errors import ConfigError
from flower_scheduling.simulation.environments.paper import Environment
from flower_scheduling.simulation.theory.optimum import (
    InfeasibleFloorsError,
    best_fixed_set,
    best_stationary_policy,
    mean_slowest,
    mean_slowest_of_law,
    slowest_mean,
)
from flower_scheduling.strategies import check_feasibility

FLOORS = [0.6, 0.5, 0.4]


@pytest.fixture(scope="module")
def three() -> Environment:
    """The fleet of the specification's figures."""
    return Environment(num_arms=3, distance_m=[450.0, 300.0, 150.0], availability=0.9)


@pytest.fixture(scope="module")
def law_of_three(three):
    survival, weight_s = three.time_law(5.0)
    return mean_slowest_of_law(survival, weight_s)


# --- sets -----------------------------------------------------------------------------------------


def test_costs_by_hand():
    sets = np.array([[0, 1], [2, 1]])
    assert slowest_mean([0.3, 0.1, 0.2])(sets).tolist() == [0.3, 0.2]
    draws = [[1.0, 2.0, 6.0], [3.0, 2.0, 0.0]]
    assert mean_slowest(draws)(sets).tolist() == [2.5, 4.0]
    # Arms that take 0 or 1 s with probabilities 1/2, 1/4, 0: one point of weight 1 s.
    law = mean_slowest_of_law([[0.5, 0.25, 0.0]], [1.0])
    assert law(sets) == pytest.approx([1 - 0.5 * 0.75, 0.25])


@pytest.mark.parametrize("make", [mean_slowest, lambda x: mean_slowest_of_law(x, np.ones(50))])
def test_costs_do_not_depend_on_blocks(make, monkeypatch):
    values = np.random.default_rng(0).random((50, 6))
    sets = np.array(list(itertools.combinations(range(6), 3)))
    whole = make(values)(sets)
    monkeypatch.setattr(optimum, "_VALUES_PER_BLOCK", 120)
    assert make(values)(sets) == pytest.approx(whole, abs=1e-12)


def test_the_set_with_the_smallest_means_need_not_be_the_best():
    # Arms 0 and 3 take 1 s for certain; 1 and 2 take 0 or 3 s, on average 0.9 s.
    survival, weight_s = np.array([[1, 0.3, 0.3, 1], [0, 0.3, 0.3, 0]]), np.array([1.0, 2.0])
    cost = mean_slowest_of_law(survival, weight_s)
    assert np.argsort(weight_s @ survival)[:2].tolist() == [1, 2]
    best = best_fixed_set(cost, 4, 2)
    assert (best.arms, best.cost_s, best.proven) == ((0, 3), pytest.approx(1.0), True)
    # Where a search by single exchanges is stuck: every one leaves an erratic arm in the set.
    found = best_fixed_set(cost, 4, 2, exhaustive=False)
    assert (found.arms, found.cost_s, found.proven) == ((1, 2), pytest.approx(1.53), False)


def test_search_by_swaps_finds_the_best_of_all_sets_of_the_papers_cell():
    env = Environment(num_arms=20, batch_shape=(8,), seed=5)
    survival, weight_s = env.time_law(5.0)
    means = env.expected_time_s(5.0)
    for row in range(8):
        cost = mean_slowest_of_law(survival[:, row], weight_s)
        best = best_fixed_set(cost, 20, 5)
        found = best_fixed_set(cost, 20, 5, exhaustive=False)
        assert best.proven
        assert found.arms == best.arms
        assert found.cost_s == pytest.approx(best.cost_s, rel=1e-12)
        assert best.cost_s <= cost(np.argsort(means[row])[np.newaxis, :5])[0] + 1e-12


def test_all_arms_are_the_only_set():
    assert best_fixed_set(slowest_mean([1.0, 2.0]), 2, 2, exhaustive=False).arms == (0, 1)
    assert best_fixed_set(slowest_mean([1.0, 1.0, 1.0]), 3, 2, exhaustive=False).cost_s == 1.0


# --- the linear program ---------------------------------------------------------------------------


def test_optimum_of_the_specification(three, law_of_three):
    """5144 s in 20000 rounds; by the paper's own objective 5086 s, which no policy reaches."""
    params = {"min_participation": FLOORS, "num_selected": 2, "availability": 0.9}
    honest = best_stationary_policy(law_of_three, **params)
    assert honest.cost_s * 20_000 == pytest.approx(5144, abs=0.5)
    assert honest.mean_cost_s(law_of_three) == pytest.approx(honest.cost_s, rel=1e-6)
    assert honest.standard_error_s == 0.0
    means = three.expected_time_s(5.0)
    of_means = best_stationary_policy(means, **params)
    assert of_means.cost_s * 20_000 == pytest.approx(5085.5, abs=0.5)
    assert of_means.cost_s == pytest.approx(honest.mean_cost_s(slowest_mean(means)), rel=1e-6)
    assert of_means.mean_cost_s(law_of_three) >= honest.cost_s - 1e-9
    for policy in (honest, of_means):
        assert (policy.fraction >= np.array(FLOORS) - 1e-6).all()
        assert policy.fraction.sum() == pytest.approx(1.971)
    general = best_stationary_policy(slowest_mean(means), **params)
    assert general.cost_s == pytest.approx(of_means.cost_s, rel=1e-6)


def test_random_scheduling_of_the_specification(law_of_three):
    """5346 s in the study behind the specification, which was simulated."""
    total_s = 0.0
    for present in itertools.product([False, True], repeat=3):
        arms = [arm for arm in range(3) if present[arm]]
        if arms:
            sets = np.array(list(itertools.combinations(arms, min(2, len(arms)))))
            chance = np.prod([0.9 if here else 0.1 for here in present])
            total_s += 20_000 * chance * law_of_three(sets).mean()
    assert total_s == pytest.approx(5346, rel=2e-3)


def test_without_floors_the_fastest_are_taken():
    policy = best_stationary_policy([0.3, 0.1, 0.2], min_participation=[0, 0, 0], num_selected=2)
    assert policy.cost_s == pytest.approx(0.2)
    assert policy.fraction == pytest.approx([0, 1, 1], abs=1e-9)


def test_an_empty_availability_set_costs_nothing():
    policy = best_stationary_policy(
        [1.0, 1.0], min_participation=[0, 0], num_selected=1, availability=0.5
    )
    assert policy.cost_s == pytest.approx(0.75)
    nobody = best_stationary_policy(
        [1.0, 1.0], min_participation=[0, 0], num_selected=1, availability=0.0
    )
    assert nobody.cost_s == 0.0
    assert nobody.fraction.tolist() == [0, 0]
    assert nobody.mean_cost_s(slowest_mean([1.0, 1.0])) == 0.0


def test_more_places_than_arms():
    policy = best_stationary_policy(
        [0.1, 0.4], min_participation=[0.9, 0.2], num_selected=5, availability=[0.9, 0.5]
    )
    assert policy.fraction == pytest.approx([0.9, 0.5])
    assert policy.cost_s == pytest.approx(0.5 * 0.4 + 0.5 * 0.9 * 0.1)


@pytest.mark.parametrize("by_means", [True, False])
def test_sampled_program_is_near_the_exact_one(three, law_of_three, by_means):
    """20000 availability sets: within 5 of its standard errors, some 1e-3 of the cost."""
    cost = three.expected_time_s(5.0) if by_means else law_of_three
    params = {"min_participation": FLOORS, "num_selected": 2, "availability": 0.9}
    exact = best_stationary_policy(cost, **params)
    sampled = best_stationary_policy(cost, **params, num_samples=20_000)
    assert 0 < sampled.standard_error_s < 1e-3 * exact.cost_s
    assert abs(sampled.cost_s - exact.cost_s) < 5 * sampled.standard_error_s
    assert sampled.fraction == pytest.approx(sampled.probability @ sampled.super_arm)


def test_twenty_arms_with_either_cost():
    env = Environment(num_arms=20, seed=2)
    means = env.expected_time_s(5.0)
    survival, weight_s = env.time_law(5.0)
    law = mean_slowest_of_law(survival, weight_s)
    params = {
        "min_participation": np.full(20, 0.125),
        "num_selected": 5,
        "availability": 0.9,
        "num_samples": 200,
    }
    of_means = best_stationary_policy(means, **params)
    honest = best_stationary_policy(law, **params)
    for policy in (of_means, honest):
        assert (policy.fraction >= 0.125 - 1e-6).all()
        assert policy.probability.sum() == pytest.approx(1.0)
        assert not (policy.super_arm & ~policy.available).any()
        assert (policy.super_arm.sum(axis=1) == np.minimum(policy.available.sum(axis=1), 5)).all()
    # The same sample: each is the best by its own cost.
    assert of_means.cost_s <= honest.mean_cost_s(slowest_mean(means)) * (1 + 1e-6)
    assert honest.cost_s <= of_means.mean_cost_s(law) * (1 + 1e-6)
    assert honest.cost_s > of_means.cost_s


def test_infeasible_floors_come_with_a_proof():
    with pytest.raises(InfeasibleFloorsError, match=r"client 0 and client 1 ask for 1\.95 .* 1\.8"):
        best_stationary_policy(
            [0.1, 0.1, 0.1],
            min_participation=[0.975, 0.975, 0.0],
            num_selected=2,
            availability=0.9,
        )


def test_a_proof_from_prices_where_the_check_beforehand_was_not_exact(monkeypatch):
    """The floors of two arms are too large; the check sees it only when it is asked again."""
    floors = np.full(12, 0.05)
    floors[[3, 7]] = 0.95
    alpha = np.linspace(0.89, 0.9, 12)
    asked = []

    def first_time_feasible(*args):
        asked.append(args)
        return check_feasibility(np.zeros(12), 3) if len(asked) == 1 else check_feasibility(*args)

    monkeypatch.setattr(optimum, "check_feasibility", first_time_feasible)
    with pytest.raises(InfeasibleFloorsError) as caught:
        best_stationary_policy(
            np.ones(12),
            min_participation=floors,
            num_selected=3,
            availability=alpha,
            num_samples=300,
        )
    proof = caught.value.feasibility
    assert set(proof.arms) <= {3, 7}
    assert proof.asked > proof.served + 0.04


@pytest.mark.parametrize(("num_selected", "floor"), [(6, 0.44), (12, 0.4999)])
def test_floors_at_the_limit_need_a_larger_sample(num_selected, floor):
    # 12 arms that are there half of the time: at most 0.444 of the rounds each at N = 6.
    with pytest.raises(ConfigError, match="num_samples = 50: must be larger"):
        best_stationary_policy(
            np.ones(12),
            min_participation=np.full(12, floor),
            num_selected=num_selected,
            availability=0.5,
            num_samples=50,
        )


def test_the_error_survives_a_process_boundary():
    with pytest.raises(InfeasibleFloorsError) as caught:
        best_stationary_policy([0.1, 0.1], min_participation=[0.9, 0.9], num_selected=1)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert again.feasibility == caught.value.feasibility


# --- wrong arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda: slowest_mean([[1.0]]),
        lambda: slowest_mean([np.nan]),
        lambda: slowest_mean([-1.0]),
        lambda: slowest_mean([]),
        lambda: slowest_mean(["fast"]),
        lambda: slowest_mean([[1.0], [1.0, 2.0]]),
        lambda: mean_slowest([1.0]),
        lambda: mean_slowest_of_law([[1.5]], [1.0]),
        lambda: mean_slowest_of_law([0.5], [1.0]),
        lambda: mean_slowest_of_law([[0.5]], [1.0, 1.0]),
        lambda: best_fixed_set(slowest_mean([1.0]), 1, 2),
        lambda: best_fixed_set(slowest_mean([1.0]), 0, 1),
        lambda: best_stationary_policy([], min_participation=[], num_selected=1),
        lambda: best_stationary_policy([1.0], min_participation=[0, 0], num_selected=1),
        lambda: best_stationary_policy([1.0], min_participation=[1.0], num_selected=1),
        lambda: best_stationary_policy([1.0], min_participation=[0], num_selected=0),
        lambda: best_stationary_policy(
            [1.0], min_participation=[0], num_selected=1, availability=2.0
        ),
        lambda: best_stationary_policy([1.0], min_participation=[0], num_selected=1, num_samples=0),
        lambda: best_stationary_policy(
            [1.0], min_participation=[0], num_selected=1, num_samples=9, rng=7
        ),
    ],
)
def test_wrong_arguments(call):
    with pytest.raises(ConfigError) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_too_many_super_arms_for_a_general_cost():
    with pytest.raises(ConfigError, match="847660528 super arms, beyond 200000"):
        best_stationary_policy(
            slowest_mean(np.ones(40)), min_participation=np.full(40, 0.1), num_selected=10
        )
