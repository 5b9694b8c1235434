"""The chunks in which a frame travels: one message of the gRPC stream each.

A frame is one chunk, or several if it is large. gRPC's keepalive pings wait behind the chunk that
is being sent: behind a whole model they would be late on a slow link, and a slow client would be
taken for dead. So chunks are small at first, and grow to :data:`MAX_CHUNK_BYTES` as long as the
link takes them quickly: each costs a turn of the event loop. Undersized chunks, or none for a
minute, are refused: they waste memory, and a slow link does not explain them.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from flower_scheduling.errors import WireError

from .frames import (
    COUNTS_BYTES,
    PREFIX_BYTES,
    SIZE_BYTES,
    WITH_PAYLOAD,
    Buffer,
    Frame,
    Kind,
    Packed,
    Reply,
    Work,
    decode,
    decode_header,
    read_counts,
    read_prefix,
    read_sizes,
)

__all__ = ["CHUNK_TIMEOUT_S", "MAX_CHUNK_BYTES", "MIN_CHUNK_BYTES", "Chunks", "read_frame"]

MIN_CHUNK_BYTES: Final = 64 * 2**10  # half a second on a link of 1 Mbit/s
MAX_CHUNK_BYTES: Final = 2**20
CHUNK_TIMEOUT_S = 60.0  # for the next chunk of a frame to come, or for the other end to take one

_QUICK_S: Final = 0.05  # a link that takes a chunk in this time takes a larger one


class Chunks:
    """An iterator over the chunks of a frame.

    Parameters
    ----------
    buffers : sequence of bytes or memoryview
        The frame, in parts (:func:`.frames.buffers`).
    clock : callable
        Returns monotonic time [s].
    """

    def __init__(
        self, buffers: Sequence[Buffer], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._left = sum(map(len, buffers))
        self._buffers = iter(buffers)
        self._buffer = memoryview(b"")
        self._clock = clock
        self._size = MIN_CHUNK_BYTES
        self._taken_s = 0.0  # time of the last chunk
        self.is_single = self._left <= MIN_CHUNK_BYTES

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """Return the next chunk; larger than the last one if that was taken quickly."""
        if not self._left:
            raise StopIteration
        now_s = self._clock()
        if self._taken_s:
            quick = now_s - self._taken_s < _QUICK_S
            self._size = min(2 * self._size, MAX_CHUNK_BYTES) if quick else MIN_CHUNK_BYTES
        self._taken_s = now_s
        chunk = self._take(min(self._size, self._left))
        self._left -= len(chunk)
        return chunk

    def _take(self, size: int) -> bytes:
        parts: list[memoryview] = []
        while size:
            while not self._buffer:
                self._buffer = memoryview(next(self._buffers))
            parts.append(self._buffer[:size])
            self._buffer = self._buffer[size:]
            size -= len(parts[-1])
        return b"".join(parts)


class _Ended(Exception):
    """The stream ended within a frame."""


async def read_frame(
    read: Callable[[], Awaitable[bytes | None]],
    max_bytes: int,
    is_wanted: Callable[[str], bool] = lambda message_id: True,
) -> Frame | None:
    """Return the next frame, its arrays received one by one.

    Never are more bytes kept than have come, and never more than one frame's.

    Parameters
    ----------
    read : coroutine function
        Returns the next chunk, or nothing at the end of the stream.
    max_bytes : int
        Largest payload of a frame [bytes].
    is_wanted : callable
        Tells whether the reply to a message of this id is awaited. The payload of one that is not,
        if it comes in chunks, is dropped as it comes.

    Returns
    -------
    Frame or None
        Nothing if the stream ended.

    Raises
    ------
    WireError
        If a frame is too large, stops halfway or comes in undersized chunks, or no frame begins
        here.
    """
    data = await read()
    if data is None:
        return None
    kind, header_bytes, length = read_prefix(data)
    payload_bytes = length - header_bytes - PREFIX_BYTES
    if payload_bytes > max_bytes:
        raise WireError(f"message of {payload_bytes} bytes: must have {max_bytes} at most")
    if len(data) >= length:
        return decode(data)
    body = _Body(read, data, kind, length)
    try:
        await body.take(PREFIX_BYTES)
        frame = decode_header(kind, await body.take(header_bytes))
        if kind not in WITH_PAYLOAD:
            return frame
        if isinstance(frame, Reply) and not is_wanted(frame.message_id):
            await body.skip(payload_bytes)
            return frame
        payload = await _read_payload(body, payload_bytes)
    except _Ended:
        return None
    if isinstance(frame, Reply):
        return Reply(frame.message_id, payload)
    assert isinstance(frame, Work)
    return Work(frame.message_id, frame.acks, frame.max_reply_bytes, payload)


async def _read_payload(body: _Body, payload_bytes: int) -> Packed:
    num_arrays, outline_bytes = read_counts(await body.take(COUNTS_BYTES), payload_bytes)
    table_bytes = SIZE_BYTES * num_arrays
    arrays_bytes = payload_bytes - COUNTS_BYTES - table_bytes - outline_bytes
    sizes = read_sizes(await body.take(table_bytes), arrays_bytes)
    outline = await body.take(outline_bytes)
    return Packed(outline, tuple([await body.take(size) for size in sizes]))


class _Body:
    """The bytes of one frame, as they come.

    Parameters
    ----------
    read : coroutine function
        Returns the next chunk, or nothing at the end of the stream.
    first : bytes
        The frame's first chunk.
    kind : Kind
        The frame's kind.
    length : int
        The frame's bytes.
    """

    def __init__(
        self, read: Callable[[], Awaitable[bytes | None]], first: bytes, kind: Kind, length: int
    ) -> None:
        self._read = read
        self._kind = kind
        self._missing = length - len(first)  # bytes that have not come
        self._size = len(first)  # of the last chunk
        self._chunk = memoryview(first)  # what is left of it

    async def take(self, size: int) -> bytes:
        """Return the next bytes."""
        if size <= len(self._chunk):
            return bytes(self._cut(size))
        # It grows as bytes come, without copies, and gives away what it holds: an array of a
        # gigabyte is there once, and a promise of one takes nothing.
        whole = io.BytesIO()
        while size:
            if not self._chunk:
                await self._next()
            size -= whole.write(self._cut(size))
        return whole.getvalue()

    async def skip(self, size: int) -> None:
        """Drop the next bytes."""
        while size:
            if not self._chunk:
                await self._next()
            size -= len(self._cut(size))

    def _cut(self, size: int) -> memoryview:
        part, self._chunk = self._chunk[:size], self._chunk[size:]
        return part

    async def _next(self) -> None:
        # Tiny chunks would take many times their size, and empty ones would never make a frame.
        if self._size < MIN_CHUNK_BYTES:
            raise WireError(
                f"{self._kind.name} frame: a chunk of {self._size} bytes, must have "
                f"{MIN_CHUNK_BYTES}"
            )
        try:
            async with asyncio.timeout(CHUNK_TIMEOUT_S):
                data = await self._read()
        except TimeoutError:
            raise WireError(
                f"{self._kind.name} frame: {self._missing} bytes are missing, and none came for "
                f"{CHUNK_TIMEOUT_S:.0f} s"
            ) from None
        if data is None:
            raise _Ended
        self._missing -= len(data)
        if self._missing < 0:
            raise WireError(f"{self._kind.name} frame: {-self._missing} bytes too many")
        self._size, self._chunk = len(data), memoryview(data)
