"""Whatever comes from outside is read or refused in one line: frames, replies, settings.

``make test-all`` makes ten thousand examples of frames and replies and ten thousand of settings,
the same ones each time, ``make test`` a tenth of them. A soak makes a hundred times as many new
ones: ``python -m pytest --hypothesis-profile soak --timeout 0 tests/property/test_fuzz.py``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import resource
import struct
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from profiles import examples

from flower_scheduling.client.wire import frames as wire
from flower_scheduling.client.wire.chunks import FrameStream
from flower_scheduling.client.wire.packing import pack, unpack
from flower_scheduling.errors import ConfigError, InvalidReplyError, UnknownPolicyError, WireError
from flower_scheduling.server.runs.round_lines import parse_round
from flower_scheduling.server.runs.totals import RunTotals
from flower_scheduling.server.settings.base import Settings
from flower_scheduling.server.settings.fleet import FleetConfig
from flower_scheduling.server.settings.run import ServerConfig
from flower_scheduling.simulation.paper.settings import PaperConfig
from flower_scheduling.simulation.settings import SimulationConfig
from flower_scheduling.strategies.flower.replies import LARGEST_VALUE, ArraySpec, ReplyChecker
from flower_scheduling.strategies.flower.schema_vote import SchemaVote

SOAK = settings().max_examples > 100
MAX_EXAMPLE_S = 2.0  # of the processor
MAX_GROWTH_MB = 800


def fuzz(count: int) -> Callable[[Any], Any]:
    """Return the settings of a test: the same examples each time, or many new ones."""
    more = {"database": None, "suppress_health_check": list(HealthCheck)}
    return examples(count, derandomize=not SOAK, **more)


@contextmanager
def bounded_time() -> Iterator[None]:
    """Fail if it takes long, by the processor's time: other processes do not count."""
    begin_s = time.thread_time()
    try:
        yield
    finally:
        assert time.thread_time() - begin_s < MAX_EXAMPLE_S


@pytest.fixture(autouse=True, scope="module")
def bounded_memory() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    # Of a soak hypothesis itself keeps more than that.
    assert growth / 1024 < MAX_GROWTH_MB * (25 if SOAK else 1)


def assert_one_line(error: BaseException) -> None:
    text = str(error)
    assert text
    assert text.isprintable()
    assert len(text) < 2000


# --- frames ---------------------------------------------------------------------------------------

FRAMES: list[wire.Frame] = [
    wire.Hello("dev-1", "s" * 32, ["m-1", "m-2"]),
    wire.Welcome(2**62, 1, {"lr": 0.1, "iid": True}, ["m-0"]),
    wire.Refused(wire.Refusal.DENIED, "it is on the deny list"),
    wire.Work("m-1", ["m-0"], 2**30, wire.Packed(b"outline" * 20, (b"array" * 9, b"", b"x"))),
    wire.Reply("m-1", wire.Packed(b"outline" * 20)),
    wire.Reply("m-1", wire.Packed(b"outline" * 20, (b"array" * 9, b"x"), b"\x12\0")),
    wire.Ack(["m-1"]),
    wire.Availability(True),
    wire.Progress(2),
    wire.Goodbye(),
]
VALID = [wire.encode(frame) for frame in FRAMES]

Edit = tuple[str, int, bytes]
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "cut", "drop", "repeat"]),
        st.integers(0, 2**16),
        st.binary(min_size=1, max_size=9),
    ),
    max_size=6,
)


def mutate(data: bytes, edits: list[Edit]) -> bytes:
    for what, place, new in edits:
        at = place % (len(data) + 1)
        if what == "set":
            data = data[:at] + new + data[at + len(new) :]
        elif what == "insert":
            data = data[:at] + new + data[at:]
        elif what == "cut":
            data = data[:at]
        elif what == "drop":
            data = data[:at] + data[at + len(new) :]
        else:
            data = data[:at] + data[at : at + 20] * len(new) + data[at:]
    return data


def check_frame(data: bytes) -> None:
    try:
        with bounded_time():
            frame = wire.decode(data)
    except WireError as error:
        assert_one_line(error)
        return
    if isinstance(frame, wire.Hello) and frame.protocol != wire.PROTOCOL_VERSION:
        assert frame.name.isprintable()
        assert frame.package.isprintable()
    else:
        assert wire.decode(wire.encode(frame)) == frame


@fuzz(1500)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_frame_or_refused(data: bytes) -> None:
    check_frame(data)


@fuzz(2500)
@given(st.sampled_from(VALID), EDITS)
def test_any_damaged_frame_is_read_or_refused(data: bytes, edits: list[Edit]) -> None:
    check_frame(mutate(data, edits))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=4,
)
KEYS = ["name", "session", "work", "available", "max_message_bytes", "protocol", "package"]
KEYS += [
    "max_reply_bytes",
    "node_id",
    "run_id",
    "run_config",
    "acks",
    "code",
    "reason",
    "message_id",
]


