"""Log what clients do wrong, but not as often as they do it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from .timed_grid import LOGGER

_MINUTE_S: Final = 60.0
_LINES_A_MINUTE: Final = 20  # of one kind, each about somebody else


class LimitedLog:
    """In a minute one line about each kind of thing and client, and twenty of a kind.

    Without TLS clients may make up names, so that one line a client is no limit. Those that were
    not logged are counted, and told after the minute.

    Parameters
    ----------
    clock : callable
        Returns monotonic time [s].
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said: dict[str, set[str]] = {}  # kind -> of whom
        self._withheld: Counter[str] = Counter()
        self._since_s: dict[str, float] = {}

    def say(self, kind: str, who: str, text: str, level: int = logging.WARNING) -> None:
        """Log one line, or count it."""
        self.tell_withheld()
        said = self._said.setdefault(kind, set())
        self._since_s.setdefault(kind, self._clock())
        if who in said or len(said) >= _LINES_A_MINUTE:
            self._withheld[kind] += 1
            return
        said.add(who)
        LOGGER.log(level, "%s", text)

    def tell_withheld(self, *, all_of_them: bool = False) -> None:
        """Log how many were not, of the kinds whose minute is over."""
        now_s = self._clock()
        for kind, since_s in list(self._since_s.items()):
            if not all_of_them and now_s - since_s < _MINUTE_S:
                continue
            del self._said[kind], self._since_s[kind]
            if withheld := self._withheld.pop(kind, 0):
                LOGGER.warning("%s: %d more in a minute were not logged", kind, withheld)
