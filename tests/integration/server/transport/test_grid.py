"""StreamGrid and StreamClient over loopback: timing, deadlines, identity, broken connections."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import logging
import math
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import grpc
import numpy as np
import pytest
from apps import echo_app
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from fleet_processes import Link
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp.strategy import FedAvg
from grpc_health.v1 import health_pb2, health_pb2_grpc
from raw_client import RawClient
from waiting import PATIENCE_S, until

import flower_scheduling.client.stream
import flower_scheduling.server.transport.connection_log
import flower_scheduling.server.transport.messages
import flower_scheduling.server.transport.servicer
import flower_scheduling.server.transport.stream_server
import flower_scheduling.strategies.flower.logs.wait_log
from flower_scheduling.client.stream import StreamClient, Worker, _Stream
from flower_scheduling.client.wire import frames as wire
from flower_scheduling.client.wire.calls import WriteTasks
from flower_scheduling.client.wire.packing import pack
from flower_scheduling.errors import (
    ConfigError,
    ConnectionRefused,
    DataUnavailableError,
    VersionMismatch,
    WireError,
)
from flower_scheduling.reasons import LOST, UNREADABLE
from flower_scheduling.server.transport.connection import node_id_of
from flower_scheduling.server.transport.grid import StreamGrid
from flower_scheduling.strategies.flower import (
    LATE,
    TIMEOUT,
    UNDELIVERABLE,
    ChannelGrid,
    Exchange,
    RoundRecord,
    ScheduledStrategy,
    SpareExchange,
    TimedExchange,
)

LONG_S = 300.0  # a deadline that nobody is meant to meet


# --- helpers --------------------------------------------------------------------------------------


class Gate:
    """Holds a client's work up until it is opened."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.open = threading.Event()

    def __call__(self, message: Message, context: Context) -> None:
        self.begun.set()
        assert self.open.wait(PATIENCE_S)


class Fleet:
    """A grid and the clients that a test starts."""

    def __init__(self) -> None:
        self.grid = StreamGrid("127.0.0.1:0", lost_after_s=LONG_S, run_config={"lr": 0.5})
        self.clients: dict[str, StreamClient] = {}
        self._cleanup = contextlib.ExitStack()
        self.errors: dict[str, BaseException] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.grid.port}"

    def restart(self, **settings: Any) -> StreamGrid:
        self.grid.stop()
        self.grid = StreamGrid("127.0.0.1:0", **settings)
        self.grid.start()
        return self.grid

    def run(
        self,
        name: str,
        app: ClientApp | None = None,
        *,
        wait: bool = True,
        address: str | None = None,
        **settings: Any,
    ) -> StreamClient:
        settings = {"max_backoff_s": 0.1, "name_in_use_s": 0.0, **settings}
        client = StreamClient(address or self.address, name, app or echo_app(), **settings)
        thread = threading.Thread(target=self._run, args=(client,))
        self._cleanup.callback(thread.join)
        self._cleanup.callback(client.stop)
        self.clients[name] = client
        thread.start()
        if wait:
            self.wait_for(name)
        return client

    def raw(self, name: str, **hello: Any) -> RawClient:
        client = RawClient(self.address)
        self._cleanup.callback(client.close)
        client.send(wire.Hello(name, hello.pop("session", name), **hello))
        return client

    def _run(self, client: StreamClient) -> None:
        try:
            client.run()
        except Exception as error:
            self.errors[client.name] = error

    def wait_for(self, *names: str) -> None:
        until(lambda: {node_id_of(name) for name in names} <= set(self.grid.get_node_ids()))

    def error_of(self, name: str) -> BaseException:
        until(lambda: name in self.errors)
        return self.errors[name]

    def exchange(self, *names: str, timeout_s: float = PATIENCE_S, **record: Any) -> list[Exchange]:
        return self.grid.exchange(to(*names, **record), timeout_s)

    def begin(self, *names: str, timeout_s: float = LONG_S) -> Pending[Exchange]:
        return Pending(lambda: self.exchange(*names, timeout_s=timeout_s))

    def close(self) -> None:
        self._cleanup.close()
        self.grid.stop()


T = TypeVar("T")


class Pending(Generic[T]):
    """A call under way in another thread."""

    def __init__(self, call: Callable[[], Iterable[T]]) -> None:
        self._results: list[T] = []
        self._thread = threading.Thread(target=lambda: self._results.extend(call()))
        self._thread.start()

    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> list[T]:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self._results


def to(*names: str, size: int = 4, ttl: float = 60.0) -> list[Message]:
    record = RecordDict(
        {
            "arrays": ArrayRecord({"w": Array(np.zeros(size, dtype=np.float32))}),
            "config": ConfigRecord({"server-round": 1}),
        }
    )
    return [Message(record, node_id_of(name), MessageType.TRAIN, ttl=ttl) for name in names]


def model_of(exchange: Exchange) -> list[float]:
    assert exchange.reply is not None, exchange.failure
    arrays = exchange.reply.content["arrays"]
    assert isinstance(arrays, ArrayRecord)
    return arrays["w"].numpy().tolist()  # type: ignore[no-any-return]


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    fleet = Fleet()
    fleet.grid.start()
    yield fleet
    fleet.close()


@pytest.fixture
def link(fleet: Fleet) -> Iterator[Link]:
    link = Link(fleet.grid.port)
    yield link
    link.close()


# --- exchanges ------------------------------------------------------------------------------------


def test_carries_messages_both_ways(fleet: Fleet) -> None:
    seen: list[Context] = []
    fleet.run("a", echo_app(lambda message, context: seen.append(context)), node_config={"x": 3})
    fleet.run("b")
    assert isinstance(fleet.grid, TimedExchange)
    exchanges = fleet.exchange("b", "a")
    assert [e.node_id for e in exchanges] == [node_id_of("b"), node_id_of("a")]
    assert [model_of(e) for e in exchanges] == [[1.0] * 4] * 2
    assert all(e.rtt_s is not None and 0 < e.rtt_s < PATIENCE_S for e in exchanges)
    assert fleet.grid.busy() == set()
    (context,) = seen
    assert context.node_config == {"x": 3}
    assert context.run_config == {"lr": 0.5}
    assert (context.run_id, context.node_id) == (fleet.grid.run.run_id, node_id_of("a"))
    assert fleet.grid.run.run_id != StreamGrid("127.0.0.1:0").run.run_id, "each run has its own"
    reply = exchanges[1].reply
    assert reply is not None
    assert reply.metadata.src_node_id == node_id_of("a")


def test_an_exchange_of_nothing_is_nothing(fleet: Fleet) -> None:
    assert fleet.grid.exchange([], LONG_S) == []


