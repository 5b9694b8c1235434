"""Frames: what is encoded comes back, and whatever else comes is refused in one line."""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import examples

from flower_scheduling.client.wire import chunks
from flower_scheduling.client.wire import frames as wire
from flower_scheduling.client.wire.calls import channel_options, server_options
from flower_scheduling.errors import WireError

FRAMES: list[wire.Frame] = [
    wire.Hello("küche 7", "abc", ["m-1", "m-2"], available=False),
    wire.Welcome(2**63 - 1, 1, {"lr": 0.1, "steps": 2, "iid": True, "model": "cnn"}, ["m-0"]),
    wire.Refused(wire.Refusal.DENIED, "it is on the deny list"),
    wire.Work("m-1", ["m-0"], 2**30, wire.Packed(b"\x00outline", (b"first", b"", b"third"))),
    wire.Reply("m-1", wire.Packed(b"outline")),
    wire.Reply("m-1"),
    wire.Ack(["m-1"]),
    wire.Availability(True),
    wire.Goodbye(),
]


def raw(kind: int, header: object) -> bytes:
    body = json.dumps(header).encode()
    return struct.pack(">BIQ", kind, len(body), 0) + body


def hello(**changes: object) -> dict[str, object]:
    values = {
        "name": "a",
        "session": "s",
        "work": [],
        "available": True,
        "max_message_bytes": 1,
        "protocol": wire.PROTOCOL_VERSION,
        "package": "1",
    }
    return {**values, **changes}


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_frame_comes_back_as_it_was(frame: wire.Frame) -> None:
    again = wire.decode(wire.encode(frame))
    assert again == frame
    assert type(again) is type(frame)


def test_every_kind_has_a_frame() -> None:
    assert {wire.encode(frame)[0] for frame in FRAMES} == set(wire.Kind)


def test_payload_has_views() -> None:
    frame = wire.decode(wire.encode(wire.Reply("m-1", wire.Packed(b"outline", (b"array",)))))
    assert isinstance(frame, wire.Reply)
    assert isinstance(frame.payload.outline, memoryview)
    assert [type(array) for array in frame.payload.arrays] == [memoryview]


def test_arrays_are_not_copied() -> None:
    array = bytes(1000)
    first, *arrays = wire.buffers(wire.Work("m-1", payload=wire.Packed(b"outline", (array,))))
    assert arrays == [array]
    assert arrays[0] is array
    assert wire.encode(wire.Work("m-1", payload=wire.Packed(b"outline", (array,)))) == first + array


def read(data: bytes) -> wire.Frame | WireError:
    try:
        return wire.decode(data)
    except WireError as error:
        return error


@examples(100)
@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    assert "\n" not in str(read(data))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@examples(100)
@given(
    st.integers(0, 255),
    _JSON
    | st.fixed_dictionaries(
        {},
        optional={key: _JSON for key in [*hello(), "node_id", "run_id", "acks", "message_id"]},
    ),
)
def test_any_header_is_read_or_refused(kind: int, header: object) -> None:
    frame = read(raw(kind, header))
    if isinstance(frame, WireError):
        assert "\n" not in str(frame)
    elif not isinstance(frame, wire.Hello) or frame.protocol == wire.PROTOCOL_VERSION:
        assert wire.decode(wire.encode(frame)) == frame


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "frame of 0 bytes"),
        (raw(99, {}), "unknown kind of frame: 99"),
        (raw(1, {})[:13] + b"\xff\xff", "no JSON"),
        (struct.pack(">BIQ", 1, 100, 0), "has 13 bytes, not 113"),
        (raw(1, {}) + b"x", "has 16 bytes, not 15"),
        (struct.pack(">BIQ", 1, 2**31, 0), "too long"),
        (raw(1, [1]), "no JSON object"),
        (raw(5, {}), "REPLY frame: lacks 'message_id'"),
        (raw(5, {"message_id": 3}), "'message_id' is no str"),
        (raw(6, {"acks": [1]}), "'acks' is no list"),
        (raw(7, {"available": 1}), "'available' is no bool"),
        (raw(1, hello(name="")), "client name ''"),
        (raw(1, hello(name=" a")), "client name"),
        (raw(1, hello(name="a\nb")), "client name"),
        (raw(1, hello(name="a" * 65)), "1 to 64"),
        (raw(1, hello(work=[["x"]])), "'work' is no list"),
        (raw(1, hello(work=["x"] * 1025)), "1025 'work', 1024 at most"),
        (raw(1, hello(work=["x" * 65])), "'work' has one beyond 64"),
        (raw(1, hello(session="x" * 65)), "'session' is longer than 64"),
        (raw(1, hello(package="\x1b")), "'package' is no version"),
        (raw(1, hello(max_message_bytes=0)), "'max_message_bytes' is out of range"),
        (raw(5, {"message_id": "x" * 65}), "'message_id' is longer than 64"),
        (struct.pack(">BIQ", 8, 0, 2**40), "a payload of 1099511627776 bytes, must have none"),
        (struct.pack(">BIQ", 5, 2000, 0), "a header of 2000 bytes is too long"),
    ],
)
def test_errors_say_what_is_wrong(data: bytes, text: str) -> None:
    with pytest.raises(WireError, match=text):
        wire.decode(data)


