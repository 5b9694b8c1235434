"""What broken and hostile clients send to a fleet's server: each costs them more than it costs us.

Every test speaks to a real StreamGrid over loopback, or gives the checker a reply as it comes off
the wire. After each attack an honest client's round goes on.
"""

from __future__ import annotations

import contextlib
import json
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from apps import echo_app
from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp.strategy import FedAvg
from hostile import peak_mb, proto_field
from raw_client import RawClient
from waiting import PATIENCE_S, until

import flower_scheduling.server.transport.admission
import flower_scheduling.server.transport.connection_log
import flower_scheduling.server.transport.requests
import flower_scheduling.server.transport.servicer
from flower_scheduling.client.stream import StreamClient
from flower_scheduling.client.wire import chunks
from flower_scheduling.client.wire import frames as wire
from flower_scheduling.reasons import UNREADABLE
from flower_scheduling.server.transport.connection import node_id_of
from flower_scheduling.server.transport.grid import StreamGrid
from flower_scheduling.strategies.flower import (
    Exchange,
    RoundRecord,
    ScheduledStrategy,
)

LONG_S = 300.0
CHUNK = 2**16  # bytes of a chunk in these tests; its zeros in front mean more of a frame


# --- helpers --------------------------------------------------------------------------------------


class Town:
    """A grid with an honest client, and the strangers of a test."""

    def __init__(self, stack: contextlib.ExitStack, **settings: Any) -> None:
        self.grid = stack.enter_context(StreamGrid("127.0.0.1:0", **settings))
        self._stack = stack
        address = f"127.0.0.1:{self.grid.port}"
        client = StreamClient(address, "honest", echo_app(), max_backoff_s=0.1)
        thread = threading.Thread(target=client.run)
        stack.callback(thread.join)
        stack.callback(client.stop)
        thread.start()
        until(lambda: node_id_of("honest") in self.grid.get_node_ids())

    def stranger(self, **settings: Any) -> RawClient:
        stranger = RawClient(f"127.0.0.1:{self.grid.port}", **settings)
        self._stack.callback(stranger.close)
        return stranger

    def client(self, name: str, **hello: Any) -> RawClient:
        stranger = self.stranger()
        stranger.send(wire.Hello(name, hello.pop("session", name), **hello))
        assert isinstance(stranger.read(), wire.Welcome)
        return stranger

    def ask(self, name: str, timeout_s: float = PATIENCE_S) -> Exchange:
        arrays = ArrayRecord({"w": Array(np.zeros(4, dtype=np.float32))})
        message = Message(RecordDict({"arrays": arrays}), node_id_of(name), MessageType.TRAIN)
        (exchange,) = self.grid.exchange([message], timeout_s)
        return exchange

    def works(self) -> bool:
        """Tell whether the honest client's round goes on."""
        return self.ask("honest").rtt_s is not None


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def town(stack: contextlib.ExitStack) -> Town:
    return Town(stack)


def prefix(kind: wire.Kind, header_bytes: int, payload_bytes: int) -> bytes:
    return struct.pack(">BIQ", kind, header_bytes, payload_bytes)


def reply_head(message_id: str, payload_bytes: int) -> bytes:
    header = json.dumps({"message_id": message_id}).encode()
    return prefix(wire.Kind.REPLY, len(header), payload_bytes) + header


# --- before the hello -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "unknown kind of frame: 71"),
        (prefix(wire.Kind.HELLO, 2**31, 0), "a header of 2147483648 bytes is too long"),
        (prefix(wire.Kind.HELLO, 10, 2**40), "a payload of 1099511627776 bytes, must have none"),
        (prefix(wire.Kind.REPLY, 100, 2**28), "must have 131085 at most"),
        (prefix(wire.Kind.HELLO, 100, 0), "a chunk of 13 bytes, must have 16384"),
        (wire.encode(wire.Hello("a", "s", ["x"] * 1025)), "1025 'work', 1024 at most"),
        (wire.encode(wire.Hello("a", "s", ["x" * 65])), "'work' has one beyond 64"),
        (wire.encode(wire.Hello("a", "s" * 65)), "'session' is longer than 64"),
        (wire.encode(wire.Hello("a", "s", package="1\n2")), "'package' is no version"),
        (wire.encode(wire.Hello("a", "s", max_message_bytes=-1)), "is out of range"),
    ],
)
def test_bad_first_frame_is_refused_at_once(town: Town, data: bytes, reason: str) -> None:
    stranger = town.stranger()
    stranger.send(data)
    refused = stranger.refusal()
    assert refused.code == wire.Refusal.BAD_FRAME
    assert reason in refused.reason
    assert town.works()