@fuzz(800)
@given(st.sampled_from(list(wire.Kind)), st.dictionaries(st.sampled_from(KEYS), JSON), st.binary())
def test_any_header_is_read_or_refused(
    kind: wire.Kind, header: Mapping[str, Any], payload: bytes
) -> None:
    if header.get("protocol") is not None:
        header = {**header, "protocol": wire.PROTOCOL_VERSION}
    body = json.dumps(header).encode()
    check_frame(struct.pack(">BIQ", kind, len(body), len(payload)) + body + payload)


CHUNK = 2**16


def check_stream(messages: list[bytes], wanted: bool) -> None:
    """Read a stream to its end, or to the line that refuses it."""
    left, written = list(messages), list[bytes]()

    async def read() -> bytes | None:
        return left.pop(0) if left else None

    async def write(data: bytes) -> None:
        written.append(data)

    async def read_all() -> None:
        tasks = []
        stream = FrameStream(read, write, lambda work: tasks.append(asyncio.create_task(work)))
        while (frame := await stream.read(lambda: 2**29, lambda i: wanted)) is not None:
            if isinstance(frame, wire.Work | wire.Reply):
                assert len(frame.payload) <= sum(map(len, messages))
            check_frame(wire.encode(frame))
        await asyncio.gather(*tasks)

    try:
        with bounded_time():
            asyncio.run(read_all())
    except WireError as error:
        assert_one_line(error)
    assert len(written) <= len(messages)


@fuzz(1500)
@given(
    st.integers(0, 9),
    st.sampled_from([0, 13, 100, 2**17, 2**20, 2**32 - 1]),
    st.sampled_from([0, 5, 2**16, 2**17, 2**29, 2**63, 2**64 - 1]),
    st.lists(st.sampled_from([0, 1, 100, 2**16, 2**16 + 1, 2**18]), max_size=8),
    st.binary(max_size=100),
    st.booleans(),
)
def test_any_stream_gives_frames_or_ends(
    kind: int, header_bytes: int, payload_bytes: int, sizes: list[int], first: bytes, wanted: bool
) -> None:
    begin = struct.pack(">BIQ", kind, header_bytes, payload_bytes) + first
    check_stream([begin.ljust(CHUNK, b" "), *map(bytes, sizes)], wanted)


REPLY_HEADER = b'{"message_id":"m-1"}'


@fuzz(1500)
@given(
    st.integers(0, 4),
    st.sampled_from([0, 5, 2**16, 2**20]),
    st.lists(st.sampled_from([0, 1, 2**16, 2**17, 2**29, 2**63, 2**64 - 1]), max_size=5),
    st.integers(-9, 9) | st.sampled_from([2**16, 2**29]),
    st.lists(st.sampled_from([2**16, 2**16 + 1, 2**18]), max_size=8),
    st.booleans(),
)
def test_any_table_of_arrays_is_read_or_refused(
    more: int, outline: int, sizes: list[int], lie: int, parts: list[int], wanted: bool
) -> None:
    table = struct.pack(f">II{len(sizes)}Q", len(sizes) + more, outline, *sizes)
    size = min(max(0, len(table) + outline + sum(sizes) + lie), 2**64 - 1)
    begin = struct.pack(">BIQ", wire.Kind.REPLY, len(REPLY_HEADER), size) + REPLY_HEADER + table
    fronts = itertools.cycle([b"\x00", b"\xff", wire.encode(wire.Progress(2)), b"\xff", b"\x00"])
    pairs = zip(parts, fronts, strict=False)
    rest = [front if len(front) > 1 else front + bytes(size) for size, front in pairs]
    check_stream([begin.ljust(CHUNK, b" "), *rest], wanted)


# --- replies --------------------------------------------------------------------------------------


def a_reply() -> wire.Packed:
    arrays = ArrayRecord(
        {
            "weight": Array(np.ones((2, 3), "f4")),
            "bias": Array(np.zeros(2, "f4")),
            "steps": Array(np.array(3, "i8")),
        }
    )
    records = {
        "arrays": arrays,
        "metrics": MetricRecord({"num-examples": 10, "loss": 0.5, "by-class": [1, 2, 3]}),
        "timing": ConfigRecord({"compute-s": 0.1, "who": "dev-1", "raw": b"\x00\x01"}),
    }
    metadata = Metadata(1, "m-2", 7, 1, "m-1", "", 1.0, 60.0, "train")
    return pack(make_message(metadata, RecordDict(records)))


