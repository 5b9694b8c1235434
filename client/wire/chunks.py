"""The chunks in which a frame travels: one message of the gRPC stream each.

A frame is one chunk, or several if it is large: :data:`CHUNK_BYTES` each, the last one excepted.
gRPC's keepalive pings wait behind what is being sent: behind a whole model they would be late on
a slow link, and a slow client would be taken for dead. Undersized chunks, or none for a minute,
are refused: they waste memory, and a slow link does not explain them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from flower_scheduling.errors import WireError

from .frames import Kind, Reply, decode, read_prefix, without_payload

__all__ = ["CHUNK_BYTES", "CHUNK_TIMEOUT_S", "read_frame", "split"]

CHUNK_BYTES: Final = 64 * 2**10  # of the largest: half a second on a link of 1 Mbit/s
CHUNK_TIMEOUT_S = 60.0  # for the next chunk of a frame to come, or for the other end to take one


def split(frame: bytes) -> Iterator[bytes]:
    """Cut a frame into chunks."""
    if len(frame) <= CHUNK_BYTES:
        yield frame
        return
    for begin in range(0, len(frame), CHUNK_BYTES):
        yield frame[begin : begin + CHUNK_BYTES]


async def read_frame(
    read: Callable[[], Awaitable[bytes | None]],
    max_message_bytes: int,
    is_wanted: Callable[[str], bool] = lambda message_id: True,
) -> bytes | None:
    """Return the bytes of the next frame, its chunks joined.

    Never are more bytes kept than have come, and never more than one frame's.

    Parameters
    ----------
    read : coroutine function
        Returns the next chunk, or nothing at the end of the stream.
    max_message_bytes : int
        Largest frame [bytes].
    is_wanted : callable
        Tells whether the reply to a message of this id is awaited. The payload of one that is not,
        if it comes in chunks, is dropped as it comes.

    Returns
    -------
    bytes or None
        For :func:`.decode`; nothing if the stream ended.

    Raises
    ------
    WireError
        If a frame is too large, stops halfway or comes in undersized chunks, or no frame begins
        here.
    """
    data = await read()
    if data is None:
        return None
    kind, _, length = read_prefix(data)
    if length > max_message_bytes:
        raise WireError(f"frame of {length} bytes: must have {max_message_bytes} at most")
    if len(data) >= length:
        return data
    bare: bytes | None = None  # stands for a reply that is not wanted
    if kind is Kind.REPLY and len(data) >= CHUNK_BYTES:  # so that its header is complete
        bare = without_payload(data)
        reply = decode(bare)
        if isinstance(reply, Reply) and is_wanted(reply.message_id):
            bare = None
    parts, missing = [data], length - len(data)
    while missing > 0:
        # Tiny chunks would take many times their size, and empty ones would never make a frame.
        if len(data) < CHUNK_BYTES:
            raise WireError(
                f"{kind.name} frame: a chunk of {len(data)} bytes, must have {CHUNK_BYTES}"
            )
        try:
            async with asyncio.timeout(CHUNK_TIMEOUT_S):
                data = await read()
        except TimeoutError:
            raise WireError(
                f"{kind.name} frame: {missing} bytes are missing, and none came for "
                f"{CHUNK_TIMEOUT_S:.0f} s"
            ) from None
        if data is None:
            return None
        missing -= len(data)
        if bare is None:
            parts.append(data)
    return bare or b"".join(parts)
