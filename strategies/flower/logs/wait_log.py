"""A line from time to time about the clients that a round waits for."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection
from typing import Final

_AGAIN_S: Final = 60.0  # before the first line, and between two
_MAX_NAMES: Final = 5  # in one line


class WaitLog:
    """At most one line a minute on who is waited for and until when, whatever their number.

    In a fleet of which nothing is known a deadline is an hour: a client that hangs would otherwise
    leave the log silent for so long.

    Parameters
    ----------
    begin_s : float
        When the wait began, on the grid's clock [s].
    name_of : callable
        Returns a node's name.
    logger : Logger
        Takes the lines.
    wall_clock : callable
        Returns the time of day [s since the epoch], for the lines alone.
    """

    def __init__(
        self,
        begin_s: float,
        name_of: Callable[[int], str],
        logger: logging.Logger,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._begin_s = self._logged_s = begin_s
        self._name_of = name_of
        self._logger = logger
        self._wall_clock = wall_clock

    def note(
        self,
        now_s: float,
        until_s: float,
        waiting: Callable[[], Collection[int]],
        num_asked: int | None = None,
    ) -> None:
        """Log that nodes are waited for, if a line is due.

        Parameters
        ----------
        now_s : float
            The grid's time [s].
        until_s : float
            The deadline, on the same clock [s].
        waiting : callable
            Returns the nodes that have not answered; called for a line alone.
        num_asked : int, optional
            How many were sent a message, those that have answered included.
        """
        if now_s < self._logged_s + _AGAIN_S:
            return
        self._logged_s = now_s
        nodes = list(waiting())
        names = [self._name_of(node_id) for node_id in nodes[:_MAX_NAMES]]
        more = f" and {len(nodes) - _MAX_NAMES} more" if len(nodes) > _MAX_NAMES else ""
        end = ""
        if math.isfinite(until_s):
            left_s = max(0.0, until_s - now_s)
            clock = time.strftime("%H:%M:%S", time.localtime(self._wall_clock() + left_s))
            end = f", until {clock} at the latest"
        answered = ""
        if num_asked is not None:
            answered = f": {num_asked - len(nodes)} of {num_asked} have answered"
        waited_min = (now_s - self._begin_s) / 60
        who = ", ".join(names) + more
        self._logger.info("waiting for %s for %.0f min%s%s", who, waited_min, answered, end)
