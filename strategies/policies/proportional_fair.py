"""Proportional-Fair: the same time of channels for every client, and floors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np

from ..base import BoolArray, Explanation, FloatArray, RoundContext, RoundOutcome, Selection
from ..policy_spec import PolicySpec
from ..selection import top_arms
from .cs_ucb_q_adaptive import CsUcbQAdaptive

_LEAST_COST: Final = 1e-9
"""Smallest cost that counts, in units of tau_max."""
_MOST_BEHIND: Final = 3.0
"""Pieces of its work that an arm can be behind its share."""


class ProportionalFair(CsUcbQAdaptive):
    """Proportional-Fair: for channels and data that differ; each client has the same time of them.

    The scheduler of radio cells that maximises sum over k of log r_k, r the rates (Kelly, Maulloo
    and Tan, "Rate control for communication networks: shadow prices, proportional fairness and
    stability", 1998): with channels that one client occupies at a time, all get equal time, and a
    client twice as fast delivers twice as many updates. No client is left out, as the slow ones are
    where the fastest are selected, and none costs more time than another, as where all deliver
    equally often. Where updates weigh evenly (:class:`.StepWeights`), every client's data count for
    the same all the same.

    It selects the idle arms with the smallest

        turn_k + cost_k / (mean cost),

    cost as in :class:`.CsUcbAdaptive`. turn_k grows by cost_k / (mean cost) with each piece of work
    of arm k (weighted fair queueing; Demers, Keshav and Shenker, "Analysis and simulation of a fair
    queueing algorithm", 1989), and an arm that was away is at most three pieces of work behind.
    Untried arms come first. Arms that are owed d or more, for channels d' or more, go before all
    others, as in :class:`.CsUcbQAdaptive`, and for channels with the same bound.

    In rounds, where a slow client holds up N - 1 others, it is no better than chance.

    Parameters
    ----------
    min_participation : (num_arms,) array-like of float, in [0, 1), optional
        Least share of each arm, c; 0 if left out.
    **parameters
        Those of :class:`.CsUcbAdaptive`.

    Attributes
    ----------
    turn : (*batch, num_arms) float64
        Time of channels of each arm [pieces of work of an average arm].
    """

    name: ClassVar[str] = "proportional-fair"
    _per_arm: ClassVar[Mapping[str, float]] = {**CsUcbQAdaptive._per_arm, "turn": 0.0}

    def __init__(self, **parameters: Any) -> None:
        super().__init__(**parameters)
        self.turn: FloatArray = np.zeros(self.shape)

    def _select(self, context: RoundContext) -> BoolArray:
        if self.num_arms <= self._num_asked:
            return context.available.copy()
        selectable = self._selectable(context) if self.channels else context.available
        keys = (-self._scores(context.round),)
        return top_arms(keys, selectable, self._num_asked, self._rng)

    def _explain(self, selection: Selection) -> Explanation:
        scores, owed = self._scores(selection.round), self._owed()
        untried = self._untried()
        turn = np.where(owed | untried, 0.0, scores)
        queue = np.where(owed, scores, 0.0)
        bonus = np.where(untried & ~owed, scores, 0.0)
        return Explanation("smallest", "", {"bonus": bonus, "queue": queue, "turn": turn})

    def _scores(self, round: int) -> FloatArray:
        """Return the turn of each arm after one more piece of work; some come before all others."""
        scores = self.turn + self._pace(round)
        first = scores.min(axis=-1, keepdims=True, initial=0.0) - 1.0
        scores = np.where(self._untried(), first, scores)
        return np.where(self._owed(), first - self.virtual_queue, scores)

    def _pace(self, round: int) -> FloatArray:
        """Return by how much the turn of each arm grows with a piece of work."""
        if not self.num_arms:
            return np.zeros(self.shape)
        cost = np.maximum(self.cost_s(round), _LEAST_COST * self.tau_max_s)
        return np.asarray(cost / cost.mean(axis=-1, keepdims=True))

    def _learn(self, selection: Selection, outcome: RoundOutcome) -> None:
        super()._learn(selection, outcome)
        if not self.num_arms:
            return
        mask, pace = selection.mask, self._pace(selection.round)
        now = np.where(mask, self.turn, -np.inf).max(axis=-1, keepdims=True)
        self.turn = np.maximum(self.turn, now - _MOST_BEHIND * pace)
        self.turn += np.where(mask, pace, 0.0)


SPEC: Final = PolicySpec.of(
    ProportionalFair,
    summary="the same time for all clients, keeps participation floors: for buffered mode",
)
