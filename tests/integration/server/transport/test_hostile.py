"""What broken and hostile clients send to a fleet's server: each costs them more than it costs us.

Every test speaks to a real StreamGrid over loopback, or gives the checker a reply as it comes off
the wire. After each attack an honest client's round goes on.
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
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
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.serverapp.strategy import FedAvg
from raw_client import RawClient
from waiting import PATIENCE_S, until

import flower_scheduling.server.transport.admission
import flower_scheduling.server.transport.connection_log
import flower_scheduling.server.transport.requests
import flower_scheduling.server.transport.servicer
from flower_scheduling.client.stream import StreamClient
from flower_scheduling.client.wire import chunks
from flower_scheduling.client.wire import frames as wire
from flower_scheduling.client.wire.arrays import decode_array, read_message
from flower_scheduling.errors import ConfigError, InvalidReplyError
from flower_scheduling.server.transport.connection import node_id_of
from flower_scheduling.server.transport.grid import StreamGrid
from flower_scheduling.server.transport.messages import UNREADABLE
from flower_scheduling.strategies.flower import (
    Exchange,
    RateLimitedLog,
    RoundRecord,
    ScheduledStrategy,
)
from flower_scheduling.strategies.flower.replies import (
    BAD_WEIGHT,
    NOT_FINITE,
    TOO_LARGE,
    WRONG_ARRAYS,
    WRONG_RECORDS,
    ArraySpec,
    ReplyChecker,
    error_text,
)
from flower_scheduling.strategies.flower.schema_vote import SchemaVote

LONG_S = 300.0
CHUNK = chunks.CHUNK_BYTES


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


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# --- before the hello -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "unknown kind of frame: 71"),
        (prefix(wire.Kind.HELLO, 2**31, 0), "a header of 2147483648 bytes is too long"),
        (prefix(wire.Kind.HELLO, 10, 2**40), "a payload of 1099511627776 bytes, must have none"),
        (prefix(wire.Kind.REPLY, 100, 2**28), "must have 131085 at most"),
        (prefix(wire.Kind.HELLO, 100, 0), "a chunk of 13 bytes, must have 65536"),
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


def test_compressed_message_that_unfolds_is_not_kept(town: Town) -> None:
    before = peak_mb()
    stranger = town.stranger(compression=grpc.Compression.Gzip)
    stranger.send(bytes(200 * 2**20))
    with pytest.raises(grpc.RpcError) as caught:
        stranger.read()
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert town.works()
    assert peak_mb() - before < 500  # what the sender itself takes


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
    for small in (b"", b"x"):
        client = town.client("small-chunks")
        head = reply_head("m", 2**28)
        client.send(head + bytes(CHUNK - len(head)), small, small)
        assert "must have 65536" in client.refusal().reason
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
    size = 100 * CHUNK
    for message_id in ("never-sent", "old", "never-sent"):
        head = reply_head(message_id, size - len(reply_head(message_id, size)))
        client.send(head + bytes(CHUNK - len(head)))
        client.send(*[bytes(CHUNK)] * 99)
    until(lambda: town.grid.num_ignored_replies == 2)
    assert town.grid.num_late_replies == 1
    assert node_id_of("chatty") not in town.grid.busy()
    assert peak_mb() - before < 30
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


def test_same_warning_comes_once_a_minute_with_a_count(said: list[str]) -> None:
    now = [0.0]
    warnings = RateLimitedLog(lambda: now[0])
    for i in range(100):
        warnings.log("refused", "a", f"refused a, {i}")
        warnings.log("refused", f"made-up-{i}", f"refused {i}")
    assert len(said) == 20
    assert said[:2] == ["refused a, 0", "refused 0"]
    now[0] = 60.0
    warnings.flush_suppressed()
    assert said[-1] == "refused: 180 more in a minute were not logged"
    warnings.log("refused", "a", "refused a again")
    assert said[-1] == "refused a again"
    warnings.flush_suppressed(all_kinds=True)
    assert len(said) == 22, "nothing was withheld"


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


def field(number: int, body: bytes) -> bytes:
    size, text = len(body), b""
    while size > 127:
        text += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + text + bytes([size]) + body


EMPTY = b"\x0a\x00" * 2**20
BOMBS = {
    "records": field(2, EMPTY),
    "arrays": field(2, field(1, field(2, EMPTY))),
    "shape": field(2, field(1, field(2, field(1, field(2, field(2, b"\x01" * 2**20)))))),
    "metrics": field(2, field(1, field(3, EMPTY))),
    "list": field(2, field(1, field(3, field(1, field(2, field(22, field(1, b"\1" * 2**20))))))),
    "truncated": field(2, EMPTY)[:-1],
    "endless number": b"\xff" * 2**17,
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_message_that_would_unfold_is_refused_in_time_and_memory(bomb: str) -> None:
    before, begin = peak_mb(), time.thread_time()
    with pytest.raises(ValueError, match=r"parts|protobuf"):
        read_message(BOMBS[bomb])
    assert time.thread_time() - begin < 1.0
    assert peak_mb() - before < 10


def test_honest_message_of_many_parts_is_read() -> None:
    arrays = ArrayRecord({f"layer-{i}": Array(np.zeros(100, "f4")) for i in range(3000)})
    metrics = MetricRecord({"losses": [0.5] * 50_000, "counts": [1] * 50_000})
    content = RecordDict({"arrays": arrays, "metrics": metrics})
    metadata = Metadata(1, "m", 1, 7, "", "", 0.0, 60.0, "train")
    data = message_to_proto(make_message(metadata, content)).SerializeToString()
    again = read_message(data)
    assert list(again.content["arrays"]) == list(arrays)
    assert again.content["metrics"] == metrics


@pytest.mark.parametrize("deep", [b"\x0b" * 100_000, b"\x12\x80\x80\x04" * 500])
def test_deep_nesting_is_refused(deep: bytes) -> None:
    with pytest.raises(Exception, match=r"."):
        read_message(deep)


def test_unreadable_reply_is_one_short_line(town: Town) -> None:
    client = town.client("liar")
    results: list[Exchange] = []
    thread = threading.Thread(target=lambda: results.append(town.ask("liar")))
    thread.start()
    work = client.read()
    assert isinstance(work, wire.Work)
    client.send(wire.encode(wire.Reply(work.message_id), field(2, field(1, field(1, b"\n" * 500)))))
    thread.join()
    failure = str(results[0].failure)
    assert failure.startswith(UNREADABLE)
    assert failure.isprintable()
    assert len(failure) < 250
    assert town.works()


def npy(header: str, data: bytes = b"") -> Array:
    text = header.encode("latin1") + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data
    return Array("float32", (2,), "numpy.ndarray", content)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr':'<f4','fortran_order':False,'shape':(True,)}",
        "{'descr':'<f4','fortran_order':False,'shape':(-1,-1)}",
        f"{{'descr':'<f4','fortran_order':False,'shape':(0,{10**30})}}",
        f"{{'descr':'<f4','fortran_order':False,'shape':{(1,) * 70}}}",
        "{'descr':'V0','fortran_order':False,'shape':(3,)}",
        "{'descr':'|O','fortran_order':False,'shape':(1,)}",
        "{'descr':" + "(" * 5000 + "}",
        "{'descr':'<f4','fortran_order':False,'shape':(999999999999,)}",
        "-" * 60_000,
    ],
)
def test_array_whose_header_lies_cannot_be_read(header: str) -> None:
    before = peak_mb()
    for data in (b"", bytes(4)):
        with pytest.raises(ValueError, match=r"."):
            decode_array(npy(header, data))
    assert peak_mb() - before < 10


SPECS = {"w": ArraySpec((2,), np.dtype(np.float32))}


def update(values: Any = (1.0, 2.0), dtype: str = "f4", key: str = "w", **metrics: Any) -> Message:
    arrays = ArrayRecord({key: Array(np.array(values, dtype=dtype))})
    content = RecordDict(
        {"arrays": arrays, "metrics": MetricRecord({"num-examples": 1, **metrics})}
    )
    return make_message(Metadata(1, "m", 1, 7, "r", "", 0.0, 60.0, "train"), content)


def refusal(message: Message, model: ArrayRecord | None = None, **settings: Any) -> str:
    with pytest.raises(InvalidReplyError) as caught:
        ReplyChecker("num-examples", **settings).read(message, SPECS, model)
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "dtype", "reason"),
    [
        ((math.nan, 0), "f4", f"{NOT_FINITE}: array 'w'"),
        ((0, -math.inf), "f4", f"{NOT_FINITE}: array 'w'"),
        ((0, 1e300), "f8", f"{TOO_LARGE}: array 'w' has a value of 1e+300, at most 1e+15"),
        ((0, -3e38), "f4", f"{TOO_LARGE}: array 'w' has a value of 3e+38, at most 1e+15"),
        ((0, math.inf), "g", f"{NOT_FINITE}: array 'w'"),
        ((0, 0, 0), "f4", f"{WRONG_ARRAYS}: 'w' has shape (3,), not (2,)"),
        ((0, 0), "c8", f"{WRONG_ARRAYS}: 'w' has dtype complex64, not float32"),
        ((0, 0), "m8[s]", f"{WRONG_ARRAYS}: 'w' has dtype timedelta64[s], not float32"),
        (("", ""), "U1", f"{WRONG_ARRAYS}: 'w' has dtype <U1, not float32"),
    ],
)
def test_values_that_spoil_a_model_are_refused(values: Any, dtype: str, reason: str) -> None:
    assert refusal(update(values, dtype)) == reason


def test_value_that_fits_the_reply_but_not_the_model_is_refused() -> None:
    specs = {"w": ArraySpec((2,), np.dtype(np.float16))}
    with pytest.raises(
        InvalidReplyError, match=r"too large: .* value of 7e\+04, at most 6.55e\+04"
    ):
        ReplyChecker("num-examples").read(update((0, 7e4)), specs)


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (1e18, "metric 'num-examples' is 1e+18, at most 1e+09 is believed"),
        (1e300, "metric 'num-examples' is 1e+300, at most 1e+09 is believed"),
        (2**62, f"metric 'num-examples' is {2**62}, at most 1e+09 is believed"),
        (-1, "metric 'num-examples' is -1, not a number above 0"),
        (0.0, "metric 'num-examples' is 0.0, not a number above 0"),
        ([1] * 5000, "metric 'num-examples' is a list of 5000, not a number above 0"),
    ],
)
def test_absurd_number_of_examples_is_refused(weight: Any, reason: str) -> None:
    assert refusal(update(**{"num-examples": weight})) == f"{BAD_WEIGHT}: {reason}"


@pytest.mark.parametrize("weight", [math.nan, math.inf, -math.inf, 10**400])
def test_number_of_examples_that_is_none_is_refused(weight: float) -> None:
    assert refusal(update(**{"num-examples": weight})).startswith(NOT_FINITE)


def test_bound_on_the_number_of_examples_can_be_set() -> None:
    checker = ReplyChecker("num-examples", max_num_examples=50)
    assert checker.read(update(**{"num-examples": 50}), SPECS).num_examples == 50.0
    assert refusal(update(**{"num-examples": 51}), max_num_examples=50).startswith(BAD_WEIGHT)


def test_update_beyond_the_norm_is_refused() -> None:
    model = ArrayRecord({"w": Array(np.array([100.0, 100.0], "f4"))})
    checker = ReplyChecker("num-examples", max_update_norm=5.0)
    assert checker.read(update((103.0, 104.0)), SPECS, model)
    reason = refusal(update((103.0, 104.1)), model, max_update_norm=5.0)
    assert reason == f"{TOO_LARGE}: the update's norm is 5.08, at most 5"
    assert refusal(update((3.0, 4.1)), max_update_norm=5.0).startswith(TOO_LARGE)
    assert ReplyChecker("num-examples").read(update((1e6, 1e6)), SPECS, model), "off by default"


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_examples": 0},
        {"max_num_examples": math.nan},
        {"max_update_norm": 0.0},
        {"max_update_norm": -1.0},
        {"max_update_norm": math.nan},
        {"max_update_norm": 1.0, "fixed_shapes": False},
    ],
)
def test_limits_that_are_none_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        ReplyChecker("num-examples", **settings)


def test_odd_and_many_names_are_told_in_one_short_line() -> None:
    odd = update(key="x\n\x1b[2J" + "y" * 1000)
    assert refusal(odd).startswith(f"{WRONG_ARRAYS}: keys ['x\\n\\x1b[2J")
    many = ArrayRecord({str(i): Array(np.zeros(1, "f4")) for i in range(5000)})
    metrics = MetricRecord({"num-examples": 1})
    message = make_message(
        Metadata(1, "m", 1, 7, "r", "", 0.0, 60.0, "train"),
        RecordDict({"arrays": many, "metrics": metrics}),
    )
    assert refusal(message) == f"{WRONG_ARRAYS}: keys 5000 of them instead of ['w']"
    crowded = update(**{str(i): 1.0 for i in range(1000)})
    assert refusal(crowded) == f"{WRONG_RECORDS}: 1001 metrics, 1000 at most"


def test_metric_lists_of_other_lengths_are_other_names() -> None:
    checker = ReplyChecker("num-examples")
    honest = [checker.read(update(losses=[1.0, 2.0]), SPECS) for _ in range(3)]
    odd = [
        checker.read(update(losses=[1.0]), SPECS),
        checker.read(update(losses=1.0), SPECS),
        checker.read(update(**{"2:losses": 1.0}), SPECS),
    ]
    signatures = {arm: update.signature for arm, update in enumerate([*odd, *honest])}
    assert SchemaVote().agree(signatures) == {3, 4, 5}


def test_one_client_cannot_make_its_names_those_of_all() -> None:
    plain = ("arrays", "metrics", frozenset({":num-examples"}))
    odd = ("arrays", "metrics", frozenset({":num-examples", ":zzz"}))
    vote = SchemaVote()
    for _ in range(1000):
        assert vote.agree({0: odd}) == {0}, "alone it is right"
    assert vote.agree({0: odd, 1: plain}) == {0}, "one against one: the first"
    assert vote.agree({0: odd, 2: plain}) == {2}, "two against one, though one of them is away"
    assert vote.agree({0: odd, 1: plain}) == {1}
    again = SchemaVote()
    again.load_state(json.loads(json.dumps(vote.state())))
    assert again.agree({0: odd, 1: plain}) == {1}
    assert vote.agree({}) == set()


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("\x1b[2Jgone", "?[2Jgone"),
        ("Traceback (most recent call last):\n" + "  x\n" * 10**6 + "E: y", "E: y"),
        ("a" * 10**6, "a" * 200),
        ("\n" * 10**6 + "late", "no reason given, code 3"),
        ("a‮b\x00c", "a?b?c"),
    ],
)
def test_reason_of_an_error_is_one_printable_line(reason: str, text: str) -> None:
    proto = ProtoMessage()
    proto.metadata.message_type = "train"
    proto.metadata.ttl = 1.0
    proto.error.code = 3
    proto.error.reason = reason
    assert error_text(read_message(proto.SerializeToString())) == text