def test_hello_of_another_protocol_can_still_be_answered() -> None:
    frame = wire.decode(raw(1, {"protocol": 7, "name": "a", "package": "9.9", "new": {}}))
    assert isinstance(frame, wire.Hello)
    assert (frame.protocol, frame.name, frame.package) == (7, "a", "9.9")
    frame = wire.decode(raw(1, {"anything": "else"}))
    assert isinstance(frame, wire.Hello)
    assert frame.protocol == 0


def stream_of(*messages: bytes) -> Callable[[], Awaitable[bytes | None]]:
    left = list(messages)

    async def read() -> bytes | None:
        return left.pop(0) if left else None

    return read


LARGE = wire.Reply("m-1", wire.Packed(b"outline", (bytes(200_000), b"", bytes(range(250)) * 4000)))


def chunked(frame: wire.Frame) -> list[bytes]:
    return list(chunks.ChunkSize().split(wire.buffers(frame)))


def read_all(*messages: bytes, limit: int = 2**21) -> list[wire.Frame | None]:
    read, frames = stream_of(*messages), list[wire.Frame | None]()
    while not frames or frames[-1] is not None:
        frames.append(asyncio.run(chunks.read_frame(read, lambda: limit)))
    return frames


def test_a_large_frame_travels_in_chunks() -> None:
    assert chunked(wire.Goodbye()) == [wire.encode(wire.Goodbye())]
    parts = chunked(LARGE)
    assert len(parts) > 3
    assert b"".join(parts) == wire.encode(LARGE)
    assert read_all(*parts, wire.encode(wire.Goodbye())) == [LARGE, wire.Goodbye(), None]
    for end in range(1, len(parts)):
        assert read_all(*parts[:end]) == [None]
    with pytest.raises(WireError, match=r"message of 12000\d\d bytes: must have 1200000 at most"):
        read_all(*parts, limit=1_200_000)
    with pytest.raises(WireError, match="must have 13 at least"):
        read_all(b"x", *parts)


@examples(50)
@given(st.lists(st.integers(0, 300_000), max_size=5), st.integers(0, 200_000))
def test_arrays_of_any_size_come_back(sizes: list[int], outline_bytes: int) -> None:
    arrays = tuple(bytes([i + 1]) * size for i, size in enumerate(sizes))
    frame = wire.Work("m-1", payload=wire.Packed(b"o" * outline_bytes, arrays))
    parts = chunked(frame)
    again = read_all(*parts)[0]
    assert again == frame
    assert isinstance(again, wire.Work)
    assert len(parts) == 1 or all(type(array) is bytes for array in again.payload.arrays)


