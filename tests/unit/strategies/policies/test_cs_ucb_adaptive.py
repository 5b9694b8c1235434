"""The adaptive policies: their index by hand, change, trials that must pay off, floors."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import examples

from flower_scheduling.strategies import RoundContext, RoundOutcome, build_policy
from flower_scheduling.strategies.policies.cs_ucb_adaptive import CsUcbAdaptive
from flower_scheduling.strategies.policies.cs_ucb_q_adaptive import CsUcbQAdaptive
from flower_scheduling.strategies.selection import cheapest_set

TAU_MAX_S = 5.0
EXPLORATION = 0.8


def build(
    name: str = "cs-ucb-adaptive", *, num_arms: int = 3, num_selected: int = 1, **more: object
):
    policy = build_policy(
        name,
        num_arms=num_arms,
        num_selected=num_selected,
        tau_max_s=more.pop("tau_max_s", TAU_MAX_S),
        rng=np.random.default_rng(0),
        **more,
    )
    assert isinstance(policy, CsUcbAdaptive)
    return policy


def play(policy, round, times_s, available=None, only=None):
    """Play a round in which arm k would take ``times_s[k]``; ``inf`` fails. Return who played."""
    times_s = np.asarray(times_s, dtype=np.float64)
    if only is not None:
        available = np.isin(np.arange(policy.num_arms), only)
    if available is None:
        available = np.ones(policy.num_arms, dtype=np.bool_)
    selection = policy.ask(RoundContext(round, available))
    policy.tell(selection, RoundOutcome(times_s, np.isfinite(times_s)))
    return np.flatnonzero(selection.mask).tolist()


# --- the index ------------------------------------------------------------------------------------


def log_gain(round: int, mean_s: float) -> float:
    """Return L, for what is to be gained in rounds of a mean time against a failure's cost."""
    return max(math.log(round * mean_s / TAU_MAX_S), 0.0)


def test_cost_by_hand() -> None:
    policy = build(num_arms=2, num_selected=2)
    for round, times_s in enumerate(([1.0, 2.0], [1.5, np.inf], [1.0, 2.5]), start=1):
        play(policy, round, times_s)
    assert policy.success_count.tolist() == [3, 2]
    assert policy.failure_count.tolist() == [0, 1]
    logs = [np.log([1.0, 1.5, 1.0]), np.log([2.0, 2.5])]
    squares = [float(((each - each.mean()) ** 2).sum()) for each in logs]
    assert policy.mean_log_time == pytest.approx([each.mean() for each in logs])
    assert policy.log_square == pytest.approx(squares)
    # Five plays' worth of what a play of all arms deviates by; three had an earlier one.
    usual = 5 * sum(squares) / 3
    variances = [(squares[0] + usual) / (2 + 5), (squares[1] + usual) / (1 + 5)]
    means_s = [math.exp(each.mean() + v / 2) for each, v in zip(logs, variances, strict=True)]
    assert policy.mean_time_s() == pytest.approx(means_s)
    root = math.sqrt(math.log(4))
    shared = (1 + 0.5) / (6 + 1)
    gain = log_gain(4, (3 * means_s[0] + 2 * means_s[1]) / 5)
    assert gain > 0.0
    expected = []
    for mean_s, v, successes, failures in zip(means_s, variances, [3, 2], [0, 1], strict=True):
        chance = (failures + shared) / (successes + failures + 1)
        tries = successes + failures
        chance = max(chance - 0.5 * math.sqrt(gain * chance * (1 - chance) / tries), 0.0)
        fast_s = mean_s * math.exp(-EXPLORATION * math.sqrt(v / successes) * root)
        expected.append((1 - chance) * fast_s + chance * TAU_MAX_S)
    assert policy.cost_s(4) == pytest.approx(expected, rel=1e-12)


