"""Spare clients: more are asked than are needed, and a round ends when enough have answered."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from flwr.app import Message

from flower_scheduling.errors import ConfigError, SchedulingError

from ..base import check_count
from .arm_table import ArmTable
from .buffer.late import DROP, USE
from .timed_grid import LATE, Exchange, SpareExchange, TimedExchange


@dataclass
class Answers:
    """What became of a round's messages, and of late ones of earlier rounds.

    Attributes
    ----------
    exchanges : list of Exchange
        Those that were answered, or failed.
    late : list of int
        Arms that were neither when enough had answered.
    since : list of Exchange
        Late ones that have ended since :meth:`SpareClients.look`.
    late_exchanges : list of Exchange
        Those of which the policy learns in this round, the ones that it has looked at among them.
    late_rtt_s : dict of int to float or None
        By arm, their true round-trip times [s]; ``None`` where there is no reply with content.
    """

    exchanges: list[Exchange]
    late: list[int] = field(default_factory=list)
    since: list[Exchange] = field(default_factory=list)
    late_exchanges: list[Exchange] = field(default_factory=list)
    late_rtt_s: dict[int, float | None] = field(default_factory=dict)


class SpareClients:
    """Ask N + M clients, and end the round when N have answered.

    A client that has not answered by then works on, and is busy. Its update is dropped, or used in
    the next step (:class:`.LateUpdates`). Its true time is learned in the round in which its reply
    comes, or that it has failed: how the policy is told see :meth:`.PolicyRunner.tell`.

    An arm that is owed a round or more by its floor is waited for, spare or not: a floor is a share
    of the rounds in which the arm's update counts, and no policy could keep that of a slow client
    whose update is never among the first N.

    Parameters
    ----------
    num_selected : int
        N.
    num_spare : int, >= 0
        M; 0: all are waited for.
    late_updates : {"use", "drop"}
        What becomes of late updates.

    Raises
    ------
    ConfigError
        If a number is out of range, or there are no late updates to use.
    """

    def __init__(self, num_selected: int, num_spare: int, late_updates: str = DROP) -> None:
        self.num_selected = check_count("num_selected", num_selected, minimum=1)
        self.num_spare = check_count("num_spare", num_spare, minimum=0)
        if late_updates not in (USE, DROP):
            raise ConfigError("late_updates", late_updates, f"must be {USE} or {DROP}")
        self.uses_late = late_updates == USE
        if self.uses_late and not num_spare:
            message = "needs num_spare: without spare clients no update comes late"
            raise ConfigError("late_updates", late_updates, message)
        self._early: list[Exchange] = []  # late ones that have ended since the last round

    @property
    def num_asked(self) -> int:
        """N + M."""
        return self.num_selected + self.num_spare

    def look(self, grid: TimedExchange) -> list[Exchange]:
        """Return the late exchanges that have ended since the last round; call it before one.

        :meth:`exchange` reports them again, beside those that end in the round.

        Raises
        ------
        SchedulingError
            If there are spare clients, and the grid waits for all.
        """
        self._early = self._of(grid).late() if self.num_spare else []
        return self._early

    def exchange(
        self,
        grid: TimedExchange,
        table: ArmTable,
        messages: Sequence[Message],
        timeout_s: float,
        owed: Collection[int] = (),
    ) -> Answers:
        """Send the messages of a round, and return what became of them.

        Parameters
        ----------
        grid : TimedExchange
            Where to.
        table : ArmTable
            Knows which node is which arm.
        messages : sequence of Message
            To one client each.
        timeout_s : float
            Deadline [s].
        owed : collection of int
            Arms that are waited for.

        Raises
        ------
        SchedulingError
            If there are spare clients, and the grid waits for all.
        """
        if not self.num_spare:
            return Answers(grid.exchange(messages, timeout_s) if messages else [])
        spare = self._of(grid)
        asked = [message.metadata.dst_node_id for message in messages]
        awaited = [node for node in asked if table.arm_of(node).index in owed]
        exchanges = []
        if messages:
            exchanges = spare.exchange(messages, timeout_s, self.num_selected, awaited)
        found = Answers([each for each in exchanges if each.failure != LATE])
        found.late = sorted(
            table.arm_of(each.node_id).index for each in exchanges if each.failure == LATE
        )
        now = {each.node_id for each in found.exchanges}
        found.since = spare.late()
        ended, self._early = [*self._early, *found.since], []
        for each in ended:
            if each.node_id in now or not table.knows(each.node_id):
                continue  # this round tells about it, or it has come back as another node
            replied = each.reply is not None and each.reply.has_content()
            found.late_exchanges.append(each)
            found.late_rtt_s[table.arm_of(each.node_id).index] = each.rtt_s if replied else None
        return found

    def _of(self, grid: TimedExchange) -> SpareExchange:
        if isinstance(grid, SpareExchange):
            return grid
        kind = type(grid).__name__
        raise SchedulingError(f"num_spare needs a grid with late(), which {kind} has not got")
