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

__all__ = ["CHUNK_TIMEOUT_S", "MAX_CHUNK_BYTES", "MIN_CHUNK_BYTES", "ChunkSize", "read_frame"]

MIN_CHUNK_BYTES: Final = 64 * 2**10  # half a second on a link of 1 Mbit/s
MAX_CHUNK_BYTES: Final = 2**20 + MIN_CHUNK_BYTES  # a megabyte, and what is around it
CHUNK_TIMEOUT_S = 60.0  # for the next chunk of a frame to come, or for the other end to take one

_QUICK_S: Final = 0.05  # a link that takes a chunk in this time takes a larger one


class ChunkSize:
    """The size of a stream's chunks: as large as its link takes quickly.

    Parameters
    ----------
    clock : callable
        Returns monotonic time [s].
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._bytes = MIN_CHUNK_BYTES

    def split(self, buffers: Sequence[Buffer]) -> Iterator[bytes]:
        """Cut a frame, in parts (:func:`.frames.buffers`), into chunks.

        The next chunk is to be asked for when the one before was taken.
        """
        left = sum(map(len, buffers))
        if len(buffers) == 1 and left <= self._bytes:
            yield bytes(buffers[0])
            return
        parts = iter(buffers)
        rest = memoryview(b"")
        while left:
            chunk: list[memoryview] = []
            missing = min(self._bytes, left)
            left -= missing
            while missing:
                while not rest:
                    rest = memoryview(next(parts))
                chunk.append(rest[:missing])
                rest = rest[missing:]
                missing -= len(chunk[-1])
            begin_s = self._clock()
            yield b"".join(chunk)
            quick = self._clock() - begin_s < _QUICK_S
            self._bytes = min(2 * self._bytes, MAX_CHUNK_BYTES) if quick else MIN_CHUNK_BYTES


class _Ended(Exception):
    """The stream ended within a frame."""


async def read_frame(
    read: Callable[[], Awaitable[bytes | None]],
    max_bytes: Callable[[], int],
    is_wanted: Callable[[str], bool] = lambda message_id: True,
) -> Frame | None:
    """Return the next frame, its arrays received one by one.

    Never are more bytes kept than have come, and never more than one frame's.

    Parameters
    ----------
    read : coroutine function
        Returns the next chunk, or nothing at the end of the stream.
    max_bytes : callable
        Returns, when a frame begins, the largest payload that it may have [bytes].
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
    if payload_bytes > (most := max_bytes()):
        raise WireError(f"message of {payload_bytes} bytes: must have {most} at most")
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
