"""DelayHetSampling: clients drawn so that the model soon gets where the mean update leads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np

from flower_scheduling.errors import ConfigError

from ..base import (
    BoolArray,
    Explanation,
    FloatArray,
    IntArray,
    RoundContext,
    RoundOutcome,
    SchedulingPolicy,
    Selection,
    check_real,
)
from ..policy_spec import PolicySpec
from ..update_sketch import SKETCH_SIZE
from .common import draw

_INTERVAL: Final = 10
"""Rounds after which the odds are computed anew, if no client was tried for the first time."""
_NUM_DESCENTS: Final = 60
"""Most steps of one computation, which begins where the last one ended."""
_STEPS: Final = 0.5 ** np.arange(13.0)
"""Parts of the way in a direction that are tried."""
_LEAST_GAIN: Final = 1e-9
_LEAST_MEAN: Final = 1e-6
"""Square of the mean update that others are compared with, in units of their variance."""
_TINY: Final = 1e-300
"""What is divided by is at least this."""
_LEAST_ODDS: Final = 1e-12
"""Of a client without odds, beside which others are away."""


class DelayHet(SchedulingPolicy):
    """DelayHetSampling of Vardhan, Yu, Rosing and Mazumdar.

    "Client Selection in Federated Learning with Data Heterogeneity and Network Latencies", 2025
    (arXiv:2504.01921), Algorithm 3; after the abstract and a public reproduction, the text of the
    paper not being at hand. Clients are drawn by odds p, which minimise the theoretical runtime,

        D(p) / (1 - B(p)),    D(p) = sum over i of (P_i^N - P_(i-1)^N) tau_(i),

    where D is the expected time of the slowest of N clients drawn with replacement, tau_(i) the
    i-th shortest expected time, and P_i the sum of the odds of the i fastest. B says how far the
    mean of the drawn clients' gradients is from the mean of all m, in units of the latter; where it
    is 1 or more, a step may lead nowhere. The paper bounds it by pairs,

        B(p) = 2 (p^T W 1 / m + p^T W p / N),    W_ij = B_ij^2,

    where the gradients of i and j differ by at most B_ij times the mean gradient.

    Different here:

    - No client shows its data to the server, so that B_ij has to be measured, by updates: g_i is
      the sketch of the last update of client i, and W_ij = abs(g_i - g_j)^2 / abs(g)^2, g their
      mean. Clients whose updates are not known count as g.
    - By default B is what the bound by pairs bounds, which can be computed where updates are known,

          B(p) = (abs(sum of p_i g_i - g)^2 + v(p) / N) / abs(g)^2,

      with v the variance of g_i under p. ``pairwise=True`` is the bound. The reason: if odds move
      from one client to another, D and the bound are both concave, so that by the bound it is best
      to draw as few clients as possible, fast ones that are like most, and never any others.
    - Updates are not gradients but sums of noisy steps. They differ by far more than their mean is
      long, and B would be above 1 for all odds. So v, which averages out over the rounds, as the
      distance of the expected update from g does not, is scaled down where B is above
      ``heterogeneity`` for equal odds, until it is that; in the bound by pairs it is W. This is our
      reading: absolute constants are not known to a server.
    - A round is of N different clients. Odds are therefore at most 1/N, and a client is in a round
      with probability N p; updates weigh as they always do. Of clients that are away, the odds go
      to the others in proportion, and what these cannot take to clients without odds.
    - Times are means of the measured ones, a failure has the time tau_max. Clients that were never
      tried come first, N at a time, drawn uniformly.
    - The odds are computed after rounds in which a client was tried for the first time, and every
      10 rounds, by descent from the last ones; the objective has local minima.

    Parameters
    ----------
    heterogeneity : float, in (0, 1)
        Most that B is for equal odds. The larger, the more the scatter of the drawn updates counts
        beside their mean.
    pairwise : bool
        Whether B is the paper's bound by pairs.
    **parameters
        Those of :class:`.SchedulingPolicy`.

    Attributes
    ----------
    odds : (*batch, num_arms) float64, in [0, 1]
        p; they sum to 1, or are all 0 before the first round.
    sketch : (*batch, SKETCH_SIZE, num_arms) float64
        g, ``-inf`` where it is not known.

    Raises
    ------
    ConfigError
        If a parameter has the wrong type or is out of range.
    """

    name: ClassVar[str] = "delay-het"
    needs_updates: ClassVar[bool] = True
    _per_arm: ClassVar[Mapping[str, float]] = {
        **SchedulingPolicy._per_arm,
        "odds": 0.0,
        "sketch": -np.inf,
    }
    _settings: ClassVar[tuple[str, ...]] = (
        *SchedulingPolicy._settings,
        *("heterogeneity", "pairwise"),
    )

    def __init__(
        self, *, heterogeneity: float = 0.5, pairwise: bool = False, **parameters: Any
    ) -> None:
        super().__init__(**parameters)
        self.heterogeneity = check_real("heterogeneity", heterogeneity, above=0.0)
        if self.heterogeneity >= 1.0:
            raise ConfigError("heterogeneity", heterogeneity, "must be a number below 1")
        if not isinstance(pairwise, bool):
            raise ConfigError("pairwise", pairwise, "must be true or false")
        self.pairwise = pairwise
        self.odds: FloatArray = np.zeros(self.shape)
        self.sketch: FloatArray = np.full((*self.batch_shape, SKETCH_SIZE, self.num_arms), -np.inf)

    def probability(self, available: BoolArray) -> FloatArray:
        """Compute the probability of each arm to be selected, (*batch, num_arms)."""
        new = available & (self.play_count == 0)
        places = np.minimum(np.count_nonzero(available, axis=-1, keepdims=True), self.num_selected)
        num_new = np.count_nonzero(new, axis=-1, keepdims=True)
        explored = np.minimum(places, num_new)
        chance = np.where(new, explored / np.maximum(num_new, 1), 0.0)
        tried = available & ~new
        weight = np.where(tried, np.maximum(self.odds, _LEAST_ODDS), 0.0)
        return chance + _in_proportion(weight, tried, places - explored)

    def _select(self, context: RoundContext) -> BoolArray:
        if self.num_arms <= self.num_selected:
            return context.available.copy()
        available = context.available
        return draw(self.probability(available), available, self.num_selected, self._rng)

    def _explain(self, selection: Selection) -> Explanation:
        return Explanation("drawn", "", {"weight": self.probability(selection.context.available)})

    def _learn(self, selection: Selection, outcome: RoundOutcome) -> None:
        if not self.num_arms:
            return
        if outcome.update_sketch is not None:
            known = selection.mask & np.isfinite(outcome.update_sketch).all(axis=-1)
            np.moveaxis(self.sketch, -2, -1)[known] = outcome.update_sketch[known]
        anew = (selection.mask & (self.play_count == 1)).any(axis=-1).reshape(-1)
        anew |= selection.round // _INTERVAL > self.last_round // _INTERVAL
        odds, tried, slowness = (
            array.reshape(-1, self.num_arms)
            for array in (self.odds, self.play_count > 0, 1.0 - self.mean_reward)
        )
        sketch = self.sketch.reshape(-1, SKETCH_SIZE, self.num_arms)
        for row in np.flatnonzero(anew & tried.any(axis=-1)).tolist():
            arms = np.flatnonzero(tried[row])
            runtime = _Runtime(
                slowness[row, arms],
                sketch[row][:, arms],
                num_drawn=self.num_selected,
                most=self.heterogeneity,
                pairwise=self.pairwise,
            )
            odds[row, arms] = runtime.least(odds[row, arms])


class _Runtime:
    """Theoretical runtime of odds.

    Parameters
    ----------
    time : (m,) float64, >= 0
        Expected time of each client, in any unit.
    sketch : (size, m) float64
        Of their updates, not finite where it is not known.
    num_drawn : int
        N.
    most : float
        Largest B of equal odds.
    pairwise : bool
        Whether B is the bound by pairs.
    """

    def __init__(
        self, time: FloatArray, sketch: FloatArray, *, num_drawn: int, most: float, pairwise: bool
    ) -> None:
        self._order = np.argsort(time, kind="stable")
        in_order = time[self._order]
        self._slowest = in_order[-1]
        self._gaps = np.diff(in_order, append=in_order[-1])
        self._num_drawn = num_drawn

        known = np.isfinite(sketch).all(axis=0)
        mean = sketch[:, known].sum(axis=1) / max(int(np.count_nonzero(known)), 1)
        self._apart = np.where(known, sketch - mean[:, np.newaxis], 0.0)
        self._square = np.einsum("si,si->i", self._apart, self._apart)
        # With d_i = g_i - g and off = sum of p_i d_i, the variance is v = sum of p_i |d_i|^2 -
        # |off|^2, p^T W p = 2 v, and p^T W 1 / m = sum of p_i |d_i|^2 + spread. So B consists of
        # |off|^2, sum of p_i |d_i|^2 and a constant, each with its factor.
        spread = float(self._square.mean())
        unit = 1.0 / max(float(mean @ mean), _LEAST_MEAN * spread, _TINY)
        if pairwise:
            of_equal = 4.0 * (1.0 + 1.0 / num_drawn) * spread
            unit = min(unit, most / max(of_equal, _TINY))
            of_variance = 4.0 * unit / num_drawn
            self._factors = (-of_variance, 2.0 * unit + of_variance, 2.0 * unit * spread)
        else:
            of_variance = min(unit / num_drawn, most / max(spread, _TINY))
            self._factors = (unit - of_variance, of_variance, 0.0)

    def least(self, odds: FloatArray) -> FloatArray:
        """Return odds of the least runtime that descent finds, (m,).

        Parameters
        ----------
        odds : (m,) float64
            Where it begins, unless equal odds or those of the fastest are better.
        """
        most = 1.0 / self._num_drawn
        if odds.size <= self._num_drawn:
            return self._equal()
        fastest = np.zeros(odds.size)
        fastest[self._order[: self._num_drawn]] = most
        begins = np.stack([self._equal(), odds if odds.any() else fastest, fastest])
        values = self.of(begins)
        best, value = begins[values.argmin()], float(values.min())
        for _ in range(_NUM_DESCENTS):
            directions = self._directions(best, self._gradient(best, value), most)
            tried = (best + _STEPS[:, np.newaxis, np.newaxis] * directions).reshape(-1, odds.size)
            values = self.of(tried)
            if not values.min() < value * (1.0 - _LEAST_GAIN):
                break
            best, value = np.clip(tried[values.argmin()], 0.0, most), float(values.min())
        return np.asarray(best / best.sum())

    def of(self, odds: FloatArray) -> FloatArray:
        """Return the runtime of each row of odds, (n, m): infinite where B is 1 or more."""
        below = odds[:, self._order].cumsum(axis=1) ** self._num_drawn
        left = 1.0 - self.distance(odds)
        time = self._slowest - below @ self._gaps
        return np.where(left > 0.0, time / np.maximum(left, _TINY), np.inf)

    def distance(self, odds: FloatArray) -> FloatArray:
        """Return B of each row of odds, (n,)."""
        off = odds @ self._apart.T
        of_off, of_square, least = self._factors
        scattered = of_square * (odds @ self._square) + least
        return np.asarray(of_off * np.einsum("ns,ns->n", off, off) + scattered)

    def _gradient(self, odds: FloatArray, value: float) -> FloatArray:
        """Return the gradient of the runtime, but for a positive factor, (m,)."""
        below = odds[self._order].cumsum()
        slope = self._num_drawn * below ** (self._num_drawn - 1) * self._gaps
        gradient = np.empty_like(odds)
        gradient[self._order] = -slope[::-1].cumsum()[::-1]
        of_off, of_square, _ = self._factors
        off = (odds @ self._apart.T) @ self._apart
        return np.asarray(gradient + value * (2.0 * of_off * off + of_square * self._square))

    def _directions(self, odds: FloatArray, gradient: FloatArray, most: float) -> FloatArray:
        """Return two directions of descent, (2, m).

        To the odds that are best where the runtime is as steep everywhere (Frank and Wolfe, 1956),
        and from the client whose odds cost most to the one whose odds gain most.
        """
        steepest = np.argsort(gradient, kind="stable")[: self._num_drawn]
        directions = np.zeros((2, odds.size))
        directions[0, steepest] = most
        directions[0] -= odds
        taker = np.where(odds < most, gradient, np.inf).argmin()
        giver = np.where(odds > 0.0, gradient, -np.inf).argmax()
        moved = min(most - odds[taker], odds[giver])
        directions[1, taker] += moved
        directions[1, giver] -= moved
        return directions

    def _equal(self) -> FloatArray:
        return np.full(self._order.size, 1.0 / self._order.size)


def _in_proportion(weight: FloatArray, among: BoolArray, places: IntArray) -> FloatArray:
    """Share out places by weight, at most one to each arm.

    Parameters
    ----------
    weight : (*batch, num_arms) float64
        Above 0 among the arms that may have some.
    among : (*batch, num_arms) bool
        These.
    places : (*batch, 1) int64
        How many, at most as many as these arms.
    """
    whole = np.zeros(among.shape, dtype=np.bool_)
    while True:
        free = np.where(among & ~whole, weight, 0.0)
        left = places - np.count_nonzero(whole, axis=-1, keepdims=True)
        share = free / np.maximum(free.sum(axis=-1, keepdims=True), _TINY) * left
        beyond = share > 1.0
        if not beyond.any():
            return np.where(whole, 1.0, share)
        whole |= beyond


def _any_bound(num_arms: int, rng: np.random.Generator) -> Mapping[str, Any]:
    return {"heterogeneity": float(rng.uniform(0.1, 0.9)), "pairwise": bool(rng.integers(2))}


SPEC: Final = PolicySpec.of(
    DelayHet,
    summary="odds by times and by how updates differ (Vardhan et al., 2025)",
    example=_any_bound,
)
