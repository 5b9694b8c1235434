"""Worst first: the clients whose local accuracy was lowest when they last reported it."""

from __future__ import annotations

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
)
from ..policy_spec import PolicySpec
from ..selection import top_arms


class LocalAccuracy(SchedulingPolicy):
    """Select the available arms with the lowest last known local accuracy, ties at random.

    An arm that never reported one counts as lowest. An arm that reports nothing this time keeps
    its last value.

    Parameters
    ----------
    **parameters
        Those of :class:`.SchedulingPolicy`.

    Attributes
    ----------
    local_accuracy : (*batch, num_arms) float64
        Last reported accuracy in [0, 1], ``-inf`` before the first report.
    """

    name: ClassVar[str] = "local-accuracy"
    needs: ClassVar[tuple[str, ...]] = ("local_accuracy",)
    _per_arm: ClassVar[Mapping[str, float]] = {
        **SchedulingPolicy._per_arm,
        "local_accuracy": -np.inf,
    }

    def __init__(self, **parameters: Any) -> None:
        super().__init__(**parameters)
        self.local_accuracy: FloatArray = np.full(self.shape, -np.inf)

    def _select(self, context: RoundContext) -> BoolArray:
        return top_arms((-self.local_accuracy,), context.available, self.num_selected, self._rng)

    def _explain(self, selection: Selection) -> Explanation:
        known = np.isfinite(self.local_accuracy)
        parts = {
            "bonus": np.where(known, 0.0, -np.inf),
            "accuracy": np.where(known, self.local_accuracy, 0.0),
        }
        return Explanation("smallest", "", parts)

    def _learn(self, selection: Selection, outcome: RoundOutcome) -> None:
        reported = outcome.reported.get("local_accuracy")
        if reported is not None:
            known = selection.mask & np.isfinite(reported)
            self.local_accuracy[known] = reported[known]


SPEC: Final = PolicySpec.of(LocalAccuracy, summary="lowest last reported local accuracy first")
