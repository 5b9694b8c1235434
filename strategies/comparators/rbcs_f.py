"""RBCS-F: the least estimated length of the round, against the debts of participation."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from ..base import BoolArray, Explanation, FloatArray, RoundContext, Selection, check_real
from ..floors import QueuePolicy
from ..policy_spec import PolicySpec
from ..selection import cheapest_set, explain_cheapest_set


class RbcsF(QueuePolicy):
    """RBCS-F of Huang, Lin, Wu, He, Li and Zomaya, without contexts.

    "An Efficiency-Boosting Client Selection Scheme for Federated Learning With Fairness
    Guarantee", IEEE TPDS 32(7), 2021 (arXiv:2011.01783), Algorithm 2. Selects the set S of
    min(N, abs(A(t))) available arms with the least

        V max over k in S of tau_k - sum over k in S of Z_k,
        Z_k(t+1) = max(Z_k(t) + c_k - b_k(t), 0),

    exactly, as the paper's Algorithm 1 does: for every arm that may be the slowest, the largest
    debts among those that are no slower. tau_k is the optimistic estimate of a ridge regression,

        tau_k = max(m_k - alpha sqrt(c' H_k^-1 c), 0),    m_k = c' H_k^-1 b_k.

    Its contexts c (the processor's load, whether the client took part in the last round, and the
    bandwidth) are what a device would report before each round. Here they are unknown; with the
    constant context c = 1 it is H_k = lambda + z_k, b_k the sum of the times of k, and

        tau_k = max(b_k / (lambda + z_k) - alpha / sqrt(lambda + z_k), 0).

    An arm that was never tried is expected to take no time. The paper has one guaranteed rate
    beta for all arms; ours may have one each.

    Parameters
    ----------
    time_weight : float, >= 0
        V [1/s]; large favours speed, small the floors. The paper compares several.
    exploration : float, >= 0
        alpha [s].
    ridge : float, > 0
        lambda.
    min_participation : (num_arms,) array-like of float, in [0, 1), optional
        Least fraction of rounds in which each arm is to be selected, c; 0 if left out.
    **parameters
        Those of :class:`.SchedulingPolicy`.

    Raises
    ------
    ConfigError
        If a parameter has the wrong type, length or range.
    """

    name: ClassVar[str] = "rbcs-f"
    _settings: ClassVar[tuple[str, ...]] = (
        *QueuePolicy._settings,
        *("time_weight", "exploration", "ridge"),
    )

    def __init__(
        self,
        *,
        time_weight: float = 20.0,
        exploration: float = 0.1,
        ridge: float = 1.0,
        min_participation: ArrayLike | None = None,
        **parameters: Any,
    ) -> None:
        super().__init__(min_participation=min_participation, **parameters)
        self.time_weight = check_real("time_weight", time_weight, at_least=0.0)
        self.exploration = check_real("exploration", exploration, at_least=0.0)
        self.ridge = check_real("ridge", ridge, above=0.0)

    def optimistic_time_s(self) -> FloatArray:
        """Compute the estimate tau of every arm [s], (*batch, num_arms)."""
        return self._times_s()[1]

    def _times_s(self) -> tuple[FloatArray, FloatArray]:
        """Return m and tau of every arm [s]."""
        weight = self.play_count + self.ridge
        mean_s = (1.0 - self.mean_reward) * self.play_count
        mean_s *= self.tau_max_s
        mean_s /= weight
        time_s = mean_s - self.exploration / np.sqrt(weight)
        return mean_s, np.maximum(time_s, 0.0, out=time_s)

    def _select(self, context: RoundContext) -> BoolArray:
        return cheapest_set(
            self.time_weight * self.optimistic_time_s(),
            self.virtual_queue,
            context.available,
            self.num_selected,
            self._rng,
        )

    def _explain(self, selection: Selection) -> Explanation:
        mean, optimistic = (self.time_weight * time_s for time_s in self._times_s())
        return explain_cheapest_set(
            {"time": mean, "bonus": optimistic},
            {"queue": self.virtual_queue},
            selection.mask,
            unit="",
        )


SPEC: Final = PolicySpec.of(
    RbcsF, summary="shortest estimated round, keeps participation floors (Huang et al., 2021)"
)