def test_node_ids_are_stable_and_never_the_reserved_ones() -> None:
    assert node_id_of("client-0") == 1_640_023_113_593_355_539  # in the files of every run
    ids = [node_id_of(str(i)) for i in range(1000)]
    assert len(set(ids)) == 1000
    assert all(1 < node_id < 2**63 for node_id in ids)


def test_nodes_show_their_names(fleet: Fleet) -> None:
    fleet.run("küche")
    (node,) = fleet.grid.get_nodes()
    assert node.name == "küche"
    assert node.public_key == "küche".encode()
    assert node.node_id == node_id_of("küche")


def test_state_is_kept_between_messages(fleet: Fleet) -> None:
    counts: list[int] = []

    def count(message: Message, context: Context) -> None:
        record = context.state.setdefault("count", ConfigRecord({"n": 0}))
        assert isinstance(record, ConfigRecord)
        record["n"] = int(record["n"]) + 1  # type: ignore[arg-type]
        counts.append(record["n"])

    fleet.run("a", echo_app(count))
    for _ in range(3):
        fleet.exchange("a")
    assert counts == [1, 2, 3]


def test_the_same_content_is_packed_once(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = flower_scheduling.server.transport.messages.pack_content
    monkeypatch.setattr(
        flower_scheduling.server.transport.messages,
        "pack_content",
        lambda *content: calls.append(1) or real(*content),
    )
    for name in "abc":
        fleet.run(name)
    assert [model_of(e) for e in fleet.exchange(*"abc")] == [[1.0] * 4] * 3
    assert len(calls) == 1


def test_times_what_the_clients_take(fleet: Fleet) -> None:
    now_s = [100.0]
    fleet.restart(clock=lambda: now_s[0])
    gates = {name: Gate() for name in "abc"}
    for name, gate in gates.items():
        fleet.run(name, echo_app(gate))
    pending = fleet.begin(*gates)
    for gate in gates.values():
        assert gate.begun.wait(PATIENCE_S)
    for name, seconds in {"b": 2.0, "c": 0.5, "a": 4.0}.items():
        now_s[0] += seconds
        gates[name].open.set()
        until(lambda name=name: node_id_of(name) not in fleet.grid.busy())
    assert [e.rtt_s for e in pending.result()] == [6.5, 2.0, 2.5]


def ended(fleet: Fleet, count: int) -> list[Exchange]:
    """Return the next exchanges to end, of those that were dispatched."""
    found: list[Exchange] = []
    until(lambda: found.extend(fleet.grid.next_ended(0.05)) or len(found) >= count)
    return found


def test_dispatched_messages_end_one_by_one_in_the_order_of_their_ends(fleet: Fleet) -> None:
    assert isinstance(fleet.grid, ChannelGrid)
    now_s = [100.0]
    fleet.restart(clock=lambda: now_s[0])
    gates = {name: Gate() for name in "abc"}
    for name, gate in gates.items():
        fleet.run(name, echo_app(gate))
        fleet.grid.dispatch(to(name), LONG_S)
        assert gate.begun.wait(PATIENCE_S)
        now_s[0] += 1.0
    assert fleet.grid.busy() == {node_id_of(name) for name in gates}
    assert fleet.grid.next_ended(0.0) == []
    for name in "ca":
        gates[name].open.set()
        until(lambda name=name: node_id_of(name) not in fleet.grid.busy())
        now_s[0] += 1.0
    found = ended(fleet, 2)
    assert [e.node_id for e in found] == [node_id_of("c"), node_id_of("a")]
    assert [e.rtt_s for e in found] == [1.0, 4.0], "each from its own dispatch"
    fleet.grid.dispatch(to("c"), LONG_S)
    assert model_of(*ended(fleet, 1)) == [1.0] * 4
    gates["b"].open.set()
    assert [e.node_id for e in ended(fleet, 1)] == [node_id_of("b")]
    assert fleet.grid.next_ended(LONG_S) == [], "nothing is under way: there is nothing to wait for"


def test_dispatched_message_past_its_deadline_is_a_timeout_and_its_client_busy(
    fleet: Fleet,
) -> None:
    gate = Gate()
    fleet.run("slow", echo_app(gate))
    fleet.run("fast")
    fleet.grid.dispatch(to("slow"), 0.2)
    (late,) = ended(fleet, 1)
    assert (late.reply, late.failure) == (None, TIMEOUT)
    assert fleet.grid.busy() == {node_id_of("slow")}
    fleet.grid.dispatch(to("fast"), LONG_S)
    assert model_of(*ended(fleet, 1)) == [1.0] * 4
    gate.open.set()
    until(lambda: not fleet.grid.busy())
    assert fleet.grid.num_late_replies == 1
    assert fleet.grid.next_ended(0.0) == [], "a late reply is no second end"


def test_dispatch_to_a_client_that_is_gone_ends_at_once(fleet: Fleet) -> None:
    gate = Gate()
    client = fleet.run("a", echo_app(gate))
    fleet.grid.dispatch(to("a", "unknown"), LONG_S)
    (unknown,) = ended(fleet, 1)
    assert (unknown.node_id, unknown.failure) == (node_id_of("unknown"), UNDELIVERABLE)
    assert gate.begun.wait(PATIENCE_S)
    client.stop()
    gate.open.set()
    (gone,) = ended(fleet, 1)
    assert gone.node_id == node_id_of("a")


def test_exchange_and_dispatched_work_do_not_take_each_others_replies(fleet: Fleet) -> None:
    gate = Gate()
    fleet.run("a", echo_app(gate))
    fleet.run("b")
    fleet.grid.dispatch(to("a"), LONG_S)
    assert [e.node_id for e in fleet.exchange("b")] == [node_id_of("b")]
    gate.open.set()
    assert [e.node_id for e in ended(fleet, 1)] == [node_id_of("a")]


def test_an_exchange_ends_when_enough_have_answered(fleet: Fleet) -> None:
    now_s = [100.0]
    fleet.restart(clock=lambda: now_s[0])
    assert isinstance(fleet.grid, SpareExchange)
    gates = {name: Gate() for name in "abc"}
    for name, gate in gates.items():
        fleet.run(name, echo_app(gate))
    pending = Pending(lambda: fleet.grid.exchange(to(*"abc"), LONG_S, 1))
    for gate in gates.values():
        assert gate.begun.wait(PATIENCE_S)
    now_s[0] += 2.0
    gates["b"].open.set()
    exchanges = pending.result()
    assert [e.failure for e in exchanges] == [LATE, None, LATE]
    assert fleet.grid.busy() == {node_id_of("a"), node_id_of("c")}
    assert fleet.grid.late() == []

    now_s[0] += 3.0
    gates["c"].open.set()
    until(lambda: node_id_of("c") not in fleet.grid.busy())
    (late,) = fleet.grid.late()
    assert (late.node_id, late.rtt_s, late.failure) == (node_id_of("c"), 5.0, None)
    assert model_of(late) == [1.0] * 4
    assert fleet.grid.late() == [], "each is told once"
    assert [model_of(e) for e in fleet.exchange("b", "c")] == [[1.0] * 4] * 2

    now_s[0] += 60.0  # the message's time to live is over
    (lost,) = fleet.grid.late()
    assert (lost.node_id, lost.rtt_s, lost.failure) == (node_id_of("a"), None, TIMEOUT)
    gates["a"].open.set()


def test_who_is_awaited_is_waited_for(fleet: Fleet) -> None:
    gate, other = Gate(), Gate()
    fleet.run("a", echo_app(gate))
    fleet.run("b")
    fleet.run("c", echo_app(other))
    awaited = [node_id_of("a")]
    pending = Pending(lambda: fleet.grid.exchange(to(*"abc"), LONG_S, 1, awaited))
    assert gate.begun.wait(PATIENCE_S)
    until(lambda: node_id_of("b") not in fleet.grid.busy())
    assert not pending.done()
    gate.open.set()
    assert [e.failure for e in pending.result()] == [None, None, LATE]
    fleet.clients["c"].stop()
    other.open.set()


def test_rounds_with_a_spare_client_end_without_the_one_that_hangs(fleet: Fleet) -> None:
    gate = Gate()
    fleet.run("a", echo_app(gate))
    for name in "bc":
        fleet.run(name)
    records: list[RoundRecord] = []
    strategy = ScheduledStrategy(
        FedAvg(fraction_evaluate=0.0),
        "random",
        num_selected=2,
        num_spare=1,
        min_clients=3,
        hooks=[lambda record, arrays: records.append(record)],
    )
    arrays = ArrayRecord({"w": Array(np.zeros(4, dtype=np.float32))})
    result = strategy.start(fleet.grid, arrays, num_rounds=5)
    assert result.arrays["w"].numpy().tolist() == [5.0] * 4
    assert [record.completed for record in records] == [[True, True]] * 5
    assert [len(record.late) for record in records] == [1, 0, 0, 0, 0]
    assert records[0].deadline_s == 3600.0, "nobody has set one, and nobody waits for it"
    gate.open.set()
    until(lambda: not fleet.grid.busy())
    strategy.start(fleet.grid, arrays, num_rounds=1)
    assert strategy.policy.play_count.min() >= 1, "what came late was learned from"


def test_a_late_update_is_used_in_the_next_step(fleet: Fleet) -> None:
    gate = Gate()

    def far(message: Message, context: Context) -> Message:
        gate(message, context)
        arrays = ArrayRecord({"w": Array(message.content["arrays"]["w"].numpy() + 10.0)})
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    fleet.run("a", echo_app(far))
    for name in "bc":
        fleet.run(name)
    records: list[RoundRecord] = []

    def release(record: RoundRecord, arrays: ArrayRecord) -> None:
        records.append(record)
        if record.round == 2:
            gate.open.set()
            until(lambda: not fleet.grid.busy())

    strategy = ScheduledStrategy(
        FedAvg(fraction_evaluate=0.0),
        "random",
        num_selected=2,
        num_spare=1,
        late_updates="use",
        min_clients=3,
        hooks=[release],
        stop_when=lambda record: record.round == 3,
    )
    arrays = ArrayRecord({"w": Array(np.zeros(4, dtype=np.float32))})
    result = strategy.start(fleet.grid, arrays, num_rounds=3)
    name = strategy.arms.names.index("a")
    assert [record.late for record in records[:2]] == [[name], []]
    assert [len(record.late_updates) for record in records[:2]] == [0, 0]
    late = records[2].late_updates[0]
    assert (late.arm, late.reason, late.staleness) == (name, None, 2)
    assert late.rtt_s is not None
    assert late.rtt_s > records[1].round_s
    # Two updates by 1 in each of two rounds; in the third those of its own, and one by 10.
    (others,) = {record.completed.count(True) for record in records[:2]}
    assert others == 2
    own = [10.0 if arm == name else 1.0 for arm in [*records[2].selected, *records[2].used_late]]
    assert result.arrays["w"].numpy().tolist() == pytest.approx([2.0 + np.mean(own)] * 4)


def test_waiting_for_other_clients_models_is_not_the_clients_time(fleet: Fleet) -> None:
    now_s = [100.0]
    fleet.restart(clock=lambda: now_s[0])
    fleet.run("a")
    servicer = fleet.grid._servicer
    assert servicer._loop is not None
    held = servicer._turns.message()  # another client's model leaves
    asyncio.run_coroutine_threadsafe(held.__aenter__(), servicer._loop).result()
    pending = Pending(lambda: fleet.exchange("a", size=50_000, timeout_s=0.3))
    until(lambda: [r for r in servicer.requests._open.values() if not math.isnan(r.waiting_s)])
    now_s[0] += 1000.0
    time.sleep(1.0)  # the caller looks at the clock, and goes on waiting
    asyncio.run_coroutine_threadsafe(held.__aexit__(None, None, None), servicer._loop).result()
    (exchange,) = pending.result()
    assert exchange.failure is None
    assert exchange.rtt_s == 0.0


@pytest.mark.slow
def test_client_behind_a_slow_link_is_not_taken_for_dead(
    fleet: Fleet, link: Link, said: list[str]
) -> None:
    fleet.restart(keepalive_s=2.0)  # an answer may take 4 s
    link.restore(fleet.grid.port)
    link.bytes_a_s = 60_000
    fleet.run("a", address=link.address, keepalive_s=2.0)
    (exchange,) = fleet.exchange("a", size=120_000)
    assert exchange.failure is None
    assert exchange.rtt_s is not None
    assert exchange.rtt_s > 2 * 480_000 / 60_000 - 2
    assert not [line for line in said if "lost the connection" in line]


def test_a_large_model_passes(fleet: Fleet) -> None:
    fleet.run("a")
    (exchange,) = fleet.exchange("a", size=2_000_000)  # beyond gRPC's default of 4 MB
    assert len(model_of(exchange)) == 2_000_000


def test_deadline_busy_and_late_reply(fleet: Fleet) -> None:
    now_s = [100.0]
    fleet.restart(clock=lambda: now_s[0])
    gate = Gate()
    fleet.run("slow", echo_app(gate))
    fleet.run("fast")
    pending = fleet.begin("slow", "fast", timeout_s=0.4)
    assert gate.begun.wait(PATIENCE_S)
    until(lambda: node_id_of("fast") not in fleet.grid.busy())
    assert not pending.done(), "the deadline is not over"
    now_s[0] += 0.4
    slow, fast = pending.result()
    assert slow == Exchange(node_id_of("slow"), None, None, TIMEOUT)
    assert fast.reply is not None
    assert fleet.grid.busy() == {node_id_of("slow")}
    assert set(fleet.grid.get_node_ids()) == {node_id_of("slow"), node_id_of("fast")}
    fleet.grid.wait(0)  # forget that they came
    threading.Timer(0.05, gate.open.set).start()
    until(lambda: fleet.grid.wait(LONG_S) or fleet.grid.busy() == set())
    assert fleet.grid.num_late_replies == 1
    assert fleet.grid.fastest_late_s == pytest.approx(0.4)
    (again,) = fleet.exchange("slow")
    assert model_of(again) == [1.0] * 4


def test_who_is_waited_for_is_logged_now_and_then(
    fleet: Fleet, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_scheduling.strategies.flower.logs.wait_log, "_AGAIN_S", 0.5)
    gate = Gate()
    fleet.run("a", echo_app(gate))
    fleet.run("b")
    pending = fleet.begin("a", "b")
    until(lambda: [line for line in said if line.startswith("waiting for a for 0 min: 1 of 2 ")])
    gate.open.set()
    assert [exchange.failure for exchange in pending.result()] == [None, None]
    hold = Gate()
    fleet.run("c", echo_app(hold))
    fleet.grid.dispatch(to("b", "c"), LONG_S)
    assert ended(fleet, 1)[0].node_id == node_id_of("b")

    def waits_for_c() -> bool:
        assert fleet.grid.next_ended(0.2) == []
        return any(line.startswith("waiting for c for 0 min, until ") for line in said)

    until(waits_for_c)
    hold.open.set()
    assert ended(fleet, 1)[0].failure is None


def test_an_expired_message_no_longer_makes_its_client_busy(fleet: Fleet) -> None:
    now_s = [100.0]
    fleet.restart(clock=lambda: now_s[0])
    gate = Gate()
    fleet.run("a", echo_app(gate))
    fleet.grid.exchange(to("a", ttl=0.1), 0.0)
    assert gate.begun.wait(PATIENCE_S)
    assert fleet.grid.busy() == {node_id_of("a")}
    now_s[0] += 0.1
    assert fleet.grid.busy() == set()
    gate.open.set()
    until(lambda: fleet.grid.num_ignored_replies == 1)


def test_an_interrupt_ends_the_wait(fleet: Fleet) -> None:
    gate = Gate()
    fleet.run("a", echo_app(gate))
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        gate.begun.wait(PATIENCE_S)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        fleet.exchange("a", timeout_s=LONG_S, ttl=LONG_S)
    assert fleet.grid.busy() == {node_id_of("a")}
    gate.open.set()
    until(lambda: fleet.grid.num_late_replies == 1)


# --- failures -------------------------------------------------------------------------------------


def raise_value_error(message: Message, context: Context) -> None:
    raise ValueError("no data")


def raise_odd_text(message: Message, context: Context) -> None:
    raise ValueError("\udcff" + 2000 * "x")


def leave(message: Message, context: Context) -> None:
    raise SystemExit(3)


def say_seven(message: Message, context: Context) -> object:
    return 7


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (raise_value_error, "ValueError: no data"),
        (raise_odd_text, "ValueError: ?" + 987 * "x"),
        (leave, "SystemExit: 3"),
        (say_seven, "TypeError: the ClientApp returned int, not a Message"),
    ],
)
def test_an_app_that_fails_answers_with_an_error(
    fleet: Fleet, work: Callable[[Message, Context], object], reason: str
) -> None:
    fleet.run("a", echo_app(work))
    for _ in range(2):  # and lives on
        (exchange,) = fleet.exchange("a")
        assert exchange.rtt_s is not None
        assert exchange.reply is not None
        assert exchange.reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        assert exchange.reply.error.reason == reason


