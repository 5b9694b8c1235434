"""The chunks in which a frame travels: one message of the gRPC stream each.

A small frame is one chunk, and so is one of up to a megabyte on a link that has just carried as
much. A large one is several, as large as the link allows (:mod:`.window`); each but the first has a
byte in front that says whether its sender asks for a :class:`.Progress` when it has come.
Undersized chunks, or none for a minute, are refused: they waste memory, and a slow link does not
explain them.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, Protocol

from flower_scheduling.allocator import new_bytes
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
    Progress,
    Reply,
    Work,
    buffers,
    decode,
    decode_header,
    encode,
    read_counts,
    read_prefix,
    read_sizes,
)
from .window import MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, Window

__all__ = [
    "CHUNK_TIMEOUT_S",
    "MAX_CHUNK_BYTES",
    "MIN_CHUNK_BYTES",
    "SMALL_BYTES",
    "FrameStream",
    "Turn",
]

CHUNK_TIMEOUT_S = 60.0  # for the next chunk of a frame to come, or for the other end to take one
SMALL_BYTES: Final = 32 * 2**10  # of the largest frame of one chunk

_HUGE_BYTES: Final = 8 * 2**20  # of what is worth large pages
_FEW: Final = 1000  # arrays, before other streams have their turn
_MORE: Final = b"\x00"  # first byte of a chunk: more of the frame
_MORE_ASKED: Final = b"\xff"  # the same, and its sender wants to know when it has come


class Turn(Protocol):
    """A large frame's hold on what it shares with others."""

    async def write(self, writing: Awaitable[None]) -> None:
        """Write a chunk."""

    def give_up(self) -> None:
        """Let others write: the link is busy."""


class _OwnTurn:
    """The turn of a frame that shares nothing."""

    async def write(self, writing: Awaitable[None]) -> None:
        await writing

    def give_up(self) -> None:
        pass


