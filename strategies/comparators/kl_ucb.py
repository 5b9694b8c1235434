"""KL-UCB: the confidence bound of Bernoulli rewards."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final

import numpy as np

from ..base import (
    BoolArray,
    Explanation,
    FloatArray,
    RoundContext,
    SchedulingPolicy,
    Selection,
    check_real,
)
from ..policy_spec import PolicySpec
from ..selection import top_arms

_STEPS: Final = 60
_PRECISION: Final = 1e-13
_TINY: Final = float(np.finfo(np.float64).tiny)
_LARGEST: Final = float(np.finfo(np.float64).max)


class KlUcb(SchedulingPolicy):
    """KL-UCB of Garivier and Cappe.

    "The KL-UCB Algorithm for Bounded Stochastic Bandits and Beyond", COLT 2011, Algorithm 1.
    Selects the N available arms with the largest

        max { q in [0, 1] : z_k d(y_k, q) <= ln t + c ln ln t },

    d(p, q) = p ln(p / q) + (1 - p) ln((1 - p) / (1 - q)); untried arms first. The bound holds for
    all rewards in [0, 1], not only for Bernoulli ones.

    Where few plays were made, q lies so close to 1 that many arms would tie in double precision.
    They are compared by -ln(1 - q), which orders them alike and tells them apart.

    Parameters
    ----------
    exploration : float, >= 0
        c. The paper proves its bound for 3 and recommends 0 in practice.
    **parameters
        Those of :class:`.SchedulingPolicy`.

    Raises
    ------
    ConfigError
        If a parameter has the wrong type or is out of range.
    """

    name: ClassVar[str] = "kl-ucb"
    _settings: ClassVar[tuple[str, ...]] = (*SchedulingPolicy._settings, "exploration")

    def __init__(self, *, exploration: float = 0.0, **parameters: Any) -> None:
        super().__init__(**parameters)
        self.exploration = check_real("exploration", exploration, at_least=0.0)

    def kl_index(self, round: int) -> FloatArray:
        """Compute -ln(1 - q) of every arm for a round t >= 1, ``+inf`` if never played."""
        if round == 1:
            return np.full(self.shape, np.inf)
        log = math.log(round)
        log = max(log + self.exploration * math.log(log), 0.0)
        index = upper_bound(self.mean_reward, log / np.maximum(self.play_count, 1))
        index = np.minimum(index, _LARGEST)  # a mean of 1 does not come before an untried arm
        index[self.play_count == 0] = np.inf
        return index

    def _select(self, context: RoundContext) -> BoolArray:
        index = self.kl_index(context.round)
        return top_arms((index,), context.available, self.num_selected, self._rng)

    def _explain(self, selection: Selection) -> Explanation:
        with np.errstate(divide="ignore"):  # ln 0
            mean = np.minimum(0.0 - np.log1p(-self.mean_reward), _LARGEST)
        bonus = self.kl_index(selection.round) - mean
        return Explanation("largest", "", {"mean": mean, "bonus": bonus})


def upper_bound(mean: FloatArray, bound: FloatArray) -> FloatArray:
    """Invert the Bernoulli divergence: the largest q >= p with d(p, q) <= bound.

    Newton's method for s = -ln(1 - q). There d is convex and nearly linear far from p, and every
    step from the right of the root stays right of it. It starts from the smaller of two upper
    bounds: Pinsker's, p + sqrt(bound / 2), and the root of the asymptote.

    Parameters
    ----------
    mean : array of float64, in [0, 1]
        p.
    bound : array of float64, >= 0
        Of the same shape.

    Returns
    -------
    array of float64, >= 0
        -ln(1 - q), ``+inf`` for p = 1.
    """
    certain = mean >= 1.0
    p = np.where(certain, 0.5, mean)
    rest = 1.0 - p
    least = -np.log1p(-p)  # q = p
    entropy = p * np.log(np.maximum(p, _TINY)) - rest * least
    s = (bound - entropy) / rest
    pinsker = p + np.sqrt(0.5 * bound)
    inside = pinsker < 1.0
    s = np.where(inside, np.minimum(s, -np.log1p(-np.where(inside, pinsker, 0.0))), s)
    s = np.maximum(s, least)
    for _ in range(_STEPS):
        q = np.maximum(-np.expm1(-s), _TINY)
        excess = entropy - p * np.log(q) + rest * s - bound
        slope = np.maximum((q - p) / q, _TINY)
        before, s = s, np.maximum(s - np.maximum(excess, 0.0) / slope, least)
        if (before - s <= _PRECISION * before).all():
            break
    return np.where(certain, np.inf, s)


SPEC: Final = PolicySpec.of(KlUcb, summary="UCB by Bernoulli divergence (Garivier and Cappé, 2011)")
