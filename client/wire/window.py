"""Flow control of a stream: how much of a large frame may be on its way."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Final

MIN_CHUNK_BYTES: Final = 16 * 2**10  # three seconds on a link of 50 kbit/s
MAX_CHUNK_BYTES: Final = 2**20 + MIN_CHUNK_BYTES  # a megabyte, and what is around it

_FIRST_BYTES: Final = 2 * MIN_CHUNK_BYTES
_MOST_BYTES: Final = 64 * 2**20
_CHUNKS: Final = 4  # in a window
_SHORT_S: Final = 0.5  # delay of an acknowledgement below which more may be on its way
_FRESH_S: Final = 2.0  # after an acknowledgement, while what it has shown of the link counts
_NEARLY: Final = 1.25  # or below so many times the shortest
_LONG_S: Final = 1.0  # delay, beyond the shortest, above which less may


class Window:
    """The bytes that may be on their way to the other end, learned from its acknowledgements.

    What is sent waits in the buffers of both hosts, megabytes of them, and gRPC's keepalive pings
    wait behind it: on a slow link they would be late, and a client that is busy receiving would be
    taken for dead. So a sender has no more on its way than the link carries in about half a second.

    Used from one event loop.

    Parameters
    ----------
    clock : callable
        Returns monotonic time [s].

    Attributes
    ----------
    size : int
        Bytes that may be on their way.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.size = _FIRST_BYTES
        # Of each chunk that waits for an acknowledgement: bytes up to it, when it was sent, and
        # whether its frame is large enough to use more than the size.
        self._marks: deque[tuple[int, float, bool]] = deque()
        self._unmarked = 0  # bytes sent since the last mark
        self._marked = 0  # bytes sent before it, and not acknowledged
        self._least_s = math.inf  # shortest delay of an acknowledgement
        self._adapted_s = -math.inf  # when the size was changed last
        self._heard_s = -math.inf  # when the last acknowledgement came
        self._passed = 0  # bytes of the frame that were sent
        self._changed = asyncio.Event()

    @property
    def chunk_bytes(self) -> int:
        """Size of the next chunk."""
        return min(max(self.size // _CHUNKS, MIN_CHUNK_BYTES), MAX_CHUNK_BYTES)

    def takes_whole(self, size: int) -> bool:
        """Tell whether a frame of so many bytes may be sent at once, without an acknowledgement.

        The link has just shown that it carries as much in no time, and nothing else is on its way.
        """
        # The size grows to twice that of the frames of a fast link at least.
        most = min(self.size // 2, MAX_CHUNK_BYTES)
        return size <= most and not self._marks and self._clock() < self._heard_s + _FRESH_S

    def admits(self, size: int) -> bool:
        """Tell whether so many bytes may be sent now."""
        on_way = self._marked + self._unmarked
        # Where no acknowledgement is to come, the next chunk asks for one.
        return not self._marks or on_way + size <= self.size

    def add(self, size: int) -> None:
        """Note that a chunk is about to be sent."""
        self._unmarked += size
        self._passed += size

    def mark(self, *, last: bool) -> bool:
        """Tell whether to ask for an acknowledgement with this chunk."""
        if not last and self._unmarked < self.size // _CHUNKS:
            return False
        self._marks.append((self._unmarked, self._clock(), self._passed >= self.size // 2))
        if last:
            self._passed = 0
        self._marked += self._unmarked
        self._unmarked = 0
        return True

    async def wait(self) -> None:
        """Wait for an acknowledgement."""
        self._changed.clear()
        await self._changed.wait()

    def acknowledge(self, count: int) -> bool:
        """Take note of acknowledgements; tell whether any was due."""
        now_s = self._clock()
        taken = min(count, len(self._marks))
        for _ in range(taken):
            size, sent_s, could_use_more = self._marks.popleft()
            self._marked -= size
            self._adapt(sent_s, now_s, could_use_more)
        if taken:
            self._heard_s = now_s
            self._changed.set()
        return taken > 0

    def _adapt(self, sent_s: float, now_s: float, could_use_more: bool) -> None:
        delay_s = now_s - sent_s
        self._least_s = min(self._least_s, delay_s)
        if sent_s < self._adapted_s:
            return  # its delay is that of the size before
        size = self.size
        if delay_s > _LONG_S + self._least_s:
            size = max(size // 2, MIN_CHUNK_BYTES)
        elif could_use_more and delay_s < self._short_s:
            size = min(2 * size, _MOST_BYTES)
        if size != self.size:
            self.size, self._adapted_s = size, now_s

    @property
    def _short_s(self) -> float:
        """A delay below which more may be on its way; a link may be far away without being slow."""
        return max(_SHORT_S, min(_NEARLY * self._least_s, _LONG_S))
