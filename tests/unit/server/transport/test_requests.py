"""The table of requests, on a clock of the test: no socket, no thread."""

from __future__ import annotations

import math
import queue

import pytest
from flwr.app import Message, MessageType, RecordDict

from flower_scheduling.client.wire import frames as wire
from flower_scheduling.reasons import LOST
from flower_scheduling.server.transport import requests
from flower_scheduling.server.transport.requests import Request, RequestTable
from flower_scheduling.strategies.flower import TIMEOUT

A, B = 100, 200  # node ids


class Bench:
    """A table, its clock and what it reports."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.num_freed = 0
        self.table = RequestTable(lambda: self.now_s, on_free=self.note_free)
        self.arrivals: queue.SimpleQueue[Request] = queue.SimpleQueue()

    def note_free(self) -> None:
        self.num_freed += 1

    def open(
        self, message_id: str, node_id: int = A, *, ttl_s: float = 60.0, sent: bool = True
    ) -> Request:
        message = Message(RecordDict(), node_id, MessageType.TRAIN)
        request = Request(message_id, node_id, self.now_s + ttl_s, message, self.arrivals)
        self.table.open(request)
        if sent:
            assert request.stamp(self.now_s)
        return request

    def reply(self, message_id: str, node_id: int = A, reply: bytes = b"reply") -> bool:
        return self.table.settle_reply(node_id, message_id, reply, self.now_s)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_request_is_settled_by_its_reply(bench: Bench) -> None:
    request = bench.open("m-1")
    assert bench.table.busy() == {A}
    assert bench.table.is_awaited(A, "m-1")
    bench.now_s += 1.5
    assert bench.reply("m-1")
    assert bench.arrivals.get_nowait() is request
    assert (request.reply, request.failure) == (b"reply", None)
    assert request.arrived_s - request.sent_s == 1.5
    assert bench.table.busy() == set()
    assert not bench.table.is_awaited(A, "m-1")
    assert bench.num_freed == 0, "its caller is informed by the arrival"


@pytest.mark.parametrize(
    ("message_id", "node_id", "sent"),
    [("m-1", B, True), ("m-2", A, True), ("m-1", A, False)],
    ids=["of another client", "to nothing", "before the message was sent"],
)
def test_reply_that_answers_nothing_is_counted_and_ignored(
    bench: Bench, message_id: str, node_id: int, sent: bool
) -> None:
    request = bench.open("m-1", sent=sent)
    assert not bench.reply(message_id, node_id)
    assert not request.settled
    assert bench.table.num_ignored_replies == 1
    assert bench.table.busy() == {A}


def test_second_reply_is_ignored(bench: Bench) -> None:
    request = bench.open("m-1")
    assert bench.reply("m-1")
    assert not bench.reply("m-1", reply=b"other")
    assert request.reply == b"reply"
    assert bench.table.num_ignored_replies == 1


def test_abandoned_request_keeps_its_client_busy_until_the_late_reply(bench: Bench) -> None:
    request = bench.open("m-1")
    bench.table.abandon([request])
    assert bench.table.busy() == {A}
    assert not bench.table.is_awaited(A, "m-1"), "its payload need not be kept"
    assert bench.reply("m-1")
    assert not request.settled
    assert bench.arrivals.empty()
    assert bench.table.busy() == set()
    assert (bench.num_freed, bench.table.num_late_replies) == (1, 1)


def test_settled_request_is_not_abandoned(bench: Bench) -> None:
    request = bench.open("m-1")
    bench.reply("m-1")
    bench.table.abandon([request])
    assert not request.abandoned


def test_late_reply_becomes_a_timeout(bench: Bench) -> None:
    request = bench.open("m-1")
    bench.reply("m-1")
    bench.table.discard_late(request)
    assert (request.reply, request.failure) == (None, TIMEOUT)
    assert bench.table.num_late_replies == 1


def test_message_that_outlives_its_time_is_settled(bench: Bench) -> None:
    request = bench.open("m-1", ttl_s=5.0)
    abandoned = bench.open("m-2", B, ttl_s=5.0)
    bench.table.abandon([abandoned])
    bench.now_s += 4.9
    assert bench.table.busy() == {A, B}
    bench.now_s += 0.1
    assert bench.table.busy() == set()
    assert request.failure == TIMEOUT
    assert bench.num_freed == 1
    assert not bench.reply("m-1"), "a reply after that answers nothing"


def test_settled_request_is_not_sent(bench: Bench) -> None:
    request = bench.open("m-1", sent=False)
    bench.table.reconcile(A, set())
    assert not request.stamp(bench.now_s)
    assert math.isnan(request.sent_s)


def test_client_that_connects_without_its_work_has_lost_it(bench: Bench) -> None:
    kept, lost, others = bench.open("m-1"), bench.open("m-2"), bench.open("m-3", B)
    bench.table.reconcile(A, {"m-1"})
    assert (kept.settled, lost.failure, others.settled) == (False, LOST, False)
    assert bench.table.busy() == {A, B}


def test_what_the_same_process_has_not_got_is_sent_again_and_its_time_runs_on(bench: Bench) -> None:
    cut, kept, lost, given_up, unsent = (bench.open(f"m-{i}", sent=i < 5) for i in range(1, 6))
    for request in (cut, kept, given_up, unsent):
        request.work, request.session = wire.Work(request.message_id), "process"
    lost.work, lost.session = wire.Work("m-3"), "an earlier process"
    bench.table.abandon([given_up])
    begin_s = bench.now_s
    bench.now_s += 5.0
    assert bench.table.reconcile(A, {"m-2"}, "process") == [cut, unsent]
    assert (lost.failure, given_up.settled, kept.settled) == (LOST, False, False)
    assert not bench.table.is_awaited(A, "m-4")
    cut.wait(bench.now_s)
    bench.now_s += 1.0
    assert cut.stamp(bench.now_s)
    assert unsent.stamp(bench.now_s)
    assert (cut.sent_s, unsent.sent_s) == (begin_s, bench.now_s)
    assert bench.reply("m-1")
    assert cut.arrived_s - cut.sent_s == 6.0
    assert cut.work is None, "a model would stay"


def test_work_of_an_earlier_server_makes_busy_for_a_while(bench: Bench) -> None:
    bench.table.reconcile(A, {"old-1"})
    assert bench.table.busy() == {A}
    assert not bench.table.is_awaited(A, "old-1")
    assert bench.reply("old-1")
    assert bench.table.fastest_late_s == math.inf, "when it began is not known"
    assert bench.table.busy() == set()
    assert (bench.num_freed, bench.table.num_late_replies) == (1, 0)
    bench.table.reconcile(A, {"old-2"})
    bench.now_s += requests._UNKNOWN_WORK_S
    assert bench.table.busy() == set()


def test_unknown_work_is_bounded_and_takes_no_other_clients_request(bench: Bench) -> None:
    bench.open("m-1", B)
    bench.table.reconcile(A, {"m-1", *(f"made-up-{i}" for i in range(1000))})
    assert len(bench.table._open) == 1 + requests._MAX_UNKNOWN_WORK
    assert bench.table.is_awaited(B, "m-1")


def test_client_that_is_given_up_fails_what_it_had(bench: Bench) -> None:
    request, others = bench.open("m-1"), bench.open("m-2", B)
    bench.table.add_acknowledgement(A, "m-0")
    bench.table.fail_pending(A)
    assert (request.failure, others.settled) == (LOST, False)
    assert bench.table.take_acknowledgements(A) == []
    bench.table.fail_all()
    assert others.failure == LOST
    assert bench.table.busy() == set()


def test_pushed_message_is_held_until_it_is_pulled(bench: Bench) -> None:
    there, open_ = bench.open("m-1"), bench.open("m-2", B)
    bench.table.hold([there, open_])
    assert bench.table.pull(["m-1", "m-2", "never-sent"]) == []
    bench.reply("m-1")
    assert bench.table.pull(["m-1", "m-1", "m-2"]) == [there]
    assert bench.table.pull(["m-1"]) == []
    bench.now_s += 60.0
    assert bench.table.pull(["m-2"]) == [open_]
    assert open_.failure == TIMEOUT


def test_reply_that_is_never_pulled_is_dropped_in_the_end(bench: Bench) -> None:
    request = bench.open("m-1", ttl_s=60.0)
    bench.table.hold([request])
    bench.reply("m-1")
    bench.now_s += 60.0 + requests._KEEP_S
    assert bench.table.pull(["m-1"]) == []
    assert bench.table._held == {}


def test_acknowledgements_go_with_the_next_message(bench: Bench) -> None:
    assert bench.table.add_acknowledgement(A, "m-1")
    assert not bench.table.add_acknowledgement(A, "m-2"), "the first one has the timer"
    assert bench.table.add_acknowledgement(B, "m-3")
    assert bench.table.is_unacknowledged_since(A, "m-1")
    assert not bench.table.is_unacknowledged_since(A, "m-2")
    request = Request("m-4", A, math.inf)
    assert bench.table.open(request) == ["m-1", "m-2"]
    assert not bench.table.is_unacknowledged_since(A, "m-1")
    assert bench.table.take_acknowledgements(A) == []
    assert bench.table.take_acknowledgements(B) == ["m-3"]


def test_acknowledgements_are_bounded(bench: Bench) -> None:
    for number in range(2 * wire.MAX_IDS):
        bench.table.add_acknowledgement(A, str(number))
    assert len(bench.table.take_acknowledgements(A)) == wire.MAX_IDS
