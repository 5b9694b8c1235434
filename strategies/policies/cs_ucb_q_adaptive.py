"""CS-UCB-Q-Adaptive: fast arms, a guaranteed share for each of them, and slow arms in company."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Final

import numpy as np

from ..base import BoolArray, Explanation, FloatArray, RoundContext, Selection
from ..floors import LAG, QueuePolicy
from ..policy_spec import PolicySpec
from ..selection import cheapest_set, explain_cheapest_set, top_arms
from .cs_ucb_adaptive import CsUcbAdaptive

_PATIENCE: Final = float(LAG)
"""Rounds that an arm may be owed before it is worth a slow round of its own, d."""
_CHANNEL_PATIENCE: Final = 2.0
"""The same of updates for channels, where a slow arm needs no company, d'; below d."""
_SUM_WEIGHT: Final = 0.1
"""Weight of the sum of the costs beside their maximum, w."""
_LEAST_SCALE: Final = 0.1
"""What an owed round of a fast arm is worth at least, in units of the N-th smallest cost, e."""


class CsUcbQAdaptive(QueuePolicy, CsUcbAdaptive):
    """CS-UCB-Q-Adaptive: no parameter to set but the floors.

    In round t it selects the min(N, abs(A(t))) available arms S that minimise

        max over k in S of cost_k + w sum over k in S of cost_k - sum over k in S of v_k,
        v_k = D_k max(cost_k - g, e g) / d + max(D_k - d, 0) (h - g + e g),

    cost as in :class:`.CsUcbAdaptive`, D the virtual queues of
    CS-UCB-Q, g the N-th smallest cost of all arms, h the largest, w = e = 0.1, d = 6. It is the
    drift-plus-penalty rule of CS-UCB-Q (Neely, "Stochastic network optimization", 2010) with three
    changes:

    - The penalty is the time of the round, which its slowest arm decides, not a sum of the arms'
      indices. So slow arms that are owed a little wait for each other and share a slow round. The
      sum in second place stands for the randomness of the times: of two equally fast sets by
      means the one with the faster others is faster.
    - Each queue has its own weight, by which an arm that is owed d rounds is worth a round of its
      own pace. With one weight for all (beta), a very slow arm would set the scale of all others.
    - Arms that are owed more than d rounds go first. Shares keep within d rounds of the floors
      where that is feasible, from the beginning on.

    An arm with a floor is tried at once; the others as in the policy without floors.

    For channels, a round is the end of one piece of work, and the floors c are shares of these:
    their sum is at most 1. :meth:`ask` selects the idle arm with the smallest

        cost_k - v_k,

    v with d' = 2 in place of d: a slow arm holds up no other, it costs one channel for its time, so
    there is nothing for it to wait for. An arm at work is as good as served: let its *net* debt be
    D_k - 1, and that of any other arm D_k. While an arm that is there, idle or at work, has a net
    debt of d or more, only arms with as much are selected, and a channel without one stays free: no
    arm goes faster than those with floors can follow. For no other reason does a channel stay free
    beside an idle arm, and since arms are selected from d' on it is a rare one, unless an arm with
    a floor is so slow that it works without a break. Let K_f be the number of arms with floors.
    Where the floors are feasible, the debt of an arm that has been there all the time stays below

        d + K_f + N.

    Proof: let D' be the net debts and F = sum over k of max(D'_k - d + 1, 0). Each D' falls by 1
    when its arm is selected, and grows by c_k when any work ends. Before the first end at which an
    arm comes to have D' >= d all others had less, so F < K_f + sum c_k <= K_f + 1 after it. From
    then on until no arm has as much, all that is selected has D' >= d: F falls by 1 with each
    selection and grows by at most 1 with each end. There is an end for each selection, and for the
    work begun before, of at most N - 1 arms. So F < K_f + N, and D_k <= D'_k + 1 <= d + F.

    Parameters
    ----------
    min_participation : (num_arms,) array-like of float, in [0, 1), optional
        Least fraction of rounds in which each arm is to be selected, c; 0 if left out.
    **parameters
        Those of :class:`.SchedulingPolicy`.

    Attributes
    ----------
    virtual_queue : (*batch, num_arms) float64, >= 0
        Debt D that the next round uses [rounds].

    Raises
    ------
    ConfigError
        If a parameter has the wrong type, length or range.
    """

    name: ClassVar[str] = "cs-ucb-q-adaptive"
    _per_arm: ClassVar[Mapping[str, float]] = {**CsUcbAdaptive._per_arm, **QueuePolicy._per_arm}

    @property
    def _patience(self) -> float:
        """Rounds, or updates, that an arm may be owed before it goes first."""
        return _CHANNEL_PATIENCE if self.channels else _PATIENCE

    def _select(self, context: RoundContext) -> BoolArray:
        if self.num_arms <= self._num_asked:
            return context.available.copy()
        cost = self.cost_s(context.round)
        untried = self._untried()
        value = self._value(cost, untried)
        if untried.any():
            value[untried] = self._untried_values(context.round)[untried]
            cost[untried] = 0.0
        again = self._tried_again(context)
        value[again] += self._beyond_all()
        if self.channels:
            return top_arms((value - cost,), self._selectable(context), 1, self._rng)
        return cheapest_set(
            cost, value, context.available, self.num_selected, self._rng, sum_weight=_SUM_WEIGHT
        )

    def _selectable(self, context: RoundContext) -> BoolArray:
        """Return the idle arms that a free channel may take, (*batch, num_arms) bool."""
        there = context.available if context.member is None else context.member
        at_work = there & ~context.available
        behind = self.virtual_queue - at_work >= _PATIENCE
        any_behind = (behind & there).any(axis=-1, keepdims=True)
        return np.asarray(context.available & (behind | ~any_behind))

    def _owed(self) -> BoolArray:
        """Return the arms that go before all others."""
        return np.asarray(self.virtual_queue >= self._patience)

    def _explain(self, selection: Selection) -> Explanation:
        mean, expected, cost = self._costs_s(selection.round)
        untried = self._untried()
        values = self._values(cost, untried)
        again = self._tried_again(selection.context)
        any_untried = bool(untried.any())
        if any_untried:
            for value in values.values():
                value[untried] = 0.0
            for each in (mean, expected, cost):
                each[untried] = 0.0
        # In rounds the first part is what a mean time adds to the round, which is no mean.
        name = "mean" if self.channels else "time"
        costs = {name: mean, "failures": expected, "bonus": cost}
        if self.channels:  # one arm, whose own cost alone counts
            nothing = np.zeros_like(selection.mask)
            explanation = replace(
                explain_cheapest_set(costs, values, nothing, unit="s", sum_weight=1.0),
                tie_break=None,
            )
        else:
            explanation = explain_cheapest_set(
                costs, values, selection.mask, unit="s", sum_weight=_SUM_WEIGHT
            )
        bonus = explanation.parts["bonus"]
        if any_untried:
            bonus[untried] -= self._untried_values(selection.round)[untried]
        bonus[again] -= self._beyond_all()
        return explanation

    def _untried_values(self, round: int) -> FloatArray:
        """Return what selecting each arm would be worth if it were untried: most, or least."""
        tried_now = self._worth_trying(round)[..., np.newaxis] | (self._min_participation > 0)
        beyond_all = self._beyond_all()
        return np.asarray(np.where(tried_now, beyond_all, -beyond_all))

    def _beyond_all(self) -> float:
        """Return what is worth more than anything else [s]."""
        longest_s = self.mean_time_s().max(initial=self.tau_max_s)
        most_owed = self.virtual_queue.max(initial=0.0)
        return float((self.num_arms + 1) * longest_s * (1.0 + most_owed))

    def _tried_again(self, context: RoundContext) -> BoolArray:
        """Return the arms that go before all others since they were played once.

        Arms with floors come to their second trial anyway, and those that are owed much go first.
        """
        again = super()._tried_again(context)
        if again.any():
            owed = (self._owed() & context.available).any(axis=-1, keepdims=True)
            again &= ~owed & np.asarray(self._min_participation == 0.0)
        return again

    def _value(self, cost: FloatArray, untried: BoolArray) -> FloatArray:
        """Return what selecting each arm is worth, v [s]."""
        return np.asarray(sum(self._values(cost, untried).values()))

    def _values(self, cost: FloatArray, untried: BoolArray) -> dict[str, FloatArray]:
        """Return what selecting each arm is worth [s], in parts."""
        if not self.num_arms:
            return {"queue": np.zeros(self.shape)}
        known = np.sort(np.where(untried, np.inf, cost), axis=-1)
        count = np.maximum(np.count_nonzero(~untried, axis=-1), 1)[..., np.newaxis]
        fast = np.take_along_axis(known, np.minimum(self.num_selected, count) - 1, axis=-1)
        slow = np.take_along_axis(known, count - 1, axis=-1)
        fast, slow = (np.where(np.isfinite(each), each, 0.0) for each in (fast, slow))
        least = _LEAST_SCALE * fast
        preferences = self._preferences(fast)
        most = slow - fast + least  # what could speak against an arm
        for each in preferences.values():
            most = most + np.ptp(each, axis=-1, keepdims=True)
        value = np.maximum(cost - fast, least)
        value *= self.virtual_queue / self._patience
        value += np.maximum(self.virtual_queue - self._patience, 0.0) * most
        return {"queue": value, **preferences}

    def _preferences(self, fast: FloatArray) -> dict[str, FloatArray]:
        """Return what else makes an arm worth selecting [s]; of this policy nothing.

        Parameters
        ----------
        fast : (*batch, 1) float64
            The N-th smallest cost, g [s].
        """
        return {}


SPEC: Final = PolicySpec.of(
    CsUcbQAdaptive,
    summary="as cs-ucb-adaptive, and keeps participation floors, slow clients in company",
)