def test_cost_in_parts_by_hand() -> None:
    policy = build(num_arms=3, num_selected=2)
    play(policy, 1, [1.0, np.inf, 9.0], only=[0, 1])
    play(policy, 2, [1.0, 1.5, 9.0], only=[0, 1])
    selection = policy.ask(RoundContext(5, np.ones(3, dtype=np.bool_)))
    explanation = policy.explain(selection)
    assert (explanation.rule, explanation.unit) == ("smallest", "s")
    assert list(explanation.parts) == ["mean", "failures", "bonus"]
    # All times of an arm were equal, so that nothing is gained from their spread. One of four
    # tries failed: (1 + 1/2) / (4 + 1) is everybody's share.
    chance = np.array([0.0 + 0.3, 1.0 + 0.3]) / 3
    gain = log_gain(5, (2 * 1.0 + 1.5) / 3)
    assert gain > 0.0
    hope = 0.5 * np.sqrt(gain * chance * (1 - chance) / 2)
    left_s = TAU_MAX_S - np.array([1.0, 1.5])
    assert explanation.parts["mean"] == pytest.approx([1.0, 1.5, 0.0])
    assert explanation.parts["failures"] == pytest.approx([*(chance * left_s), 0.0])
    assert explanation.parts["bonus"] == pytest.approx([*(-hope * left_s), -math.inf])
    assert selection.mask.tolist() == [True, False, True]


@pytest.mark.parametrize(("tau_max_s", "again"), [(5.0, True), (60.0, False)])
def test_one_failure_condemns_an_arm_only_where_it_costs_much(tau_max_s, again) -> None:
    """A fade beyond the deadline is one of a thousand plays; an arm of those has one of sixteen."""
    policy = build_policy(
        "cs-ucb-adaptive",
        num_arms=3,
        num_selected=1,
        tau_max_s=tau_max_s,
        rng=np.random.default_rng(0),
    )
    means_s, noise = (
        np.array([0.25, 0.3, 0.3]),
        np.random.default_rng(1).lognormal(0, 0.1, (2000, 3)),
    )
    for t in range(1, 46):
        play(policy, t, means_s * noise[t], only=[t % 3])
    play(policy, 46, [math.inf] * 3, only=[0])
    plays = [play(policy, t, means_s * noise[t]) for t in range(47, 2000)]
    assert ([0] in plays) == again
    assert (plays[-1] == [0]) == again


def test_a_deadline_that_comes_down_does_not_shorten_what_was_learned() -> None:
    """One that is found follows the arms that are played, in buffered mode each by itself."""
    policy = build(num_arms=4, num_selected=2)
    times_s = np.array([0.1, 0.2, 10.0, 30.0])
    for round, only in enumerate(([0, 1], [2, 3], [2, 3]), start=1):
        policy.tau_max_s = 100.0
        play(policy, round, times_s, only=only)
    policy.tau_max_s = 2.0
    assert policy.mean_time_s() == pytest.approx(times_s)
    cost_s = policy.cost_s(4)
    assert (np.diff(cost_s) > 0.0).all(), "and a failure costs no less than a success"
    assert cost_s[2] >= 10.0
    play(policy, 4, times_s, only=[2, 3])
    assert policy.mean_time_s() == pytest.approx(times_s), "in time for its own deadline"


def test_arms_not_worth_trying_are_explained_to_come_last() -> None:
    policy = build(num_arms=8, num_selected=2)
    times_s = np.where(np.arange(8) < 4, 0.1, 0.15)
    for round in range(1, 4):  # four equally fast arms are found, and slower ones cost time
        play(policy, round, times_s, only=[2 * round - 2, 2 * round - 1])
    selection = policy.ask(RoundContext(4, np.arange(8) != 0))
    assert not selection.mask[6:].any()
    explanation = policy.explain(selection)
    assert explanation.parts["mean"] == pytest.approx([0.1] * 4 + [0.15] * 2 + [0.0] * 2)
    assert (explanation.parts["bonus"][6:] == np.inf).all()
    assert np.isfinite(explanation.score[:6]).all()


def test_one_deep_fade_does_not_condemn_an_arm() -> None:
    policy = build(num_arms=2, num_selected=2, tau_max_s=60.0)
    for round in range(1, 27):
        play(policy, round, [0.1, 0.2])
    play(policy, 27, [20.0, 0.2])
    assert policy.mean_time_s()[0] < 0.2, "in the mean of the times it would be 0.84"
    assert policy.cost_s(28).argmin() == 0


