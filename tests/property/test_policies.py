"""Every policy in the registry, driven through random histories.

The paper's index and queue are recomputed from the history by code that shares nothing with the
policies, and each super arm is checked to be a maximiser of it.
"""

from __future__ import annotations

import inspect
import math
import sys
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import examples

from flower_scheduling.errors import RoundOrderError
from flower_scheduling.strategies import (
    POLICIES,
    RoundContext,
    find_policy,
)
from flower_scheduling.strategies.comparators import oort
from flower_scheduling.strategies.selection import cheapest_set, top_arms
from flower_scheduling.strategies.testing import CHECKS, TAU_MAX_S, Case, as_json

TOLERANCE = 1e-12


@st.composite
def cases(draw, max_arms=9):
    return Case(
        num_arms=draw(st.integers(0, max_arms)),
        num_selected=draw(st.integers(1, 5)),
        num_rounds=draw(st.integers(1, 25)),
        batch_shape=draw(st.sampled_from([(), (3,), (2, 2)])),
        availability=draw(st.sampled_from([1.0, 0.9, 0.4])),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", POLICIES)
@examples(40)
@given(case=cases())
def test_policies_keep_their_promises(name, check, case):
    check(find_policy(name), case)


@pytest.mark.parametrize("name", ["cs-ucb", "modified-cs-ucb"])
@examples(40)
@given(case=cases(), count=st.integers(0, 4))
def test_arms_that_join_are_tried_first(name, case, count):
    policy = case.build(find_policy(name))
    for _ in case.play(policy):
        pass
    policy.add_arms(count)
    mask = policy.ask(RoundContext(case.num_rounds + 1, np.ones(policy.shape, bool))).mask
    untried = policy.play_count == 0
    taken = np.minimum(untried.sum(axis=-1), min(policy.num_arms, case.num_selected))
    assert np.array_equal((mask & untried).sum(axis=-1), taken)


# --- explanations ---------------------------------------------------------------------------------

PART_NAMES = (
    *("mean", "time", "staleness", "failures", "bonus", "draw", "queue"),
    *("accuracy", "loss", "turn", "floor", "weight", "chance"),
)
LARGEST = np.finfo(np.float64).max


@contextmanager
def noted_calls():
    """Note by what the policies select: the arguments of top_arms and cheapest_set, as copies."""
    calls = []

    def copied(value):
        if isinstance(value, (list, tuple)):
            return [key.copy() for key in value]
        return value.copy() if isinstance(value, np.ndarray) else value

    def noting(function):
        signature = inspect.signature(function)

        def call(*args, **more):
            given = signature.bind(*args, **more)
            given.apply_defaults()
            calls.append({name: copied(value) for name, value in given.arguments.items()})
            return function(*args, **more)

        return call

    with ExitStack() as stack:
        for function in (top_arms, cheapest_set):
            for name, module in list(sys.modules.items()):
                if name.startswith("flower_scheduling.strategies.") and hasattr(
                    module, function.__name__
                ):
                    patch = mock.patch.object(module, function.__name__, noting(function))
                    stack.enter_context(patch)
        yield calls


def pairs(of_selected, of_others):
    """Return two arrays that broadcast to all pairs of arms of a row."""
    return of_selected[..., :, np.newaxis], of_others[..., np.newaxis, :]


def tolerance(explanation):
    """Return how far rounding may take each arm's sum."""
    sizes = [np.where(np.isinf(part), 0.0, abs(part)) for part in explanation.parts.values()]
    return TOLERANCE * (1.0 + np.max(sizes, axis=0))


def assert_close(found, expected, tolerated, where):
    # Beyond all others is beyond all others, be it infinite or not.
    found, expected = (
        np.where(abs(a) >= LARGEST, np.copysign(np.inf, a), a) for a in (found, expected)
    )
    with np.errstate(invalid="ignore"):
        close = (found == expected) | (abs(found - expected) <= tolerated)
    assert close[where].all()


def by_plain_numbers(explanation, call, selection):
    """Return the scores by what the rule was given, and which pairs were exactly tied."""
    sign = 1.0 if explanation.rule == "largest" else -1.0
    if "keys" in call:
        first = call["keys"][0]
        return sign * first, np.equal(*pairs(first, first))
    cost, weight = call["cost"], call["sum_weight"]
    score, tied = np.empty(cost.shape), np.zeros((*cost.shape, cost.shape[-1]), bool)
    for row in np.ndindex(cost.shape[:-1]):
        inside = np.flatnonzero(selection.mask[row])
        slowest = cost[row][inside].max() if inside.size else np.inf
        worth = call["value"][row] - weight * cost[row]
        score[row] = np.maximum(cost[row] - slowest, 0.0) - worth
        free = cost[row] <= slowest
        tied[row] = np.equal(*pairs(worth, worth)) & np.logical_and(*pairs(free, free))
    return score, tied


def assert_by_rule(explanation, selection, tied):
    """No available arm that was not selected comes before one that was."""
    others = selection.context.available & ~selection.mask
    both = np.logical_and(*pairs(selection.mask, others))
    ascending = explanation.score * (1.0 if explanation.rule == "smallest" else -1.0)
    inside, outside = pairs(ascending, ascending)
    tolerated = np.maximum(*pairs(*[tolerance(explanation)] * 2))
    assert (inside <= outside + tolerated)[both].all()
    if explanation.tie_break is not None:
        inside, outside = pairs(explanation.tie_break, explanation.tie_break)
        assert (inside >= outside - tolerated)[both & tied].all()


def assert_explains(policy, explanation, selection, calls):
    available = selection.context.available
    assert list(explanation.parts) == [n for n in PART_NAMES if n in explanation.parts]
    for part in (*explanation.parts.values(), explanation.score):
        assert part.shape == policy.shape
        assert part.dtype == np.float64
        assert not np.isnan(part).any()
    assert (sum(np.isinf(part).astype(int) for part in explanation.parts.values()) <= 1).all()
    score, tolerated = explanation.score, tolerance(explanation)
    if explanation.rule == "drawn":
        if not isinstance(policy, oort.Oort):  # probabilities
            count = available.sum(axis=-1, keepdims=True)
            places = np.minimum(count, policy.num_selected)
            expected = available * places / np.maximum(count, 1)
            if policy.name == "e3cs":
                expected = policy.probabilities(available)[0]
                assert all((part >= 0).all() for part in explanation.parts.values())
            elif policy.name in ("tifl", "delay-het"):
                expected = policy.probability(available)
                assert_close(expected.sum(axis=-1), places[..., 0], TOLERANCE, ...)
            assert_close(score, expected, tolerated, ...)
        assert (score >= -tolerated).all()
        return
    tied = np.zeros((*policy.shape, policy.num_arms), bool)
    if calls:
        expected, tied = by_plain_numbers(explanation, calls[-1], selection)
        assert_close(score, expected, tolerated, calls[-1]["available"])
        last = np.inf if explanation.rule == "smallest" else -np.inf
        assert (score == last)[available & ~calls[-1]["available"]].all()
        if len(calls[-1].get("keys", ())) > 1:
            assert_close(explanation.tie_break, calls[-1]["keys"][1], tolerated, ...)
        if "cost" in calls[-1]:
            assert np.array_equal(explanation.tie_break, -calls[-1]["cost"])
    else:
        assert policy.num_arms <= policy.num_selected
    assert_by_rule(explanation, selection, tied)


def assert_same(parts, others):
    assert list(parts) == list(others)
    for name, part in parts.items():
        assert np.array_equal(part, others[name]), name


@pytest.mark.parametrize("name", POLICIES)
@examples(60)
@given(case=cases())
def test_explanations_are_what_the_arms_were_selected_by(name, case):
    policy = case.build(find_policy(name))
    with noted_calls() as calls:
        for context, outcome in case.rounds():
            calls.clear()
            selection = policy.ask(context)
            asked = list(calls)
            before = as_json(policy.state_dict())
            explanation = policy.explain(selection)
            assert as_json(policy.state_dict()) == before
            assert_explains(policy, explanation, selection, asked)

            calls.clear()
            second = policy.ask(context)
            assert_explains(policy, policy.explain(second), second, calls)
            assert_same(policy.explain(selection).parts, explanation.parts)

            kept = {part: values.copy() for part, values in explanation.parts.items()}
            policy.tell(selection, outcome)
            assert_same(explanation.parts, kept)
            with pytest.raises(RoundOrderError):
                policy.explain(selection)


@pytest.mark.parametrize("name", ["oort", "pyramidfl"])
@examples(150)
@given(case=cases())
def test_oort_draws_by_the_explained_utilities(name, case):
    policy = case.build(find_policy(name))
    tiny = 1e-300
    for context, outcome in case.rounds():
        twin = np.random.default_rng()
        twin.bit_generator.state = policy.state_dict()["rng"]
        with mock.patch.object(oort, "largest", wraps=oort.largest) as largest:
            selection = policy.ask(context)
        score = policy.explain(selection).score
        tried = context.available & (policy.play_count > 0)
        new = context.available & ~tried
        if largest.called:
            drawn = np.exp(largest.call_args_list[0].args[0] - twin.gumbel(size=case.shape))
            assert np.allclose(np.maximum(score, tiny)[drawn > 0], drawn[drawn > 0], rtol=1e-9)
            assert (abs(score[tried & (drawn == 0)]) < TOLERANCE).all()
        for row in np.ndindex(case.batch_shape):
            assert len(set(score[row][new[row]])) <= 1
            some_drawn = (selection.mask & new)[row].any()
            if (score[row][new[row]] > 0).any():
                assert some_drawn
        policy.tell(selection, outcome)


# --- the paper, recomputed ------------------------------------------------------------------------


class Paper:
    """y, z and D of one row, from its history alone, as the paper writes them."""

    def __init__(self, num_arms, floors):
        self.rewards = [[] for _ in range(num_arms)]
        self.selected_in = []
        self.floors = floors

    def tell(self, selected, times, completed):
        self.selected_in.append(set(selected))
        for arm in selected:
            tau = min(times[arm], TAU_MAX_S) if completed[arm] else TAU_MAX_S
            self.rewards[arm].append(1 - tau / TAU_MAX_S)

    def play_count(self, arm):
        return len(self.rewards[arm])

    def mean_reward(self, arm):
        rewards = self.rewards[arm]
        return math.fsum(rewards) / len(rewards) if rewards else 0.0

    def queue(self, arm):
        debt = 0.0
        for selected in self.selected_in:
            debt = max(debt + self.floors[arm] - (arm in selected), 0.0)
        return debt

    def index(self, arm, t, exploration):
        if not self.rewards[arm]:
            return math.inf
        return self.mean_reward(arm) + math.sqrt(exploration * math.log(t) / len(self.rewards[arm]))


def assert_maximiser(score, selected, available):
    """No available arm outside the super arm beats one inside."""
    outside = [score[arm] for arm in available if arm not in selected]
    if selected and outside:
        worst = min(score[arm] for arm in selected)
        assert max(outside) <= worst + TOLERANCE


@pytest.mark.parametrize("name", ["cs-ucb", "modified-cs-ucb", "cs-ucb-q"])
@examples(150)
@given(case=cases())
def test_every_super_arm_maximises_the_papers_objective(name, case):
    policy = case.build(find_policy(name))
    rows = list(np.ndindex(case.batch_shape))
    floors = case.floors(find_policy("cs-ucb-q"))
    papers = {row: Paper(case.num_arms, floors) for row in rows}
    ideal = dict.fromkeys(rows, True)
    arms = range(case.num_arms)
    for context, selection, outcome in case.play(policy):
        t = context.round
        for row in rows:
            paper = papers[row]
            assert policy.play_count[row].tolist() == [paper.play_count(arm) for arm in arms]
            assert np.allclose(
                policy.mean_reward[row],
                [paper.mean_reward(arm) for arm in arms],
                rtol=0,
                atol=TOLERANCE,
            )
            available = np.flatnonzero(context.available[row]).tolist()
            selected = np.flatnonzero(selection.mask[row]).tolist()
            ideal[row] &= len(available) == case.num_arms
            index = [paper.index(arm, t, case.num_selected + 1) for arm in arms]
            if name == "cs-ucb-q":
                debts = [paper.queue(arm) for arm in arms]
                assert np.allclose(policy.virtual_queue[row], debts, rtol=0, atol=TOLERANCE)
                index = [paper.index(arm, t, 2) for arm in arms]
                u = [min(value, 1.0) for value in index] if policy.truncate else index
                if not (policy.beta == 1.0 and math.inf in u):
                    score = [(1 - policy.beta) * u[arm] + policy.beta * debts[arm] for arm in arms]
                    assert_maximiser(score, selected, available)
            elif name == "cs-ucb" and ideal[row] and math.inf in index:
                # Algorithm 1, lines 2 to 8: in its ceil(K/N) rounds the untried come first.
                assert t <= math.ceil(case.num_arms / case.num_selected)
                untried = [arm for arm in arms if index[arm] == math.inf]
                taken = sum(arm in untried for arm in selected)
                assert taken == min(case.num_selected, len(untried))
            else:
                assert_maximiser(index, selected, available)
            paper.tell(selected, outcome.round_trip_time_s[row], outcome.completed[row])


# --- selection ------------------------------------------------------------------------------------


@examples(600)
@given(
    num_arms=st.integers(0, 12),
    num_selected=st.integers(1, 6),
    num_rows=st.integers(1, 4),
    num_keys=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_top_arms_equals_a_plain_sort(num_arms, num_selected, num_rows, num_keys, seed):
    rng = np.random.default_rng(seed)
    shape = (num_rows, num_arms)
    values = np.array([0.0, 1.0, 2.0, np.inf])
    keys = [rng.choice(values, shape) for _ in range(num_keys)]
    available = rng.random(shape) < 0.7
    scratch = np.empty(shape) if seed % 2 else None
    mask = top_arms(keys, available, num_selected, rng, scratch=scratch)
    for row in range(num_rows):
        arms = np.flatnonzero(available[row])
        ranked = sorted((tuple(key[row, arm] for key in keys) for arm in arms), reverse=True)
        chosen = sorted(
            (tuple(key[row, arm] for key in keys) for arm in np.flatnonzero(mask[row])),
            reverse=True,
        )
        assert not (mask[row] & ~available[row]).any()
        assert chosen == ranked[:num_selected]
