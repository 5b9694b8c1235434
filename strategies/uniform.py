"""Uniformly random scheduling: the baseline of federated averaging."""

from __future__ import annotations

from typing import ClassVar

from strategies.base import BoolArray, RoundContext, SchedulingPolicy
from strategies.selection import top_arms


class Uniform(SchedulingPolicy):
    """Select uniformly at random among the available arms.

    Parameters
    ----------
    **parameters
        Those of :class:`~strategies.base.SchedulingPolicy`.
    """

    name: ClassVar[str] = "random"

    def _select(self, context: RoundContext) -> BoolArray:
        return top_arms((), context.available, self.num_selected, self._rng)
