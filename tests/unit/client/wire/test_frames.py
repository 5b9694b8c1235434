"""Frames: what is encoded comes back, and whatever else comes is refused in one line."""

from __future__ import annotations

import json
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import examples

from flower_scheduling.client.wire import frames as wire
from flower_scheduling.client.wire.calls import channel_options, server_options
from flower_scheduling.errors import WireError

FRAMES: list[wire.Frame] = [
    wire.Hello("küche 7", "abc", ["m-1", "m-2"], available=False),
    wire.Welcome(2**63 - 1, 1, {"lr": 0.1, "steps": 2, "iid": True, "model": "cnn"}, ["m-0"]),
    wire.Refused(wire.Refusal.DENIED, "it is on the deny list"),
    wire.Work("m-1", ["m-0"], 2**30, wire.Packed(b"\x00outline", (b"first", b"", b"third"))),
    wire.Reply("m-1", wire.Packed(b"outline")),
    wire.Reply("m-1", wire.Packed(b"outline", (b"first", b"", b"third"), b"\x12\x30\0")),
    wire.Reply("m-1"),
    wire.Ack(["m-1"]),
    wire.Availability(True),
    wire.Progress(3),
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


@given(st.text(max_size=20), st.lists(st.text(max_size=20), max_size=3))
def test_headers_are_json_whatever_stands_in_them(text: str, texts: list[str]) -> None:
    header = wire.encode(wire.Work(text, texts, 7))[wire.PREFIX_BYTES :]
    expected = {"message_id": text, "acks": texts, "max_reply_bytes": 7}
    assert header == json.dumps(expected, separators=(",", ":")).encode()


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
        (raw(9, {"chunks": 0}), "PROGRESS frame: 'chunks' is out of range"),
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


def test_ends_that_do_not_compress_are_understood() -> None:
    frame = read(raw(wire.Kind.HELLO, hello()))
    assert isinstance(frame, wire.Hello)
    assert frame.codecs == []
    frame = read(raw(wire.Kind.HELLO, hello(codecs=["zstd"])))
    assert isinstance(frame, wire.Hello)
    assert frame.codecs == ["zstd"]
    assert isinstance(read(raw(wire.Kind.HELLO, hello(codecs=["x" * 65]))), WireError)
    assert isinstance(read(raw(wire.Kind.HELLO, hello(codecs="zstd"))), WireError)
