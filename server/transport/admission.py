"""Connections that have not said hello yet: how many may wait, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

_HELLO_TIMEOUT_S: Final = 10.0
_MAX_STRANGERS: Final = 2048  # a fleet may come at once


class Strangers:
    """Await the first frames of new connections, of boundedly many.

    If there are too many, the one that has been silent for longest goes, of the host that has
    most: a client's hello comes at once.

    Parameters
    ----------
    on_silence : callable
        Takes the host of a connection that is closed without a hello.
    """

    def __init__(self, on_silence: Callable[[str], None]) -> None:
        self._on_silence = on_silence
        self._waiting: dict[str, dict[asyncio.Future[bytes | None], None]] = {}  # by host, in order

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def hosts(self) -> dict[str, int]:
        """Return how many are awaited of each host."""
        return {host: len(readings) for host, readings in self._waiting.items()}

    async def first_frame(self, host: str, frame: Awaitable[bytes | None]) -> bytes | None:
        """Return the first frame of a stream from ``host``; None if it does not come soon."""
        if len(self) >= _MAX_STRANGERS:
            self._send_one_away()
        reading = asyncio.ensure_future(frame)
        self._waiting.setdefault(host, {})[reading] = None
        try:
            done, _ = await asyncio.wait((reading,), timeout=_HELLO_TIMEOUT_S)
        finally:
            reading.cancel()
            self._forget(host, reading)
        if not done:
            self._on_silence(host)
        return reading.result() if done and not reading.cancelled() else None

    def _send_one_away(self) -> None:
        crowd = max(self._waiting, key=lambda host: len(self._waiting[host]))
        oldest = next(iter(self._waiting[crowd]))
        oldest.cancel()
        self._forget(crowd, oldest)
        self._on_silence(crowd)

    def _forget(self, host: str, reading: asyncio.Future[bytes | None]) -> None:
        readings = self._waiting.get(host, {})
        readings.pop(reading, None)
        if not readings:
            self._waiting.pop(host, None)
