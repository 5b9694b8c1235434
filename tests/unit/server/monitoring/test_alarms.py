"""What somebody should look at, and when it is over."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from factories import round_record
from flwr.app import ArrayRecord

from flower_scheduling.server.monitoring import alarms as module
from flower_scheduling.server.monitoring.alarms import KINDS, AlarmLog
from flower_scheduling.server.runs.totals import RunTotals
from flower_scheduling.strategies.flower import ArmResult, RoundRecord

NAMES = ["a", "b", "c"]


class Alarms(module.Alarms):
    """Alarms, with the totals that they read."""

    def __init__(self, **settings: Any) -> None:
        self.counted = RunTotals()
        super().__init__(self.counted, **settings)

    def observe(self, record: RoundRecord) -> None:
        self.counted.count(record)
        super().observe(record)


def failed(number: int, arm: int, reason: str) -> RoundRecord:
    return round_record(number, [arm], rtt_s=[None], reason=[reason])


def kinds(alarms: Alarms, floors: list[float] | None = None, saved: int = 0) -> list[str]:
    return [alarm.kind for alarm in alarms.active(NAMES, floors, saved)]


def test_a_missed_floor_is_told_after_a_window_and_forgotten_when_it_is_met_again() -> None:
    alarms = Alarms(tau_max_s=5.0)
    for number in range(1, 200):
        alarms.observe(round_record(number, [0]))
    assert kinds(alarms, [0.5, 0.1, 0.0]) == [], "too few rounds to judge"
    alarms.observe(round_record(200, [0]))
    (alarm,) = alarms.active(NAMES, [0.5, 0.1, 0.0], 0)
    assert (alarm.kind, alarm.arm) == ("floor-missed", 1)
    assert alarm.text == (
        "b took part in 0 of the last 200 rounds, its floor of 0.1 asks for 20: lower the floors "
        "(--fairness), select more clients a round (--num-selected), or see why it was seldom "
        "available"
    )
    for number in range(201, 217):
        alarms.observe(round_record(number, [1]))
    assert kinds(alarms, [0.5, 0.1, 0.0]) == [], "16 of 200 is four fifths of the floor"


def test_in_buffered_mode_floors_are_of_updates_and_may_lag_by_their_bound() -> None:
    for served, found in ((24, []), (18, ["floor-missed"])):
        alarms = Alarms(tau_max_s=5.0, num_selected=4)
        for number in range(1, 201):
            pair = [0, 1] if number <= served else [0, 2]
            steps = {"staleness": [0, 0], "begin_s": [0.0, 0.0]}
            alarms.observe(round_record(number, pair, buffered=True, **steps))
        assert kinds(alarms, [0.0, 0.075, 0.0]) == found, "30 of 400, and 6 + 1 + 4 less"
    (alarm,) = alarms.active(NAMES, [0.0, 0.075, 0.0], 0)
    assert alarm.text.startswith("b took part in 18 of the last 400 updates, its floor of 0.075")
    assert "select more clients at work (--num-selected)" in alarm.text


def test_a_floor_is_met_by_late_updates_that_were_used() -> None:
    for reason, found in ((None, []), ("timeout", ["floor-missed", "always-fails"])):
        alarms = Alarms(tau_max_s=5.0)
        late = ArmResult(1, "b", 1.0, reason, staleness=1)
        for number in range(1, 201):
            due = [late] if number % 10 == 0 else []
            alarms.observe(round_record(number, [0], late_updates=due))
        assert kinds(alarms, [0.5, 0.1, 0.0]) == found


def test_rounds_in_which_a_client_was_gone_are_not_held_against_anybody() -> None:
    alarms = Alarms(tau_max_s=5.0)
    for number in range(1, 250):
        alarms.observe(round_record(number, [0], absent=[1, 2]))
    assert kinds(alarms, [0.5, 0.4, 0.1]) == []


def test_a_client_that_fails_five_times_in_a_row_is_named_with_the_reason() -> None:
    alarms = Alarms(tau_max_s=5.0)
    for number in range(1, 5):
        alarms.observe(failed(number, 2, "error: out of memory"))
    assert kinds(alarms) == []
    alarms.observe(failed(5, 2, "error: out of memory"))
    (alarm,) = alarms.active(NAMES, None, 0)
    assert (alarm.kind, alarm.arm) == ("always-fails", 2)
    assert alarm.text.startswith("c has failed 5 times in a row (error): look at its log")
    alarms.observe(round_record(6, [2]))
    assert kinds(alarms) == []


def test_a_free_rider_is_named_at_once_and_until_it_works() -> None:
    alarms = Alarms(tau_max_s=5.0)
    for number in range(1, 8):
        alarms.observe(failed(number, 1, "free-rider: the update is the model that was sent"))
    (alarm,) = alarms.active(NAMES, None, 0)
    assert (alarm.kind, alarm.arm) == ("free-rider", 1)
    assert alarm.text.startswith("b sends the model back, or another's update, 7 so far: check ")
    alarms.observe(round_record(8, [1]))
    assert kinds(alarms) == []


def test_a_deadline_is_too_tight_when_one_in_ten_misses_it() -> None:
    alarms = Alarms(tau_max_s=5.0)
    for number in range(1, 51):
        slow = number % 9 == 0
        alarms.observe(failed(number, number % 3, "timeout") if slow else round_record(number, [0]))
    assert kinds(alarms) == [], "5 of 50"
    alarms.observe(failed(51, 1, "timeout"))
    (alarm,) = alarms.active(NAMES, None, 0)
    assert alarm.kind == "deadline-tight"
    assert alarm.text == (
        "6 of the last 51 requests missed the deadline of 5 s, and their updates were lost: a "
        "longer one (--tau-max-s), or auto, which finds one, loses fewer"
    )


def test_a_client_that_never_answers_says_nothing_of_a_deadline_far_from_all_answers() -> None:
    def found(tau_max_s: float) -> list[str]:
        alarms = Alarms(tau_max_s=tau_max_s)
        for number in range(1, 61):
            dead = number % 4 == 0
            alarms.observe(failed(number, 2, "timeout") if dead else round_record(number, [0]))
        return kinds(alarms)

    assert found(5.0) == ["deadline-tight", "always-fails"]
    assert found(30.0) == ["deadline-loose", "always-fails"]


@pytest.mark.parametrize(("tau_max_s", "expected"), [(10.0, []), (10.1, ["deadline-loose"])])
def test_a_deadline_is_far_too_loose_at_ten_times_the_slowest(
    tau_max_s: float, expected: list[str]
) -> None:
    alarms = Alarms(tau_max_s=tau_max_s)
    for number in range(1, 60):
        alarms.observe(round_record(number, [0]))
    assert kinds(alarms) == expected
    for alarm in alarms.active(NAMES, None, 0):
        assert alarm.text == (
            "the slowest answer in the last 59 rounds took 1 s, but the deadline is 10.1 s, and a "
            "client that fails delays its round by all of it: a shorter one (--tau-max-s), or "
            "auto, which finds one, saves that time"
        )


def test_alarms_on_the_deadline_do_not_flap() -> None:
    alarms = Alarms(tau_max_s=10.5)
    for number in range(1, 260):  # the slowest of the window is now 1 s, now 1.1 s
        slow = number > 60 and number % 220 == 0
        alarms.observe(round_record(number, [0], rtt_s=[1.1 if slow else 1.0]))
        if number >= 50:
            assert kinds(alarms) == ["deadline-loose"], number
    alarms.observe(round_record(260, [0], rtt_s=[2.2]))
    assert kinds(alarms) == []


def test_learning_that_stops_or_diverges_is_told() -> None:
    alarms = Alarms(tau_max_s=5.0)
    for number in range(1, 11):
        alarms.observe(round_record(number, [0], stepped=False, no_step="quorum"))
    (alarm,) = alarms.active(NAMES, None, 0)
    assert alarm.kind == "no-step"
    assert alarm.text.startswith("the model has not changed for 10 rounds (quorum): too few")
    alarms.observe(round_record(11, [0], stepped=False, no_step="quorum", buffered=True))
    (alarm,) = alarms.active(NAMES, None, 0)
    assert alarm.text.startswith("the model has not changed for 11 steps (quorum)")
    logs = "look at the logs of the clients"
    for why, more, advice in (
        ("nobody-available", {}, "check that clients are running and connected"),
        ("nobody-available", {"left_out": [1]}, "clients that are connected have failed"),
        ("no-replies", {"reason": ["client error: no"]}, logs),
        ("aggregation", {"reason": ["timeout"]}, "the log says more"),
        ("no-replies", {"reason": ["timeout"]}, f"{logs}, and at the deadline"),
    ):
        alarms.observe(round_record(11, [0], stepped=False, no_step=why, rtt_s=[None], **more))
        text = alarms.active(NAMES, None, 0)[0].text
        assert f": {advice}" in text
        assert ("deadline" in text) == ("deadline" in advice)
    alarms.observe(round_record(11, [0], accuracy=0.5, loss=1.0))
    for number in range(12, 31):
        alarms.observe(round_record(number, [0], accuracy=0.5, loss=1.0))
    assert kinds(alarms) == []
    alarms.observe(round_record(31, [0], accuracy=0.4, loss=1.0))
    assert kinds(alarms) == ["not-learning"]
    alarms.observe(round_record(32, [0], accuracy=0.1, diverged=True))
    assert kinds(alarms) == ["diverged"]
    alarms.observe(round_record(33, [0]))
    assert kinds(alarms) == ["diverged"], "until an evaluation says otherwise"
    alarms.observe(round_record(34, [0], accuracy=0.503, loss=1.0))
    assert kinds(alarms) == []


def learned(accuracies: list[float], **settings: Any) -> Alarms:
    alarms = Alarms(tau_max_s=5.0, **settings)
    for number, accuracy in enumerate(accuracies, start=1):
        alarms.observe(round_record(number, [0], accuracy=accuracy, loss=1.0))
    return alarms


def test_a_model_that_has_learned_and_stays_there_is_done() -> None:
    assert kinds(learned([0.1, 0.5, 0.9, *[0.9] * 60])) == []


def test_a_model_that_forgets_what_it_has_learned_is_told() -> None:
    (alarm,) = learned([0.1, 0.5, 0.9, *[0.3] * 20]).active(NAMES, None, 0)
    assert alarm.kind == "not-learning"
    assert alarm.text.startswith("the accuracy has fallen: at most 0.3000 in the last 20")


def test_a_plateau_below_the_target_is_told() -> None:
    alarms = learned([])
    alarms.counted.target_accuracy = 0.95
    for number, accuracy in enumerate([0.1, 0.9, *[0.9] * 20], start=1):
        alarms.observe(round_record(number, [0], accuracy=accuracy, loss=1.0))
    (alarm,) = alarms.active(NAMES, None, 0)
    assert alarm.text == (
        "no accuracy clearly better than 0.9000 in 20 evaluations, and the target is 0.95"
    )


def test_a_missing_loss_is_no_diverged_one() -> None:
    alarms = Alarms(tau_max_s=5.0)
    alarms.observe(round_record(1, [0], accuracy=0.5))
    assert kinds(alarms) == []
    alarms.observe(round_record(2, [0], diverged=True))
    assert kinds(alarms) == ["diverged"], "without an accuracy, too"


def test_a_checkpoint_is_stale_when_two_are_missing() -> None:
    alarms = Alarms(tau_max_s=5.0, checkpoint_every=10)
    for number in range(1, 31):
        alarms.observe(round_record(number, [0]))
    assert kinds(alarms, saved=10) == []
    assert kinds(alarms, saved=9) == ["checkpoint-stale"]


def test_the_log_has_beginnings_and_ends_and_not_too_many(caplog: pytest.LogCaptureFixture) -> None:
    strategy = SimpleNamespace(arms=SimpleNamespace(names=NAMES), floors=None)
    totals = RunTotals()
    run: Any = SimpleNamespace(
        strategy=strategy,
        totals=totals,
        settings={"fairness": "none"},
        tau_max_s=5.0,
        checkpoint_every=0,
        directory=None,
        saved_round=0,
        earlier_rounds=tuple,
    )
    log = AlarmLog()
    log.on_start(run)

    def play(played: RoundRecord) -> None:
        totals.count(played)
        log.on_round(played, ArrayRecord())

    number = 0
    with caplog.at_level(logging.INFO):
        for _ in range(30):
            for _ in range(5):
                number += 1
                play(failed(number, 1, "error: x"))
            assert [alarm.kind for alarm in log.active] == ["always-fails"]
            number += 1
            play(round_record(number, [1]))
            assert log.active == ()
    lines = [line.getMessage() for line in caplog.records]
    assert lines[0].startswith("alarm always-fails: b has failed 5 times in a row (error): ")
    assert lines[1] == "alarm always-fails is over for b"
    assert len(lines) == 40, "twenty begin and end"
    assert lines[38].endswith("; more are not logged for an hour")
    assert "always-fails" in KINDS


def test_a_floor_by_a_name_that_no_client_has_is_an_alarm_until_it_joins() -> None:
    alarms = Alarms(fairness="near=0.2,b=0.1")
    floors = [0.0, 0.1, 0.0]
    for number in range(1, 11):
        assert kinds(alarms, floors) == []
        alarms.observe(round_record(number, [0]))
    (alarm,) = alarms.active(["a", "b", "Near"], floors, 0)
    assert (alarm.kind, alarm.arm) == ("floor-unknown", -1)
    assert alarm.text == (
        "no client is called near (did you mean Near?): its floor has no effect until it joins; "
        "check the name in --fairness"
    )
    assert alarms.active(["a", "b", "Near", "near"], [*floors, 0.2], 0) == []
    assert kinds(alarms, None) == [], "a policy without floors"


def test_clients_that_came_once_and_left_are_an_alarm() -> None:
    alarms = Alarms()
    names = [f"pod-{number}" for number in range(12)]
    found = {}
    for number in range(1, 37):  # each is there for three rounds
        there = (number - 1) // 3
        absent = [arm for arm in range(there + 1) if arm != there]
        alarms.observe(round_record(number, [there], num_arms=there + 1, absent=absent))
        found[number] = [alarm.text for alarm in alarms.active(names, None, 0)]
    assert found[24] == []
    assert found[25][0].startswith("5 clients came once and left, pod-4 last: ")
    assert found[36][0].startswith("8 clients came once and left, pod-7 last: ")


def test_clients_that_are_left_out_after_failures_have_not_left() -> None:
    alarms = Alarms()
    for number in range(1, 40):
        out = list(range(6)) if number > 3 else []
        alarms.observe(round_record(number, [6], num_arms=7, absent=out, left_out=out))
    assert alarms.active([f"pod-{number}" for number in range(7)], None, 0) == []


def test_clients_that_come_again_have_not_left_for_good() -> None:
    alarms = Alarms()
    for number in range(1, 100):
        there = number % 2  # on 10 rounds, off 10 rounds
        away = list(range(1, 8)) if number // 10 % 2 else []
        alarms.observe(round_record(number, [0], num_arms=8, absent=away, stepped=bool(there)))
        assert number < 30 or kinds(alarms) == []


@pytest.mark.parametrize("tau_max_s", [5.0, "auto"])
def test_a_deadline_that_is_found_is_neither_tight_nor_loose(tau_max_s: Any) -> None:
    tight, loose = Alarms(tau_max_s=tau_max_s), Alarms(tau_max_s=tau_max_s)
    for number in range(1, 200):
        answers = [1.0, None] if number % 2 else [1.0, 1.0]
        reason = [None, "timeout"] if number % 2 else [None, None]
        tight.observe(round_record(number, [0, 1], rtt_s=answers, reason=reason))
        loose.observe(round_record(number, [0, 1], rtt_s=[0.1, 0.1]))
    given = tau_max_s == 5.0
    assert kinds(tight) == (["deadline-tight"] if given else [])
    assert kinds(loose) == (["deadline-loose"] if given else [])
