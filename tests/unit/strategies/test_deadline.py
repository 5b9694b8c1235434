"""The deadline that is found: by hand for a few rounds, and on links of many kinds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from flower_scheduling.errors import ConfigError
from flower_scheduling.strategies.deadline import LONGEST_S, AutoDeadline

FIRST = 2.0 * math.exp(2.5)  # what a first time is multiplied by


def told(*rounds: tuple[Sequence[int], Sequence[float]]) -> AutoDeadline:
    """Return a deadline that has learned from rounds of arms and times; infinite is a miss."""
    deadline = AutoDeadline()
    for arms, rtt_s in rounds:
        deadline.tell(arms, rtt_s, np.isfinite(rtt_s))
    return deadline


def test_an_unknown_fleet_has_an_hour() -> None:
    deadline = AutoDeadline()
    assert deadline.deadline_s([0, 1]) == deadline.deadline_s([]) == LONGEST_S == 3600.0
    assert AutoDeadline(600.0).deadline_s([3]) == 600.0
    deadline.tell([0, 1], [math.nan, math.nan], [False, False])
    assert deadline.deadline_s([0, 1]) == 3600.0, "nothing was measured yet"
    assert math.isnan(deadline.slowest_s)
    with pytest.raises(ConfigError, match="longest_s = 0"):
        AutoDeadline(0.0)


def test_a_first_time_is_multiplied_by_24() -> None:
    deadline = told(([0, 1], [1.0, 2.0]))
    assert deadline.deadline_s([0]) == deadline.deadline_s([]) == pytest.approx(2.0 * FIRST)
    assert (deadline.num_known, deadline.slowest_s) == (2, pytest.approx(2.0))


def test_arms_with_few_times_share_the_deviation_of_all() -> None:
    deadline = told(([0, 1], [1.0, 1.0]), ([0], [math.e]))
    # Arm 0: mean 1/2, two observations with a sum of squares of 1/2; pooled (4 + 1/2) / (4 + 1).
    own = math.sqrt((5 * 0.9 + 0.5) / (5 + 1))
    assert deadline.deadline_s([0]) == pytest.approx(
        max(0.9 * FIRST, 2.0 * math.exp(0.5 + 2.5 * own))
    )
    for _ in range(100):
        deadline.tell([0, 1], [1.0, 1.0], [True, True])
    assert deadline.deadline_s([1]) < 2.7, "by then all are known to be steady"


def test_no_arm_is_given_less_than_a_second() -> None:
    deadline = told(*[([0, 1], [0.001, 0.002])] * 100)
    assert deadline.deadline_s([0, 1]) == 1.0, "a busy host takes as long now and then"
    assert deadline.level_s == 1.0


def test_it_shrinks_by_a_tenth_a_round_and_grows_at_once() -> None:
    deadline = told(([0], [10.0]))
    for number in range(1, 6):
        deadline.tell([1], [0.1], [True])
        assert deadline.level_s == pytest.approx(0.9**number * 10.0 * FIRST)
    before_s = deadline.level_s
    deadline.tell([2], [50.0], [True])
    assert deadline.level_s > 2.0 * before_s


def test_an_arm_that_never_answered_has_a_minute_or_ten_times_the_slowest() -> None:
    assert told(([0], [0.1])).deadline_s([0, 1]) == 60.0
    assert told(*[([0], [10.0])] * 50).deadline_s([0, 1]) == pytest.approx(100.0)
    assert told(([0], [1000.0])).deadline_s([0, 1]) == 3600.0


def test_a_client_that_never_answers_holds_up_few_rounds() -> None:
    deadline = told(([0], [0.1]))
    taken_s = []
    for _ in range(40):
        taken_s.append(deadline.deadline_s([0, 1]))
        deadline.tell([0, 1], [0.1, math.nan], [True, False])
    assert taken_s[:5] == [60.0, 180.0, 180.0, pytest.approx(0.9**2 * 0.1 * FIRST, rel=0.5), 180.0]
    slow = [number for number, each in enumerate(taken_s) if each > 59.0]
    assert slow == [0, 1, 2, 4, 8, 16, 32], "tried ever more rarely"
    assert taken_s[-1] == 1.0


def test_a_client_that_dies_holds_up_few_rounds() -> None:
    deadline = told(*[([0, 1], [0.1, 1.0])] * 50)
    usual_s = deadline.deadline_s([0, 1])
    taken_s = []
    for _ in range(20):
        taken_s.append(deadline.deadline_s([0, 1]))
        deadline.tell([0, 1], [0.1, math.nan], [True, False])
    expected = [1, 3, 9, 1, 27, 1, 1, 1, 27, *[1] * 7, 27, 1, 1, 1]
    assert taken_s == pytest.approx([each * usual_s for each in expected])
    assert deadline.level_s == pytest.approx(max(1.0, 0.9**20 * usual_s)), "the others alone count"
    deadline.tell([1], [1.0], [True])
    assert deadline.deadline_s([1]) == pytest.approx(usual_s), "it is back, and as it was"


def test_a_client_that_becomes_twenty_times_slower_is_reached_by_its_third_round() -> None:
    deadline = told(*[([0, 1], [0.1, 1.0])] * 50)
    lost = []
    for number in range(30):
        done = deadline.deadline_s([0, 1]) >= 20.0
        lost += [] if done else [number]
        deadline.tell([0, 1], [0.1, 20.0 if done else math.nan], [True, done])
    assert lost == [0, 1]
    assert deadline.deadline_s([1]) > 50.0
    assert deadline.slowest_s == pytest.approx(20.0), "what was before is forgotten"


def test_one_odd_time_changes_little() -> None:
    steady = [([0], [1.0])] * 50
    before_s = told(*steady).deadline_s([0])
    odd = told(*steady, ([0], [2.5]))
    assert before_s < odd.deadline_s([0]) < 2.0 * before_s
    assert told(*steady, ([0], [2.5]), ([0], [2.5])).slowest_s == pytest.approx(2.5)


def test_missed_deadlines_do_not_stretch_it() -> None:
    deadline, rng = told(([0], [1.0])), np.random.default_rng(1)
    for _ in range(500):
        done = rng.random() > 0.3
        deadline.tell([0], [1.0], [done])
    assert deadline.level_s < 2.7


LINKS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "constant": lambda rng: np.ones(20),
    "jitter": lambda rng: rng.uniform(0.8, 1.2, 20),
    "log-normal": lambda rng: rng.lognormal(0.0, 0.3, 20),
}


@pytest.mark.parametrize("kind", LINKS)
@pytest.mark.parametrize("chosen", ["all", "in-turn", "fastest"])
def test_links_from_a_tenth_of_a_second_to_twenty_lose_next_to_nothing(
    kind: str, chosen: str
) -> None:
    typical_s = np.geomspace(0.1, 20.0, 20)
    rng, deadline = np.random.default_rng(2), AutoDeadline()
    lost = sent = 0
    for number in range(1000):
        arms = np.arange(20)
        if chosen == "in-turn" or number < 4:
            arms = (5 * number + np.arange(5)) % 20
        elif chosen == "fastest":
            arms = np.arange(4) if number % 20 else np.array([0, 1, 2, 19])
        time_s = typical_s * LINKS[kind](rng)
        done = time_s[arms] <= deadline.deadline_s(arms)
        deadline.tell(arms, time_s[arms], done)
        assert number or done.all()
        lost, sent = lost + np.count_nonzero(~done), sent + arms.size
    assert lost <= (0.001 if kind == "log-normal" else 0.0) * sent
    assert deadline.level_s < 3.0 * 20.0 * (2.0 if kind == "log-normal" else 1.0)


def test_state_goes_on_bit_for_bit() -> None:
    rng = np.random.default_rng(3)

    def play(deadline: AutoDeadline, seed: int) -> list[float]:
        rng = np.random.default_rng(seed)
        found = []
        for _ in range(50):
            arms = rng.choice(12, 4, replace=False)
            found.append(deadline.deadline_s(arms))
            time_s = rng.lognormal(0.0, 1.5, 4)
            deadline.tell(arms, time_s, time_s <= found[-1])
        return found

    first = AutoDeadline()
    play(first, int(rng.integers(100)))
    state = first.state_dict()
    text = json.dumps({k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in state.items()})
    for each in (state, json.loads(text)):
        second = AutoDeadline()
        second.load_state_dict(each)
        copy = AutoDeadline()
        copy.load_state_dict(first.state_dict())
        assert play(second, 7) == play(copy, 7)
    assert AutoDeadline().state_dict()["level_s"] is None


def test_an_arm_that_is_to_take_longer_is_given_more() -> None:
    deadline = told(([0, 1], [1.0, 2.0]))
    slowdown = np.array([4.0, 1.0])
    assert deadline.deadline_s([0, 1], slowdown) == pytest.approx(4.0 * 1.0 * FIRST)
    assert deadline.deadline_s([0, 1], np.array([0.1, 0.1])) == deadline.deadline_s([0, 1])