def test_a_message_to_nobody_does_not_hold_up_the_others(fleet: Fleet) -> None:
    fleet.run("a")
    nobody, somebody = fleet.exchange("b", "a", timeout_s=LONG_S)
    assert nobody == Exchange(node_id_of("b"), None, None, UNDELIVERABLE)
    assert somebody.reply is not None


def test_what_is_too_large_fails_alone(fleet: Fleet) -> None:
    fleet.run("small", max_message_bytes=100_000)
    fleet.run("large")
    small, large = fleet.exchange("small", "large", size=50_000)
    assert small.failure == (
        f"{UNDELIVERABLE}: a message of 0.2003 MB, the client takes 0.1 MB (its --max-message-mb)"
    )
    assert large.reply is not None

    def answer(message: Message, context: Context) -> Message:
        arrays = ArrayRecord({"w": Array(np.zeros(50_000, dtype=np.float32))})
        return Message(RecordDict({"arrays": arrays}), reply_to=message)

    fleet.run("talker", echo_app(answer), max_message_bytes=100_000)
    (exchange,) = fleet.exchange("talker")
    assert exchange.reply is not None
    assert exchange.reply.error.reason == (
        "reply of 0.2003 MB, 0.1 MB at most (flower-client --max-message-mb)"
    )


def test_replies_that_nobody_asked_for_change_nothing(fleet: Fleet) -> None:
    raw = fleet.raw("raw")
    assert isinstance(raw.read(), wire.Welcome)
    other = fleet.raw("other")
    assert isinstance(other.read(), wire.Welcome)
    pending = fleet.begin("raw")
    work, message = raw.read_work()
    other.answer(work.message_id, message)  # another client's
    other.answer("never-sent", message)
    until(lambda: fleet.grid.num_ignored_replies == 2)
    raw.answer(work.message_id, message)
    raw.answer(work.message_id, message)  # a second time
    (exchange,) = pending.result()
    assert exchange.reply is not None
    assert exchange.reply.metadata.src_node_id == node_id_of("raw")
    until(lambda: fleet.grid.num_ignored_replies == 3)


