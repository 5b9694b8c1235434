"""BSFL: the set with the fastest slowest arm, and equal shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np

from ..base import (
    BoolArray,
    Explanation,
    FloatArray,
    RoundContext,
    RoundOutcome,
    SchedulingPolicy,
    Selection,
    check_real,
)
from ..policy_spec import PolicySpec
from ..selection import cheapest_set, explain_cheapest_set
from .common import flat, times_s

_FIRST: Final = 1e6
"""Index of an arm that was never played, beyond that of any other."""
_LEAST_TIME: Final = 1e-9
"""Shortest time that is inverted, in units of tau_max."""


class Bsfl(SchedulingPolicy):
    """BSFL, Bandit Scheduling for FL, of Ben Ami, Cohen and Zhao.

    "Client Selection for Generalization in Accelerated Federated Learning: A Multi-Armed Bandit
    Approach", IEEE Access 13, 2025 (arXiv:2303.10373), section III. Once every arm was played,
    round t selects the set S of min(N, abs(A(t))) available arms with the largest

        min over k in S of u_k + (alpha / N) sum over k in S of g_k,
        u_k = m_k + sqrt((N + 1) ln(t - 1) / z_k),    m_k = mean of tau_min / tau_k,
        g_k = sign(d_k) abs(d_k)^beta,    d_k = N / K - z_k / (t - 1).

    - This is the form for independent and identically distributed data, in which every arm is to
      have the same share. The other weights shares by size and quality of the data, which a
      policy does not learn.
    - The paper searches for the set by simulated annealing; the largest value is found exactly
      here, since only the slowest arm of a set matters to the first term.
    - tau_min, the shortest time there can be, is known to the paper. Where it is not given, the
      shortest time seen so far stands in for it, also for times seen before.
    - A failure counts as tau_max.

    Parameters
    ----------
    generalization : float, >= 0
        alpha; 1 as in public reproductions of the paper.
    exponent : float, > 0
        beta; 5 as there: deviations of a share are ignored while small.
    tau_min_s : float, >= 0
        tau_min [s]; shorter times count as this. 0 if it is not known.
    **parameters
        Those of :class:`.SchedulingPolicy`.

    Attributes
    ----------
    mean_rate_hz : (*batch, num_arms) float64
        Mean of 1 / tau [1/s].
    least_time_s : (*batch,) float64
        Shortest time seen [s], ``+inf`` before the first.

    Raises
    ------
    ConfigError
        If a parameter has the wrong type or is out of range.
    """

    name: ClassVar[str] = "bsfl"
    _per_arm: ClassVar[Mapping[str, float]] = {**SchedulingPolicy._per_arm, "mean_rate_hz": 0.0}
    _per_row: ClassVar[tuple[str, ...]] = ("least_time_s",)
    _settings: ClassVar[tuple[str, ...]] = (
        *SchedulingPolicy._settings,
        *("generalization", "exponent", "tau_min_s"),
    )

    def __init__(
        self,
        *,
        generalization: float = 1.0,
        exponent: float = 5.0,
        tau_min_s: float = 0.0,
        **parameters: Any,
    ) -> None:
        super().__init__(**parameters)
        self.generalization = check_real("generalization", generalization, at_least=0.0)
        self.exponent = check_real("exponent", exponent, above=0.0)
        self.tau_min_s = check_real("tau_min_s", tau_min_s, at_least=0.0)
        self.mean_rate_hz: FloatArray = np.zeros(self.shape)
        self.least_time_s: FloatArray = np.full(self.batch_shape, np.inf)

    def ucb_index(self, round: int) -> FloatArray:
        """Compute u of every arm for a round t >= 1; a large number if never played."""
        plays = np.maximum(self.play_count, 1)
        index = np.sqrt((self.num_selected + 1) * math.log(max(round - 1, 1)) / plays)
        index += self._mean_rate()
        return np.where(self.play_count > 0, index, _FIRST)

    def _mean_rate(self) -> FloatArray:
        """Return m of every arm."""
        least_s = np.asarray(self.tau_min_s) if self.tau_min_s else self.least_time_s
        least_s = np.minimum(least_s, self.tau_max_s)  # before the first, it is infinite
        return self.mean_rate_hz * least_s[..., np.newaxis]

    def generalization_term(self, round: int) -> FloatArray:
        """Compute g of every arm for a round t >= 1."""
        due = self.num_selected / max(self.num_arms, 1) - self.play_count / max(round - 1, 1)
        return np.asarray(np.sign(due) * np.abs(due) ** self.exponent)

    def _select(self, context: RoundContext) -> BoolArray:
        value = self._value(context.round)
        # An arm that was never played has the largest index and the largest value: it comes first.
        index = self.ucb_index(context.round)
        return cheapest_set(-index, value, context.available, self.num_selected, self._rng)

    def _explain(self, selection: Selection) -> Explanation:
        played = self.play_count > 0
        cost = -self.ucb_index(selection.round)
        # An arm that was never played has no rate apart from its bonus.
        return explain_cheapest_set(
            {"time": np.where(played, -self._mean_rate(), cost), "bonus": cost},
            {"queue": self._value(selection.round)},
            selection.mask,
            unit="",
        )

    def _value(self, round: int) -> FloatArray:
        value = self.generalization_term(round)
        value *= self.generalization / self.num_selected
        return value

    def _learn(self, selection: Selection, outcome: RoundOutcome) -> None:
        arms = selection.positions
        if not arms.size:
            return
        shortest_s = self.tau_min_s or _LEAST_TIME * self.tau_max_s
        time_s = np.maximum(times_s(self, selection, outcome), shortest_s)
        mean = self.mean_rate_hz.take(arms)
        mean += (1.0 / time_s - mean) / self.play_count.take(arms)
        flat(self.mean_rate_hz)[arms] = mean
        np.minimum.at(flat(self.least_time_s), arms // self.num_arms, time_s)


SPEC: Final = PolicySpec.of(
    Bsfl, summary="UCB of the slowest client, and equal shares (Ben Ami et al., 2025)"
)
