"""TSCSF-B: Thompson sampling with virtual queues."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from numpy.typing import ArrayLike

from ..base import BoolArray, Explanation, FloatArray, RoundContext, Selection, check_real
from ..floors import QueuePolicy
from ..policy_spec import PolicySpec
from ..selection import top_arms


class TscsfB(QueuePolicy):
    """TSCSF-B of Huang, Xu, Hu, Wang and Pan.

    "Thompson Sampling for Combinatorial Semi-bandits with Sleeping Arms and Long-Term Fairness
    Constraints", arXiv:2005.06725, 2020, Algorithm 1. Draws theta_k ~ Beta(a_k, b_k) for every
    arm and selects the N available arms with the largest

        Q_k + eta theta_k,    Q_k(t+1) = max(Q_k(t) + c_k - b_k(t), 0).

    The prior is Beta(1, 1). Rewards of the paper are 0 or 1; ours, in [0, 1], count as that part
    of a success: a = 1 + z y and b = 1 + z (1 - y). A coin with the reward as its probability,
    the usual way from Bernoulli to bounded rewards, has the same mean and would need random
    numbers for learning. Ours therefore samples a little less widely.

    Parameters
    ----------
    reward_weight : float, > 0
        eta; large favours rewards, small the floors. The paper compares several; the default
        corresponds to the ``beta`` = 0.001 of ``cs-ucb-q``.
    min_participation : (num_arms,) array-like of float, in [0, 1), optional
        Least fraction of rounds in which each arm is to be selected, c; 0 if left out.
    **parameters
        Those of :class:`.SchedulingPolicy`.

    Raises
    ------
    ConfigError
        If a parameter has the wrong type, length or range.
    """

    name: ClassVar[str] = "tscsf-b"
    _settings: ClassVar[tuple[str, ...]] = (*QueuePolicy._settings, "reward_weight")

    def __init__(
        self,
        *,
        reward_weight: float = 1000.0,
        min_participation: ArrayLike | None = None,
        **parameters: Any,
    ) -> None:
        super().__init__(min_participation=min_participation, **parameters)
        self.reward_weight = check_real("reward_weight", reward_weight, above=0.0)

    def _select(self, context: RoundContext) -> tuple[BoolArray, FloatArray]:
        successes = self.play_count * self.mean_reward
        score = self._rng.beta(1.0 + successes, 1.0 + self.play_count - successes)
        score *= self.reward_weight
        score += self.virtual_queue
        return top_arms((score,), context.available, self.num_selected, self._rng), score

    def _explain(self, selection: Selection) -> Explanation:
        queue = self.virtual_queue.copy()
        mean = (1.0 + self.play_count * self.mean_reward) / (2.0 + self.play_count)
        mean *= self.reward_weight
        draw = self._drawn(selection) - queue - mean
        return Explanation("largest", "", {"mean": mean, "draw": draw, "queue": queue})


SPEC: Final = PolicySpec.of(
    TscsfB, summary="Thompson sampling, keeps participation floors (Huang et al., 2020)"
)