REPLY = a_reply()
SPECS = {
    "weight": ArraySpec((2, 3), np.dtype("f4")),
    "bias": ArraySpec((2,), np.dtype("f4")),
    "steps": ArraySpec((), np.dtype("i8")),
}
NORMED = ReplyChecker("num-examples", max_update_norm=100.0)
CHECKERS = [
    NORMED,
    ReplyChecker("num-examples"),
    ReplyChecker("loss", fixed_shapes=False),
    ReplyChecker("num-examples", fixed_shapes=False, own_train_rule=True),
]


def check_reply(message: Message) -> None:
    for checker in CHECKERS:
        try:
            with bounded_time():
                update = checker.read(message, SPECS)
        except InvalidReplyError as error:
            assert_one_line(error)
            continue
        assert update.num_examples is None or 0 <= update.num_examples <= LARGEST_VALUE
        vote = SchemaVote()
        assert vote.agree({0: update.signature}) == {0}
        json.dumps(vote.state())


def check_packed(packed: wire.Packed) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's and Python's about what stands in a header
        try:
            with bounded_time():
                message = unpack(packed)
        except Exception:  # documented: whatever protobuf and Flower raise
            return
        check_reply(message)


@fuzz(2000)
@given(EDITS, st.sampled_from(range(-1, 4)), EDITS)
def test_any_damaged_reply_is_used_or_refused(
    edits: list[Edit], which: int, array_edits: list[Edit]
) -> None:
    arrays = list(REPLY.arrays)
    if 0 <= which < len(arrays):
        arrays[which] = mutate(bytes(arrays[which]), array_edits)
    elif which > 0:
        arrays.append(b"one more")
    check_packed(wire.Packed(mutate(bytes(REPLY.outline), edits), tuple(arrays)))


@fuzz(600)
@given(st.binary(max_size=200), st.integers(1, 2000))
def test_any_bytes_are_a_reply_or_refused(data: bytes, times: int) -> None:
    check_packed(wire.Packed(data * times))


DTYPES = ["f2", "f4", "f8", "g", ">f4", "c8", "?", "i1", "u8", "m8[s]", "M8[s]", "U3", "S2", "V4"]


@st.composite
def records(draw: st.DrawFn) -> RecordDict:
    """Draw what a client could put into a reply, much of it as it should be."""
    keys = st.sampled_from(["weight", "bias", "steps", "\n", "x" * 3000, "ü"])
    arrays = ArrayRecord()
    for key in draw(st.lists(keys, max_size=4, unique=True)) or SPECS:
        good = draw(st.booleans()) and key in SPECS
        shape = (
            SPECS[key].shape if good else draw(st.sampled_from([(), (2,), (2, 3), (0,), (9, 0)]))
        )
        dtype = draw(st.sampled_from(DTYPES[:5] if draw(st.booleans()) else DTYPES))
        values = np.zeros(shape, dtype)
        if values.dtype.kind in "fc" and values.size and draw(st.booleans()):
            values[...] = draw(st.floats(width=16) | st.sampled_from([65504.0, -1.5]))
        arrays[key] = Array(values)
        if draw(st.integers(0, 3)) == 0:
            header = mutate(arrays[key].data, draw(EDITS))
            arrays[key] = Array(dtype, shape, draw(st.sampled_from(["numpy.ndarray", ""])), header)
    number = st.floats() | st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 3)
    metrics = draw(
        st.dictionaries(
            st.sampled_from(["loss", "by-class", "\x1b[2J", "y" * 3000]),
            number | st.lists(st.floats(), max_size=3),
        )
    )
    metrics["num-examples"] = draw(number | st.sampled_from([1, 10, 1e18]))
    found = {"arrays": arrays, "metrics": MetricRecord(metrics)}
    if draw(st.integers(0, 5)) == 0:
        found[draw(st.text(max_size=5))] = draw(st.sampled_from(list(found.values())))
    return RecordDict(found)


@fuzz(1200)
@given(records())
def test_any_records_are_used_or_refused(content: RecordDict) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metadata = Metadata(1, "m-2", 7, 1, "m-1", "", 1.0, 60.0, "train")
        check_reply(make_message(metadata, content))


# --- settings -------------------------------------------------------------------------------------

NUMBERS = ["0", "1", "-1", "0.5", "1e308", "1e-320", "nan", "inf", "9" * 400, str(10**12), "²"]
PIECES = [*NUMBERS, ",", ":", "=", " ", "\n", "x", "none", "equal", "heuristic", "by-label", ""]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join) | st.text(max_size=20)
MANY = st.sampled_from([1, 3, 1000, 20_000]).flatmap(
    lambda n: st.sampled_from(["1", "0.1", "1:1", "1:1:1", "a=0", "x", ""]).map(
        lambda part: ",".join([part] * n)
    )
)
INTEGERS = st.integers(-2, 30) | st.sampled_from([2**31, 2**63, 10**12, 10**20, -(10**12)])
FLOATS = st.floats() | st.sampled_from([0.0, 1e-320, 1e308, -1.0, 0.5, 5.0])
VALUES = INTEGERS | FLOATS | TEXTS | MANY | st.booleans() | st.none() | st.lists(st.none())
OF_TYPE = {int: INTEGERS, float: FLOATS | INTEGERS, bool: st.booleans(), str: TEXTS | MANY}
CONFIGS = (ServerConfig, FleetConfig, SimulationConfig, PaperConfig)
VALID_VALUES = {"strategy": ["uniform", "cs-ucb", "oracle"], "scenario": ["ideal", "non-ideal"]}


