"""A rate-limited log: what clients do wrong is logged, but not as often as they do it."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

from ..timed_grid import LOGGER

_MINUTE_S: Final = 60.0
_LINES_A_MINUTE: Final = 20  # of one kind, each about another client


class RateLimitedLog:
    """A log of at most one line a minute for each kind and client, and of twenty for a kind.

    Without TLS clients may make up names: one line for each client is no bound. Suppressed lines
    are counted, and the count is logged when the minute is over. Any thread may call the methods.

    Parameters
    ----------
    clock : callable
        Returns monotonic time [s].
    logger : Logger
        Takes the lines.
    """

    def __init__(self, clock: Callable[[], float], logger: logging.Logger = LOGGER) -> None:
        self._clock = clock
        self._logger = logger
        self._lock = threading.RLock()
        self._logged: dict[str, set[str]] = {}  # kind -> clients with a line in this minute
        self._suppressed: Counter[str] = Counter()
        self._since_s: dict[str, float] = {}

    def log(self, kind: str, client: str, text: str, level: int = logging.WARNING) -> None:
        """Log one line, or count it as suppressed."""
        with self._lock:
            self.flush_suppressed()
            logged = self._logged.setdefault(kind, set())
            self._since_s.setdefault(kind, self._clock())
            if client in logged or len(logged) >= _LINES_A_MINUTE:
                self._suppressed[kind] += 1
                return
            logged.add(client)
            self._logger.log(level, "%s", text)

    def flush_suppressed(self, *, all_kinds: bool = False) -> None:
        """Log the counts of suppressed lines, of the kinds whose minute is over or of all."""
        with self._lock:
            now_s = self._clock()
            for kind, since_s in list(self._since_s.items()):
                if not all_kinds and now_s - since_s < _MINUTE_S:
                    continue
                del self._logged[kind], self._since_s[kind]
                if count := self._suppressed.pop(kind, 0):
                    self._logger.warning("%s: %d more in a minute were not logged", kind, count)
