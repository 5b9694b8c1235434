"""Oracle: selects by known expected times; for studies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from flower_scheduling.errors import ConfigError

from ..base import BoolArray, Explanation, FloatArray, RoundContext, SchedulingPolicy, Selection
from ..policy_spec import PolicySpec
from ..selection import top_arms


class Oracle(SchedulingPolicy):
    """Select the available arms with the smallest expected time, ties at random.

    Parameters
    ----------
    expected_time_s : (num_arms,) or (*batch, num_arms) array-like of float, >= 0
        Mean of min(tau_k, tau_max) of each arm [s].
    **parameters
        Those of :class:`.SchedulingPolicy`.

    Raises
    ------
    ConfigError
        If a parameter has the wrong type, length or range.
    """

    name: ClassVar[str] = "oracle"
    _per_arm: ClassVar[Mapping[str, float]] = {
        **SchedulingPolicy._per_arm,
        "expected_time_s": np.nan,
    }

    def __init__(self, *, expected_time_s: ArrayLike, **parameters: Any) -> None:
        super().__init__(**parameters)
        self.expected_time_s = self._check_per_arm(
            "expected_time_s", expected_time_s, self.num_arms
        )

    def add_arms(self, count: int, **per_arm: ArrayLike) -> None:
        """Append arms; see :meth:`SchedulingPolicy.add_arms`. ``expected_time_s`` is needed."""
        if "expected_time_s" not in per_arm:
            raise ConfigError("expected_time_s", None, "is missing for arms that join")
        super().add_arms(count, **per_arm)

    def _select(self, context: RoundContext) -> BoolArray:
        return top_arms((-self.expected_time_s,), context.available, self.num_selected, self._rng)

    def _explain(self, selection: Selection) -> Explanation:
        return Explanation("smallest", "s", {"mean": self.expected_time_s.copy()})

    def _check_per_arm(self, name: str, value: ArrayLike, count: int) -> FloatArray:
        if name != "expected_time_s":
            return super()._check_per_arm(name, value, count)
        allowed = f"finite times >= 0 of shape ({count},) or {(*self.batch_shape, count)}"
        try:
            times = np.array(value, dtype=np.float64)
            full = np.array(np.broadcast_to(times, (*self.batch_shape, count)))
        except (TypeError, ValueError) as error:
            raise ConfigError(name, value, f"must be {allowed}") from error
        if times.shape[-1:] != (count,) or not np.isfinite(full).all() or (full < 0).any():
            raise ConfigError(name, value, f"must be {allowed}")
        return full


SPEC: Final = PolicySpec.of(
    Oracle,
    summary="knows the expected times; for studies",
    example=lambda num_arms, rng: {"expected_time_s": np.arange(num_arms) % 3 + 1.0},
)
