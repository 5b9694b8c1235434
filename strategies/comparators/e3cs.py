"""E3CS: exponential weights, with a least probability for each arm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from flower_scheduling.errors import ConfigError

from ..base import (
    BoolArray,
    Explanation,
    FloatArray,
    IntArray,
    RoundContext,
    RoundOutcome,
    Selection,
    check_real,
)
from ..floors import FloorPolicy
from ..policy_spec import PolicySpec
from .common import draw, rewards

_Allocation: TypeAlias = tuple[FloatArray, BoolArray, FloatArray]


class E3cs(FloorPolicy):
    """E3CS of Huang, Lin, Shen, Li and Zomaya.

    "Stochastic Client Selection for Federated Learning With Volatile Clients", IEEE Internet of
    Things Journal 9(20), 2022 (arXiv:2011.08756), Algorithms 1 and 2. Arm k is selected with
    probability

        p_k = c_k + (N - sum of c) w_k / sum of w,

    where an arm for which that exceeds 1 is capped at 1 and what it leaves goes to the others;
    such arms are the overflow set. Arms that are not in it learn

        w_k <- w_k exp((N - sum of c) eta x_k / K),    x_k = b_k (1 if k succeeded, else 0) / p_k.

    Where the paper leaves something open, or the seam wants more:

    - Its quota sigma is the same for all arms; ours may differ. With c_k = phi N / K for all arms
      it is the paper's E3CS-phi, and without floors its E3CS-0.
    - It draws from a multinomial distribution without replacement, whose probabilities are only
      near p. Systematic sampling in random order (Madow 1949) has exactly the probabilities p
      that the estimate x divides by.
    - With unavailable arms all of it is for the available: K and the sums are theirs, N is
      min(N, abs(A(t))), and floors that sum to more than N shrink in proportion. A floor is thus
      a share of the rounds in which an arm is available.
    - Weights are kept as logarithms and scaled to a mean of 1, which changes no probability; an
      arm that joins has weight 1, the mean.

    Parameters
    ----------
    learning_rate : float, > 0
        eta; the paper's 0.5.
    graded : bool
        True learns from the reward in [0, 1] in place of success, so that fast arms are
        preferred: the algorithm of the paper on another quantity. False is the paper.
    min_participation : (num_arms,) array-like of float, in [0, 1), optional
        Least probability of each arm, c; 0 if left out.
    **parameters
        Those of :class:`.SchedulingPolicy`.

    Attributes
    ----------
    log_weight : (*batch, num_arms) float64
        ln w.

    Raises
    ------
    ConfigError
        If a parameter has the wrong type, length or range.
    """

    name: ClassVar[str] = "e3cs"
    _per_arm: ClassVar[Mapping[str, float]] = {**FloorPolicy._per_arm, "log_weight": 0.0}
    _settings: ClassVar[tuple[str, ...]] = (*FloorPolicy._settings, "learning_rate", "graded")

    def __init__(
        self,
        *,
        learning_rate: float = 0.5,
        graded: bool = False,
        min_participation: ArrayLike | None = None,
        **parameters: Any,
    ) -> None:
        super().__init__(min_participation=min_participation, **parameters)
        self.learning_rate = check_real("learning_rate", learning_rate, above=0.0)
        if not isinstance(graded, bool):
            raise ConfigError("graded", graded, "must be true or false")
        self.graded = graded
        self.log_weight: FloatArray = np.zeros(self.shape)
        # Allocation of the last question, for the outcome of the same round.
        self._asked: tuple[RoundContext, _Allocation] | None = None

    def probabilities(self, available: BoolArray) -> _Allocation:
        """Compute the probability of every arm.

        Parameters
        ----------
        available : (*batch, num_arms) bool
            Arms that may be selected.

        Returns
        -------
        probability : (*batch, num_arms) float64, in [0, 1]
            p; each row sums to min(N, number of available arms).
        overflow : (*batch, num_arms) bool
            Arms whose probability was capped.
        spare : (*batch,) float64, >= 0
            N - sum of c, the places that the weights share out.
        """
        places = np.minimum(np.count_nonzero(available, axis=-1), self.num_selected)
        floors, asked = self._floors(available, places)
        spare = np.maximum(places - asked, 0.0)

        all_fit = np.count_nonzero(available, axis=-1) <= self.num_selected
        overflow = available & all_fit[..., np.newaxis]
        while True:
            free = available & ~overflow
            # Scaled by the arms that are not capped: the others may be beyond all measure.
            log_weight = np.where(free, self.log_weight, -np.inf)
            largest = log_weight.max(axis=-1, initial=-1e300, keepdims=True)
            share = np.exp(log_weight - largest)
            share /= np.maximum(share.sum(axis=-1, keepdims=True), 1e-300)
            left = places - np.count_nonzero(overflow, axis=-1) - (floors * free).sum(axis=-1)
            share *= np.maximum(left, 0.0)[..., np.newaxis]
            probability = np.where(free, floors + share, overflow)
            beyond = probability > 1.0
            if not beyond.any():
                return probability, overflow, spare
            overflow |= beyond

    def _floors(self, available: BoolArray, places: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the floors that fit the places, and what all floors ask for, (*batch,)."""
        floors = self._min_participation * available
        asked = floors.sum(axis=-1)
        scale = np.minimum(places / np.maximum(asked, 1e-300), 1.0)
        floors *= scale[..., np.newaxis]
        return floors, np.asarray(asked)

    def _select(self, context: RoundContext) -> BoolArray:
        available = context.available
        if self.num_arms <= self.num_selected:
            return available.copy()
        self._asked = context, self.probabilities(available)
        return draw(self._asked[1][0], available, self.num_selected, self._rng)

    def _explain(self, selection: Selection) -> Explanation:
        available = selection.context.available
        places = np.minimum(np.count_nonzero(available, axis=-1), self.num_selected)
        floor, _ = self._floors(available, places)
        weight = self._allocation(selection.context)[0] - floor
        return Explanation("drawn", "", {"floor": floor, "weight": weight})

    def _allocation(self, context: RoundContext) -> _Allocation:
        if self._asked is not None and self._asked[0] is context:
            return self._asked[1]
        return self.probabilities(context.available)

    def _learn(self, selection: Selection, outcome: RoundOutcome) -> None:
        available = selection.context.available
        probability, overflow, spare = self._allocation(selection.context)
        self._asked = None
        gain = np.zeros(self.shape)
        arms = selection.positions
        gain.reshape(-1)[arms] = (
            rewards(self, selection, outcome) if self.graded else outcome.completed.take(arms)
        )
        learning = selection.mask & ~overflow & (probability > 0.0)
        gain /= np.where(learning, probability, 1.0)
        factor = spare * self.learning_rate / np.maximum(np.count_nonzero(available, axis=-1), 1)
        self.log_weight += np.where(learning, gain * factor[..., np.newaxis], 0.0)
        if self.num_arms:
            largest = self.log_weight.max(axis=-1, keepdims=True)
            mean = np.exp(self.log_weight - largest).mean(axis=-1, keepdims=True)
            self.log_weight -= largest + np.log(mean)

    def _refresh(self, *, grown: bool) -> None:
        super()._refresh(grown=grown)
        self._asked = None


SPEC: Final = PolicySpec.of(
    E3cs,
    summary="exponential weights, keeps participation floors (Huang et al., 2022)",
    example=lambda num_arms, rng: {"graded": bool(rng.integers(2))},
)
