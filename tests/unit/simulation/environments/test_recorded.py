"""Records of runs, and what is drawn from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apps import echo_app
from flwr.app import Message, MessageType, RecordDict
from reports import a_round, a_run

from flower_scheduling.simulation.engine.replayer import RECORDED, caveats, replay, reproduced
from flower_scheduling.simulation.engine.virtual_grid import VirtualGrid
from flower_scheduling.simulation.environments.paper import RoundDraw
from flower_scheduling.simulation.environments.recorded import (
    RecordedEnvironment,
    RecordedFleet,
    RunRecord,
    read_record,
)
from flower_scheduling.strategies.flower import TIMEOUT, Exchange

NUM_ROUNDS = 64
FAILED = math.inf


# --- what a record says ---------------------------------------------------------------------------


def read(path: Path, lines: list[dict[str, Any]], **config: Any) -> RunRecord:
    """Return the record of a run of two clients, with a deadline of a minute."""
    settings = {"tau-max-s": 60.0, "strategy": "random", **config}
    lines = [{**line, "num_arms": 2, "available": [0, 1], "num_available": 2} for line in lines]
    return read_record(a_run(path / "run", lines, names=("a", "b"), **settings))


def known_s(record: RunRecord) -> list[list[float]]:
    """Return after what times the failures of each client were known [s]."""
    for samples_s, failures_s, unanswered in zip(
        record.samples_s, record.failures_s, record.unanswered, strict=True
    ):
        assert np.count_nonzero(np.isinf(samples_s)) == failures_s.size == unanswered.size
    return [failures_s.tolist() for failures_s in record.failures_s]


def test_a_client_that_raises_at_once_does_not_take_the_deadline(tmp_path: Path) -> None:
    error = {"completed": [False], "reason": ["client error: boom"]}
    rounds = [a_round(n, {0: 1.0}) for n in range(1, 81)]
    rounds[1::2] = [a_round(n, {1: 0.2}, **error) for n in range(2, 81, 2)]
    record = read(tmp_path, rounds, **{"num-selected": 1})
    assert known_s(record) == [[], [0.2] * 40]
    assert not record.unanswered[1].any()
    assert record.time_s == pytest.approx(sum(line["round_s"] for line in rounds))
    found = replay(record, ["round-robin"], num_seeds=20)
    again, in_turn = (each.time_s for each in found)
    assert found[0].policy == RECORDED
    assert again.mean == pytest.approx(80 * 0.6, rel=0.1)
    assert reproduced(record, found)
    assert in_turn.mean == pytest.approx(40 * 0.2 + 40 * 1.0, rel=0.05)


def test_a_client_that_does_not_answer_takes_the_deadline(tmp_path: Path) -> None:
    late = {"reason": [None, "timeout"], "round_s": 60.002}
    rounds = [a_round(n, {0: 1.0, 1: None}, **late) for n in range(1, 41)]
    record = read(tmp_path, rounds)
    assert known_s(record) == [[], [60.0] * 40]
    assert record.unanswered[1].all()
    assert record.time_s == pytest.approx(40 * 60.0)
    (again,) = replay(record, [], num_seeds=20)
    assert again.time_s.mean == pytest.approx(40 * 60.0, rel=0.05)


def test_what_says_nothing_of_its_time_took_no_longer_than_its_round(tmp_path: Path) -> None:
    rounds = [
        a_round(1, {0: 1.0, 1: None}, reason=[None, "connection lost"], round_s=14.0),
        a_round(2, {0: 1.0, 1: None}, reason=[None, "undeliverable"], round_s=1.0),
        a_round(3, {0: 1.0, 1: None}, reason=[None, "connection lost"], round_s=61.0),
        a_round(4, {0: 1.0, 1: 7.0}, reason=[None, "free-rider: x"], completed=[True, False]),
    ]
    record = read(tmp_path, rounds)
    assert known_s(record) == [[], [14.0, 1.0, 60.0, 7.0]]
    assert not record.unanswered[1].any()
    assert record.time_s == pytest.approx(14.0 + 1.0 + 60.0 + 7.0)


def test_a_deadline_that_is_found_is_that_of_the_round(tmp_path: Path) -> None:
    late = {"reason": [None, "timeout"], "round_s": 30.01, "deadline_s": 30.0}
    error = {"reason": [None, "client error: boom"], "completed": [True, False], "deadline_s": 30.0}
    rounds = [a_round(1, {0: 1.0, 1: None}, **late), a_round(2, {0: 2.0, 1: 0.1}, **error)]
    record = read(tmp_path, rounds, **{"tau-max-s": "auto"})
    assert record.tau_max_s == 2.0, "of what came in time"
    assert known_s(record) == [[], [30.0, 0.1]]
    assert record.unanswered[1].tolist() == [True, False]
    assert record.time_s == pytest.approx(30.0 + 2.0)


def test_in_buffered_steps_a_failure_was_known_before_the_end_of_its_step(tmp_path: Path) -> None:
    step = {"buffered": True, "staleness": [0, 0], "time_s": 100.0, "round_s": 90.0}
    error = {"completed": [True, False], "reason": [None, "client error: boom"]}
    rounds = [
        a_round(1, {0: 1.0, 1: 0.2}, **step, **error, begin_s=[10.0, 90.0]),
        a_round(2, {0: 1.0, 1: None}, **step, reason=[None, "connection lost"], begin_s=[10, 90]),
        a_round(3, {0: 1.0, 1: None}, **step, begin_s=[10.0, 39.9]),
        a_round(4, {0: 1.0, 1: None}, **step, begin_s=[10.0, 39.9], deadline_s=25.0),
    ]
    record = read(tmp_path, rounds, mode="buffered")
    assert known_s(record) == [[], [0.2, 10.0, 60.0, 25.0]]
    assert record.unanswered[1].tolist() == [False, False, True, True]
    assert record.time_s == record.measured_s == 360.0
    (found,) = replay(record, ["random"], num_seeds=20)
    assert found.time_s.low < record.num_rounds * 60.0, "where no work fails"


def test_clients_at_work_or_left_out_are_there_for_other_policies(tmp_path: Path) -> None:
    """Of clients a, b, c and d: b misses its deadline, c is a late spare, d is left out."""
    lines = [
        a_round(1, {0: 1.0, 1: None}, late=[2], left_out=[3], absent=[3], available=[0, 1, 2]),
        a_round(2, {0: 1.0}, available=[0], left_out=[3], absent=[3]),
        a_round(3, {0: 1.0}, available=[0, 2], absent=[1, 3]),
        a_round(4, {0: 1.0}, available=[0, 2], absent=[3]),
    ]
    record = read_record(a_run(tmp_path / "run", lines))
    assert record.available.tolist() == [
        [True, True, True, True],
        [True, True, True, True],
        [True, False, True, False],
        [True, True, True, False],
    ]
    assert record.member[:, 3].tolist() == [True, True, False, False]


def test_clients_that_have_a_channel_are_there_for_other_policies(tmp_path: Path) -> None:
    def step(number: int, ended: dict[int, float], picks: list[Any], available: list[int]) -> Any:
        begins = list(ended.values())
        lines = a_round(number, dict.fromkeys(ended, 1.0), buffered=True, available=available)
        return {**lines, "begin_s": begins, "staleness": [0] * len(begins), "picks": picks}

    def pick(arm: int, begin_s: float) -> dict[str, Any]:
        return {"arm": arm, "begin_s": begin_s}

    lines = [
        step(1, {0: 0.0}, [pick(0, 0.0), pick(1, 0.0), pick(2, 1.0)], [0, 2, 3]),
        step(2, {2: 1.0}, [pick(3, 2.0)], [0, 2]),
        step(3, {3: 2.0, 1: 0.0}, [], [0, 2]),  # as they were when a channel was last given away
        step(4, {0: 3.0}, [pick(0, 3.0)], [1, 2]),
    ]
    record = read_record(a_run(tmp_path / "run", lines, mode="buffered", **{"num-selected": 1}))
    all_there, not_d = [True] * 4, [True, True, True, False]
    assert record.available.tolist() == [*[all_there] * 4, not_d], "five updates in four steps"


def test_a_buffered_run_is_compared_by_updates_and_not_by_requests(tmp_path: Path) -> None:
    """One of two clients always fails at once: as many updates take twice as many random rounds."""
    step = {"buffered": True, "staleness": [0, 0], "round_s": 1.0}
    reasons = {"completed": [True, False], "reason": [None, "client error: boom"]}
    lines = [
        a_round(n, {0: 1.0, 1: 0.1}, **step, **reasons, begin_s=[n - 1.0, n - 1.0])
        for n in range(1, 201)
    ]
    record = read(tmp_path, lines, mode="buffered", **{"num-selected": 1})
    assert record.num_rounds == 200
    (found,) = replay(record, ["random"], num_seeds=20)
    assert found.time_s.mean == pytest.approx(200 * 1.0 + 200 * 0.1, rel=0.1)
    assert any(line.startswith("200 of 400 requests failed") for line in caveats(record, [found]))


def test_late_clients_of_spare_rounds_are_neither_selected_nor_failures(tmp_path: Path) -> None:
    rounds = [a_round(n, {0: 1.0}, late=[1]) for n in range(1, 31)]
    record = read(tmp_path, rounds, **{"num-selected": 1, "num-spare": 1})
    assert [values.tolist() for values in record.samples_s] == [[1.0] * 30, []]
    assert known_s(record) == [[], []]
    assert (record.num_asked, record.num_untimed, record.has_spares) == (2, 30, True)
    assert record.time_s == pytest.approx(30.0)


def test_what_comes_late_and_is_used_tells_its_time(tmp_path: Path) -> None:
    def late(**columns: Any) -> dict[str, Any]:
        return {"late_updates": [{"arm": 1, "rtt_s": None, "reason": None, **columns}]}

    rounds = [
        a_round(1, {0: 1.0}, late=[1]),
        a_round(2, {0: 1.0}, late=[1], **late(rtt_s=1.5)),
        a_round(3, {0: 1.0}, late=[1], **late(reason="timeout")),
        a_round(4, {0: 1.0}, late=[1], **late(rtt_s=0.7, reason="client error: boom")),
        a_round(5, {0: 1.0}, late=[1], **late(rtt_s=70.0)),
    ]
    record = read(tmp_path, rounds, **{"num-selected": 1, "late-updates": "use"})
    assert record.samples_s[1].tolist() == [1.5, FAILED, FAILED, FAILED]
    assert known_s(record) == [[], [60.0, 0.7, 60.0]]
    assert record.unanswered[1].tolist() == [True, False, True]
    assert record.num_untimed == 1, "one is still at work"
    assert record.time_s == pytest.approx(5.0), "none was waited for"


# --- what is drawn --------------------------------------------------------------------------------


def recorded(
    samples_s: Sequence[Sequence[float]],
    failures_s: Sequence[Sequence[float]] = (),
    unanswered: Sequence[Sequence[bool]] = (),
) -> RunRecord:
    """Return the record of a run in which each arm took these times, ``inf`` where it failed."""
    there = np.ones((NUM_ROUNDS, len(samples_s)), dtype=np.bool_)
    return RunRecord(
        names=tuple(f"c{arm}" for arm in range(len(samples_s))),
        policy="random",
        num_selected=1,
        num_rounds=NUM_ROUNDS,
        tau_max_s=60.0,
        samples_s=tuple(np.array(values) for values in samples_s),
        available=there,
        member=there,
        floors=(),
        params={},
        time_s=1.0,
        measured_s=1.0,
        failures_s=tuple(np.array(values, dtype=np.float64) for values in failures_s),
        unanswered=tuple(np.array(values, dtype=np.bool_) for values in unanswered),
    )


SAMPLES_S = [[1.0] * 30, [1.0, FAILED, FAILED] * 10, [1.0, FAILED] * 15, [2.0, FAILED]]
FAILURES_S = [[], [0.2, 0.5] * 10, [60.0] * 15, [3.0]]


def drawn(record: RunRecord) -> list[RoundDraw]:
    fleet = RecordedEnvironment(record, (50,), np.random.SeedSequence(0))
    return [fleet.round(t) for t in range(1, 2 * NUM_ROUNDS)]


def test_failures_are_drawn_from_a_clients_own_or_else_from_all() -> None:
    draws = drawn(recorded(SAMPLES_S, FAILURES_S))
    failed = np.stack([draw.failed for draw in draws])
    after_s = np.stack([draw.failure_s for draw in draws if draw.failure_s is not None])
    assert after_s.shape == failed.shape
    own = [set(after_s[..., arm][failed[..., arm]].tolist()) for arm in range(4)]
    assert own[1:] == [{0.2, 0.5}, {60.0}, {3.0}]
    assert own[0] == {0.2, 0.5, 60.0, 3.0}
    found, again = (drawn(recorded(SAMPLES_S, FAILURES_S))[70].failure_s for _ in range(2))
    assert np.array_equal(found, again), "by the seed alone"  # type: ignore[arg-type]


def test_times_and_failures_are_the_same_whatever_is_known_of_failures() -> None:
    without = drawn(recorded(SAMPLES_S))
    assert {draw.failure_s for draw in without} == {None}
    for plain, draw in zip(without, drawn(recorded(SAMPLES_S, FAILURES_S)), strict=True):
        assert np.array_equal(plain.round_trip_time_s, draw.round_trip_time_s)
    never = drawn(recorded([[1.0] * 30, [2.0] * 30], [[], []]))
    assert {draw.failure_s for draw in never} == {None}


# --- grids ----------------------------------------------------------------------------------------


def exchanged(record: RunRecord, timeout_s: float = 60.0) -> list[list[Exchange]]:
    """Return what becomes of a message to each client in each round."""
    fleet = RecordedFleet(record, 0)
    app = echo_app(lambda message, context: Message(RecordDict(), reply_to=message))
    grid = VirtualGrid(app, fleet, [{} for _ in record.names], {})
    found = []
    for number in range(1, NUM_ROUNDS + 1):
        grid.begin_round(number)
        nodes = grid.get_node_ids()
        messages = [Message(RecordDict(), node, MessageType.TRAIN) for node in nodes]
        found.append(grid.exchange(messages, timeout_s))
    return found


def test_a_client_that_failed_in_the_record_answers_no_grid() -> None:
    found = exchanged(recorded([[1.0] * 30, [1.0, FAILED] * 15]))
    assert {each.failure for each, _ in found} == {None}
    failed = [each for _, each in found if each.reply is None]
    assert 0 < len(failed) < NUM_ROUNDS
    assert {each.failure for each in failed} == {TIMEOUT}
    assert {each.rtt_s for _, each in found if each.reply is not None} == {1.0}


def test_a_client_that_raised_in_the_record_raises_at_that_time_on_a_grid() -> None:
    record = recorded([[1.0] * 30, [3.0, FAILED] * 20], [[], [0.2] * 20], [[], [False] * 20])
    found = exchanged(record)
    failed = [each for _, each in found if each.reply is not None and each.reply.has_error()]
    assert 0 < len(failed) < NUM_ROUNDS
    assert {each.rtt_s for each in failed} == {0.2}
    assert {each.rtt_s for _, each in found} == {0.2, 3.0}
    without = exchanged(recorded([[1.0] * 30, [3.0, FAILED] * 20]))
    assert [each.rtt_s == 0.2 for _, each in found] == [each.rtt_s is None for _, each in without]
    in_time = [each for _, each in exchanged(record, 0.1)]
    assert {each.failure for each in in_time} == {TIMEOUT}, "before it is known to have failed"


def test_a_client_that_did_not_answer_in_the_record_misses_longer_deadlines_too() -> None:
    record = recorded([[1.0] * 30, [3.0, FAILED] * 20], [[], [60.0] * 20], [[], [True] * 20])
    failed = [each for _, each in exchanged(record, 3600.0) if each.rtt_s != 3.0]
    assert failed
    assert {(each.reply, each.failure) for each in failed} == {(None, TIMEOUT)}