def test_chunks_grow_while_the_link_takes_them() -> None:
    now_s = 0.0
    size = chunks.ChunkSize(clock=lambda: now_s)
    sizes = []
    for _ in range(2):
        for chunk in size.split([bytes(2**23)]):
            sizes.append(len(chunk) // chunks.MIN_CHUNK_BYTES)
            now_s += 1.0 if len(sizes) == 7 else 0.001  # it stalls once
    assert sizes[:12] == [1, 2, 4, 8, 16, 17, 17, 1, 2, 4, 8, 16]
    assert sizes[-8:] == [*[17] * 7, 9], "the next frame begins with what the link has taken"
    assert chunks.MAX_CHUNK_BYTES == 17 * chunks.MIN_CHUNK_BYTES


def test_undersized_chunks_are_refused() -> None:
    parts = chunked(LARGE)
    for small in (b"", b"x", parts[1][:65535]):
        with pytest.raises(WireError, match=f"a chunk of {len(small)} bytes, must have 65536"):
            read_all(parts[0], small, *parts[1:])
    with pytest.raises(WireError, match=r"REPLY frame: \d+ bytes too many"):
        read_all(*parts[:-1], parts[-1] + bytes(1))


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"\x00" * 3, "a payload of 3 bytes is no message"),
        (struct.pack(">II", 100_001, 0), "a message of 100001 arrays, 100000 at most"),
        (struct.pack(">II", 2, 0), "a payload of 8 bytes is no message"),
        (struct.pack(">II", 0, 1), "a payload of 8 bytes is no message"),
        (struct.pack(">IIQ", 1, 0, 7) + b"123456", "arrays of 6 bytes, 7 promised"),
        (struct.pack(">IIQQ", 2, 0, 2**63, 2**63), "arrays of 0 bytes, 18446744073709551616"),
    ],
)
def test_tables_that_lie_are_refused(payload: bytes, text: str) -> None:
    header = b'{"message_id":"m-1"}'
    frame = struct.pack(">BIQ", wire.Kind.REPLY, len(header), len(payload)) + header + payload
    with pytest.raises(WireError, match=text):
        wire.decode(frame)
    # The same in a frame of several chunks.
    more = struct.pack(">BIQ", wire.Kind.REPLY, len(header), 2**20) + header + payload
    with pytest.raises(WireError):
        read_all(more + bytes(2**16), bytes(2**20 + 100))


def test_promised_bytes_take_no_memory() -> None:
    table = struct.pack(">IIQ", 1, 0, 2**40)
    header = b'{"message_id":"m-1"}'
    payload = table + bytes(2**16)
    size = len(table) + 2**40
    frame = struct.pack(">BIQ", wire.Kind.REPLY, len(header), size) + header + payload
    assert read_all(frame, limit=2**41) == [None]


def test_frame_that_stops_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_TIMEOUT_S", 0.01)

    async def read() -> bytes | None:
        if parts:
            return parts.pop(0)
        await asyncio.sleep(60)
        return None

    parts = chunked(LARGE)[:1]
    with pytest.raises(WireError, match=r"REPLY frame: \d+ bytes are missing"):
        asyncio.run(chunks.read_frame(read, lambda: 2**21))


def test_payload_that_is_not_wanted_is_dropped() -> None:
    small = wire.Reply("m-2", wire.Packed(b"small"))
    asked: list[str] = []
    read = stream_of(*chunked(LARGE), wire.encode(small))

    def is_wanted(message_id: str) -> bool:
        return bool(asked.append(message_id))

    frame = asyncio.run(chunks.read_frame(read, lambda: 2**21, is_wanted=is_wanted))
    assert frame == wire.Reply("m-1")
    assert asyncio.run(chunks.read_frame(read, lambda: 2**21, is_wanted=is_wanted)) == small
    assert asked == ["m-1"]


def test_largest_frames_of_a_client_are_taken() -> None:
    ids = ["x" * wire.MAX_ID_LENGTH] * wire.MAX_IDS
    data = wire.encode(wire.Hello("ü" * 64, "s" * wire.MAX_ID_LENGTH, ids, package="v" * 64))
    assert len(data) <= wire.MAX_HELLO_BYTES
    assert wire.decode(data)
    assert wire.decode(wire.encode(wire.Reply("ü" * wire.MAX_ID_LENGTH)))


def test_options_let_a_dead_peer_show_within_15_s() -> None:
    for options in (dict(channel_options()), dict(server_options())):
        ping = int(options["grpc.keepalive_time_ms"])
        assert ping + int(options["grpc.keepalive_timeout_ms"]) <= 15_000
        assert ping + int(options["grpc.http2.ping_timeout_ms"]) <= 15_000


def test_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys, flower_scheduling.client.wire.chunks\n"
        "print([m for m in ('grpc', 'flwr', 'torch') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"
