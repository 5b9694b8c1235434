"""Which client had which channel when, and what each client did."""

from __future__ import annotations

from typing import Any

import pytest
from factories import round_record
from page_runs import pick, step

from flower_scheduling.server.page.run_work import RunWork

SCORE = [1.0, 2.0, 3.0]


def test_each_piece_of_work_is_on_a_channel_that_was_free() -> None:
    work = RunWork()
    work.add(step(1, [(0, 0.0, 0.5)], [pick(0, 0.0, SCORE), pick(1, 0.0, SCORE)]), 5.0)
    work.add(step(2, [(2, 0.5, 0.25)], [pick(2, 0.5, SCORE), pick(0, 0.75, SCORE)]), 5.0)
    found = work.channels(2)
    assert found is not None
    assert found["arm"] == [0, 1, 2, 0]
    assert found["channel"] == [0, 1, 0, 0]
    assert found["begin_s"] == [0.0, 0.0, 0.5, 0.75]
    assert found["end_s"] == [0.5, None, 0.75, None], "two are under way"
    assert found["step"] == [1, None, 2, None]
    assert found["picked_in"] == [1, 1, 2, 2]
    assert sorted(work.at_work) == [0, 1]


def test_work_that_ends_in_a_later_step_knows_where_it_was_picked() -> None:
    work = RunWork()
    work.add(step(1, [], [pick(0, 0.0, SCORE)]), 5.0)
    # It ends, and the same client is picked again in the same step, twice.
    again = [pick(0, 1.5, SCORE), pick(0, 1.75, SCORE)]
    work.add(step(2, [(0, 0.0, 1.5), (0, 1.5, 0.25)], again), 5.0)
    found = work.channels(1)
    assert found is not None
    assert found["picked_in"] == [1, 2, 2]
    assert found["end_s"] == [1.5, 1.75, None]
    assert found["channel"] == [0, 0, 0]


def test_lost_work_lasts_until_its_deadline_and_not_beyond_its_step() -> None:
    work = RunWork()
    picks = [pick(0, 0.0, SCORE), pick(1, 0.5, SCORE)]
    work.add(step(1, [(0, 0.0, None), (1, 0.5, None)], picks, time_s=1.0), 0.75)
    found = work.channels(2)
    assert found is not None
    assert found["end_s"] == [0.75, 1.0]
    assert found["reason"] == ["timeout", "timeout"]


def test_runs_without_recorded_picks_have_channels_and_claim_no_reason() -> None:
    work = RunWork()
    work.add(step(1, [(0, 0.0, 0.5), (1, 0.0, 0.25)], []), 5.0)
    found = work.channels(2)
    assert found is not None
    assert found["picked_in"] == [None, None]
    assert work.at_work == []


def test_what_a_server_lost_when_it_was_started_anew_is_not_under_way_for_ever() -> None:
    work = RunWork()
    work.add(step(1, [], [pick(0, 0.0, SCORE)]), 5.0)
    work.add(step(2, [(1, 1.0, 0.5)], [pick(1, 1.0, SCORE), pick(2, 1.5, SCORE)]), 5.0)
    found = work.channels(1)
    assert found is not None
    assert found["arm"] == [1, 2], "one channel, the newest"


def test_the_chart_and_the_histories_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from flower_scheduling.server.page import run_work

    monkeypatch.setattr(run_work, "_RESULTS", 100)
    work = RunWork()
    for number in range(1, 1001):
        at_s = float(number)
        work.add(step(number, [(0, at_s, 0.5)], [pick(0, at_s, SCORE)], time_s=at_s + 1), 5.0)
    found = work.channels(1)
    assert found is not None
    assert len(found["arm"]) == 600
    assert work.history(0)["round"][-1] == 1000
    assert 80 <= len(work.history(0)["round"]) <= 100


def test_a_client_has_a_history_of_times_and_failures() -> None:
    work = RunWork()
    reasons: list[Any] = [None, "error: out of memory"]
    work.add(round_record(1, [0, 1], rtt_s=[0.5, 1.0]), 5.0)
    work.add(round_record(2, [0, 1], rtt_s=[0.25, None], reason=reasons), 5.0)
    work.add(round_record(3, [0]), 5.0)
    assert work.history(1) == {
        "arm": 1, "round": [1, 2], "rtt_s": [1.0, None], "reason": [None, "error"],
    }  # fmt: skip
    assert work.history(2)["round"] == []
    assert work.channels(2) is None, "rounds have no channels"
