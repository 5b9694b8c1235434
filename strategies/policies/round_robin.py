"""Round robin: all arms in turn."""

from __future__ import annotations

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
)
from ..policy_spec import PolicySpec
from ..selection import top_arms


class RoundRobin(SchedulingPolicy):
    """Serve the available arms in cyclic order.

    An arm that is unavailable at its turn is skipped, and the next round goes on just past the
    last arm served.

    Parameters
    ----------
    **parameters
        Those of :class:`.SchedulingPolicy`.

    Attributes
    ----------
    next_arm : (*batch,) int64
        Whose turn it is.
    """

    name: ClassVar[str] = "round-robin"
    _per_row: ClassVar[tuple[str, ...]] = ("next_arm",)

    def __init__(self, **parameters: Any) -> None:
        super().__init__(**parameters)
        self.next_arm: IntArray = np.zeros(self.batch_shape, dtype=np.int64)

    def _select(self, context: RoundContext) -> BoolArray:
        return top_arms((-self._wait(),), context.available, self.num_selected, self._rng)

    def _explain(self, selection: Selection) -> Explanation:
        return Explanation("smallest", "", {"turn": self._wait()})

    def _learn(self, selection: Selection, outcome: RoundOutcome) -> None:
        if selection.positions.size == 0:
            return
        # The last arm served is the one that waited longest; an empty row stays where it is.
        longest = np.where(selection.mask, self._wait(), -1.0).max(axis=-1)
        self.next_arm[...] = (self.next_arm + longest.astype(np.int64) + 1) % self.num_arms

    def _wait(self) -> FloatArray:
        """Return how many arms come before each one in cyclic order, (*batch, num_arms)."""
        wait = np.arange(self.num_arms, dtype=np.float64) - self.next_arm[..., np.newaxis]
        wait[wait < 0] += self.num_arms
        return wait


SPEC: Final = PolicySpec.of(RoundRobin, summary="all clients in turn")
