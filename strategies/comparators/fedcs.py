"""FedCS: the clients that are expected to be done first."""

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


class FedCs(SchedulingPolicy):
    """FedCS of Nishio and Yonetani, with estimated times and a fixed number of clients.

    "Client Selection for Federated Learning with Heterogeneous Resources in Mobile Edge", ICC
    2019 (arXiv:1804.08333), Algorithm 3: candidates are a random part C of the clients; starting
    from no client, the one that lengthens the round least is added again and again, as long as the
    round stays within its deadline. Adapted here:

    - FedCS asks the candidates for their resources and computes times from the answers. Here
      no client is asked: the estimate is the mean of the measured times, a failure counting as
      tau_max, and 0 for a client that was never tried, which is therefore tried first.
    - FedCS has clients upload one after the other, so that each lengthens the round. Here they
      have a channel each and a round lasts as long as its slowest; what lengthens it least is
      always the fastest of those left.
    - FedCS takes as many as fit. A super arm has min(N, number of available arms) members, so the
      deadline decides nothing: clients that are expected to miss it are the last in that order
      anyway.

    What is left is greedy: the N candidates with the smallest mean times.

    Parameters
    ----------
    candidate_fraction : float, in (0, 1]
        C; at least N are candidates. The paper has 0.1 of 1000 clients, which in a small fleet
        would leave no choice: 1 by default.
    **parameters
        Those of :class:`.SchedulingPolicy`.

    Raises
    ------
    ConfigError
        If a parameter has the wrong type or is out of range.
    """

    name: ClassVar[str] = "fedcs"
    _settings: ClassVar[tuple[str, ...]] = (*SchedulingPolicy._settings, "candidate_fraction")

    def __init__(self, *, candidate_fraction: float = 1.0, **parameters: Any) -> None:
        super().__init__(**parameters)
        self.candidate_fraction = check_real(
            "candidate_fraction", candidate_fraction, above=0.0, at_most=1.0
        )

    def estimated_time_s(self) -> FloatArray:
        """Compute the estimate of every arm [s], 0 if never tried."""
        return np.where(self.play_count > 0, self.tau_max_s * (1.0 - self.mean_reward), 0.0)

    def _select(self, context: RoundContext) -> tuple[BoolArray, BoolArray]:
        candidates = context.available
        if self.candidate_fraction < 1.0:
            asked = math.ceil(self.candidate_fraction * self.num_arms)
            candidates = top_arms((), candidates, max(asked, self.num_selected), self._rng)
        key = -self.estimated_time_s()
        return top_arms((key,), candidates, self.num_selected, self._rng), candidates

    def _explain(self, selection: Selection) -> Explanation:
        parts = {"mean": self.estimated_time_s()}
        if self.candidate_fraction < 1.0:
            left_out = selection.context.available & ~self._drawn(selection)
            parts["chance"] = np.where(left_out, np.inf, 0.0)
        return Explanation("smallest", "s", parts)


SPEC: Final = PolicySpec.of(
    FedCs,
    summary="smallest mean time first (Nishio and Yonetani, 2019)",
    example=lambda num_arms, rng: {"candidate_fraction": rng.choice([0.5, 1.0])},
)
