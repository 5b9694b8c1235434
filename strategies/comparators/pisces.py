"""Pisces: useful clients whose updates are not stale, for servers that do not wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np

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
from ..selection import top_arms
from .common import flat, known_or_mean, largest, learn_losses, times_s

_EXPLORATION: Final = 0.3
_EXPLORATION_DECAY: Final = 0.99
_LEAST_EXPLORATION: Final = 0.1
"""Chance that a place is for a client never tried, at first, from round to round, and at least."""
_WINDOW: Final = 5
"""How many of a client's last stalenesses count."""
_LEAST_TIME: Final = 1e-9
"""Shortest mean time that others are compared with, in units of tau_max."""


class Pisces(SchedulingPolicy):
    """The choice of clients in Pisces, of Jiang, Wang, Li and Li.

    "Pisces: Efficient Federated Learning via Guided Asynchronous Training", SoCC 2022
    (arXiv:2206.09264); the constants are those of the authors' code in Plato. A server that does
    not wait for its clients gives the next free place to a client that was never tried with
    probability epsilon, 0.3 at first, times 0.99 each time that places are given away and at least
    0.1, and else to the client with the largest

        util_k = U_k / (s_k + 1)^beta,

    with U the statistical utility and s the mean of the client's last five stalenesses: by how many
    steps the server was ahead of the model that an update began from. The first places of all go to
    clients drawn uniformly.

    It is made for places that are given away one by one, ``num_selected`` = 1 (see
    :class:`.SchedulingPolicy`): a round is then the end of one piece of work.

    Different here:

    - Policies are not told stalenesses. A client that took the time tau is taken to have been

          mean_staleness tau / (mean time of all work so far)

      steps behind. Where N channels are always busy and the server makes a step of every B updates,
      that is its expected staleness with N / B for ``mean_staleness``: N tau / (mean time) pieces
      of work end in a time tau.
    - U is the number of samples times the root of the mean of their squared losses. Here it is the
      absolute value of the mean loss that the client reports of its training, and all train on
      equally many; a client that reports none keeps its last value, and one that never did has the
      mean of those that did, or 1 if none does.
    - epsilon falls with the number of the round, thus with each piece of work that ends. In the
      code it falls with each step of the server.
    - A failure has the time tau_max.
    - With more than one place per round, in which the server waits, nothing is stale: s is then a
      penalty on time.

    Left out: the pace of the server's steps and the weights of stale updates, which are not the
    policy's, and the detection of corrupted clients (off in the code).

    Parameters
    ----------
    staleness_penalty : float, >= 0
        beta, 1 in the code.
    mean_staleness : float, >= 0
        Mean staleness of all updates [steps], N / B.
    **parameters
        Those of :class:`.SchedulingPolicy`.

    Attributes
    ----------
    last_loss : (*batch, num_arms) float64
        Last reported loss, by its absolute value; ``-inf`` before the first report.
    staleness : (*batch, 5, num_arms) float64
        Estimates for the last five pieces of work of each arm [steps], in no order.

    Raises
    ------
    ConfigError
        If a parameter has the wrong type or is out of range.
    """

    name: ClassVar[str] = "pisces"
    uses: ClassVar[tuple[str, ...]] = ("loss",)
    _per_arm: ClassVar[Mapping[str, float]] = {
        **SchedulingPolicy._per_arm,
        "last_loss": -np.inf,
        "staleness": 0.0,
    }
    _settings: ClassVar[tuple[str, ...]] = (
        *SchedulingPolicy._settings,
        *("staleness_penalty", "mean_staleness"),
    )

    def __init__(
        self, *, staleness_penalty: float = 1.0, mean_staleness: float = 1.0, **parameters: Any
    ) -> None:
        super().__init__(**parameters)
        self.staleness_penalty = check_real("staleness_penalty", staleness_penalty, at_least=0.0)
        self.mean_staleness = check_real("mean_staleness", mean_staleness, at_least=0.0)
        self.last_loss: FloatArray = np.full(self.shape, -np.inf)
        self.staleness: FloatArray = np.zeros((*self.batch_shape, _WINDOW, self.num_arms))

    def utility(self) -> FloatArray:
        """Compute the utility of every arm that was tried, 0 for the others."""
        recent = np.clip(self.play_count, 1, _WINDOW)
        mean = self.staleness.sum(axis=-2) / recent
        utility = known_or_mean(self.last_loss) * (mean + 1.0) ** -self.staleness_penalty
        return np.where(self.play_count > 0, utility, 0.0)

    def _select(self, context: RoundContext) -> tuple[BoolArray, BoolArray]:
        tried = context.available & (self.play_count > 0)
        new = context.available & ~tried
        if self.num_arms <= self.num_selected:
            return context.available.copy(), new
        explored = largest(
            np.where(new, self._rng.random(self.shape), -np.inf),
            self._num_explored(context.round, tried, new),
        )
        key = np.where(explored, np.inf, self.utility())
        return top_arms((key,), tried | explored, self.num_selected, self._rng), explored

    def _num_explored(self, round: int, tried: BoolArray, new: BoolArray) -> IntArray:
        """Draw how many new arms each row selects, (*batch,)."""
        num_tried, num_new = (np.count_nonzero(mask, axis=-1) for mask in (tried, new))
        chance = max(_EXPLORATION * _EXPLORATION_DECAY ** max(round - 2, 0), _LEAST_EXPLORATION)
        exploring = self._rng.binomial(self.num_selected, chance, size=self.batch_shape)
        exploring = np.minimum(num_new, exploring)
        exploiting = np.minimum(num_tried, self.num_selected - exploring)
        return np.asarray(np.minimum(num_new, self.num_selected - exploiting))

    def _explain(self, selection: Selection) -> Explanation:
        tried = self.play_count > 0
        loss = np.where(tried, known_or_mean(self.last_loss), 0.0)
        explored = self._drawn(selection)
        parts = {"staleness": self.utility() - loss, "loss": loss}
        parts["chance"] = np.where(explored, np.inf, np.where(tried, 0.0, -np.inf))
        return Explanation("largest", "", parts)

    def _learn(self, selection: Selection, outcome: RoundOutcome) -> None:
        learn_losses(self.last_loss, selection, outcome)
        arms = selection.positions
        if not arms.size:
            return
        rows, columns = np.divmod(arms, self.num_arms)
        total = (self.play_count * (1.0 - self.mean_reward)).sum(axis=-1)
        mean = np.maximum(total / np.maximum(self.play_count.sum(axis=-1), 1), _LEAST_TIME)
        steps = times_s(self, selection, outcome) / (self.tau_max_s * flat(mean)[rows])
        place = (self.play_count.take(arms) - 1) % _WINDOW
        history = self.staleness.reshape(-1, _WINDOW, self.num_arms)
        history[rows, place, columns] = self.mean_staleness * steps


SPEC: Final = PolicySpec.of(
    Pisces, summary="loss and staleness, where clients are not waited for (Jiang et al., 2022)"
)