@pytest.mark.parametrize(
    "payload", [wire.Packed(b"\xff\xff\xff"), wire.Packed(), wire.Packed(b"", (b"x",)), None]
)
def test_an_unreadable_reply_is_a_failure(fleet: Fleet, payload: wire.Packed | None) -> None:
    raw = fleet.raw("raw")
    assert isinstance(raw.read(), wire.Welcome)
    pending = fleet.begin("raw")
    work, message = raw.read_work()
    if payload is None:  # answers another message inside than outside
        message.metadata.__dict__["_message_id"] = "other"
        payload = pack(Message(RecordDict(), reply_to=message))
    raw.send(wire.Reply(work.message_id, payload))
    (exchange,) = pending.result()
    assert exchange.reply is None
    assert exchange.rtt_s is None
    assert str(exchange.failure).startswith(UNREADABLE)
    assert fleet.grid.busy() == set()


@pytest.mark.parametrize(
    "garbage", [b"", b"\x63garbage", wire.encode(wire.Goodbye()) + b"x", wire.encode(wire.Ack([]))]
)
def test_garbage_closes_the_connection_with_a_reason(
    fleet: Fleet, garbage: bytes, said: list[str]
) -> None:
    raw = fleet.raw("raw")
    assert isinstance(raw.read(), wire.Welcome)
    raw.send(garbage)
    frame = raw.read()
    assert isinstance(frame, wire.Refused)
    assert frame.code == wire.Refusal.BAD_FRAME
    until(lambda: list(fleet.grid.get_node_ids()) == [])
    until(lambda: any("its connection is closed" in line for line in said))


