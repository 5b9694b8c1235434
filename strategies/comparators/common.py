"""What the comparators share: clipped times, flat views, and floors with or without a queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strategies.base import FloatArray, RoundOutcome, SchedulingPolicy, Selection
from strategies.fairness import check_min_participation
from strategies.virtual_queue import advance_virtual_queue


def flat(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a view of a contiguous array with one axis."""
    return array.reshape(-1)


def times_s(policy: SchedulingPolicy, selection: Selection, outcome: RoundOutcome) -> FloatArray:
    """Return the time of each selected arm, in the order of ``selection.positions``.

    Parameters
    ----------
    policy : SchedulingPolicy
        Whose ``tau_max_s`` limits the times.
    selection, outcome
        A round that was checked.

    Returns
    -------
    (number selected,) float64, in [0, tau_max]
        min(tau_k, tau_max), and tau_max for an arm that did not complete [s].
    """
    arms = selection.positions
    completed = outcome.completed.take(arms)
    time_s = np.where(completed, outcome.round_trip_time_s.take(arms), policy.tau_max_s)
    return np.minimum(time_s, policy.tau_max_s)


def rewards(policy: SchedulingPolicy, selection: Selection, outcome: RoundOutcome) -> FloatArray:
    """Return the reward of each selected arm, 1 - tau / tau_max; else like :func:`times_s`."""
    return 1.0 - times_s(policy, selection, outcome) / policy.tau_max_s


class FloorPolicy(SchedulingPolicy):
    """A policy with participation floors.

    Parameters
    ----------
    min_participation : (num_arms,) array-like of float, in [0, 1), optional
        Least fraction of rounds in which each arm is to be selected; 0 if left out.
    **parameters
        Those of :class:`~strategies.base.SchedulingPolicy`.
    """

    _per_arm: ClassVar[Mapping[str, float]] = {
        **SchedulingPolicy._per_arm,
        "min_participation": 0.0,
    }

    def __init__(self, *, min_participation: ArrayLike | None = None, **parameters: Any) -> None:
        super().__init__(**parameters)
        self.min_participation = (
            np.zeros(self.num_arms) if min_participation is None else min_participation
        )

    @property
    def min_participation(self) -> FloatArray:
        """Least fraction of rounds of each arm, (num_arms,) in [0, 1).

        It may be set between rounds, for example to floors recomputed after arms joined.
        """
        return self._min_participation

    @min_participation.setter
    def min_participation(self, value: ArrayLike) -> None:
        self._min_participation = check_min_participation(value, self.num_arms)

    def _check_per_arm(self, name: str, value: ArrayLike, count: int) -> FloatArray:
        if name == "min_participation":
            return check_min_participation(value, count)
        return super()._check_per_arm(name, value, count)

    def _assign(self, name: str, array: NDArray[Any]) -> None:
        # Not through the property: its length check comes before num_arms has grown.
        super()._assign("_min_participation" if name == "min_participation" else name, array)


class QueuePolicy(FloorPolicy):
    """A policy that keeps its floors by virtual queues.

    Parameters
    ----------
    **parameters
        Those of :class:`FloorPolicy`.

    Attributes
    ----------
    virtual_queue : (*batch, num_arms) float64, >= 0
        Debt that the next round uses [rounds].
    """

    _per_arm: ClassVar[Mapping[str, float]] = {**FloorPolicy._per_arm, "virtual_queue": 0.0}

    def __init__(self, **parameters: Any) -> None:
        super().__init__(**parameters)
        self.virtual_queue: FloatArray = np.zeros(self.shape)

    def _learn(self, selection: Selection, outcome: RoundOutcome) -> None:
        super()._learn(selection, outcome)
        advance_virtual_queue(
            self.virtual_queue,
            selection.mask,
            self._min_participation,
            selection.context.member,
            out=self.virtual_queue,
        )
