"""TimedGrid on a fake clock and a fake stock grid: timing, attribution, late replies."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from flwr.app import Error, Message, MessageType, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.supercore.task_identity import TaskIdentity
from grids import BareGrid

from flower_scheduling.strategies.flower import (
    LATE,
    TIMEOUT,
    UNDELIVERABLE,
    ChannelGrid,
    SpareExchange,
    TimedExchange,
    TimedGrid,
)

SUPERLINK = 1


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds


class StockGrid(BareGrid):
    """Holds replies back until their time; node 7 is unknown to it."""

    def __init__(self, clock: Clock, delays_s: dict[int, float]) -> None:
        self.clock = clock
        self.delays_s = delays_s
        self.errors: set[int] = set()
        self.sent: dict[str, tuple[Message, float]] = {}
        self.extra: list[Message] = []
        self.refuse_push = False
        self.num_pushed = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids: list[str] = []
        for message in messages if not self.refuse_push else ():
            if message.metadata.dst_node_id == 7:
                ids.append(None)  # type: ignore[arg-type]  # what Flower's HttpGrid returns
                continue
            self.num_pushed += 1
            message_id = f"id-{self.num_pushed}"
            message.metadata.__dict__["_message_id"] = message_id
            self.sent[message_id] = (message, self.clock())
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ready, self.extra = list(self.extra), []
        for message_id in message_ids:
            message, sent_s = self.sent.get(message_id, (None, 0.0))
            if message is None:
                continue
            node = message.metadata.dst_node_id
            if self.clock() >= sent_s + self.delays_s[node]:
                del self.sent[message_id]
                ready.append(superlink_error(message) if node in self.errors else answer(message))
        return ready

    def get_node_ids(self) -> Iterable[int]:
        return list(self.delays_s)


def answer(message: Message) -> Message:
    return Message(RecordDict(), reply_to=message)


def superlink_error(message: Message) -> Message:
    metadata = Metadata(
        run_id=1,
        message_id="",
        src_node_id=SUPERLINK,
        dst_node_id=SUPERLINK,
        reply_to_message_id=message.metadata.message_id,
        group_id="",
        created_at=0.0,
        ttl=0.0,
        message_type=MessageType.TRAIN,
    )
    return make_message(metadata, error=Error(5, "node gone"))


@pytest.fixture(autouse=True)
def _identity() -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SUPERLINK, 1


def to(*nodes: int, ttl: float = 60.0) -> list[Message]:
    return [Message(RecordDict(), node, MessageType.TRAIN, ttl=ttl) for node in nodes]


def make(delays_s: dict[int, float]) -> tuple[TimedGrid, StockGrid, Clock]:
    clock = Clock()
    stock = StockGrid(clock, delays_s)
    return TimedGrid(stock, poll_interval_s=0.1, clock=clock, sleep=clock.sleep), stock, clock


def test_speaks_the_timing_protocol() -> None:
    grid, _, _ = make({})
    assert isinstance(grid, TimedExchange)


def test_measures_each_reply_and_returns_with_the_last() -> None:
    grid, _, clock = make({10: 0.35, 11: 0.95, 12: 0.0})
    exchanges = grid.exchange(to(12, 10, 11), timeout_s=5.0)
    assert [e.node_id for e in exchanges] == [12, 10, 11]
    assert [e.rtt_s for e in exchanges] == pytest.approx([0.0, 0.4, 1.0])  # next look after 0.35
    assert clock() == pytest.approx(101.0)
    assert grid.busy() == set()


def test_who_is_waited_for_is_logged_once_a_minute(said: list[str]) -> None:
    grid, _, _ = make({10: 0.1, 11: 130.0})
    grid.exchange(to(10, 11), timeout_s=3600.0)
    begins = [line.partition(", until")[0] for line in said]
    assert begins == [f"waiting for node 11 for {n} min: 1 of 2 have answered" for n in (1, 2)]


def test_late_node_is_a_timeout_then_busy_until_its_reply_drains() -> None:
    grid, _, clock = make({10: 0.1, 11: 3.0})
    fast, late = grid.exchange(to(10, 11), timeout_s=1.0)
    assert (fast.failure, late.failure) == (None, TIMEOUT)
    assert late.reply is None
    assert clock() == pytest.approx(101.0)
    assert grid.busy() == {11}
    clock.now_s = 103.5
    assert grid.busy() == set()
    assert grid.num_late_replies == 1


def test_an_exchange_ends_when_enough_have_answered() -> None:
    grid, stock, clock = make({10: 0.1, 11: 0.3, 12: 3.0, 13: 1e9})
    assert isinstance(grid, SpareExchange)
    stock.errors = {10}
    exchanges = grid.exchange(to(10, 11, 12, 13), 5.0, 1)
    assert [e.failure for e in exchanges] == [None, None, LATE, LATE], "an error is no answer"
    assert clock() == pytest.approx(100.4)  # the next look after 0.3
    assert grid.busy() == {12, 13}
    assert grid.late() == []
    clock.now_s = 102.9
    (again,) = grid.exchange(to(11), 5.0, 1)  # what is late is looked for meanwhile
    assert again.failure is None
    (late,) = grid.late()
    assert (late.node_id, late.rtt_s) == (12, pytest.approx(3.0, abs=0.21))
    assert late.reply is not None
    assert (grid.busy(), grid.num_late_replies) == ({13}, 0)
    clock.now_s = 161.0
    (lost,) = grid.late()
    assert (lost.node_id, lost.reply, lost.failure) == (13, None, TIMEOUT)
    assert (grid.late(), grid.busy()) == ([], set())


def test_who_is_awaited_is_waited_for() -> None:
    grid, _, clock = make({10: 0.1, 11: 2.0, 12: 3.0})
    exchanges = grid.exchange(to(10, 11, 12), 5.0, 1, [11])
    assert [e.failure for e in exchanges] == [None, None, LATE]
    assert clock() == pytest.approx(102.0, abs=0.11)
    exchanges = grid.exchange(to(10, 11), 1.0, 1, [11])
    assert [e.failure for e in exchanges] == [None, TIMEOUT], "not beyond the deadline"


def test_reply_that_is_found_after_the_deadline_is_late() -> None:
    grid, stock, clock = make({10: 0.5})
    pull = stock.pull_messages

    def slow_pull(message_ids: Iterable[str]) -> Iterable[Message]:
        clock.now_s += 2.0  # the look itself takes long
        return pull(message_ids)

    stock.pull_messages = slow_pull  # type: ignore[method-assign]
    (exchange,) = grid.exchange(to(10), timeout_s=1.0)
    assert exchange.failure == TIMEOUT
    assert grid.busy() == set(), "it has answered, so it is not busy"


def test_message_that_expired_no_longer_locks_its_node_out() -> None:
    grid, _, clock = make({10: 1e9})
    grid.exchange(to(10, ttl=60.0), timeout_s=1.0)
    clock.now_s = 159.0
    assert grid.busy() == {10}
    clock.now_s = 161.0
    assert grid.busy() == set()


def test_undeliverable_messages_do_not_hold_up_the_round() -> None:
    grid, stock, clock = make({10: 0.1})
    exchanges = grid.exchange(to(7, 10), timeout_s=5.0)
    assert [e.failure for e in exchanges] == [UNDELIVERABLE, None]
    assert clock() < 101.0
    stock.refuse_push = True  # message too large: Flower returns no ids at all
    exchanges = grid.exchange(to(10), timeout_s=5.0)
    assert [e.failure for e in exchanges] == [UNDELIVERABLE]


def test_errors_of_the_superlink_belong_to_the_node_that_was_asked() -> None:
    grid, stock, _ = make({10: 0.2, 11: 0.2})
    stock.errors = {11}
    ok, bad = grid.exchange(to(10, 11), timeout_s=5.0)
    assert ok.reply is not None
    assert ok.reply.has_content()
    assert bad.node_id == 11
    assert bad.reply is not None
    assert bad.reply.has_error()


def test_replies_to_unknown_messages_and_second_answers_are_ignored() -> None:
    grid, stock, _ = make({10: 0.15, 11: 0.35})
    messages = to(10, 11)
    (stranger,) = to(10)
    stranger.metadata.__dict__["_message_id"] = "never-sent"
    stock.extra = [answer(stranger)]
    exchanges = grid.exchange(messages, timeout_s=5.0)
    first = exchanges[0].reply
    assert first is not None
    assert [e.rtt_s for e in exchanges] == pytest.approx([0.2, 0.4])
    stock.extra = [first]  # a copy of an old answer turns up in the next round
    (again,) = grid.exchange(to(10), timeout_s=5.0)
    assert again.reply is not first


def test_dispatched_messages_end_when_their_replies_are_found() -> None:
    grid, stock, clock = make({10: 0.25, 20: 1.05, 30: 99.0})
    assert isinstance(grid, ChannelGrid)
    grid.dispatch(to(10, 30), 2.0)
    clock.now_s += 0.5
    grid.dispatch(to(20, 7), 2.0)
    assert grid.busy() == {10, 20, 30}, "an undeliverable message makes no node busy"
    first = grid.next_ended(0.0)
    assert [(e.node_id, e.failure, e.rtt_s) for e in first] == [
        (7, UNDELIVERABLE, None),
        (10, None, 0.5),
    ]
    (second,) = grid.next_ended(60.0)
    assert (second.node_id, second.rtt_s) == (20, pytest.approx(1.1))
    (third,) = grid.next_ended(60.0)
    assert (third.node_id, third.failure, clock.now_s) == (30, TIMEOUT, pytest.approx(102.0))
    assert grid.busy() == {30}, "it goes on past its deadline"
    assert grid.next_ended(60.0) == []
    assert clock.now_s == pytest.approx(102.0), "nothing is waited for"
    clock.now_s += 99.0
    assert grid.busy() == set()
    assert stock.sent == {}


def test_exchange_does_not_take_the_replies_of_dispatched_messages() -> None:
    grid, _, _ = make({10: 0.0, 20: 0.35})
    grid.dispatch(to(10), 5.0)
    assert [e.node_id for e in grid.exchange(to(20), 5.0)] == [20]
    assert [e.node_id for e in grid.next_ended(0.0)] == [10]