def test_an_arm_that_fades_often_is_told_from_one_that_does_not() -> None:
    policy = build(num_arms=2, num_selected=2, tau_max_s=60.0)
    for round in range(1, 101):  # geometric means of 0.2 and 0.21
        play(policy, round, [0.05 if round % 2 else 0.8, 0.21])
    assert policy.mean_time_s()[0] == pytest.approx(0.425, rel=0.25), "as the mean of its times"
    assert policy.cost_s(101).argmin() == 1


@pytest.mark.parametrize("name", ["cs-ucb-adaptive", "cs-ucb-q-adaptive"])
def test_arms_that_scatter_little_are_told_apart_among_those_that_scatter(name) -> None:
    rng = np.random.default_rng(7)
    policy = build(name, num_arms=30, num_selected=5)
    times_s = np.concatenate([np.linspace(0.5, 0.7, 10), np.linspace(1.0, 3.0, 20)])
    scatter = np.concatenate([np.full(10, 0.05), np.full(20, 0.8)])
    for round in range(1, 401):
        play(policy, round, times_s * np.exp(scatter * rng.standard_normal(30)))
    assert policy.play_count[:5].min() > 300
    assert policy.play_count[10:].max() < 60


def test_a_failure_is_counted_apart() -> None:
    policy = build(num_arms=3, num_selected=2, tau_max_s=60.0)
    for round in range(1, 21):
        play(policy, round, [0.3, 0.3, 0.3])
    before_s = policy.mean_time_s()
    flaky = play(policy, 21, [np.inf, np.inf, 0.3], only=[0])
    assert flaky == [0]
    assert policy.mean_time_s() == pytest.approx(before_s)
    for round in range(22, 60):
        assert 0 not in play(policy, round, [0.3, 0.3, 0.3])


# --- trying ---------------------------------------------------------------------------------------


def test_everybody_is_tried_once_where_few_rounds_cost_little() -> None:
    policy = build(num_arms=20, num_selected=5)
    times_s = np.linspace(0.1, 1.0, 20)
    seen = list(itertools.chain(*(play(policy, round, times_s) for round in range(1, 5))))
    assert sorted(seen) == list(range(20))
    assert play(policy, 5, times_s) == [0, 1, 2, 3, 4]


def test_trying_stops_where_it_does_not_pay_off() -> None:
    rng = np.random.default_rng(1)
    policy = build(num_arms=1000, num_selected=5)
    times_s = np.where(rng.random(1000) < 0.1, 0.1, 1.0)
    for round in range(1, 400):
        play(policy, round, times_s * rng.lognormal(0, 0.01, 1000))
    assert 20 < np.count_nonzero(policy.play_count) < 200, "there are enough fast ones"


def test_arms_that_are_not_worth_trying_are_taken_where_nobody_else_is() -> None:
    policy = build(num_arms=30, num_selected=2)
    for round in range(1, 4):
        play(policy, round, np.ones(30))
    assert play(policy, 4, np.ones(30), only=[28, 29]) == [28, 29]


ADAPTIVE = pytest.mark.parametrize("name", ["cs-ucb-adaptive", "cs-ucb-q-adaptive"])
HUNDRED = np.ones(100, dtype=np.bool_)


def tried_once(
    name: str, *, slowest_s: float = 1.9, **more: object
) -> tuple[CsUcbAdaptive, np.ndarray]:
    """Return a policy that has tried 100 arms, 4 a round, the last the fastest; and their times."""
    policy = build(name, num_arms=100, num_selected=4, **more)
    times_s = np.linspace(slowest_s, 1.0, 100)
    for round in range(1, 26):
        play(policy, round, times_s)
    assert policy.play_count.tolist() == [1] * 100
    return policy, times_s


@ADAPTIVE
def test_the_fastest_are_tried_a_second_time_together(name) -> None:
    """Up to 15 of them, 4 at a time."""
    policy, times_s = tried_once(name)
    rounds = [play(policy, round, times_s) for round in range(26, 30)]
    assert rounds == [[96, 97, 98, 99], [92, 93, 94, 95], [88, 89, 90, 91], [96, 97, 98, 99]]


