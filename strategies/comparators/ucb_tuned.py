"""UCB-Tuned: a confidence bound as wide as the rewards of an arm vary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np

from ..base import BoolArray, Explanation, FloatArray, RoundContext, RoundOutcome, Selection
from ..policies.cs_ucb import UcbPolicy
from ..policy_spec import PolicySpec
from ..selection import top_arms
from .common import flat, rewards


class UcbTuned(UcbPolicy):
    """UCB-Tuned of Auer, Cesa-Bianchi and Fischer.

    "Finite-time Analysis of the Multiarmed Bandit Problem", Machine Learning 47, 2002, section 4.
    Selects the N available arms with the largest

        y_k + sqrt((ln t / z_k) min(1/4, V_k)),    V_k = s_k - y_k^2 + sqrt(2 ln t / z_k),

    with s the mean of the squared rewards; ``+inf`` for an arm that was never played. The paper
    plays one arm at a time, and its n counts plays; with N at a time we take the round t, as
    CS-UCB does.

    Parameters
    ----------
    **parameters
        Those of :class:`.SchedulingPolicy`.

    Attributes
    ----------
    mean_square : (*batch, num_arms) float64
        Mean squared reward s, in [0, 1].
    """

    name: ClassVar[str] = "ucb-tuned"
    _per_arm: ClassVar[Mapping[str, float]] = {**UcbPolicy._per_arm, "mean_square": 0.0}

    def __init__(self, **parameters: Any) -> None:
        super().__init__(**parameters)
        self.mean_square: FloatArray = np.zeros(self.shape)

    def tuned_index(self, round: int) -> FloatArray:
        """Compute the index of every arm for a round t >= 1, ``+inf`` if never played."""
        index = self._tuned_bonus(round)
        index += self.mean_reward
        return index

    def _tuned_bonus(self, round: int) -> FloatArray:
        """Compute what the index adds to the mean reward."""
        if round == 1:  # ln 1 = 0, but nothing was played before round 1
            return np.full(self.shape, np.inf)
        root = math.sqrt(math.log(round))
        variance = self._inverse_root_count * (math.sqrt(2.0) * root)
        variance += self.mean_square
        variance -= self.mean_reward**2
        # Rounding may leave a variance a little below 0.
        bonus = np.sqrt(np.clip(variance, 0.0, 0.25, out=variance), out=variance)
        bonus *= root
        # An inverse root is +inf for an arm never played, and its variance 1/4.
        bonus *= self._inverse_root_count
        return bonus

    def _select(self, context: RoundContext) -> BoolArray:
        index = self.tuned_index(context.round)
        return top_arms(
            (index,), context.available, self.num_selected, self._rng, scratch=self._scratch
        )

    def _explain(self, selection: Selection) -> Explanation:
        parts = {"mean": self.mean_reward.copy(), "bonus": self._tuned_bonus(selection.round)}
        return Explanation("largest", "", parts)

    def _learn(self, selection: Selection, outcome: RoundOutcome) -> None:
        super()._learn(selection, outcome)
        arms = selection.positions
        mean = self.mean_square.take(arms)
        mean += (rewards(self, selection, outcome) ** 2 - mean) / self.play_count.take(arms)
        flat(self.mean_square)[arms] = mean


SPEC: Final = PolicySpec.of(
    UcbTuned, summary="UCB with a bonus by each client's variance (Auer et al., 2002)"
)
