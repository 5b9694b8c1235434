"""An upper bound on the share of rounds of every client, whatever the policy."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from flower_scheduling.errors import ConfigError

from .base import BoolArray, FloatArray, check_real


class ShareBound:
    """Bar arms that have had more than their share, so that no arm has more in the long run.

    The counterpart of a virtual queue, a leaky bucket: the excess of arm k after a turn, a round or
    a piece of work, is

        E_k(t+1) = max(E_k(t) + b_k(t) - m, 0),

    b_k 1 if it took the turn and m the bound, and an arm may be selected while E_k < 1. So E_k
    stays below 2 - m, and since E_k grows by at least b_k - m, arm k has taken, in *any* T turns in
    a row,

        fewer than m T + 2

    of them. Turns that it had to be given (:meth:`allowed`) come on top.

    Parameters
    ----------
    max_share : float, in (0, 1]
        Largest share of rounds, m. 1: there is no bound.
    turns : int, >= 1
        Turns that count as a round: m / turns is then the bound of their share.

    Raises
    ------
    ConfigError
        If the share is out of range.
    """

    def __init__(self, max_share: float, turns: int = 1) -> None:
        self.max_share = check_real("max_share", max_share, above=0.0, at_most=1.0)
        self._rate = self.max_share / turns
        self._excess: FloatArray = np.zeros(0)

    @property
    def bounds(self) -> bool:
        """Whether there is a bound at all."""
        return self.max_share < 1.0

    def require_clients(self, num_selected: int, num_clients: int) -> None:
        """Refuse a bound that so few clients cannot keep.

        Parameters
        ----------
        num_selected : int
            Size N of the super arm.
        num_clients : int
            Clients of the fleet, K.

        Raises
        ------
        ConfigError
            If the shares, N of a round together, cannot all be as small.
        """
        needed = self.clients_for(num_selected)
        if num_clients < needed:
            there = f"{num_clients} are there"
            text = f"needs {needed} clients where {num_selected} are selected, {there}"
            raise ConfigError("max_share", self.max_share, text)

    def clients_for(self, num_selected: int) -> int:
        """Return how many clients there must be, N / m."""
        return math.ceil(num_selected / self.max_share - 1e-9) if self.bounds else 0

    def allowed(self, available: BoolArray, at_least: int = 0) -> BoolArray:
        """Return the arms that may be selected.

        Parameters
        ----------
        available : (num_arms,) bool
            Arms that are there.
        at_least : int
            So many of them are allowed in any case, those with the least excess first.

        Returns
        -------
        (num_arms,) bool
        """
        if not self.bounds:
            return available
        excess = self._of(available.size)
        allowed: BoolArray = available & (excess < 1.0)
        missing = min(at_least, int(available.sum())) - int(allowed.sum())
        if missing > 0:
            barred = np.flatnonzero(available & ~allowed)
            allowed[barred[np.argsort(excess[barred], kind="stable")[:missing]]] = True
        return allowed

    def tell(self, num_arms: int, took: Collection[int]) -> None:
        """Count a turn, which these arms took."""
        if not self.bounds:
            return
        excess = self._of(num_arms)
        excess[list(took)] += 1.0
        self._excess = np.maximum(excess - self._rate, 0.0)

    def charge(self, num_arms: int, arms: Collection[int]) -> None:
        """Count what arms take beside the turn that is under way, as late updates are."""
        if self.bounds:
            np.add.at(self._of(num_arms), list(arms), 1.0)

    def state(self) -> dict[str, Any]:
        """Return the excess of each arm."""
        return {"excess": self._excess.copy()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state` left off."""
        self._excess = np.array(state["excess"], dtype=np.float64)

    def _of(self, num_arms: int) -> FloatArray:
        """Return the excess of so many arms; of new ones it is 0."""
        self._excess = np.pad(self._excess, (0, max(num_arms - self._excess.size, 0)))
        return self._excess