@ADAPTIVE
def test_second_trials_end_where_arms_are_much_slower(name) -> None:
    policy, times_s = tried_once(name, slowest_s=20.0, tau_max_s=40.0)
    assert np.count_nonzero(times_s <= 2 * times_s[96]) == 12
    rounds = [play(policy, round, times_s) for round in range(26, 30)]
    assert rounds[1:] == [[92, 93, 94, 95], [88, 89, 90, 91], [96, 97, 98, 99]]
    policy, times_s = tried_once(name, slowest_s=40.0, tau_max_s=80.0)
    assert np.count_nonzero(times_s <= 2 * times_s[96]) == 9
    rounds = [play(policy, round, times_s) for round in range(26, 29)]
    assert rounds[1:] == [[92, 93, 94, 95], [96, 97, 98, 99]]


@ADAPTIVE
def test_second_trials_are_of_arms_that_are_there(name) -> None:
    policy, times_s = tried_once(name)
    assert play(policy, 26, times_s, available=np.arange(100) < 70) == [66, 67, 68, 69]
    few = np.isin(np.arange(100), [0, 1, 2, 67, 68, 69])  # of which three were played once
    assert play(policy, 27, times_s, available=few) == [2, 67, 68, 69]


@ADAPTIVE
def test_a_fade_in_the_first_trial_does_not_keep_a_fast_arm_out(name) -> None:
    """It took half as much again, at which no bonus makes it worth a place among the others."""
    policy = build(name, num_arms=100, num_selected=4)
    rng = np.random.default_rng(3)
    means_s = np.where(np.arange(100) < 4, 1.0, np.linspace(1.3, 4.0, 100))
    fades = np.where(np.arange(100) == 2, 1.5, 1.0)
    for round in range(1, 501):
        scatter = np.exp(0.02 * rng.standard_normal(100))
        play(policy, round, means_s * scatter * (fades if policy.play_count[2] == 0 else 1.0))
    assert policy.play_count[2] > 400


def test_second_trials_are_seen_in_the_scores() -> None:
    policy, times_s = tried_once("cs-ucb-adaptive")
    explanation = policy.explain(policy.ask(RoundContext(26, HUNDRED)))
    cost = policy.cost_s(26)
    assert explanation.score == pytest.approx(cost - cost.max())
    assert explanation.parts["mean"] == pytest.approx(times_s)
    play(policy, 26, times_s)
    scores = policy.explain(policy.ask(RoundContext(27, HUNDRED))).score
    cost = policy.cost_s(27)
    assert scores == pytest.approx(np.where(policy.play_count == 1, cost - cost.max(), cost))


def test_arms_with_floors_come_to_their_second_trial_as_they_are_owed() -> None:
    floors = np.where(np.arange(100) < 96, 0.02, 0.0)
    policy, _ = tried_once("cs-ucb-q-adaptive", min_participation=floors)
    policy.virtual_queue[:] = 0.0
    again = policy._tried_again(RoundContext(26, HUNDRED))
    assert np.flatnonzero(again).tolist() == [96, 97, 98, 99]


def test_an_arm_that_is_owed_much_goes_before_second_trials() -> None:
    floors = np.where(np.arange(100) == 0, 0.1, 0.0)
    policy, times_s = tried_once("cs-ucb-q-adaptive", min_participation=floors)
    policy.virtual_queue[0] = 7.0
    assert 0 in play(policy, 26, times_s)


def test_channels_have_no_second_trials() -> None:
    policy = build(num_arms=100, num_selected=4, channels=True)
    for round in range(1, 101):
        play(policy, round, np.linspace(1.9, 1.0, 100))
    assert policy.play_count.tolist() == [1] * 100
    assert not policy._tried_again(RoundContext(101, HUNDRED)).any()


@pytest.mark.parametrize("name", ["cs-ucb-adaptive", "cs-ucb-q-adaptive"])
@pytest.mark.parametrize(("num_arms", "num_selected"), [(20, 1), (20, 2), (300, 1)])
def test_the_fastest_is_found_where_few_are_selected(name, num_arms, num_selected) -> None:
    rng = np.random.default_rng(5)
    policy = build(name, num_arms=num_arms, num_selected=num_selected)
    times_s = rng.permutation(np.geomspace(0.05, 2.0, num_arms))
    for round in range(1, 1001):
        play(policy, round, times_s * rng.lognormal(0, 0.2, num_arms))
    chosen = np.concatenate([play(policy, r, times_s) for r in range(1001, 1011)])
    assert times_s[chosen].max() < np.sort(times_s)[num_selected - 1] * 1.3


