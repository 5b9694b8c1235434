"""Large frames: they travel in chunks, come back as they were, and never take what is promised."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from hostile import peak_mb
from hypothesis import given
from hypothesis import strategies as st
from profiles import examples

from flower_scheduling.client.wire import chunks
from flower_scheduling.client.wire import frames as wire
from flower_scheduling.client.wire.chunks import MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, FrameStream
from flower_scheduling.errors import WireError

LIMIT = 2**24
LARGE = wire.Reply("m-1", wire.Packed(b"outline", (bytes(200_000), b"", bytes(range(250)) * 4000)))
REPORT = wire.encode(wire.Progress(1))


class End:
    """One end of a stream, whose other end acknowledges at once, and what was written to it."""

    def __init__(self, *messages: bytes) -> None:
        self.left = list(messages)
        self.written: list[bytes] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.frames = FrameStream(self.read, self.write, self.spawn)

    async def read(self) -> bytes | None:
        return self.left.pop(0) if self.left else None

    async def write(self, data: bytes) -> None:
        self.written.append(data)
        if data[:1] == b"\xff":
            assert self.frames._window.acknowledge(1)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))


def chunked(*frames: wire.Frame) -> list[bytes]:
    """Return the messages of a stream that carries these frames."""

    async def main() -> list[bytes]:
        end = End()
        for frame in frames:
            await end.frames.write(frame)
        return end.written

    return asyncio.run(main())


def read_all(
    *messages: bytes,
    limit: int = LIMIT,
    is_wanted: Callable[[str], bool] = lambda message_id: True,
    written: list[bytes] | None = None,
) -> list[wire.Frame]:
    """Return the frames that these messages of a stream carry."""

    async def main() -> list[wire.Frame]:
        end, frames = End(*messages), list[wire.Frame]()
        while (frame := await end.frames.read(lambda: limit, is_wanted)) is not None:
            frames.append(frame)
        await asyncio.gather(*end.tasks)
        if written is not None:
            written.extend(end.written)
        return frames

    return asyncio.run(main())


def test_a_small_frame_is_one_message() -> None:
    assert chunked(wire.Goodbye()) == [wire.encode(wire.Goodbye())]
    assert read_all(*chunked(wire.Goodbye())) == [wire.Goodbye()]


def test_a_large_frame_travels_in_chunks() -> None:
    parts = chunked(LARGE)
    assert len(parts) > 3
    assert {part[:1] for part in parts[1:]} <= {b"\x00", b"\xff"}
    assert parts[0] + b"".join(part[1:] for part in parts[1:]) == wire.encode(LARGE)
    assert read_all(*parts, wire.encode(wire.Goodbye())) == [LARGE, wire.Goodbye()]
    for end in range(1, len(parts)):
        assert read_all(*parts[:end]) == []
    with pytest.raises(WireError, match=r"message of 12000\d\d bytes: must have 1200000 at most"):
        read_all(*parts, limit=1_200_000)
    with pytest.raises(WireError, match="must have 13 at least"):
        read_all(b"x", *parts)


def test_frame_of_a_megabyte_is_one_message_once_the_link_has_carried_some() -> None:
    frame = wire.Reply("m-1", wire.Packed(b"outline", (bytes(2**19), bytes(2**19))))
    parts = chunked(*[frame] * 20)
    assert parts[-10:] == [wire.encode(frame)] * 10
    assert read_all(*parts) == [frame] * 20
    assert len(chunked(*[LARGE] * 20)[-1]) < len(wire.encode(LARGE)), "it is larger"


@examples(50)
@given(st.lists(st.integers(0, 300_000), max_size=5), st.integers(0, 200_000))
def test_arrays_of_any_size_come_back(sizes: list[int], outline_bytes: int) -> None:
    arrays = tuple(bytes([i + 1]) * size for i, size in enumerate(sizes))
    frame = wire.Work("m-1", payload=wire.Packed(b"o" * outline_bytes, arrays))
    parts = chunked(frame, wire.Goodbye())
    again, goodbye = read_all(*parts)
    assert (again, goodbye) == (frame, wire.Goodbye())
    assert isinstance(again, wire.Work)
    assert len(parts) == 2 or all(type(array) is bytes for array in again.payload.arrays)


def test_huge_arrays_come_back() -> None:
    arrays = tuple(bytes(range(i, 250)) * size for i, size in enumerate((40_000, 1, 50_000)))
    frame = wire.Work("m-1", payload=wire.Packed(b"outline", arrays))
    assert max(map(len, arrays)) > chunks._HUGE_BYTES
    (again,) = read_all(*chunked(frame), limit=2**26)
    assert again == frame


def test_chunks_that_ask_are_reported_also_where_they_are_not_wanted() -> None:
    asked = sum(part[:1] == b"\xff" for part in chunked(LARGE))
    assert asked > 1
    for wanted in (True, False):
        sent: list[bytes] = []
        read_all(*chunked(LARGE), is_wanted=lambda message_id: wanted, written=sent)  # noqa: B023
        reports = [wire.decode(data) for data in sent]
        assert sum(r.chunks for r in reports if isinstance(r, wire.Progress)) == asked


def test_reports_may_come_within_a_frame_of_the_other_direction() -> None:
    parts = chunked(LARGE)
    mixed = [message for part in parts for message in (part, REPORT)]
    assert read_all(*mixed) == [LARGE, wire.Progress(1)], "one that was not due is shown"


def test_frames_do_not_mix() -> None:
    parts = chunked(LARGE)
    with pytest.raises(WireError, match="a chunk that begins with b'\\\\x08' within a frame"):
        read_all(parts[0], wire.encode(wire.Goodbye()))
    with pytest.raises(WireError, match="a chunk that begins with b'' within a frame"):
        read_all(parts[0], b"")
    with pytest.raises(WireError, match="unknown kind of frame: 255"):
        read_all(parts[1])


def test_undersized_chunks_are_refused() -> None:
    parts = chunked(LARGE)
    for size in (0, 1, MIN_CHUNK_BYTES - 2):
        small = b"\x00" + bytes(size)
        with pytest.raises(WireError, match=f"a chunk of {size} bytes, must have 16384"):
            read_all(parts[0], small, *parts[1:])
    with pytest.raises(WireError, match=r"REPLY frame: \d+ bytes too many"):
        read_all(*parts[:-1], parts[-1] + bytes(1))


def test_tables_that_lie_are_refused_in_a_frame_of_several_chunks() -> None:
    header = b'{"message_id":"m-1"}'
    for table in (struct.pack(">II", 100_001, 0), struct.pack(">IIQ", 1, 0, 7)):
        first = struct.pack(">BIQ", wire.Kind.REPLY, len(header), 2**20) + header + table
        with pytest.raises(WireError, match=r"arrays|promised"):
            read_all(first + bytes(2**16), bytes(2**20))


def test_promised_bytes_take_no_memory() -> None:
    table = struct.pack(">IIQ", 1, 0, 2**33)
    header = b'{"message_id":"m-1"}'
    first = struct.pack(">BIQ", wire.Kind.REPLY, len(header), len(table) + 2**33) + header + table
    before = peak_mb()
    assert read_all(first + bytes(2**16), *[bytes(2**16)] * 9, limit=2**41) == []
    assert peak_mb() - before < 10


def test_frame_that_stops_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_TIMEOUT_S", 0.01)

    async def main() -> None:
        end = End(chunked_large)

        async def read() -> bytes | None:
            if not end.left:
                await asyncio.sleep(60)
            return end.left.pop(0)

        await FrameStream(read, end.write, end.spawn).read(lambda: LIMIT)

    chunked_large = chunked(LARGE)[0]
    with pytest.raises(WireError, match=r"REPLY frame: \d+ bytes are missing"):
        asyncio.run(main())


def test_other_end_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_TIMEOUT_S", 0.01)

    async def take(data: bytes) -> None:
        """Take a message, and never say so."""

    async def stall(data: bytes) -> None:
        await asyncio.sleep(60)

    async def main(write: Callable[[bytes], Awaitable[None]], frame: wire.Frame) -> None:
        end = End()
        await FrameStream(end.read, write, end.spawn).write(frame)

    for write, frame in ((take, LARGE), (stall, LARGE), (stall, wire.Goodbye())):
        with pytest.raises(TimeoutError):
            asyncio.run(main(write, frame))


def test_many_writes_may_take_longer_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_TIMEOUT_S", 1.0)
    ended: list[type[BaseException] | None] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        begin_s, skipped_s, pause_s = loop.time(), 0.0, 0.8
        loop.time = lambda: begin_s + skipped_s  # type: ignore[method-assign]

        async def write(data: bytes) -> None:
            nonlocal skipped_s
            for _ in range(10):
                skipped_s += pause_s / 10
                await asyncio.sleep(0)

        async def send() -> None:
            await FrameStream.write(frames, wire.Goodbye())

        frames = FrameStream(End().read, write, End().spawn)
        for pause_s in (0.8, 0.8, 0.8, 2.0, 0.8):  # noqa: B007  # write() has it
            task = asyncio.ensure_future(send())
            await asyncio.wait((task,))
            ended.append(type(task.exception()) if task.exception() else None)
        task = asyncio.ensure_future(send())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        ended.append(asyncio.CancelledError if task.cancelled() else None)

    asyncio.run(main())
    assert ended == [None, None, None, TimeoutError, None, asyncio.CancelledError]


def test_payload_that_is_not_wanted_is_dropped() -> None:
    small = wire.Reply("m-2", wire.Packed(b"small"))
    asked: list[str] = []

    def is_wanted(message_id: str) -> bool:
        return bool(asked.append(message_id))

    frames = read_all(*chunked(LARGE), wire.encode(small), is_wanted=is_wanted)
    assert frames == [wire.Reply("m-1"), small]
    assert asked == ["m-1"]


def test_largest_chunk_is_little_more_than_a_megabyte() -> None:
    huge = wire.Reply("m-1", wire.Packed(b"", (bytes(2**25),)))
    parts = chunked(huge, huge)
    assert max(map(len, parts)) == MAX_CHUNK_BYTES + 1
    assert len(parts[0]) == MIN_CHUNK_BYTES, "nothing is known of the link at first"
