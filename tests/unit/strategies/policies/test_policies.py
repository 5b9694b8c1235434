"""Hand-computed rounds of each policy, and the border of the seam."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from flower_scheduling.errors import ArrayError, ConfigError, RoundOrderError
from flower_scheduling.strategies import (
    POLICIES,
    RoundContext,
    RoundOutcome,
    Selection,
    build_policy,
)
from flower_scheduling.strategies.virtual_queue import advance_virtual_queue

OWN_PARAMS = {"oracle": lambda num_arms: {"expected_time_s": np.arange(num_arms) + 1.0}}


def build(name="cs-ucb", *, num_arms=4, num_selected=2, seed=0, **params):
    own = OWN_PARAMS.get(name, lambda num_arms: {})(num_arms)
    return build_policy(
        name,
        **{
            "num_arms": num_arms,
            "num_selected": num_selected,
            "tau_max_s": 4.0,
            "rng": np.random.default_rng(seed),
            **own,
            **params,
        },
    )


def context(round, available, member=None):
    member = None if member is None else np.array(member, dtype=bool)
    return RoundContext(round, np.array(available, dtype=bool), member)


def outcome(times, completed=None, **reported):
    times = np.array(times, dtype=float)
    done = np.ones(times.shape, bool) if completed is None else np.array(completed, dtype=bool)
    return RoundOutcome(times, done, {k: np.array(v, dtype=float) for k, v in reported.items()})


def play(policy, round, available, times, completed=None, member=None, **reported):
    selection = policy.ask(context(round, available, member))
    policy.tell(selection, outcome(times, completed, **reported))
    return np.flatnonzero(selection.mask).tolist()


def force(policy, round, mask, times, completed=None):
    """Tell a round whose super arm the test chose."""
    mask = np.array(mask, dtype=bool)
    policy.tell(Selection(context(round, np.ones_like(mask)), mask), outcome(times, completed))


def explain(policy, round, available):
    """Return the explanation of a round that is not told."""
    return policy.explain(policy.ask(context(round, available)))


def assert_parts(explanation, **parts):
    assert list(explanation.parts) == list(parts)
    for name, values in parts.items():
        assert explanation.parts[name] == pytest.approx(np.array(values), abs=1e-12), name


# --- rewards --------------------------------------------------------------------------------------


def test_rewards_by_hand():
    policy = build(num_arms=5, num_selected=5)
    # 1 s of 4: 3/4. Above the deadline: clipped. Failed fast: 0, whatever its time.
    force(policy, 1, [1, 1, 1, 1, 0], [1.0, 7.0, 0.1, np.nan, np.nan], [1, 1, 0, 0, 0])
    assert policy.mean_reward.tolist() == [0.75, 0.0, 0.0, 0.0, 0.0]
    assert policy.play_count.tolist() == [1, 1, 1, 1, 0]
    force(policy, 2, [1, 0, 0, 0, 1], [3.0, 0.0, 0.0, 0.0, 0.0])
    assert policy.mean_reward.tolist() == [0.5, 0.0, 0.0, 0.0, 1.0]


# --- each policy ----------------------------------------------------------------------------------


def test_random_takes_everybody_equally_often():
    policy = build("random", num_arms=4, batch_shape=(20_000,))
    counts = policy.ask(context(1, np.ones((20_000, 4)))).mask.sum(axis=0)
    assert np.all(abs(counts - 10_000) < 6 * math.sqrt(20_000 / 4))  # 6 sigma, about 1e-9


def test_round_robin_by_hand():
    policy = build("round-robin", num_arms=5)
    assert play(policy, 1, [1] * 5, [1] * 5) == [0, 1]
    assert play(policy, 2, [1, 1, 0, 1, 1], [1] * 5) == [3, 4]  # skips arm 2
    assert play(policy, 3, [1] * 5, [1] * 5) == [0, 1]
    assert play(policy, 4, [0] * 5, [1] * 5) == []  # nobody: it stays arm 2's turn
    assert play(policy, 5, [0, 1, 0, 0, 1], [1] * 5) == [1, 4]  # arm 4, then round to arm 1
    assert policy.next_arm == 2
    assert play(policy, 6, [1] * 5, [1] * 5) == [2, 3]


def test_round_robin_rows_have_their_own_turn():
    policy = build("round-robin", num_arms=3, num_selected=1, batch_shape=(2,))
    play(policy, 1, [[1, 1, 1], [0, 1, 1]], np.ones((2, 3)))
    assert policy.next_arm.tolist() == [1, 2]


def test_local_accuracy_takes_the_unknown_and_then_the_worst():
    policy = build("local-accuracy", num_arms=4)
    nan = np.nan
    first = play(policy, 1, [1, 1, 0, 0], [1] * 4, local_accuracy=[0.9, 0.2, 0.0, 0.0])
    assert first == [0, 1]
    assert play(policy, 2, [1] * 4, [1] * 4, local_accuracy=[0, 0, 0.5, nan]) == [2, 3]
    assert policy.local_accuracy.tolist() == [0.9, 0.2, 0.5, -np.inf]
    assert play(policy, 3, [1] * 4, [1] * 4) == [1, 3]  # never reported, then 0.2
    assert play(policy, 4, [1, 0, 1, 0], [1] * 4, local_accuracy=[nan] * 4) == [0, 2]
    assert policy.local_accuracy.tolist() == [0.9, 0.2, 0.5, -np.inf]


def test_cs_ucb_index_by_hand():
    policy = build("cs-ucb", num_arms=3, num_selected=1)
    for t, arm, time_s in ((1, 0, 1.0), (2, 1, 2.0), (3, 2, 3.0), (4, 0, 2.0)):
        force(policy, t, np.arange(3) == arm, [time_s] * 3)
    # N = 1: a = N + 1 = 2; arm 0 has y = (3/4 + 1/2) / 2 after two plays.
    bonus = math.sqrt(2 * math.log(5))
    expected = [0.625 + bonus / math.sqrt(2), 0.5 + bonus, 0.25 + bonus]
    assert policy.ucb_index(5, 2.0) == pytest.approx(expected, abs=1e-12)
    assert play(policy, 5, [1, 1, 1], [1] * 3) == [1]


@pytest.mark.parametrize("num_arms", [4, 5, 7])
def test_cs_ucb_first_pass_is_disjoint_and_filled_up_from_those_played(num_arms):
    policy = build("cs-ucb", num_arms=num_arms, num_selected=3, batch_shape=(50,))
    everybody = np.ones((50, num_arms))
    for t in range(1, math.ceil(num_arms / 3) + 1):
        untried = np.minimum((policy.play_count == 0).sum(axis=1), 3)
        selection = policy.ask(context(t, everybody))
        assert ((selection.mask & (policy.play_count == 0)).sum(axis=1) == untried).all()
        policy.tell(selection, outcome(everybody))
    assert (policy.play_count >= 1).all()
    assert (policy.play_count.sum(axis=1) == 3 * math.ceil(num_arms / 3)).all()


def fill_of_last_pass_round(name, first_mask=(1, 1, 1), seeds=400):
    """Play arms 0 and 1 (arm 0 is much faster), then ask with arm 2 untried: who fills up?"""
    policy = build(name, num_arms=3, num_selected=2, batch_shape=(seeds,))
    available = np.tile(np.array(first_mask, dtype=bool), (seeds, 1))
    mask = np.tile([True, True, False], (seeds, 1))
    times = np.tile([0.1, 3.9, 1.0], (seeds, 1))
    policy.tell(Selection(RoundContext(1, available), mask), outcome(times))
    chosen = policy.ask(context(2, np.ones((seeds, 3)))).mask
    assert chosen[:, 2].all()
    return chosen[:, 0].mean()


def test_cs_ucb_fills_up_at_random_and_the_modified_one_by_index():
    assert abs(fill_of_last_pass_round("cs-ucb") - 0.5) < 6 * 0.5 / math.sqrt(400)  # 6 sigma
    assert fill_of_last_pass_round("modified-cs-ucb") == 1.0


def test_cs_ucb_goes_by_index_after_a_partial_mask():
    assert fill_of_last_pass_round("cs-ucb", first_mask=(1, 1, 0)) == 1.0


def test_cs_ucb_goes_by_index_in_the_very_round_of_a_partial_mask():
    policy = build("cs-ucb", num_arms=4, num_selected=2, batch_shape=(100,))
    force(policy, 1, np.tile([1, 1, 0, 0], (100, 1)), np.tile([0.1, 3.9, 1, 1], (100, 1)))
    ideal = policy.ideal.copy()
    asked = policy.ask(context(2, np.tile([1, 1, 1, 0], (100, 1))))
    assert asked.mask.tolist() == [[True, False, True, False]] * 100
    assert np.array_equal(policy.ideal, ideal)  # moves in tell
    policy.tell(asked, outcome(np.ones((100, 4))))
    assert not policy.ideal.any()


def test_cs_ucb_tries_arms_that_join_first_and_fills_up_by_index():
    policy = build("cs-ucb", num_arms=2, num_selected=2, batch_shape=(100,))
    force(policy, 1, np.ones((100, 2)), np.tile([0.1, 3.9], (100, 1)))
    policy.add_arms(1)
    assert policy.ask(context(2, np.ones((100, 3)))).mask.tolist() == [[True, False, True]] * 100


def test_cs_ucb_q_queue_and_score_by_hand():
    policy = build(
        "cs-ucb-q", num_arms=3, num_selected=1, beta=0.5, min_participation=[0.6, 0.5, 0.4]
    )
    force(policy, 1, [1, 0, 0], [1.0, 0, 0])
    assert policy.virtual_queue == pytest.approx([0.0, 0.5, 0.4], abs=1e-12)
    # u = 1 for all (arm 0: 3/4 + sqrt(2 ln 2) > 1): the debts decide.
    assert play(policy, 2, [1, 1, 1], [2.0] * 3, completed=[0, 0, 0]) == [1]
    # Selected counts as served even if it failed.
    assert policy.virtual_queue == pytest.approx([0.6, 0.0, 0.8], abs=1e-12)
    # The largest debt is not available; nobody at all leaves debts growing.
    assert play(policy, 3, [1, 1, 0], [2.0] * 3) == [0]
    assert policy.virtual_queue == pytest.approx([0.2, 0.5, 1.2], abs=1e-12)
    assert play(policy, 4, [0, 0, 0], [2.0] * 3) == []
    assert policy.virtual_queue == pytest.approx([0.8, 1.0, 1.6], abs=1e-12)


def test_cs_ucb_q_breaks_ties_by_the_untruncated_index():
    policy = build("cs-ucb-q", num_arms=3, num_selected=1)  # no floors: all scores are 1 - beta
    for t, arm, time_s in ((1, 0, 3.0), (2, 1, 1.0), (3, 2, 2.0)):
        force(policy, t, np.arange(3) == arm, [time_s] * 3)
    assert play(policy, 4, [1, 1, 1], [1.0] * 3) == [1]  # equal bonuses, the fastest
    fresh = build("cs-ucb-q", num_arms=3, num_selected=1)
    force(fresh, 1, [1, 0, 1], [0.0, 0, 0.0])
    assert play(fresh, 2, [1, 1, 1], [1.0] * 3) == [1]  # untried: infinite index


def test_cs_ucb_q_explains_speed_and_debts():
    policy, raw = (
        build(
            "cs-ucb-q",
            num_arms=3,
            num_selected=1,
            beta=0.5,
            min_participation=[0.6, 0.5, 0.4],
            truncate=truncate,
        )
        for truncate in (True, False)
    )
    for each in (policy, raw):
        force(each, 1, [1, 0, 0], [1.0, 0, 0])  # y = 3/4; arms 1 and 2 are owed their floors
    bonus = math.sqrt(2 * math.log(2))
    told = explain(policy, 2, [1, 1, 1])
    assert (told.rule, told.unit) == ("largest", "")
    # An index of 3/4 + 1.18 counts as 1, like that of an arm that was never played.
    assert_parts(told, mean=[0.375, 0, 0], bonus=[0.125, 0.5, 0.5], queue=[0, 0.25, 0.2])
    assert told.score == pytest.approx([0.5, 0.75, 0.7])
    assert told.tie_break == pytest.approx([0.75 + bonus, math.inf, math.inf])
    told = explain(raw, 2, [1, 1, 1])
    assert_parts(
        told, mean=[0.375, 0, 0], bonus=[bonus / 2, math.inf, math.inf], queue=[0, 0.25, 0.2]
    )
    # Twenty plays narrow the bonus until the index is below 1.
    for round in range(2, 21):
        force(policy, round, [1, 0, 0], [3.0 if round > 2 else 5.0, 0, 0])  # 3/4, 0, 18 times 1/4
    mean, bonus = (0.75 + 18 * 0.25) / 20, math.sqrt(2 * math.log(21) / 20)
    told = explain(policy, 21, [1, 0, 1])
    assert mean + bonus < 1
    assert_parts(
        told,
        mean=[mean / 2, 0, 0],
        bonus=[bonus / 2, 0.5, 0.5],
        queue=[0, 10 * 0.5, 10 * 0.4],
    )


def test_cs_ucb_q_explains_debts_alone():
    policy = build("cs-ucb-q", num_arms=2, num_selected=1, beta=1, min_participation=[0, 0.5])
    force(policy, 1, [1, 0], [0.0, 0.0])
    assert_parts(explain(policy, 2, [1, 1]), mean=[0, 0], bonus=[0, 0], queue=[0, 0.5])


def test_cs_ucb_explains_who_only_fills_up_the_first_pass():
    policy = build("cs-ucb", num_arms=3)
    force(policy, 1, [1, 1, 0], [1.0, 3.0, 0])
    assert_parts(explain(policy, 2, [1, 1, 1]), mean=[0, 0, 0], bonus=[0, 0, math.inf])
    bonus = math.sqrt(3 * math.log(2))  # with somebody away the index counts
    assert_parts(
        explain(policy, 2, [1, 0, 1]), mean=[0.75, 0.25, 0], bonus=[bonus, bonus, math.inf]
    )


def test_policies_that_measure_no_times_explain_themselves():
    policy = build("local-accuracy", num_arms=3, num_selected=1)
    play(policy, 1, [0, 1, 0], [1.0] * 3, local_accuracy=[0, 0.5, 0])
    told = explain(policy, 2, [1, 1, 1])
    assert told.rule == "smallest"
    assert_parts(told, bonus=[-math.inf, 0, -math.inf], accuracy=[0, 0.5, 0])
    assert_parts(explain(build("random"), 1, [1, 0, 1, 1]), chance=[2 / 3, 0, 2 / 3, 2 / 3])
    assert_parts(explain(build("random"), 1, [0, 0, 1, 0]), chance=[0, 0, 1, 0])
    policy = build("round-robin")
    play(policy, 1, [1, 1, 1, 1], [1.0] * 4)
    assert_parts(explain(policy, 2, [1, 1, 1, 1]), turn=[2, 3, 0, 1])


def test_cs_ucb_q_score_is_capped_at_one_only_when_truncating():
    truncated, raw = (
        build("cs-ucb-q", num_arms=2, num_selected=1, truncate=t, min_participation=[0.0, 0.1])
        for t in (True, False)
    )
    for policy in (truncated, raw):
        force(policy, 1, [1, 1], [0.0, 4.0])
        force(policy, 2, [0, 0], [0.0, 0.0])  # arm 1 is owed 0.1, arm 0 is faster
        assert policy.virtual_queue == pytest.approx([0.0, 0.1])
    assert truncated.ask(context(3, [1, 1])).mask.tolist() == [False, True]
    assert raw.ask(context(3, [1, 1])).mask.tolist() == [True, False]


@pytest.mark.parametrize("beta", [0.0, 1e-3, 1.0])
def test_cs_ucb_q_untruncated_takes_untried_arms_first(beta):
    policy = build("cs-ucb-q", num_arms=3, num_selected=1, truncate=False, beta=beta)
    force(policy, 1, [1, 0, 1], [0.0] * 3)
    assert policy.ask(context(2, [1, 1, 1])).mask.tolist() == [False, True, False]


def test_an_arm_that_left_is_owed_nothing_more():
    policy = build("cs-ucb-q", num_arms=2, num_selected=1, min_participation=[0.5, 0.5])
    play(policy, 1, [1, 0], [1.0, 1.0], member=[1, 0])
    play(policy, 2, [1, 0], [1.0, 1.0])
    assert policy.virtual_queue.tolist() == [0.0, 0.5]


def test_virtual_queue_leaves_its_input_unless_told_otherwise():
    queue, selected = np.array([1.0, 0.0]), np.array([True, False])
    after = advance_virtual_queue(queue, selected, np.array([0.25, 0.5]))
    assert after.tolist() == [0.25, 0.5]
    assert queue.tolist() == [1.0, 0.0]
    with pytest.raises(ValueError, match=r"\(1,\)"):
        advance_virtual_queue(queue, selected[:1], np.zeros(2))


def test_oracle_takes_the_fastest():
    policy = build("oracle", num_arms=4, expected_time_s=[3.0, 1.0, 2.0, 4.0])
    assert play(policy, 1, [1, 1, 1, 1], [1.0] * 4) == [1, 2]
    assert play(policy, 2, [1, 1, 0, 1], [1.0] * 4) == [0, 1]
    policy.add_arms(1, expected_time_s=[0.5])
    assert play(policy, 3, [1] * 5, [1.0] * 5) == [1, 4]
    with pytest.raises(ConfigError, match="expected_time_s"):
        policy.add_arms(1)


# --- the border -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("num_arms", -1),
        ("num_arms", True),
        ("num_arms", 2.0),
        ("num_selected", 0),
        ("num_selected", "2"),
        ("tau_max_s", 0.0),
        ("tau_max_s", math.inf),
        ("tau_max_s", math.nan),
        ("tau_max_s", "5"),
        ("tau_max_s", True),
        ("rng", 0),
        ("batch_shape", 3),
        ("batch_shape", (0,)),
    ],
)
def test_wrong_parameters_are_refused_in_one_line(name, param, value):
    with pytest.raises(ConfigError, match=param) as error:
        build(name, **{param: value})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("beta", -0.1),
        ("beta", 1.1),
        ("beta", math.nan),
        ("beta", "0.1"),
        ("beta", True),
        ("truncate", 1),
        ("min_participation", [0.1, 0.1]),
        ("min_participation", 0.1),
        ("min_participation", [0.1, 0.1, 0.1, 1.0]),
        ("min_participation", [0.1, 0.1, 0.1, -0.1]),
        ("min_participation", [0.1, 0.1, 0.1, math.nan]),
        ("min_participation", ["0.1", "0.1", "0.1", "0.1"]),
        ("min_participation", [True, False, True, False]),
        ("min_participation", [[0.1], [0.1, 0.2]]),
    ],
)
def test_wrong_parameters_of_cs_ucb_q(param, value):
    with pytest.raises(ConfigError, match=param) as error:
        build("cs-ucb-q", **{param: value})
    assert "\n" not in str(error.value)


def test_floors_can_be_replaced_between_rounds_and_are_checked():
    policy = build("cs-ucb-q")
    policy.min_participation = [0.1, 0.2, 0.3, 0.4]
    with pytest.raises(ConfigError, match="min_participation"):
        policy.min_participation = [0.1]
    assert policy.min_participation.tolist() == [0.1, 0.2, 0.3, 0.4]


def test_new_arms_bring_their_floors_and_no_debt():
    policy = build("cs-ucb-q", num_arms=1, min_participation=[0.5])
    play(policy, 1, [0], [1.0])
    policy.add_arms(2, min_participation=[0.1, 0.2])
    policy.add_arms(1)
    assert policy.min_participation.tolist() == [0.5, 0.1, 0.2, 0.0]
    assert policy.virtual_queue.tolist() == [0.5, 0.0, 0.0, 0.0]
    for count, params in ((-1, {}), (1, {"min_participation": [0.1, 0.2]}), (1, {"beta": 0.1})):
        with pytest.raises(ConfigError):
            policy.add_arms(count, **params)
    assert policy.num_arms == 4


def test_rounds_are_told_once_and_in_order():
    policy = build()
    first = policy.ask(context(2, [1] * 4))
    policy.tell(first, outcome([1.0] * 4))
    with pytest.raises(RoundOrderError):
        policy.tell(first, outcome([1.0] * 4))
    for t in (1, 2):
        with pytest.raises(RoundOrderError, match=f"round {t}"):
            policy.ask(context(t, [1] * 4))
    with pytest.raises(RoundOrderError):
        build().ask(context(0, [1] * 4))
    assert policy.last_round == 2


@pytest.mark.parametrize(
    "bad",
    [
        lambda p, s: p.ask(context(2, [1, 1])),
        lambda p, s: p.ask(RoundContext(2, np.ones(4))),
        lambda p, s: p.ask(context(2, [1] * 4, member=[1])),
        lambda p, s: p.tell(Selection(s.context, np.ones(4)), outcome([1.0] * 4)),
        lambda p, s: p.tell(Selection(s.context, np.ones(3, bool)), outcome([1.0] * 4)),
        lambda p, s: p.tell(s, outcome([1.0] * 3)),
        lambda p, s: p.tell(s, RoundOutcome(np.ones(4), np.ones(4))),
        lambda p, s: p.tell(s, outcome([np.nan] * 4)),
        lambda p, s: p.tell(s, outcome([-1.0] * 4)),
        lambda p, s: p.tell(s, RoundOutcome(np.ones(4), np.ones(4, bool), {}, np.ones((4, 3)))),
        lambda p, s: p.tell(s, RoundOutcome(np.ones(4), np.ones(4, bool), {}, "sketch")),
    ],
)
def test_wrong_arrays_are_refused_and_change_nothing(bad):
    policy = build()
    selection = policy.ask(context(1, [1] * 4))
    before = policy.state_dict()
    with pytest.raises(ArrayError):
        bad(policy, selection)
    assert policy.state_dict()["play_count"].tolist() == before["play_count"].tolist()
    assert policy.last_round == 0


def test_wrong_reports_are_refused_before_anything_is_learned():
    policy = build("local-accuracy")
    selection = policy.ask(context(1, [1] * 4))
    with pytest.raises(ArrayError, match="local_accuracy"):
        policy.tell(selection, outcome([1.0] * 4, local_accuracy=[0.5]))
    assert policy.last_round == 0


# --- state ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICIES)
def test_state_is_plain_arrays_also_without_a_batch(name):
    policy = build(name)
    play(policy, 1, [1, 1, 1, 0], [1.0] * 4)
    for key, value in policy.state_dict().items():
        plain = int | float | str | list | dict | np.ndarray
        assert isinstance(value, plain), key
        assert not isinstance(value, np.generic), key


def test_state_has_the_promised_keys_and_no_aliases():
    policy = build("cs-ucb-q", min_participation=[0.1] * 4)
    play(policy, 1, [1] * 4, [1.0] * 4)
    state = policy.state_dict()
    assert {"version", "policy", "play_count", "mean_reward", "virtual_queue", "rng"} <= set(state)
    state["virtual_queue"] += 7
    assert policy.virtual_queue.max() < 1
    other = build("cs-ucb-q", min_participation=[0.1] * 4)
    other.load_state_dict(policy.state_dict() | {"virtual_queue": state["virtual_queue"]})
    state["virtual_queue"] += 7
    assert other.virtual_queue.max() < 8


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"policy": "random"}, "policy"),
        ({"version": 99}, "version"),
        ({"num_arms": 5}, "num_arms"),
        ({"batch_shape": [2]}, "batch_shape"),
        ({"tau_max_s": 5.0}, "tau_max_s"),
        ({"num_selected": 3}, "num_selected"),
        ({"beta": 0.5}, "beta"),
        ({"play_count": np.zeros(3, dtype=np.int64)}, "play_count"),
        ({"mean_reward": "high"}, "mean_reward"),
        ({"round": -1}, "round"),
        ({"rng": {"bit_generator": "MT19937"}}, "rng"),
    ],
)
def test_a_foreign_state_is_refused_and_changes_nothing(change, match):
    policy = build("cs-ucb-q", min_participation=[0.1] * 4)
    play(policy, 1, [1] * 4, [1.0] * 4)
    before = json.dumps(policy.state_dict(), default=np.ndarray.tolist)
    with pytest.raises(ConfigError, match=match) as error:
        policy.load_state_dict(policy.state_dict() | change)
    assert "\n" not in str(error.value)
    assert json.dumps(policy.state_dict(), default=np.ndarray.tolist) == before


def test_an_incomplete_state_is_refused():
    policy = build("cs-ucb-q")
    state = policy.state_dict()
    del state["virtual_queue"]
    with pytest.raises(ConfigError, match="virtual_queue"):
        policy.load_state_dict(state)