class FrameStream:
    """Frames over a gRPC stream, for either end, on one event loop.

    Parameters
    ----------
    read : coroutine function
        Returns the stream's next message, or nothing at its end.
    write : coroutine function
        Writes a message to the stream.
    spawn : callable
        Runs a coroutine in a task of its own.
    clock : callable
        Returns monotonic time [s].
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[bytes | None]],
        write: Callable[[bytes], Awaitable[None]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._write = write
        self._spawn = spawn
        self._window = Window(clock)
        self._frame_turn = asyncio.Lock()  # frames go one after the other
        self._write_turn = asyncio.Lock()  # gRPC takes one message at a time
        self._time_limit = _TimeLimit()  # of each write
        self._due = 0  # chunks whose coming was not reported

    @property
    def writing(self) -> bool:
        """Whether a frame is on its way."""
        return self._frame_turn.locked()

    # -- writing --------------------------------------------------------------------------------

    async def write(
        self,
        frame: Frame,
        before: Callable[[], bool] = lambda: True,
        large: Callable[[], AbstractAsyncContextManager[Turn]] = lambda: nullcontext(_OwnTurn()),
    ) -> None:
        """Write a frame, if ``before``, called when its turn has come, returns true.

        Parameters
        ----------
        frame : Frame
            Any frame.
        before : callable
            Called before its first byte.
        large : callable
            Called for a large frame before that; what it returns is entered, and holds the frame's
            turn.

        Raises
        ------
        TimeoutError
            If the other end takes nothing for a minute: frames would pile up.
        """
        parts = buffers(frame)
        size = sum(map(len, parts))
        async with self._frame_turn:
            if size <= SMALL_BYTES:
                if before():
                    await self._write_message(b"".join(parts))
                return
            async with large() as turn:
                if before():
                    await self._write_chunks(_Cutter(parts, size), turn)

    async def _write_chunks(self, cutter: _Cutter, turn: Turn) -> None:
        window = self._window
        if window.takes_whole(cutter.left):
            await turn.write(self._write_message(cutter.cut(cutter.left)))
            return
        first = True
        while cutter.left:
            # The first cannot ask, so that it leaves something for those that can.
            size = min(MIN_CHUNK_BYTES if first else window.chunk_bytes, cutter.left)
            while not window.admits(size):
                turn.give_up()
                async with asyncio.timeout(CHUNK_TIMEOUT_S):
                    await window.wait()
            window.add(size)
            front = b""
            if not first:
                front = _MORE_ASKED if window.mark(last=size == cutter.left) else _MORE
            chunk, first = cutter.cut(size, front), False
            await turn.write(self._write_message(chunk))

    async def _write_message(self, data: bytes) -> None:
        async with self._write_turn:
            with self._time_limit:
                await self._write(data)

    # -- reading --------------------------------------------------------------------------------

    async def read(
        self,
        max_bytes: Callable[[], int],
        is_wanted: Callable[[str], bool] = lambda message_id: True,
    ) -> Frame | None:
        """Return the next frame, its arrays received one by one.

        Never are more bytes kept than have come, and never more than one frame's.

        Parameters
        ----------
        max_bytes : callable
            Returns, when a frame begins, the largest payload that it may have [bytes].
        is_wanted : callable
            Tells whether the reply to a message of this id is awaited. The payload of one that is
            not, if it comes in chunks, is dropped as it comes.

        Returns
        -------
        Frame or None
            Nothing if the stream ended. A :class:`.Progress` that was not due is returned too.

        Raises
        ------
        WireError
            If a frame is too large, stops halfway or comes in undersized chunks, or no frame begins
            here.
        """
        while (data := await self._read()) is not None:
            kind, header_bytes, length = read_prefix(data)
            payload_bytes = length - header_bytes - PREFIX_BYTES
            if payload_bytes > (most := max_bytes()):
                raise WireError(f"message of {payload_bytes} bytes: must have {most} at most")
            if len(data) < length:
                try:
                    body = _Body(self._read_more, data, kind, length)
                    return await _read_rest(body, header_bytes, payload_bytes, is_wanted)
                except _Ended:
                    return None
            frame = decode(data)
            if not isinstance(frame, Progress) or not self._window.acknowledge(frame.chunks):
                return frame
        return None

    async def _read_more(self) -> memoryview | None:
        """Return more of a frame."""
        while True:
            data = await self._read()
            if data is None:
                return None
            front = data[:1]
            if front == bytes([Kind.PROGRESS]):
                frame = decode(data)
                assert isinstance(frame, Progress)
                self._window.acknowledge(frame.chunks)
                continue
            if front not in (_MORE, _MORE_ASKED):
                raise WireError(f"a chunk that begins with {front!r} within a frame")
            if front == _MORE_ASKED:
                self._due += 1
                if self._due == 1:
                    self._spawn(self._report())
            return memoryview(data)[1:]

    async def _report(self) -> None:
        async with self._write_turn:
            due, self._due = self._due, 0
            with self._time_limit:
                await self._write(encode(Progress(due)))


class _TimeLimit:
    """Ends what takes longer than a chunk may, like ``asyncio.timeout``, with one timer for many.

    A timer of its own for each small frame would take longer than all else that is done for it.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None  # that is within the limit now
        self._begin_s = 0.0
        self._num_cancelled = 0  # requests to end the task, before
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        self._task, self._begin_s, self._is_over = task, loop.time(), False
        self._num_cancelled = task.cancelling()
        if self._timer is None:
            self._timer = loop.call_later(CHUNK_TIMEOUT_S, self._look)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        task, self._task = self._task, None
        if self._is_over and task is not None:
            asked_by_others = task.uncancel() > self._num_cancelled
            if kind is asyncio.CancelledError and not asked_by_others:
                raise TimeoutError from None

    def _look(self) -> None:
        self._timer = None
        if self._task is None:
            return
        loop = asyncio.get_running_loop()
        left_s = self._begin_s + CHUNK_TIMEOUT_S - loop.time()
        if left_s > 0:
            self._timer = loop.call_later(left_s, self._look)
        else:
            self._is_over = True
            self._task.cancel()


