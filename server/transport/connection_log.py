"""The connection log: lines about connected and lost clients, those that come together in one."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

_PAUSE_S: Final = 0.5  # between an event and its line: a whole fleet may connect at once
_MANY: Final = 10  # events in such a pause are a fleet's: its line waits for the last of them
_LONGEST_PAUSE_S: Final = 60.0
_LINES_A_MINUTE: Final = 20  # further lines are put off
_MINUTE_S: Final = 60.0
_MAX_NAMES: Final = 5  # in one line


class ConnectionLog:
    """A log of connections, coalesced: one line for all clients of an event. For the event loop.

    Parameters
    ----------
    clock : callable
        Returns monotonic time [s].
    logger : Logger
        Takes the lines.
    """

    def __init__(self, clock: Callable[[], float], logger: logging.Logger) -> None:
        self._clock = clock
        self._logger = logger
        self._pending: dict[str, Counter[str]] = {}  # event -> how often it befell each client
        self._since_s = 0.0  # when the first of them came
        self._num_new = 0  # since they were looked at last
        self._flushed_s: deque[float] = deque(maxlen=_LINES_A_MINUTE)

    def log(self, event: str, client: str) -> None:
        """Log soon that this has happened to a client."""
        if not self._pending:
            pause_s = _PAUSE_S
            if len(self._flushed_s) == self._flushed_s.maxlen:  # clients reconnect all the time
                pause_s = max(pause_s, self._flushed_s[0] + _MINUTE_S - self._clock())
            self._since_s, self._num_new = self._clock(), 0
            asyncio.get_running_loop().call_later(pause_s, self._look)
        self._pending.setdefault(event, Counter())[client] += 1
        self._num_new += 1

    def _look(self) -> None:
        """Log what is pending, unless a fleet is coming or going at this moment."""
        many, self._num_new = self._num_new >= _MANY, 0
        if many and self._clock() - self._since_s < _LONGEST_PAUSE_S:
            asyncio.get_running_loop().call_later(_PAUSE_S, self._look)
        else:
            self.flush()

    def flush(self) -> None:
        """Log now what is pending."""
        if not self._pending:
            return
        self._flushed_s.append(self._clock())
        pending, self._pending = self._pending, {}
        for event, times in pending.items():
            names = [f"{name} ({n} times)" if n > 1 else name for name, n in times.items()]
            more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
            self._logger.info("%s: %s%s", event, ", ".join(names[:_MAX_NAMES]), more)
