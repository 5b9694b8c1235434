"""Participation floors of a policy, with or without virtual queues that keep them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .base import FloatArray, RoundOutcome, SchedulingPolicy, Selection
from .fairness import check_min_participation
from .virtual_queue import advance_virtual_queue

LAG: Final = 6
"""Rounds that even a policy which keeps its floors may lag for a while."""


def buffered_lag(num_floors: int, num_selected: int) -> int:
    """Return how many updates a policy that keeps its floors may lag in buffered mode.

    The bound of :class:`.CsUcbQAdaptive`, 6 + K + N.

    Parameters
    ----------
    num_floors : int
        Arms with a floor, K.
    num_selected : int
        Channels, N.
    """
    return LAG + num_floors + num_selected


class FloorPolicy(SchedulingPolicy):
    """A policy with participation floors; it can be combined with another, as its first base.

    Parameters
    ----------
    min_participation : (num_arms,) array-like of float, in [0, 1), optional
        Least fraction of rounds in which each arm is to be selected, c; 0 if left out.
    **parameters
        Those of the next base, at least :class:`.SchedulingPolicy`.
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
        """Least fraction of rounds of each arm, c, (num_arms,) in [0, 1).

        It may be set between rounds, for example to floors recomputed after arms joined; debts
        stay as they are.
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
    min_participation : (num_arms,) array-like of float, in [0, 1), optional
        Least fraction of rounds in which each arm is to be selected, c; 0 if left out.
    **parameters
        Those of the next base, at least :class:`.SchedulingPolicy`.

    Attributes
    ----------
    virtual_queue : (*batch, num_arms) float64, >= 0
        Debt D that the next round uses [rounds].
    """

    _per_arm: ClassVar[Mapping[str, float]] = {**FloorPolicy._per_arm, "virtual_queue": 0.0}

    def __init__(self, *, min_participation: ArrayLike | None = None, **parameters: Any) -> None:
        super().__init__(min_participation=min_participation, **parameters)
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