def test_hello_that_comes_byte_by_byte_is_refused(town: Town) -> None:
    stranger = town.stranger()
    data = wire.encode(wire.Hello("a", "s"))
    stranger.send(*(data[i : i + 1] for i in range(len(data))))
    assert "frame of 1 bytes" in stranger.refusal().reason


@pytest.mark.parametrize("begun", [b"", prefix(wire.Kind.HELLO, 70_000, 0) + bytes(CHUNK - 13)])
def test_who_never_says_hello_is_sent_away(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch, said: list[str], begun: bytes
) -> None:
    monkeypatch.setattr(flower_scheduling.server.transport.admission, "_HELLO_TIMEOUT_S", 0.2)
    town = Town(stack)
    stranger = town.stranger()
    if begun:
        stranger.send(begun)
    assert list(stranger.call) == []
    assert len(town.grid._servicer.admission.pending) == 0
    until(lambda: [line for line in said if line.startswith("no hello from ipv4:127.0.0.1:")])


def test_flood_of_silent_streams_takes_bounded_room_and_keeps_nobody_out(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(flower_scheduling.server.transport.admission, "_MAX_PENDING", 20)
    town = Town(stack)
    options = [("grpc.use_local_subchannel_pool", 1)]  # connections of their own
    address = f"127.0.0.1:{town.grid.port}"
    channels = [grpc.insecure_channel(address, options=options) for _ in range(10)]
    stack.callback(lambda: [channel.close() for channel in channels])
    never = threading.Event()
    stack.callback(never.set)
    ended: list[int] = []
    calls: list[Any] = []  # gRPC cancels those that nobody holds
    for i in range(100):
        call = channels[i % 10].stream_stream(wire.METHOD)(
            iter(lambda: never.wait() and None, None)
        )
        call.add_callback(lambda: ended.append(1))
        calls.append(call)
    until(lambda: len(ended) >= 80)
    assert len(town.grid._servicer.admission.pending) <= 20
    town.client("newcomer")
    assert town.works()
    town.grid.stop()
    assert len([line for line in said if line.startswith("no hello")]) == 1


def test_the_crowd_gives_way_and_not_the_single_stranger(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_scheduling.server.transport.admission, "_MAX_PENDING", 3)
    hosts = iter(["one", "crowd", "crowd", "crowd", "crowd"])
    monkeypatch.setattr(
        flower_scheduling.server.transport.admission,
        "host_of",
        lambda context: next(hosts, "honest"),
    )
    with StreamGrid("127.0.0.1:0") as grid:
        strangers = []
        for count in (1, 2, 3, 3, 3):
            strangers.append(RawClient(f"127.0.0.1:{grid.port}"))
            stack.callback(strangers[-1].close)
            time.sleep(0.05)
            until(lambda count=count: len(grid._servicer.admission.pending) == count)
        assert grid._servicer.admission.pending.hosts() == {"one": 1, "crowd": 2}
        assert list(strangers[1].call) == [], "the crowd's eldest"


def test_compressed_message_that_unfolds_is_not_kept(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The sender packs it first, which may take longer than a hello may.
    admission = flower_scheduling.server.transport.admission
    monkeypatch.setattr(admission, "_HELLO_TIMEOUT_S", 2 * PATIENCE_S)
    before = peak_mb()
    stranger = town.stranger(compression=grpc.Compression.Gzip)
    stranger.send(bytes(50 * 2**20))
    with pytest.raises(grpc.RpcError) as caught:
        stranger.read()
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert town.works()
    assert peak_mb() - before < 300  # what the sender itself takes


def test_stranger_of_another_protocol_cannot_write_our_log(town: Town, said: list[str]) -> None:
    header = {"protocol": 10**400, "name": "x\ny\x1b[2J" + "z" * 200, "package": ["\n"] * 9}
    body = json.dumps(header).encode()
    stranger = town.stranger()
    stranger.send(prefix(wire.Kind.HELLO, len(body), 0) + body)
    assert stranger.refusal().code == wire.Refusal.VERSION
    town.grid.stop()
    (line,) = [line for line in said if line.startswith("refused client")]
    assert line.startswith(f"refused client x?y?[2J{'z' * 57}: it speaks protocol 0 (version ?)")
    assert line.isprintable()


# --- frames of a client ---------------------------------------------------------------------------


def test_undersized_chunks_of_a_frame_are_refused(town: Town) -> None:
    for small, reason in (
        (b"\x00", "a chunk of 0 bytes, must have 16384"),
        (b"\x00x", "a chunk of 1 bytes, must have 16384"),
        (b"", "a chunk that begins with b'' within a frame"),
        (wire.encode(wire.Goodbye()), "a chunk that begins with b'\\x08' within a frame"),
    ):
        client = town.client("small-chunks")
        head = reply_head("m", 2**28)
        client.send(head + bytes(CHUNK - len(head)), small, small)
        assert reason in client.refusal().reason
    assert town.works()


def test_frame_that_stops_halfway_closes_its_connection(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_TIMEOUT_S", 0.2)
    town = Town(stack)
    client = town.client("halfway")
    head = reply_head("m", 2**28)
    client.send(head + bytes(CHUNK - len(head)))
    assert "bytes are missing, and none came for 0 s" in client.refusal().reason
    until(lambda: node_id_of("halfway") not in town.grid.get_node_ids())
    assert town.works()


def test_oversized_frame_is_refused_by_what_it_claims(stack: contextlib.ExitStack) -> None:
    town = Town(stack, max_message_bytes=2**20)
    client = town.client("large")
    client.send(reply_head("m", 2**60))
    assert "must have 1048576 at most" in client.refusal().reason
    assert town.works()


def test_large_replies_that_nobody_waits_for_are_not_kept(town: Town) -> None:
    client = town.client("chatty", work=["old"])
    before = peak_mb()
    size = CHUNK + 99 * (CHUNK - 1)
    for message_id in ("never-sent", "old", "never-sent"):
        head = reply_head(message_id, size - len(reply_head(message_id, size)))
        client.send(head + bytes(CHUNK - len(head)))
        client.send(*[bytes(CHUNK)] * 99)
    until(lambda: town.grid.num_ignored_replies == 2)
    assert town.grid.num_late_replies == 0
    assert node_id_of("chatty") not in town.grid.busy()
    assert peak_mb() - before < 30
    assert town.works()


def test_reports_that_are_not_due_cost_nothing(town: Town) -> None:
    client = town.client("eager")
    client.send(*[wire.Progress(2**62)] * 1000)
    connection = town.grid._servicer.admission.connections[node_id_of("eager")]
    until(lambda: connection.num_useless > 50)
    assert town.works()


def test_reports_that_are_not_taken_do_not_pile_up(town: Town) -> None:
    client = town.client("greedy")  # it asks for thousands of them, and reads none
    size = CHUNK + 2000 * (CHUNK - 1)
    head = reply_head("m", size - len(reply_head("m", size)))
    client.send(head + bytes(CHUNK - len(head)))
    client.send(*[b"\xff" + bytes(CHUNK - 1)] * 2000)
    until(lambda: town.grid.num_ignored_replies == 1)
    assert len(town.grid._servicer._writes._tasks) < 10
    assert town.works()


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 1000,
        b'{"available":' + b"[" * 900,
        b'{"available":' + b"9" * 1000 + b"}",
        b'{"available":1e999}',
        b'{"available":"\\ud800"}',
        b'{"available":null,"available":{}}',
        b"\xff" * 20,
        b"{}",
    ],
)
def test_odd_header_closes_the_connection(town: Town, header: bytes) -> None:
    client = town.client("odd")
    client.send(prefix(wire.Kind.AVAILABILITY, len(header), 0) + header)
    reason = client.refusal().reason
    assert reason.startswith("AVAILABILITY frame: ")
    assert reason.isprintable()


def test_client_that_changes_its_mind_all_the_time_wakes_nobody(town: Town) -> None:
    client = town.client("fickle")
    town.grid.wait(0)
    for _ in range(300):
        client.send(wire.Availability(False), wire.Availability(True))
    time.sleep(0.1)
    town.grid.wait(0)  # the first change counts at once
    wakes, begin = 0, time.monotonic()
    while time.monotonic() - begin < 1.5:
        town.grid.wait(0.5)
        wakes += town.grid._servicer.changed.is_set()
    assert wakes <= 1 + time.monotonic() - begin
    assert town.works()
    client.send(wire.Availability(False))  # and the last one counts in the end
    until(lambda: node_id_of("fickle") in town.grid.opted_out())


def test_flood_of_useless_frames_is_read_slowly(town: Town) -> None:
    client = town.client("flood")
    begin = time.monotonic()
    client.send(*[wire.Reply("x" * 64)] * 5000)
    until(lambda: town.grid.num_ignored_replies >= 100)
    time.sleep(0.5)
    count = town.grid.num_ignored_replies
    assert count <= 101 + (time.monotonic() - begin) / 0.02, "a pause after each"
    assert len(town.grid._requests._unacknowledged[node_id_of("flood")]) <= wire.MAX_IDS
    assert town.works()


def test_acknowledgements_are_bounded(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_scheduling.server.transport.servicer, "_FREE_FRAMES", 10**6)
    client = town.client("flood")
    client.send(*[wire.Reply(str(i)) for i in range(2000)])
    until(lambda: town.grid.num_ignored_replies == 2000)
    frame = client.read()
    assert isinstance(frame, wire.Ack)
    assert len(frame.acks) == wire.MAX_IDS
    client.send(wire.Reply("one more"), wire.Goodbye())
    until(lambda: node_id_of("flood") not in town.grid.get_node_ids())
    assert node_id_of("flood") not in town.grid._requests._unacknowledged


def test_work_that_the_server_knows_nothing_of_is_bounded_in_number_and_time(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    town = Town(stack, clock=lambda: time.monotonic() + now[0])
    town.client("liar", work=[f"made-up-{i}" for i in range(1000)])
    assert town.grid.busy() == {node_id_of("liar")}
    assert (
        len(town.grid._requests._open)
        == flower_scheduling.server.transport.requests._MAX_UNKNOWN_WORK
    )
    now[0] = flower_scheduling.server.transport.requests._UNKNOWN_WORK_S
    assert town.grid.busy() == set()
    assert town.grid._requests._open == {}


def test_client_that_takes_nothing_is_closed(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_TIMEOUT_S", 0.3)
    town = Town(stack)
    town.client("deaf")
    arrays = ArrayRecord({"w": Array(np.zeros(4_000_000, dtype=np.float32))})
    content = RecordDict({"arrays": arrays})
    for _ in range(3):
        message = Message(content, node_id_of("deaf"), MessageType.TRAIN)
        town.grid.exchange([message], 0.01)
    until(lambda: node_id_of("deaf") not in town.grid.get_node_ids())
    until(
        lambda: not [task for task in town.grid._servicer._writes._tasks if "_write" in repr(task)]
    )
    until(lambda: "deaf takes nothing any more: its connection is closed" in said)
    assert town.works()


def test_clients_that_only_connect_hold_nobody_up(town: Town) -> None:
    for number in range(20):
        town.client(f"made-up-{number}")
    records: list[RoundRecord] = []

    def note(record: RoundRecord, arrays: ArrayRecord) -> None:
        records.append(record)
        town.client(f"another-{record.round}")

    scheduled = ScheduledStrategy(
        FedAvg(), "random", num_selected=3, tau_max_s=LONG_S, min_clients=1, hooks=[note]
    )
    model = ArrayRecord({"w": Array(np.zeros(4, dtype=np.float32))})
    begin_s = time.monotonic()
    scheduled.start(town.grid, model, num_rounds=20)
    assert time.monotonic() - begin_s < LONG_S, "no deadline was waited for"
    assert {name for record in records for name in record.names} == {"honest"}
    assert all(record.stepped for record in records)
    members = np.flatnonzero(scheduled.arms.member)
    assert [scheduled.arms.arms[arm].name for arm in members] == ["honest"], "nothing is owed"


# --- the log --------------------------------------------------------------------------------------


def test_client_that_comes_and_goes_all_the_time_does_not_fill_the_log(
    town: Town, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_scheduling.server.transport.connection_log, "_PAUSE_S", 0.01)
    monkeypatch.setattr(town.grid._servicer._connection_log, "_flushed_s", deque(maxlen=2))
    for _ in range(30):
        client = town.client("restless")
        client.send(wire.Goodbye())
        until(lambda: node_id_of("restless") not in town.grid.get_node_ids())
        client.close()
    town.grid.stop()
    lines = [line for line in said if "restless" in line]
    assert len(lines) <= 8
    assert any("times)" in line for line in lines)


def test_refusals_are_logged_once(town: Town, said: list[str]) -> None:
    for _ in range(10):
        stranger = town.stranger()
        stranger.send(b"garbage garbage garbage")
        stranger.refusal()
    assert town.grid.num_refused == 10
    town.grid.stop()
    lines = [line for line in said if "refused client" in line]
    assert len(lines) == 2
    assert lines[1] == "refused clients (bad-frame): 9 more in a minute were not logged"


# --- replies --------------------------------------------------------------------------------------


def test_unreadable_reply_is_one_short_line(town: Town) -> None:
    client = town.client("liar")
    results: list[Exchange] = []
    thread = threading.Thread(target=lambda: results.append(town.ask("liar")))
    thread.start()
    work = client.read()
    assert isinstance(work, wire.Work)
    client.send(
        wire.Reply(
            work.message_id,
            wire.Packed(proto_field(2, proto_field(1, proto_field(1, b"\n" * 500)))),
        )
    )
    thread.join()
    failure = str(results[0].failure)
    assert failure.startswith(UNREADABLE)
    assert failure.isprintable()
    assert len(failure) < 250
    assert town.works()
