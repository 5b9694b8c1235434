"""The bound for policies that do not know the clients: by hand, by enumeration, and kept to."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from flower_scheduling.errors import ConfigError
from flower_scheduling.simulation.environments.paper import Environment
from flower_scheduling.simulation.theory.exploration_bound import best_exploration, trial_costs_s
from flower_scheduling.simulation.theory.optimum import mean_slowest_of_law
from flower_scheduling.strategies import RoundContext, RoundOutcome, build_policy
from flower_scheduling.strategies.base import FloatArray

TAU_MAX_S = 5.0


def constant(*times_s: int) -> tuple[FloatArray, FloatArray]:
    """Return the law of clients that always take so many whole seconds."""
    points = np.arange(max(times_s)) + 0.5
    return (points[:, np.newaxis] < np.array(times_s)).astype(float), np.ones(points.size)


def test_costs_of_constant_times() -> None:
    costs = trial_costs_s(*constant(3, 1, 2), 2)
    inf = np.inf
    assert costs.tolist() == [[inf, inf, 3.0], [inf, 3.0, 2.0], [3.0, 2.0, inf], [2.0, inf, inf]]


def test_trying_stops_where_it_pays_off_no_more() -> None:
    costs = trial_costs_s(*constant(3, 1, 2), 1)
    found = best_exploration(costs, 10)
    assert (found.time_s, found.tried) == (3.0 + 9 * 1.0, 2)
    costs = trial_costs_s(*constant(2, 9, 1), 1)
    assert best_exploration(costs, 5).tried == 1, "the third would save four seconds and cost 8"
    found = best_exploration(costs, 100)
    assert (found.time_s, found.tried) == (2.0 + 9.0 + 98 * 1.0, 3)


def law(num_arms: int, seed: int) -> tuple[FloatArray, FloatArray]:
    return Environment(num_arms=num_arms, seed=seed).time_law(TAU_MAX_S)


@pytest.mark.parametrize("seed", range(5))
def test_no_sequence_of_rounds_is_cheaper(seed: int) -> None:
    costs = trial_costs_s(*law(5, seed), 2)
    found = best_exploration(costs, 6)
    cheapest = np.inf
    for news in itertools.product(range(3), repeat=6):
        before = np.concatenate([[0], np.cumsum(news)])
        if before[-1] <= 5:
            cheapest = min(cheapest, costs[before[:-1], list(news)].sum())
    assert found.time_s == pytest.approx(cheapest)


def test_no_set_of_tried_clients_is_faster() -> None:
    survival, weight_s = law(8, 1)
    costs, cost_of = trial_costs_s(survival, weight_s, 3), mean_slowest_of_law(survival, weight_s)
    for tried in range(3, 9):
        sets = np.array(list(itertools.combinations(range(tried), 3)))
        best_s = cost_of(sets).min()
        assert 0.95 * best_s < costs[tried, 0] <= best_s + 1e-12


def test_no_policy_of_ours_is_faster_on_average() -> None:
    num_arms, num_rounds, num_rows, n = 24, 60, 40, 3
    environment = Environment(num_arms=num_arms, batch_shape=(num_rows,), seed=3)
    survival, weight_s = environment.time_law(TAU_MAX_S)
    rng = np.random.default_rng(4)
    bounds = [
        best_exploration(
            trial_costs_s(survival[:, row, rng.permutation(num_arms)], weight_s, n), num_rounds
        ).time_s
        for row in range(num_rows)
    ]
    policy = build_policy(
        "cs-ucb-adaptive",
        num_arms=num_arms,
        num_selected=n,
        tau_max_s=TAU_MAX_S,
        rng=rng,
        batch_shape=(num_rows,),
    )
    taken_s, everyone = np.zeros(num_rows), np.ones((num_rows, num_arms), dtype=np.bool_)
    for number in range(1, num_rounds + 1):
        selection = policy.ask(RoundContext(number, everyone))
        for row in range(num_rows):
            chosen = survival[:, row, selection.mask[row]]
            taken_s[row] += weight_s @ (1.0 - np.prod(1.0 - chosen, axis=1))
        time_s = environment.round(number).round_trip_time_s
        policy.tell(selection, RoundOutcome(time_s, time_s < TAU_MAX_S))
    assert np.mean(bounds) < taken_s.mean() < 2.0 * np.mean(bounds)


def test_bad_arguments_are_named() -> None:
    survival, weight_s = law(4, 1)
    with pytest.raises(ConfigError, match="num_selected = 5"):
        trial_costs_s(survival, weight_s, 5)
    with pytest.raises(ConfigError, match="num_rounds = 3"):
        best_exploration(trial_costs_s(survival, weight_s, 2), 3)
