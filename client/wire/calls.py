"""gRPC as both ends use it: settings of a connection, reading and writing of a stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeAlias

import grpc

from .chunks import MAX_CHUNK_BYTES

__all__ = [
    "DEFAULT_KEEPALIVE_S",
    "Options",
    "WriteTasks",
    "channel_options",
    "chunk_reader",
    "server_options",
]

Options: TypeAlias = list[tuple[str, int | str]]
"""Channel or server arguments of gRPC."""

DEFAULT_KEEPALIVE_S: Final = 5.0  # between two keepalive pings; an answer may take twice as long


def channel_options(keepalive_s: float = DEFAULT_KEEPALIVE_S) -> Options:
    """Return gRPC's channel options for a client.

    Parameters
    ----------
    keepalive_s : float
        Pause between two keepalive pings [s]; a dead peer is noticed within three times as long.
    """
    return [
        *_common_options(keepalive_s),
        # Else the clients of one process share a connection, and its pauses between attempts.
        ("grpc.use_local_subchannel_pool", 1),
        # An attempt that meets no answer at all takes 20 s by default.
        ("grpc.min_reconnect_backoff_ms", 10_000),
    ]


def server_options(
    keepalive_s: float = DEFAULT_KEEPALIVE_S, max_connections: int | None = None
) -> Options:
    """Return gRPC's server options.

    Parameters
    ----------
    keepalive_s : float
        As for :func:`channel_options`.
    max_connections : int, optional
        Connections at once; gRPC closes those beyond it.
    """
    limit: Options = []
    if max_connections is not None:
        limit = [("grpc.max_allowed_incoming_connections", max_connections)]
    return [
        *limit,
        *_common_options(keepalive_s),
        ("grpc.so_reuseport", 0),  # else a second server on the same port gets half of the clients
        # No chunk is larger, and gRPC keeps one of every stream until it is read. The limit also
        # holds for a compressed message when it is unfolded (grpcio 1.85).
        ("grpc.max_receive_message_length", MAX_CHUNK_BYTES + 1),
        # A client has one stream for each connection; a connection without one is closed.
        ("grpc.max_concurrent_streams", 16),
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.max_connection_idle_ms", 30_000),
        # The server would take its clients' pings for an attack and close the connection.
        ("grpc.http2.min_ping_interval_without_data_ms", _ms(keepalive_s) // 2),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def _common_options(keepalive_s: float) -> Options:
    return [
        ("grpc.keepalive_time_ms", _ms(keepalive_s)),
        ("grpc.keepalive_timeout_ms", _ms(2 * keepalive_s)),
        # Without it a dead peer is noticed after 62 s, in spite of the two above (grpcio 1.85).
        ("grpc.http2.ping_timeout_ms", _ms(2 * keepalive_s)),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


def _ms(seconds: float) -> int:
    return max(1, round(1000 * seconds))


def chunk_reader(call: Any) -> Callable[[], Awaitable[bytes | None]]:
    """Return a function that reads a call's next message, or nothing at its end."""

    async def read() -> bytes | None:
        data = await call.read()
        return None if data is grpc.aio.EOF else data

    return read


class WriteTasks:
    """Tasks that write to streams. A stream that breaks is noticed by its reader.

    Parameters
    ----------
    logger : Logger
        Takes a line for each write that fails.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop keeps weak references only

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in a task of its own."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish)

    async def cancel(self) -> None:
        """Cancel what still runs, and wait for its end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._logger.debug("write failed: %r", error)