@pytest.mark.parametrize("name", ["cs-ucb-adaptive", "cs-ucb-q-adaptive"])
@pytest.mark.parametrize("failed_s", [np.inf, TAU_MAX_S])
def test_the_living_are_found_among_the_dead(name, failed_s) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        policy = build(name, num_arms=21, num_selected=5)
        policy._rng = rng
        times_s = np.full(21, failed_s)
        times_s[rng.choice(21, 5, replace=False)] = 0.1
        for round in range(1, 101):
            play(policy, round, times_s)
        assert set(play(policy, 101, times_s)) == set(np.flatnonzero(times_s < 1))
        policy = build(name, num_arms=6, num_selected=3)
        for round in range(1, 20):
            play(policy, round, np.full(6, failed_s))
        policy.add_arms(3)
        for round in range(20, 120):
            play(policy, round, [*np.full(6, failed_s), 0.1, 0.1, 0.1])
        assert policy.play_count[6:].min() > 50, "newcomers are tried"


# --- change ---------------------------------------------------------------------------------------


def test_a_change_is_noticed_within_a_few_rounds_and_everybody_is_tried_again() -> None:
    rng = np.random.default_rng(2)
    policy = build(num_arms=10, num_selected=2)
    times_s = np.linspace(0.2, 1.1, 10)
    for round in range(1, 1201):
        play(policy, round, times_s * rng.lognormal(0, 0.2, 10))
    assert policy.play_count[:2].sum() > 2000
    for round in range(1201, 1261):
        play(policy, round, times_s[::-1] * rng.lognormal(0, 0.2, 10))
    assert policy.num_retrials >= 1
    found = [play(policy, round, times_s[::-1]) for round in range(1261, 1271)]
    assert found == [[8, 9]] * 10


def test_noise_is_no_change() -> None:
    rng = np.random.default_rng(3)
    policy = build(num_arms=6, num_selected=3, batch_shape=(20,))
    available = np.ones((20, 6), dtype=np.bool_)
    for round in range(1, 1001):
        times_s = np.linspace(0.2, 0.7, 6) * (rng.pareto(2.5, (20, 6)) + 1.0)
        selection = policy.ask(RoundContext(round, available))
        policy.tell(selection, RoundOutcome(times_s, times_s <= TAU_MAX_S))
    forgotten = policy.play_count - policy.success_count - policy.failure_count
    assert (forgotten > 0).any(axis=1).sum() <= 2


# --- floors ---------------------------------------------------------------------------------------


@examples(300)
@given(
    st.integers(1, 7),
    st.integers(1, 4),
    st.floats(0, 2),
    st.sampled_from([1.0, 0.6]),
    st.integers(0, 2**32 - 1),
)
def test_cheapest_set_is_that_of_all_sets(num_arms, num_selected, weight, chance, seed) -> None:
    rng = np.random.default_rng(seed)
    shape = (3, num_arms)
    cost = rng.integers(0, 6, shape) / 2.0
    value = rng.integers(-3, 12, shape) / 4.0
    available = rng.random(shape) < chance
    mask = cheapest_set(cost, value, available, num_selected, rng, sum_weight=weight)
    assert not (mask & ~available).any()
    for row in range(3):
        free = np.flatnonzero(available[row])
        size = min(num_selected, free.size)
        assert mask[row].sum() == size
        if not size:
            continue

        def price(arms, row=row):
            arms = list(arms)
            return cost[row, arms].max() + (weight * cost[row, arms] - value[row, arms]).sum()

        alone = cheapest_set(
            cost[row], value[row], available[row], num_selected, rng, sum_weight=weight
        )
        found = price(np.flatnonzero(mask[row]))
        # Of sets that cost the same, sums differ by rounding.
        assert price(np.flatnonzero(alone)) == pytest.approx(found, abs=1e-9)
        best = min(map(price, itertools.combinations(free, size)))
        assert found == pytest.approx(best, abs=1e-9)


