"""Numbers as JSON can have them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from numpy.typing import NDArray

_DIGITS: Final = 6


def numbers(values: NDArray[Any]) -> list[float | str | None]:
    """Return numbers as JSON can have them."""
    return [number(value) for value in values.tolist()]


def number(value: float) -> float | str | None:
    """Return a number as JSON can have it, to six digits."""
    if math.isfinite(value):
        return float(f"{value:.{_DIGITS}g}")
    return None if math.isnan(value) else "inf" if value > 0 else "-inf"


def to_json(value: Mapping[str, Any]) -> str:
    """Return compact JSON without infinities."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
