"""Deadlines of a run's rounds: one that was given, or one that is found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from flower_scheduling.reasons import TIMEOUT

from ..base import FloatArray, check_real
from ..deadline import AUTO, AutoDeadline, GivenDeadline
from .arm_table import ArmTable
from .timed_grid import Exchange

_UNIT: Final = 3.0
"""tau_max of a policy that learns rewards, in times of the slowest of the first N arms."""


class RoundDeadline:
    """The deadline of each round.

    Parameters
    ----------
    tau_max_s : float or "auto"
        Deadline [s]; ``"auto"``: that of an :class:`.AutoDeadline`.
    num_selected : int
        Size N of the super arm.
    key : str
        What the setting is called, for errors.

    Attributes
    ----------
    unit_s : float
        tau_max for policies that learn rewards 1 - tau / tau_max, see :meth:`learn` [s].

    Raises
    ------
    ConfigError
        If the deadline is out of range.
    """

    def __init__(
        self, tau_max_s: GivenDeadline, num_selected: int = 1, key: str = "tau_max_s"
    ) -> None:
        self._num_selected = num_selected
        self._auto = AutoDeadline() if tau_max_s == AUTO else None
        longest_s = self._auto.longest_s if self._auto else tau_max_s
        self.unit_s = check_real(key, longest_s, above=0.0)

    @property
    def is_found(self) -> bool:
        """Whether the deadline is found from measured times."""
        return self._auto is not None

    @property
    def level_s(self) -> float:
        """What a round of well-known arms takes at most [s]."""
        return self.unit_s if self._auto is None else self._auto.level_s

    def of(self, arms: Sequence[int], slowdown: FloatArray | None = None) -> float:
        """Return the deadline of a round of these arms [s].

        ``slowdown`` is how many times as long as they are known to take each will take.
        """
        return self.unit_s if self._auto is None else self._auto.deadline_s(arms, slowdown)

    def learn(self, exchanges: Sequence[Exchange], table: ArmTable) -> None:
        """Learn from what became of a round's messages; a deadline that was given stays.

        Until N arms have been timed ``unit_s`` follows the slowest of them; then it stays, and
        rewards mean the same in all rounds to come. The N fastest arms of a fleet are none of them
        slower than the slowest of any N: they lie within a third of the unit.
        """
        if self._auto is None:
            return
        heard = {
            table.arm_of(each.node_id).index: each.rtt_s
            for each in exchanges
            if (each.reply is not None and each.reply.has_content()) or each.failure == TIMEOUT
        }
        times_s = [float("nan") if rtt_s is None else rtt_s for rtt_s in heard.values()]
        follows = self._auto.num_known < self._num_selected
        self._auto.tell(list(heard), times_s, [rtt_s is not None for rtt_s in heard.values()])
        if follows and self._auto.num_known:
            self.unit_s = min(_UNIT * self._auto.slowest_s, self._auto.longest_s) or self.unit_s

    def state(self) -> dict[str, Any] | None:
        """Return what was learned; ``None`` for a deadline that was given."""
        if self._auto is None:
            return None
        return {"unit_s": self.unit_s, **self._auto.state_dict()}

    def load_state(self, state: Mapping[str, Any] | None) -> None:
        """Go on where :meth:`state` left off."""
        if self._auto is not None and state is not None:
            self.unit_s = float(state["unit_s"])
            self._auto.load_state_dict(state)
