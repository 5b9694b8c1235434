"""The turns in which large messages leave the server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Final

_PROMPT_S: Final = 0.02  # a write that takes longer waits for the client's link, not for the server


class SendTurns:
    """One sender at a time, as long as it is the server that limits how fast messages leave.

    A round trip is measured from the first byte that leaves. If a hundred models left at once from
    a server that is slower than its clients' links, each client's time would include the server's
    work for all the others. So a message waits, unmeasured, until the server is free; one that has
    begun comes first; and one whose client takes its bytes slowly lets others go meanwhile.

    Used from one event loop.
    """

    def __init__(self) -> None:
        self._taken = False
        self._begun: deque[asyncio.Future[None]] = deque()
        self._new: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def message(self) -> AsyncIterator[_Turn]:
        """Wait until a message may begin; it is over at the end of the block."""
        await self._take(self._new)
        turn = _Turn(self)
        try:
            yield turn
        finally:
            turn.give_up()

    async def _take(self, waiting: deque[asyncio.Future[None]]) -> None:
        if not self._taken:
            self._taken = True
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._give()
            else:
                waiting.remove(granted)
            raise

    def _give(self) -> None:
        """Let the next sender go: one that has begun, if there is any."""
        for waiting in (self._begun, self._new):
            while waiting:
                granted = waiting.popleft()
                if not granted.done():
                    granted.set_result(None)
                    return
        self._taken = False


class _Turn:
    """A message's hold on the sending."""

    def __init__(self, turns: SendTurns) -> None:
        self._turns = turns
        self._held = True

    async def write(self, writing: Awaitable[None]) -> None:
        """Write a chunk; let others write if it takes long."""
        if not self._held:
            await self._turns._take(self._turns._begun)
            self._held = True
        timer = asyncio.get_running_loop().call_later(_PROMPT_S, self.give_up)
        try:
            await writing
        finally:
            timer.cancel()

    def give_up(self) -> None:
        """Let others write."""
        if self._held:
            self._held = False
            self._turns._give()