def test_a_stream_that_begins_otherwise_is_refused(fleet: Fleet) -> None:
    raw = RawClient(fleet.address)
    raw.send(wire.Goodbye())
    frame = raw.read()
    assert isinstance(frame, wire.Refused)
    assert frame.reason == "the first frame is no hello"
    raw.close()


# --- identity -------------------------------------------------------------------------------------


def test_a_namesake_is_refused(fleet: Fleet, said: list[str]) -> None:
    fleet.run("a")
    fleet.run("a", wait=False)
    error = fleet.error_of("a")
    assert isinstance(error, ConnectionRefused)
    assert error.code == wire.Refusal.NAME_IN_USE
    assert "another client of this name is connected" in str(error)
    until(lambda: any(line.startswith("refused client a:") for line in said))
    (exchange,) = fleet.exchange("a")
    assert exchange.reply is not None
    assert fleet.grid.num_refused == 1


def test_a_namesake_gets_in_when_the_other_is_gone(fleet: Fleet) -> None:
    first = fleet.run("a")
    fleet.run("a", echo_app(raise_value_error), wait=False, name_in_use_s=LONG_S)
    until(lambda: fleet.grid.num_refused)
    first.stop()
    until(lambda: (e := fleet.exchange("a")[0]).reply is not None and e.reply.has_error())
    assert len(list(fleet.grid.get_node_ids())) == 1, "the namesake, in the place of the first"


@pytest.mark.parametrize("other", ["DEV-A", "\N{FULLWIDTH LATIN SMALL LETTER D}ev-a"])
def test_names_that_differ_in_case_or_form_alone_are_one_device_at_a_time(
    fleet: Fleet, other: str
) -> None:
    first = fleet.run("dev-a")
    fleet.run("dev-b")
    fleet.run(other, wait=False)
    error = fleet.error_of(other)
    assert isinstance(error, ConnectionRefused)
    assert error.code == wire.Refusal.NAME_IN_USE
    assert "dev-a is connected, and the names of two clients must differ in more" in str(error)
    first.stop()
    until(lambda: len(list(fleet.grid.get_node_ids())) == 1)
    fleet.run(other)
    (exchange,) = fleet.exchange(other)
    assert exchange.reply is not None


def test_names_that_are_made_up_do_not_fill_the_server(fleet: Fleet) -> None:
    fleet.restart(max_clients=2)
    first = fleet.run("a")
    fleet.run("b")
    fleet.run("c", wait=False)
    error = fleet.error_of("c")
    assert isinstance(error, ConnectionRefused)
    assert error.code == wire.Refusal.FULL
    assert "has met 2 clients already" in str(error)
    first.stop()
    until(lambda: len(list(fleet.grid.get_node_ids())) == 1)
    fleet.run("a")  # who is known has a place for ever