def test_value_by_hand() -> None:
    policy = build("cs-ucb-q-adaptive", num_arms=3, num_selected=1, min_participation=[0.2] * 3)
    assert isinstance(policy, CsUcbQAdaptive)
    cost = np.array([1.0, 2.0, 5.0])
    policy.virtual_queue[...] = [3.0, 3.0, 8.0]
    value = policy._value(cost, np.zeros(3, dtype=np.bool_))
    assert value == pytest.approx([3 * 0.1 / 6, 3 * 1.0 / 6, 8 * 4.0 / 6 + 2 * (4.0 + 0.1)])


@pytest.mark.parametrize("debt", [0.0, 9.0])
def test_score_of_an_arm_in_its_set_by_hand(debt) -> None:
    policy = build("cs-ucb-q-adaptive", num_arms=3, num_selected=2)
    assert isinstance(policy, CsUcbQAdaptive)
    mean = np.array([1.0, 1.5, 1.75])
    for arm in range(3):
        play(policy, arm + 1, mean, only=[arm])
    policy.virtual_queue[2] = debt
    selection = policy.ask(RoundContext(4, np.ones(3, dtype=np.bool_)))
    explanation = policy.explain(selection)
    # No spread and no failures: (0 + 1/8) / 2, and 3 tries in all with half a failure.
    chance = 0.0625
    hope = 0.5 * math.sqrt(log_gain(4, 4.25 / 3) * chance * (1 - chance))
    assert 0.0 < hope < chance
    expected = mean + chance * (TAU_MAX_S - mean)
    cost = expected - hope * (TAU_MAX_S - mean)
    value = 0.0
    if debt:  # worth 9 / 6 rounds of its own pace beyond the second fastest, and 3 urgent ones
        value = (cost[2] - cost[1]) * 9 / 6 + 3 * (cost[2] - cost[1] + 0.1 * cost[1])
    assert selection.mask.tolist() == [True, not debt, bool(debt)]
    slowest = cost[2 if debt else 1]

    def lengthened(time_s):
        return np.maximum(time_s - slowest, 0.0) + 0.1 * time_s

    assert (explanation.rule, explanation.unit) == ("smallest", "s")
    assert list(explanation.parts) == ["time", "failures", "bonus", "queue"]
    parts = explanation.parts
    assert parts["time"] == pytest.approx(lengthened(mean))
    assert parts["time"] + parts["failures"] == pytest.approx(lengthened(expected))
    assert explanation.score + np.array([0.0, 0.0, value]) == pytest.approx(lengthened(cost))
    assert parts["queue"] == pytest.approx([0.0, 0.0, -value])


def test_shares_keep_close_to_their_floors_from_early_on() -> None:
    rng = np.random.default_rng(4)
    floors = np.array([0.6, 0.05, 0.3, 0.3])
    policy = build("cs-ucb-q-adaptive", num_arms=4, num_selected=2, min_participation=floors)
    times_s = np.array([4.0, 3.0, 0.2, 0.1])
    played = np.zeros(4)
    for round in range(1, 2001):
        played[play(policy, round, times_s * rng.lognormal(0, 0.1, 4))] += 1
        assert (floors * round - played).max() < 8
    slow = played[:2] / 2000
    assert slow == pytest.approx(floors[:2], abs=0.02), "no more than they must"


def test_slow_arms_that_are_owed_share_their_rounds() -> None:
    floors = [0.1, 0.1, 0.1, 0.1, 0.0, 0.0, 0.0, 0.0]
    policy = build("cs-ucb-q-adaptive", num_arms=8, num_selected=4, min_participation=floors)
    times_s = np.array([3.0] * 4 + [0.1] * 4)
    slow_rounds = sum(bool(set(play(policy, r, times_s)) & {0, 1, 2, 3}) for r in range(1, 1001))
    assert policy.play_count[:4].min() >= 94
    assert slow_rounds < 150, "one by one it would be 400"


def test_arms_with_a_floor_are_tried_at_once() -> None:
    floors = np.zeros(40)
    floors[30:] = 0.01
    policy = build("cs-ucb-q-adaptive", num_arms=40, num_selected=5, min_participation=floors)
    for round in range(1, 9):
        play(policy, round, np.ones(40))
    assert policy.play_count[30:].min() >= 1


# --- first times ----------------------------------------------------------------------------------


