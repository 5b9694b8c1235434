"""DelayHetSampling: odds of the least runtime, who keeps odds for its data, and who is drawn."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from flower_scheduling.strategies import RoundContext, RoundOutcome, Selection, build_policy
from flower_scheduling.strategies.base import FloatArray
from flower_scheduling.strategies.comparators.delay_het import DelayHet, _Runtime
from flower_scheduling.strategies.update_sketch import SKETCH_SIZE

TAU_MAX_S = 4.0


def build(num_arms, num_selected=1, seed=0, **params) -> DelayHet:
    policy = build_policy(
        "delay-het",
        num_arms=num_arms,
        num_selected=num_selected,
        tau_max_s=TAU_MAX_S,
        rng=np.random.default_rng(seed),
        **params,
    )
    assert isinstance(policy, DelayHet)
    return policy


def sketches(*columns) -> FloatArray:
    """Return sketches whose first numbers are given, (num_arms, SKETCH_SIZE)."""
    found = np.zeros((len(columns), SKETCH_SIZE))
    for row, values in zip(found, columns, strict=True):
        row[: len(values)] = values
    return found


def force(policy, round, mask, times, sketch=None, completed=None):
    """Tell a round whose super arm the test chose, with everybody available."""
    mask = np.array(mask, dtype=bool)
    done = mask if completed is None else np.array(completed, dtype=bool)
    policy.tell(
        Selection(RoundContext(round, np.ones_like(mask)), mask),
        RoundOutcome(np.array(times, dtype=float), done, {}, sketch),
    )


def learned(times, sketch, num_selected=1, **params) -> DelayHet:
    policy = build(len(times), num_selected, **params)
    force(policy, 1, np.ones(len(times)), times, sketch)
    return policy


# --- the problem ----------------------------------------------------------------------------------


def runtime_by_hand(odds, times, updates, num_drawn, most, *, pairwise):
    """D / (1 - B), D over all ways to draw, B from the definitions; infinite where B >= 1."""
    count = len(times)
    draws = itertools.product(range(count), repeat=num_drawn)
    slowest = sum(np.prod(odds[list(d)]) * max(times[i] for i in d) for d in draws)
    g = updates.mean(axis=0)
    apart = ((updates[:, None] - updates[None]) ** 2).sum(axis=2) / (g @ g)  # W

    def by_pairs(p):
        return 2 * (p @ apart @ np.ones(count) / count + p @ apart @ p / num_drawn)

    def variance(p):
        return p @ apart @ p / 2 / num_drawn

    equal = np.full(count, 1 / count)
    if pairwise:
        distance = by_pairs(odds) * min(1, most / by_pairs(equal))
    else:
        off = odds @ updates - g
        distance = off @ off / (g @ g) + variance(odds) * min(1, most / variance(equal))
    return slowest / (1 - distance) if distance < 1 else np.inf


def grid(num_drawn):
    steps = 40
    for i, j in itertools.product(range(steps + 1), repeat=2):
        odds = np.array([i, j, steps - i - j]) / steps
        if odds.min() >= 0 and odds.max() <= 1 / num_drawn:
            yield odds


@pytest.mark.parametrize("pairwise", [False, True])
@pytest.mark.parametrize("num_drawn", [1, 2])
def test_odds_have_the_least_runtime_of_all(num_drawn, pairwise):
    rng = np.random.default_rng(5)
    inside = 0
    for _ in range(25):
        times, most = rng.uniform(0.2, 3.9, 3), rng.uniform(0.1, 0.9)
        updates = np.zeros((3, SKETCH_SIZE))
        updates[:, :4] = rng.normal(size=(3, 4)) * rng.uniform(0.1, 2) + 0.7
        params = {"heterogeneity": most, "pairwise": pairwise}
        policy = learned(times, updates, num_drawn, **params)

        def runtime(odds, times=times, updates=updates, most=most):
            return runtime_by_hand(odds, times, updates, num_drawn, most, pairwise=pairwise)

        best = min(runtime(odds) for odds in grid(num_drawn))
        assert runtime(policy.odds) <= best * (1 + 1e-6)
        inside += np.count_nonzero(policy.odds > 1e-3) > num_drawn
        assert policy.odds.sum() == pytest.approx(1.0)
        assert policy.odds.max() <= 1 / num_drawn + 1e-12
    assert inside == 0 if pairwise else inside > 5, "by pairs as few clients as possible"


def test_the_gradient_is_that_of_the_runtime():
    rng = np.random.default_rng(1)
    for pairwise in (False, True):
        runtime = _Runtime(
            rng.uniform(0.1, 1, 6),
            rng.normal(size=(4, 6)) + 3,
            num_drawn=2,
            most=0.5,
            pairwise=pairwise,
        )
        odds = rng.dirichlet(np.ones(6))
        value = runtime.of(odds[np.newaxis])[0]
        step = 1e-6 * np.eye(6)
        slopes = (runtime.of(odds + step) - runtime.of(odds - step)) / 2e-6
        left = 1 - runtime.distance(odds[np.newaxis])[0]
        assert slopes * left == pytest.approx(runtime._gradient(odds, value), rel=1e-4, abs=1e-7)


def test_many_clients_are_not_far_from_what_a_long_descent_finds(monkeypatch):
    rng = np.random.default_rng(2)
    problem = {"num_drawn": 10, "most": 0.5, "pairwise": False}
    runtime = _Runtime(rng.lognormal(size=100), rng.normal(size=(32, 100)) + 0.3, **problem)
    equal = np.full(100, 0.01)
    odds = equal
    for _ in range(5):  # each goes on where the last one ended
        odds = runtime.least(odds)
    monkeypatch.setattr("flower_scheduling.strategies.comparators.delay_het._NUM_DESCENTS", 3000)
    values = runtime.of(np.stack([equal, odds, runtime.least(equal)]))
    assert values[1] < 0.3 * values[0]
    assert values[1] < 1.05 * values[2]


# --- what it means --------------------------------------------------------------------------------


def test_of_clients_with_like_data_the_fast_are_drawn():
    alike = sketches(*[[1.0, 0.01 * k] for k in range(4)])
    assert learned([1.0, 2.0, 3.0, 3.5], alike).odds.tolist() == [1.0, 0, 0, 0]
    assert learned([3.0, 2.0, 1.0, 3.5], alike, 2).odds.tolist() == [0, 0.5, 0.5, 0]


def test_without_any_update_too():
    assert learned([3.0, 2.0, 1.0, 3.5], None, 2).odds.tolist() == [0, 0.5, 0.5, 0]


def test_a_slow_client_with_data_of_its_own_keeps_odds():
    times = [0.5, 0.5, 0.5, 3.5]
    own = sketches([1.0, 0.0], [1.0, 0.1], [1.0, -0.1], [0.0, 6.0])
    kept = [learned(times, own, heterogeneity=most).odds[3] for most in (0.1, 0.5, 0.9)]
    assert kept[0] > kept[1] > 0.05
    assert kept[2] == 0.0, "it alone makes updates scatter, and that counts"
    assert learned(times, sketches(*[[1.0, 0.0]] * 4)).odds[3] == 0.0
    # What the bound by pairs makes of it: as far from the others as they are from it.
    assert learned(times, own, pairwise=True).odds[3] == 0.0


def test_clients_whose_update_is_not_known_count_as_the_mean():
    own = sketches([1.0, 0.0], [0.0, 1.0], [0.0, 0.0])
    own[2] = np.nan
    policy = learned([2.0, 2.0, 2.0], own)
    assert policy.odds.tolist() == [0.0, 0.0, 1.0]
    assert np.isneginf(policy.sketch[:, 2]).all()


def test_updates_that_cancel_out_leave_equal_odds():
    odds = learned([1.0, 3.0], sketches([1.0], [-1.0])).odds
    assert odds == pytest.approx([0.5, 0.5], abs=0.01)


def test_failures_take_tau_max_and_bring_no_sketch():
    policy = build(3)
    force(policy, 1, [1, 1, 1], [0.5, 1.0, np.nan], sketches([1], [1], [1]), [1, 1, 0])
    assert policy.odds.tolist() == [1, 0, 0]
    before = policy.sketch.copy()
    for round in range(2, 11):
        unknown = np.full((3, SKETCH_SIZE), np.nan)
        force(policy, round, [1, 0, 0], [np.nan, 0, 0], unknown, [0, 0, 0])
    assert np.array_equal(policy.sketch, before), "the last that is known"
    assert policy.odds.tolist() == [0, 1, 0], "computed anew after ten rounds"


# --- the draw -------------------------------------------------------------------------------------


def test_clients_are_drawn_by_their_odds():
    policy = build(4, 2, batch_shape=(4000,))
    policy.play_count += 1
    policy.odds[:] = [0.5, 0.3, 0.2, 0.0]
    everybody = np.ones((4000, 4), bool)
    mask = policy.ask(RoundContext(1, everybody)).mask
    assert (mask.sum(axis=1) == 2).all()
    assert mask.mean(axis=0) == pytest.approx([1.0, 0.6, 0.4, 0.0], abs=6 * 0.5 / np.sqrt(4000))


@pytest.mark.parametrize(
    ("available", "probability"),
    [
        ([1, 1, 1, 1], [1.0, 0.6, 0.4, 0.0]),
        ([0, 1, 1, 1], [0.0, 1.0, 1.0, 0.0]),  # in proportion to 3 and 2, at most 1
        ([1, 0, 0, 1], [1.0, 0.0, 0.0, 1.0]),
        ([0, 0, 1, 0], [0.0, 0.0, 1.0, 0.0]),
        ([0, 0, 0, 0], [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_the_odds_of_those_that_are_away_go_to_the_others(available, probability):
    policy = build(4, 2)
    policy.play_count += 1
    policy.odds[:] = [0.5, 0.3, 0.2, 0.0]
    available = np.array(available, bool)
    assert policy.probability(available) == pytest.approx(probability, abs=1e-9)
    for round in range(1, 20):
        mask = policy.ask(RoundContext(round, available)).mask
        assert not (mask & ~available).any()
        assert mask.sum() == min(2, available.sum())


def test_clients_that_were_never_tried_come_first():
    policy = learned([1.0, 2.0, 3.0], sketches([1], [1], [1]), 2)
    policy.add_arms(3)
    available = np.array([1, 1, 1, 1, 1, 1], bool)
    assert policy.probability(available) == pytest.approx([0, 0, 0, 2 / 3, 2 / 3, 2 / 3])
    available[3:5] = False
    assert policy.probability(available) == pytest.approx([0.5, 0.5, 0, 0, 0, 1], abs=1e-9)
    assert policy.sketch.shape == (SKETCH_SIZE, 6)
    mask = policy.ask(RoundContext(2, available)).mask
    assert mask[5]
    force(policy, 2, [0, 0, 0, 0, 0, 1], [0.1] * 6, sketches(*[[1]] * 6))
    assert policy.odds[5] == 0.5, "at once"


# --- state ----------------------------------------------------------------------------------------


def play(policy, rounds):
    """Play rounds with clients of two kinds of data; return who was selected."""
    history = []
    for round in rounds:
        rng = np.random.default_rng([7, round])
        selection = policy.ask(RoundContext(round, rng.random(12) < 0.8))
        sketch = sketches(*[[1 + k % 2, k % 3] for k in range(12)]) + rng.normal(size=(12, 32)) / 9
        times = rng.uniform(0.1, 3.0, 12)
        policy.tell(selection, RoundOutcome(times, np.ones(12, bool), {}, sketch))
        history.append(np.flatnonzero(selection.mask).tolist())
    return history


def test_the_same_seed_makes_the_same_run_also_after_a_break():
    one, other = build(12, 4), build(12, 4)
    history = play(one, range(1, 61))
    assert play(other, range(1, 36)) == history[:35]
    resumed = build(12, 4, seed=99)
    text = json.dumps(other.state_dict(), default=np.ndarray.tolist)
    resumed.load_state_dict(json.loads(text))
    assert play(resumed, range(36, 61)) == history[35:]
    assert np.array_equal(resumed.odds, one.odds)
