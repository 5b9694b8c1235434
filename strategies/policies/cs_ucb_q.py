"""CS-UCB-Q, Algorithm 2 of the paper: fast arms, and a guaranteed share for each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from flower_scheduling.errors import ConfigError

from ..base import BoolArray, Explanation, FloatArray, RoundContext, Selection, check_real
from ..floors import QueuePolicy
from ..policy_spec import PolicySpec
from ..selection import top_arms
from .cs_ucb import UcbPolicy


class CsUcbQ(QueuePolicy, UcbPolicy):
    """CS-UCB-Q, Algorithm 2 of Xia et al.

    In round t it selects the min(N, abs(A(t))) available arms with the largest

        (1 - beta) u_k(t) + beta D_k(t),    u_k(t) = min(y_k + sqrt(2 ln t / z_k), 1),

    u = 1 while an arm was never played, and D the virtual queues, which start at 0. The paper
    allows any maximiser. At its settings u is 1 for every arm for thousands of rounds, so that
    ties are the rule; ours are broken by the index before truncation, which still tells fast arms
    from slow ones, and what is still tied at random.

    Parameters
    ----------
    beta : float, in [0, 1]
        Weight of the queues: small favours speed, large favours the shares.
    min_participation : (num_arms,) array-like of float, in [0, 1), optional
        Least fraction of rounds in which each arm is to be selected, c; 0 if left out.
    truncate : bool
        False leaves out the truncation to 1, so that speed always counts. An arm that was never
        played then scores ``+inf``, whatever ``beta``.
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

    name: ClassVar[str] = "cs-ucb-q"
    _per_arm: ClassVar[Mapping[str, float]] = {**UcbPolicy._per_arm, **QueuePolicy._per_arm}
    _settings: ClassVar[tuple[str, ...]] = (*UcbPolicy._settings, "beta", "truncate")

    def __init__(
        self,
        *,
        beta: float = 1e-3,
        min_participation: ArrayLike | None = None,
        truncate: bool = True,
        **parameters: Any,
    ) -> None:
        super().__init__(min_participation=min_participation, **parameters)
        self.beta = check_real("beta", beta, at_least=0.0, at_most=1.0)
        if not isinstance(truncate, bool):
            raise ConfigError("truncate", truncate, "must be true or false")
        self.truncate = truncate
        self._score: FloatArray = np.empty(self.shape)

    def _select(self, context: RoundContext) -> BoolArray:
        index = self.ucb_index(context.round, 2.0)
        score = self._speed_score(index, self._score)
        score += np.multiply(self.virtual_queue, self.beta, out=self._scratch)
        return top_arms(
            (score, index),
            context.available,
            self.num_selected,
            self._rng,
            scratch=self._scratch,
        )

    def _explain(self, selection: Selection) -> Explanation:
        index = self.ucb_index(selection.round, 2.0).copy()
        mean = self._speed_weight * self.mean_reward
        bonus = self._speed_score(index, np.empty(self.shape))
        bonus -= mean
        parts = {"mean": mean, "bonus": bonus, "queue": self.beta * self.virtual_queue}
        return Explanation("largest", "", parts, tie_break=index)

    @property
    def _speed_weight(self) -> float:
        weight = 1.0 - self.beta
        # At beta = 1, 0 * inf would be NaN.
        return weight if self.truncate else weight or math.ulp(0.0)

    def _speed_score(self, index: FloatArray, out: FloatArray) -> FloatArray:
        """Compute the score without the queues."""
        if self.truncate:
            np.minimum(index, 1.0, out=out)
            out *= self._speed_weight
        else:
            np.multiply(index, self._speed_weight, out=out)
        return out

    def _refresh(self, *, grown: bool) -> None:
        super()._refresh(grown=grown)
        self._score = np.empty(self.shape)


def _any_queue_weight(num_arms: int, rng: np.random.Generator) -> Mapping[str, Any]:
    beta = float(rng.choice([0.0, 1e-3, 0.3, 1.0]))
    return {"beta": beta, "truncate": bool(rng.integers(2))}


SPEC: Final = PolicySpec.of(
    CsUcbQ,
    summary="learns which clients are fast, keeps participation floors (the paper's Algorithm 2)",
    example=_any_queue_weight,
)