def test_another_protocol_is_refused_on_both_ends(
    fleet: Fleet, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = functools.partial(wire.Hello, protocol=0, package="0.0.1")
    monkeypatch.setattr(
        flower_scheduling.client.stream, "wire", SimpleNamespace(**{**vars(wire), "Hello": old})
    )
    fleet.run("a", wait=False)
    error = fleet.error_of("a")
    assert isinstance(error, VersionMismatch)
    assert "it speaks protocol 0 (version 0.0.1), the server 2" in str(error)
    until(lambda: any("it speaks protocol 0" in line for line in said))


def test_another_version_of_the_package_is_pointed_out(fleet: Fleet, said: list[str]) -> None:
    raw = fleet.raw("raw", package="0.0.1")
    assert isinstance(raw.read(), wire.Welcome)
    until(lambda: any("raw has version 0.0.1, the server" in line for line in said))


def test_who_is_denied_stays_out_and_the_list_is_read_each_time(fleet: Fleet) -> None:
    denied = {"a"}
    fleet.restart(is_denied=lambda name: name in denied)
    fleet.run("a", wait=False)
    error = fleet.error_of("a")
    assert isinstance(error, ConnectionRefused)
    assert error.code == wire.Refusal.DENIED
    denied.clear()
    fleet.run("a")


def test_who_is_denied_while_connected_is_shut_out(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_scheduling.server.transport.stream_server, "_REVIEW_S", 0.02)
    denied: set[str] = set()
    fleet.restart(is_denied=lambda name: name in denied)
    gate = Gate()
    fleet.run("a", echo_app(gate))
    fleet.run("b")
    pending = fleet.begin("a")
    assert gate.begun.wait(PATIENCE_S)
    denied.add("a")
    error = fleet.error_of("a")
    assert isinstance(error, ConnectionRefused)
    assert error.code == wire.Refusal.DENIED
    assert pending.result()[0].failure == LOST, "its round does not wait for it"
    gate.open.set()
    assert list(fleet.grid.get_node_ids()) == [node_id_of("b")]
    assert model_of(fleet.exchange("b")[0]) == [1.0] * 4


def test_who_comes_together_is_told_together(
    fleet: Fleet, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_scheduling.server.transport.connection_log, "_PAUSE_S", LONG_S)
    names = [f"dev-{i}" for i in range(7)]
    for name in names:
        fleet.run(name, wait=False)
    fleet.wait_for(*names)
    fleet.clients["dev-0"].stop()
    until(lambda: len(list(fleet.grid.get_node_ids())) == 6)
    fleet.grid.stop()
    joined, left = (line for line in said if line.startswith(("connected:", "left:")))
    assert joined.endswith(" and 2 more")
    assert left == "left: dev-0"


def test_a_client_that_cannot_have_its_data_leaves_with_that_reason(
    fleet: Fleet, said: list[str]
) -> None:
    def work(message: Message, context: Context) -> None:
        raise DataUnavailableError("no source for MNIST is reachable: put the files there")

    fleet.run("a", echo_app(work))
    (exchange,) = fleet.exchange("a")
    assert exchange.reply is not None
    assert "no source for MNIST" in exchange.reply.error.reason
    assert isinstance(fleet.error_of("a"), DataUnavailableError)
    until(lambda: not list(fleet.grid.get_node_ids()))
    assert not [line for line in said if "lost the connection" in line], "it said goodbye"


def test_app_without_answer_to_a_query_is_no_error(fleet: Fleet, said: list[str]) -> None:
    fleet.run("a")
    message = Message(RecordDict(), node_id_of("a"), MessageType.QUERY)
    (exchange,) = fleet.grid.exchange([message], PATIENCE_S)
    assert exchange.reply is not None
    assert exchange.reply.has_error()
    assert "this app answers no query messages" in said
    assert not [line for line in said if "raised" in line]


class Certificates:
    """A CA for one test, and what it signs."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("test CA")
        self.ca = self._sign(self._key, self._name, ca=True)[1]

    def issue(self, name: str, *alternative: x509.GeneralName) -> tuple[bytes, bytes]:
        return self._sign(ec.generate_private_key(ec.SECP256R1()), _name(name), alternative)

    def client(self, name: str) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.ca, *self.issue(name))

    def server(self) -> grpc.ServerCredentials:
        pair = self.issue("server", x509.DNSName("localhost"))
        return grpc.ssl_server_credentials([pair], self.ca, require_client_auth=True)

    def _sign(
        self,
        key: ec.EllipticCurvePrivateKey,
        subject: x509.Name,
        alternative: tuple[x509.GeneralName, ...] = (),
        *,
        ca: bool = False,
    ) -> tuple[bytes, bytes]:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if alternative:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternative), False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return (
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
            certificate.public_bytes(serialization.Encoding.PEM),
        )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def test_a_certificate_proves_the_name(fleet: Fleet) -> None:
    certificates = Certificates()
    fleet.restart(credentials=certificates.server())
    address = f"localhost:{fleet.grid.port}"
    run = functools.partial(fleet.run, address=address)
    run("a", echo_app(raise_value_error), credentials=certificates.client("a"))

    run("b", wait=False, credentials=certificates.client("a"))
    error = fleet.error_of("b")
    assert isinstance(error, ConnectionRefused)
    assert error.code == wire.Refusal.NOT_YOUR_NAME
    assert str(error).endswith("its certificate is for a")

    run("a", wait=False, credentials=certificates.client("a"))  # takes the place of the other
    error = fleet.error_of("a")
    assert isinstance(error, ConnectionRefused)
    assert error.code == wire.Refusal.REPLACED
    (exchange,) = fleet.exchange("a")
    assert model_of(exchange) == [1.0] * 4


# --- broken connections ---------------------------------------------------------------------------


def test_finished_reply_that_a_new_server_would_not_take_is_dropped(
    fleet: Fleet, link: Link, said: list[str]
) -> None:
    gate = Gate()
    client = fleet.run("a", echo_app(gate), address=link.address)
    pending = Pending(lambda: fleet.grid.exchange(to("a", size=50_000), LONG_S))
    assert gate.begun.wait(PATIENCE_S)
    link.cut()
    fleet.restart(max_message_bytes=100_000)
    assert pending.result()[0].failure == LOST
    gate.open.set()
    until(lambda: all(client._in_hand.values()))
    link.restore(fleet.grid.port)
    fleet.wait_for("a")
    until(lambda: not fleet.grid.busy())
    assert model_of(fleet.exchange("a")[0]) == [1.0] * 4
    assert [line for line in said if "started anew, and takes 0.1 MB at most" in line]


def test_work_outlives_a_broken_connection(fleet: Fleet, link: Link) -> None:
    gate = Gate()
    fleet.run("a", echo_app(gate), address=link.address)
    pending = fleet.begin("a")
    assert gate.begun.wait(PATIENCE_S)
    link.cut()
    until(lambda: list(fleet.grid.get_node_ids()) == [])
    assert fleet.grid.busy() == {node_id_of("a")}
    link.up = True
    fleet.wait_for("a")
    gate.open.set()
    (exchange,) = pending.result()
    assert model_of(exchange) == [1.0] * 4


@pytest.mark.parametrize("compress", ["", "down=bfloat16"])
def test_a_model_that_was_cut_off_on_its_way_is_sent_again(
    fleet: Fleet, link: Link, said: list[str], compress: str
) -> None:
    fleet.restart(compress=compress, lost_after_s=LONG_S)
    link.restore(fleet.grid.port)
    fleet.run("a", address=link.address)
    fleet.run("b")
    link.bytes_a_s = 200_000
    pending = Pending(lambda: fleet.grid.exchange(to("a", "b", size=1_000_000), LONG_S))
    until(lambda: fleet.grid.busy() == {node_id_of("a")})  # which takes twenty seconds to get it
    link.cut()
    until(lambda: list(fleet.grid.get_node_ids()) == [node_id_of("b")])
    time.sleep(0.2)
    link.bytes_a_s = math.inf
    link.up = True
    cut_off, other = pending.result()
    assert model_of(cut_off) == [1.0] * 1_000_000
    assert (cut_off.rtt_s or 0.0) > max(other.rtt_s or math.inf, 0.2), "its time runs on"
    assert fleet.grid.num_ignored_replies == 0
    until(lambda: "sent again what was cut off: a" in said)
    assert fleet.exchange("a")[0].failure is None


def test_a_reply_that_was_finished_without_connection_is_offered(fleet: Fleet, link: Link) -> None:
    gate = Gate()
    fleet.run("a", echo_app(gate), address=link.address)
    pending = fleet.begin("a")
    assert gate.begun.wait(PATIENCE_S)
    link.cut()
    until(lambda: list(fleet.grid.get_node_ids()) == [])
    gate.open.set()
    time.sleep(0.05)
    link.up = True
    (exchange,) = pending.result()
    assert model_of(exchange) == [1.0] * 4
    assert exchange.rtt_s is not None
    assert exchange.rtt_s > 0.05
    assert model_of(fleet.exchange("a")[0]) == [1.0] * 4


def test_a_client_that_comes_back_without_its_work_has_failed(fleet: Fleet, link: Link) -> None:
    gate = Gate()
    fleet.run("a", echo_app(gate), address=link.address)
    pending = fleet.begin("a")
    assert gate.begun.wait(PATIENCE_S)
    link.cut()
    until(lambda: list(fleet.grid.get_node_ids()) == [])
    fleet.run("a")  # another process, as after kill -9 and a restart
    assert pending.result() == [Exchange(node_id_of("a"), None, None, LOST)]
    assert fleet.grid.busy() == set()
    gate.open.set()


def test_a_client_that_stays_away_has_failed(fleet: Fleet) -> None:
    fleet.restart(lost_after_s=0.1)
    raw = fleet.raw("a")
    assert isinstance(raw.read(), wire.Welcome)
    pending = fleet.begin("a")
    raw.read_work()
    begin = time.monotonic()
    raw.close()
    assert pending.result() == [Exchange(node_id_of("a"), None, None, LOST)]
    assert time.monotonic() - begin >= 0.1
    assert fleet.grid.busy() == set()


def test_a_client_that_leaves_has_failed_at_once(fleet: Fleet) -> None:
    gate = Gate()
    client = fleet.run("a", echo_app(gate))
    pending = fleet.begin("a")
    assert gate.begun.wait(PATIENCE_S)
    client.stop()
    assert pending.result() == [Exchange(node_id_of("a"), None, None, LOST)]
    gate.open.set()


def test_a_half_open_connection_is_replaced(fleet: Fleet, link: Link, said: list[str]) -> None:
    gate = Gate()
    fleet.run("a", echo_app(gate), address=link.address, keepalive_s=0.2)
    pending = fleet.begin("a")
    assert gate.begun.wait(PATIENCE_S)
    link.freeze()  # the client notices, the server does not
    gate.open.set()
    (exchange,) = pending.result()
    assert model_of(exchange) == [1.0] * 4
    until(lambda: "back, the old connection is closed: a" in said)
    assert fleet.grid.num_refused == 0


def test_a_dead_client_is_noticed(fleet: Fleet) -> None:
    fleet.restart(keepalive_s=0.2)
    link = Link(fleet.grid.port)
    fleet.run("a", address=link.address)
    link.up = False
    link.freeze()
    until(lambda: list(fleet.grid.get_node_ids()) == [])
    assert fleet.exchange("a")[0].failure == UNDELIVERABLE
    link.close()


def test_a_reply_that_is_here_is_not_sent_again(fleet: Fleet) -> None:
    first = fleet.raw("a")
    assert isinstance(first.read(), wire.Welcome)
    pending = fleet.begin("a")
    work, message = first.read_work()
    first.answer(work.message_id, message)
    pending.result()
    first.close()
    until(lambda: list(fleet.grid.get_node_ids()) == [])
    again = fleet.raw("a", work=[work.message_id])
    welcome = again.read()
    assert isinstance(welcome, wire.Welcome)
    assert welcome.acks == [work.message_id]
    assert fleet.grid.busy() == set()


def test_work_of_an_earlier_server_makes_busy_until_it_is_done(fleet: Fleet) -> None:
    raw = fleet.raw("a", work=["old-1"])
    assert isinstance(raw.read(), wire.Welcome)
    assert fleet.grid.busy() == {node_id_of("a")}
    raw.send(wire.Reply("old-1", wire.Packed(b"whatever")))
    until(lambda: fleet.grid.busy() == set())
    assert (fleet.grid.num_late_replies, fleet.grid.num_ignored_replies) == (0, 0)


def test_replies_are_acknowledged_with_the_next_work_or_after_a_while(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_scheduling.server.transport.servicer, "_ACK_DELAY_S", 3.0)
    raw = fleet.raw("a")
    assert isinstance(raw.read(), wire.Welcome)
    answered: list[str] = []
    for delay_s in (0.0, 1.0):  # the delay of an earlier reply must not count for a later one
        pending = fleet.begin("a")
        work, message = raw.read_work()
        assert work.acks == answered[-1:]
        answered.append(work.message_id)
        time.sleep(delay_s)
        begin = time.monotonic()
        raw.answer(work.message_id, message)
        pending.result()
    frame = raw.read()
    assert frame == wire.Ack(answered[-1:])
    assert time.monotonic() - begin > 2.9


# --- availability, membership, life ---------------------------------------------------------------


def test_a_client_can_opt_out(fleet: Fleet) -> None:
    client = fleet.run("a", available=False)
    assert fleet.grid.opted_out() == {node_id_of("a")}
    client.set_available(True)
    until(lambda: fleet.grid.opted_out() == set())
    client.set_available(False)
    until(lambda: fleet.grid.opted_out() == {node_id_of("a")})
    assert not client.available


def test_wait_ends_when_a_client_comes(fleet: Fleet) -> None:
    begin = time.monotonic()
    fleet.grid.wait(0.05)
    assert time.monotonic() - begin >= 0.05
    threading.Timer(0.05, lambda: fleet.run("a", wait=False)).start()
    fleet.grid.wait(LONG_S)
    fleet.wait_for("a")


def test_stop_tells_the_clients_and_ends_an_exchange(fleet: Fleet, said: list[str]) -> None:
    gate = Gate()
    fleet.run("stays", echo_app(gate))
    leaver = threading.Thread(
        target=StreamClient(fleet.address, "leaves", echo_app(), stay=False).run
    )
    leaver.start()
    fleet.wait_for("leaves")
    pending = fleet.begin("stays")
    assert gate.begun.wait(PATIENCE_S)
    port = fleet.grid.port
    fleet.grid.stop()
    assert pending.result() == [Exchange(node_id_of("stays"), None, None, LOST)]
    leaver.join(PATIENCE_S)
    assert not leaver.is_alive()
    assert any("said goodbye" in line for line in said)
    fleet.grid = StreamGrid(f"127.0.0.1:{port}")  # the next server, and the work is still there
    fleet.grid.start()
    fleet.wait_for("stays")
    assert fleet.grid.busy() == {node_id_of("stays")}
    gate.open.set()
    until(lambda: fleet.grid.busy() == set())
    assert fleet.grid.num_late_replies == 0, "no deadline of this server's"
    assert model_of(fleet.exchange("stays")[0]) == [1.0] * 4


def test_a_stopped_grid_delivers_nothing(fleet: Fleet) -> None:
    fleet.run("a", stay=False)
    fleet.grid.stop()
    fleet.grid.stop()
    assert fleet.exchange("a")[0].failure == UNDELIVERABLE


@pytest.mark.parametrize(
    ("address", "fault"),
    [
        ("127.0.0.1:{port}", "the port is in use"),
        ("192.0.2.1:1", "this machine does not have that address"),
    ],
)
def test_an_address_that_cannot_be_had_is_one_clear_error(
    fleet: Fleet, address: str, fault: str
) -> None:
    grid = StreamGrid(address.format(port=fleet.grid.port))
    with pytest.raises(ConfigError, match=fault) as caught:
        grid.start()
    assert caught.value.key == "address"
    grid.stop()
    with pytest.raises(RuntimeError, match="before start"):
        _ = grid.port


def test_what_is_no_address_is_refused_at_either_end() -> None:
    for address, right in (("nonsense:address:1", "HOST:PORT"), ("::1:0", r"write \[::1\]:0")):
        with pytest.raises(ConfigError, match=right):
            StreamGrid(address)
    with pytest.raises(ConfigError, match=r"write \[::1\]:9092"):
        StreamClient("::1:9092", "a", echo_app())


def test_an_unreachable_server_is_mentioned_once(said: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    client = StreamClient(address, "a", echo_app(), max_backoff_s=0.01)
    thread = threading.Thread(target=client.run)
    thread.start()
    until(lambda: said)
    time.sleep(0.1)  # several attempts
    client.stop()
    thread.join(PATIENCE_S)
    assert len(said) == 1
    assert said[0].startswith(f"cannot reach the server at {address} (unavailable: ")


def test_a_client_that_was_stopped_before_does_not_run() -> None:
    client = StreamClient("127.0.0.1:1", "a", echo_app())
    client.stop()
    client.run()  # it does not try to connect for ever


def test_a_client_runs_once(fleet: Fleet) -> None:
    fleet.restart(is_denied=lambda name: True)
    client = StreamClient(fleet.address, "a", echo_app())
    with pytest.raises(ConnectionRefused, match="deny list"):
        client.run()
    with pytest.raises(RuntimeError, match="runs once"):
        client.run()


def test_a_client_refuses_a_name_that_cannot_be_one() -> None:
    with pytest.raises(WireError, match="client name ''"):
        StreamClient("127.0.0.1:1", "", echo_app())


def test_health_service(fleet: Fleet) -> None:
    with grpc.insecure_channel(fleet.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


# --- other people's loops -------------------------------------------------------------------------


def test_push_and_pull_keep_flowers_meaning(fleet: Fleet) -> None:
    gate = Gate()
    fleet.run("a", echo_app(gate))
    there, gone = fleet.grid.push_messages([*to("a"), *to("b")])
    (error,) = fleet.grid.pull_messages([there, gone, "never-sent"])
    assert error.metadata.reply_to_message_id == gone
    assert error.error.code == ErrorCode.NODE_UNAVAILABLE
    assert list(fleet.grid.pull_messages([there, gone])) == []
    gate.open.set()
    until(lambda: fleet.grid.busy() == set())
    (reply,) = fleet.grid.pull_messages([there])
    assert reply.has_content()
    assert list(fleet.grid.pull_messages([there])) == []


def test_a_pushed_message_that_expires_is_answered_by_an_error(fleet: Fleet) -> None:
    gate = Gate()
    fleet.run("a", echo_app(gate))
    (message_id,) = fleet.grid.push_messages(to("a", ttl=0.05))
    replies: list[Message] = []
    until(lambda: replies.extend(fleet.grid.pull_messages([message_id])) or replies)
    assert replies[0].error.code == ErrorCode.REPLY_MESSAGE_UNAVAILABLE
    gate.open.set()


def test_send_and_receive_answers_what_cannot_be_delivered(fleet: Fleet) -> None:
    now_s = [100.0]
    fleet.restart(clock=lambda: now_s[0])
    gate = Gate()
    fleet.run("a")
    fleet.run("slow", echo_app(gate))
    pending = Pending(lambda: fleet.grid.send_and_receive(to("a", "b", "slow"), timeout=0.5))
    assert gate.begun.wait(PATIENCE_S)
    until(lambda: node_id_of("a") not in fleet.grid.busy())
    now_s[0] += 0.5
    replies = pending.result()
    assert [r.has_error() for r in replies] == [False, True]
    assert replies[1].metadata.src_node_id == node_id_of("b")
    pending = Pending(lambda: fleet.grid.send_and_receive(to("slow", ttl=0.1)))
    while not pending.done():
        now_s[0] += 0.1
        time.sleep(0.01)
    (reply,) = pending.result()
    assert reply.error.code == ErrorCode.REPLY_MESSAGE_UNAVAILABLE
    gate.open.set()


def test_a_foreign_strategy_runs(fleet: Fleet) -> None:
    for name in "abc":
        fleet.run(name)
    result = FedAvg().start(
        fleet.grid, ArrayRecord({"w": Array(np.zeros(3, dtype=np.float32))}), num_rounds=3
    )
    assert result.arrays["w"].numpy().tolist() == [3.0] * 3
    assert result.evaluate_metrics_clientapp[3]["accuracy"] == 0.5


def test_the_scheduler_runs(fleet: Fleet) -> None:
    for name, delay_s in {"a": 0.0, "b": 0.0, "c": 0.05}.items():
        fleet.run(name, echo_app(lambda m, c, delay_s=delay_s: time.sleep(delay_s)))
    records = []
    strategy = ScheduledStrategy(
        FedAvg(),
        "cs-ucb",
        num_selected=2,
        tau_max_s=LONG_S,
        min_clients=3,
        hooks=[lambda record, arrays: records.append(record)],
    )
    initial = ArrayRecord({"w": Array(np.zeros(3, dtype=np.float32))})
    result = strategy.start(fleet.grid, initial, num_rounds=6)
    assert result.arrays["w"].numpy().tolist() == [6.0] * 3
    assert all(record.completed == [True, True] for record in records)
    keys = {arm.key for arm in strategy.arms.arms}
    assert keys == {name.encode().hex() for name in "abc"}


def test_many_clients_share_an_event_loop_and_a_worker(fleet: Fleet) -> None:
    names = [f"client-{i}" for i in range(20)]
    threads = set()
    app = echo_app(lambda message, context: threads.add(threading.current_thread().name))

    worker = Worker("shared")

    async def everybody() -> None:
        make = functools.partial(StreamClient, fleet.address, client_app=app, worker=worker)
        await asyncio.gather(*(make(name=name, stay=False).serve() for name in names))

    thread = threading.Thread(target=lambda: asyncio.run(everybody()))
    thread.start()
    fleet.wait_for(*names)
    for _ in range(3):
        assert [model_of(e) for e in fleet.exchange(*names)] == [[1.0] * 4] * 20
    fleet.grid.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert threads == {"shared"}
    worker.end()


# --- what gRPC makes of a cancellation ------------------------------------------------------------


def test_farewell_to_a_call_that_is_cancelled_already_is_no_error() -> None:
    tried: list[bytes] = []

    class Cancelled:
        async def write(self, piece: bytes) -> None:
            tried.append(piece)
            raise asyncio.CancelledError  # as gRPC does when the call was cancelled on this side

    asyncio.run(_Stream(Cancelled(), 1 << 20, WriteTasks(logging.getLogger())).say_goodbye())
    assert len(tried) == 1


def test_client_stops_though_its_cancellation_becomes_an_error_of_grpc() -> None:
    client = StreamClient("127.0.0.1:1", "a", echo_app())
    conversing = threading.Event()

    async def converse() -> None:
        try:
            conversing.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError("the call is broken") from None

    client._run_session = converse  # type: ignore[method-assign]
    thread = threading.Thread(target=client.run, daemon=True)
    thread.start()
    assert conversing.wait(PATIENCE_S)
    client.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