def cold(policy, rng, rounds: int, mean_s, times: float) -> np.ndarray:
    """Play rounds in which the first time of each arm is longer; return how often each played."""
    counts = np.zeros(policy.num_arms, dtype=np.int64)
    for round in range(1, rounds + 1):
        time_s = np.asarray(mean_s) * rng.lognormal(0.0, 0.3, policy.num_arms)
        played = play(policy, round, np.where(counts == 0, time_s * times, time_s))
        counts[played] += 1
    return counts


def test_first_times_count_for_less_by_hand() -> None:
    """Of two arms 8 s at first, then 1 s: e = ln 8 > 3 sqrt(v / 2), with v = 2 / 3."""
    policy = build(num_arms=6, num_selected=6)
    play(policy, 1, [8.0] * 6)
    for arm in range(3):
        play(policy, 2 + arm, [1.0] * 6, only=[arm])
    assert policy.first_excess == pytest.approx(math.log(8.0))
    np.testing.assert_allclose(policy.mean_log_time, 0.0, atol=1e-12)
    np.testing.assert_allclose(policy.log_square, 0.0, atol=1e-12)
    assert policy.log_square_sum == pytest.approx(0.0, abs=1e-12)
    play(policy, 5, [2.0] * 6, only=[3])
    excess = (3 * math.log(8.0) + math.log(4.0)) / 4
    assert policy.first_excess == pytest.approx(excess), "it goes on learning how much"
    first = math.log(8.0) - excess
    np.testing.assert_allclose(policy.mean_log_time[:3], first / 2)
    np.testing.assert_allclose(policy.mean_log_time[3], (first + math.log(2.0)) / 2)
    np.testing.assert_allclose(policy.mean_log_time[4:], first)
    squares = [first**2 / 2] * 3 + [(first - math.log(2.0)) ** 2 / 2]
    np.testing.assert_allclose(policy.log_square[:4], squares)
    assert policy.log_square_sum == pytest.approx(sum(squares))
    policy.add_arms(1)
    play(policy, 6, [8.0] * 7, only=[6])
    assert policy.mean_log_time[6] == pytest.approx(first), "a newcomer's as well"


def test_first_times_that_are_little_longer_are_scatter() -> None:
    policy = build(num_arms=6, num_selected=6)
    play(policy, 1, [1.9] * 6)
    for round in range(2, 9):
        play(policy, round, [1.0] * 6)
    assert policy.first_excess == 0.0


def test_a_change_of_all_later_on_is_none_of_first_times() -> None:
    policy = build(num_arms=6, num_selected=6)
    for round in range(1, 30):
        play(policy, round, [1.0 if round < 10 else 9.0] * 6)
    assert policy.first_excess == 0.0


@pytest.mark.parametrize("name", ["cs-ucb-adaptive", "cs-ucb-q-adaptive"])
@pytest.mark.parametrize("times", [1.0, 10.0])
def test_the_fastest_are_found_though_first_times_are_longer(name, times) -> None:
    mean_s = [2.0, 1.9, 1.8, 1.7, 1.6, 1.5, 0.7, 0.6, 0.5, 0.4]
    for seed in range(5):
        policy = build(name, num_arms=10, num_selected=4, tau_max_s=60.0)
        counts = cold(policy, np.random.default_rng(seed), 100, mean_s, times)
        assert counts[6:].min() > 80, f"seed {seed}: {counts}"


def test_what_was_learned_of_first_times_goes_on_with_a_state() -> None:
    rng = np.random.default_rng(1)
    policy = build(num_arms=10, num_selected=4, tau_max_s=60.0)
    cold(policy, rng, 6, np.linspace(1.0, 2.0, 10), 10.0)
    assert policy.first_excess > 0.0
    again = build(num_arms=10, num_selected=4, tau_max_s=60.0)
    again.load_state_dict(policy.state_dict())
    for round in range(7, 30):
        times_s = rng.uniform(1.0, 2.0, 10)
        assert play(policy, round, times_s) == play(again, round, times_s)
    earlier = {k: v for k, v in policy.state_dict().items() if "cold" not in k and "first" not in k}
    again.load_state_dict(earlier)
    assert again.first_excess == 0.0
    assert not np.isfinite(again.first_log_time).any()