class _Cutter:
    """Cuts bytes that lie in several parts."""

    def __init__(self, parts: Sequence[Buffer], size: int) -> None:
        self.left = size
        self._parts = iter(parts)
        self._rest = memoryview(b"")

    def cut(self, size: int, front: bytes = b"") -> bytes:
        """Return the next bytes, behind some that are put in front."""
        self.left -= size
        chunk: list[Buffer] = [front]
        while size:
            while not self._rest:
                self._rest = memoryview(next(self._parts))
            piece, self._rest = self._rest[:size], self._rest[size:]
            size -= len(piece)
            chunk.append(piece)
        return b"".join(chunk)


class _Ended(Exception):
    """The stream ended within a frame."""


async def _read_rest(
    body: _Body, header_bytes: int, payload_bytes: int, is_wanted: Callable[[str], bool]
) -> Frame:
    """Read a frame of which the first chunk has come."""
    await body.take(PREFIX_BYTES)
    frame = decode_header(body.kind, await body.take(header_bytes))
    if body.kind not in WITH_PAYLOAD:
        return frame
    if isinstance(frame, Reply) and not is_wanted(frame.message_id):
        await body.skip(payload_bytes)
        return frame
    payload = await _read_payload(body, payload_bytes)
    if isinstance(frame, Reply):
        return Reply(frame.message_id, payload)
    assert isinstance(frame, Work)
    return Work(frame.message_id, frame.acks, frame.max_reply_bytes, payload)


async def _read_payload(body: _Body, payload_bytes: int) -> Packed:
    num_arrays, outline_bytes = read_counts(await body.take(COUNTS_BYTES), payload_bytes)
    table_bytes = SIZE_BYTES * num_arrays
    arrays_bytes = payload_bytes - COUNTS_BYTES - table_bytes - outline_bytes
    sizes, codes = read_sizes(await body.take(table_bytes), arrays_bytes)
    outline = await body.take(outline_bytes)
    arrays: list[bytes] = []
    for size in sizes:
        arrays.append(await body.take(size))
        if not len(arrays) % _FEW:
            await asyncio.sleep(0)  # thousands of arrays may have come in one chunk
    return Packed(outline, tuple(arrays), codes)


class _Body:
    """The bytes of one frame, as they come.

    Parameters
    ----------
    read : coroutine function
        Returns more of the frame, or nothing at the end of the stream.
    first : bytes
        The frame's first chunk.
    kind : Kind
        The frame's kind.
    length : int
        The frame's bytes.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[memoryview | None]],
        first: bytes,
        kind: Kind,
        length: int,
    ) -> None:
        self._read = read
        self.kind = kind
        self._missing = length - len(first)  # bytes that have not come
        self._size = len(first)  # of the last chunk
        self._chunk = memoryview(first)  # what is left of it

    async def take(self, size: int) -> bytes:
        """Return the next bytes."""
        if size <= len(self._chunk):
            return bytes(self._cut(size))
        if size >= _HUGE_BYTES:
            return await self._take_huge(size)
        # It grows as bytes come, and gives away what it holds without a copy.
        whole = io.BytesIO()
        while size:
            if not self._chunk:
                await self._next()
            size -= whole.write(self._cut(size))
        return whole.getvalue()

    async def _take_huge(self, size: int) -> bytes:
        try:
            whole, view = new_bytes(size)
        except MemoryError:
            raise WireError(f"{self.kind.name} frame: no memory for {size} bytes") from None
        while view:
            if not self._chunk:
                await self._next()
            part = self._cut(len(view))
            view[: len(part)] = part
            view = view[len(part) :]
        return whole

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
                f"{self.kind.name} frame: a chunk of {self._size} bytes, must have "
                f"{MIN_CHUNK_BYTES}"
            )
        try:
            async with asyncio.timeout(CHUNK_TIMEOUT_S):
                data = await self._read()
        except TimeoutError:
            raise WireError(
                f"{self.kind.name} frame: {self._missing} bytes are missing, and none came for "
                f"{CHUNK_TIMEOUT_S:.0f} s"
            ) from None
        if data is None:
            raise _Ended
        self._missing -= len(data)
        if self._missing < 0:
            raise WireError(f"{self.kind.name} frame: {-self._missing} bytes too many")
        self._size, self._chunk = len(data), data
