"""Log lines about who comes and goes, those of a second together: a fleet may come at once."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from flower_scheduling.strategies.flower import LOGGER

_PAUSE_S: Final = 0.5  # between who comes or goes and the line about it
_LINES_A_MINUTE: Final = 20  # after that they are put off
_NAMES_TOLD: Final = 5
_MINUTE_S: Final = 60.0


class AttendanceLog:
    """Tell who came, left or was lost. It lives in the event loop.

    Parameters
    ----------
    clock : callable
        Returns monotonic time [s].
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._news: dict[str, Counter[str]] = {}  # what was not told yet, and of whom
        self._told_s: deque[float] = deque(maxlen=_LINES_A_MINUTE)

    def note(self, what: str, name: str) -> None:
        """Log soon that this happened to the client of this name."""
        if not self._news:
            pause_s = _PAUSE_S
            if len(self._told_s) == self._told_s.maxlen:  # somebody comes and goes all the time
                pause_s = max(pause_s, self._told_s[0] + _MINUTE_S - self._clock())
            asyncio.get_running_loop().call_later(pause_s, self.tell)
        self._news.setdefault(what, Counter())[name] += 1

    def tell(self) -> None:
        """Log now what was not logged yet."""
        if not self._news:
            return
        self._told_s.append(self._clock())
        news, self._news = self._news, {}
        for what, times in news.items():
            names = [f"{name} ({n} times)" if n > 1 else name for name, n in times.items()]
            more = f" and {len(names) - _NAMES_TOLD} more" if len(names) > _NAMES_TOLD else ""
            LOGGER.info("%s: %s%s", what, ", ".join(names[:_NAMES_TOLD]), more)