@st.composite
def mappings(draw: st.DrawFn, cls: type[Settings]) -> dict[str, object]:
    """Draw some settings, mostly of known keys and right types."""
    values: dict[str, object] = {}
    known = cls.settings()
    for key in draw(st.lists(st.sampled_from(list(known)), max_size=5, unique=True)):
        if key in VALID_VALUES and draw(st.booleans()):
            values[key] = draw(st.sampled_from(VALID_VALUES[key]))
        else:
            right = draw(st.integers(0, 9)) > 0
            values[key] = draw(OF_TYPE[known[key].kind] if right else VALUES)
    if draw(st.integers(0, 9)) == 0:
        values[draw(st.text(max_size=30))] = draw(VALUES)
    return values


def check_config(build: Callable[[], Settings]) -> None:
    with bounded_time():
        try:
            config = build()
        except (ConfigError, UnknownPolicyError) as error:
            assert_one_line(error)
        else:
            assert type(config).from_mapping(config.to_mapping()) == config


@pytest.mark.parametrize("cls", CONFIGS)
@fuzz(2000)
@given(data=st.data())
def test_any_mapping_is_a_configuration_or_refused(
    cls: type[Settings], data: st.DataObject
) -> None:
    values = data.draw(mappings(cls))
    check_config(lambda: cls.from_mapping(values))


@fuzz(2000)
@given(st.data(), st.booleans())
def test_any_texts_are_the_papers_settings_or_refused(data: st.DataObject, quick: bool) -> None:
    keys = st.sampled_from([*PaperConfig.settings(), "x\ny"])
    texts = data.draw(st.dictionaries(keys, TEXTS | MANY, max_size=4))
    check_config(lambda: PaperConfig.from_text(texts, quick=quick))


@pytest.mark.parametrize("number", [10**12, 10**20, 2**63, -1, 0])
@pytest.mark.parametrize("cls", CONFIGS)
def test_absurd_whole_numbers_take_neither_time_nor_memory(
    cls: type[Settings], number: int
) -> None:
    for key, setting in cls.settings().items():
        if setting.kind is int:
            check_config(lambda key=key: cls.from_mapping({key: number}))


# --- the rounds of a run directory ----------------------------------------------------------------

LINE: dict[str, Any] = {
    **{"schema": 1, "round": 7, "time_s": 9.5, "round_s": 1.5, "num_arms": 3},
    **{"num_available": 2, "available": [0, 2], "absent": [1], "selected": [0, 2]},
    **{"rtt_s": [0.5, None], "completed": [True, False], "reason": [None, "timeout"]},
    **{"compute_s": [0.1, None], "link_s": [None, None], "stepped": True, "no_step": None},
    **{"accuracy": 0.5, "loss": 1.0, "wall": {"time_s": 1.0}},
    "scores": {"at": 0, "rule": "largest", "unit": "", "rows": ["available", "mean"]},
}
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 5)
    | st.sampled_from([10**12, 10**400, -1, 1e308, -1e-9, math.nan, math.inf])
    | st.floats()
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*LINE, *LINE["scores"]]), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = st.sampled_from(list(LINE))


@fuzz(2500)
@given(st.dictionaries(KEYS, JSON, max_size=3), st.sets(KEYS, max_size=1))
def test_any_edited_round_is_read_or_refused(changes: dict[str, Any], without: set[str]) -> None:
    line = {key: value for key, value in {**LINE, **changes}.items() if key not in without}
    try:
        with bounded_time():
            record = parse_round(json.dumps(line).encode(), 7, ["a", "b", "c"])
    except ValueError:
        return
    totals = RunTotals()
    totals.count(record)
    assert totals.rounds == 1
    assert len(record.names) == len(record.selected)


@pytest.mark.parametrize(
    "data",
    [b"[" * 200_000, b'{"round":' * 50_000, b"", b"null", b"[]", b"\xff\xfe", b"7"],
    ids=["lists", "objects", "nothing", "null", "list", "no text", "number"],
)
def test_what_is_no_round_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # its text is another one each
        parse_round(data, 1, [])


def test_an_unchanged_round_is_read() -> None:
    record = parse_round(json.dumps(LINE).encode(), 7, ["a", "b", "c"])
    assert record.names == ["a", "c"]
    assert record.rtt_s == [0.5, None]
