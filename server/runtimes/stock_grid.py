"""Flower's own grid, timed, with a report of how long a client takes that does nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from flower_scheduling.strategies.deadline import AUTO, GivenDeadline
from flower_scheduling.strategies.flower import LOGGER, TimedGrid


class StockGrid(TimedGrid):
    """Flower's own grid, timed; it logs at the start how long a client takes that does nothing.

    Stock SuperNodes look for work every few seconds and start a process per message. The queries
    that newcomers answer train nothing, so their round trips are that least time.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    tau_max_s : float or "auto"
        Deadline of a round [s]; a warning is logged if it is below twice that least time.
    """

    asks_one_first = False  # our app answers

    def __init__(self, grid: Grid, tau_max_s: GivenDeadline) -> None:
        super().__init__(grid)
        self._tau_max_s = tau_max_s
        self._asked_s: dict[str, float] = {}  # message id -> time; of the first newcomers
        self._times_s: list[float] = []
        self._reported = False

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages; remember when the first queries went out."""
        messages = list(messages)
        message_ids = list(super().push_messages(messages))
        if not self._reported and all(
            m.metadata.message_type == MessageType.QUERY for m in messages
        ):
            self._asked_s |= dict.fromkeys(filter(None, message_ids), self.now())
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies; report how long the first queries took, once all have been answered."""
        replies = list(super().pull_messages(message_ids))
        for reply in replies:
            asked_s = self._asked_s.pop(reply.metadata.reply_to_message_id, None)
            if asked_s is not None:
                self._times_s.append(self.now() - asked_s)
        if self._times_s and not self._asked_s and not self._reported:
            self._reported = True
            self._report(sorted(self._times_s))
        return replies

    def _report(self, times_s: Sequence[float]) -> None:
        least_s = median(times_s)
        LOGGER.info(
            "a client that does nothing takes %.1f s (median of %d, %.1f to %.1f s)",
            least_s,
            len(times_s),
            times_s[0],
            times_s[-1],
        )
        if self._tau_max_s != AUTO and self._tau_max_s < 2 * least_s:
            LOGGER.warning(
                "tau-max-s = %g is below twice that time: measured times tell clients apart "
                "badly, and many will count as failed",
                self._tau_max_s,
            )
