"""Uniformly random scheduling: the baseline of federated averaging."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from ..base import BoolArray, Explanation, RoundContext, SchedulingPolicy, Selection
from ..policy_spec import PolicySpec
from ..selection import top_arms


class Uniform(SchedulingPolicy):
    """Select uniformly at random among the available arms.

    Parameters
    ----------
    **parameters
        Those of :class:`.SchedulingPolicy`.
    """

    name: ClassVar[str] = "random"

    def _select(self, context: RoundContext) -> BoolArray:
        return top_arms((), context.available, self.num_selected, self._rng)

    def _explain(self, selection: Selection) -> Explanation:
        available = selection.context.available
        count = np.maximum(np.count_nonzero(available, axis=-1), self.num_selected)
        return Explanation(
            "drawn", "", {"chance": available * (self.num_selected / count)[..., np.newaxis]}
        )


SPEC: Final = PolicySpec.of(Uniform, summary="uniformly at random")
