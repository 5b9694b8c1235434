"""Large arrays in pieces that stay in the processor's cache: no temporary has an array's size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

AnyArray: TypeAlias = NDArray[Any]

_PIECE: Final = 2**16  # items


def pieces(*arrays: AnyArray) -> Iterator[tuple[AnyArray, ...]]:
    """Yield arrays of one shape piece by piece: views of the same items of each, flat.

    Small arrays are yielded as they are, and so are those in different or mixed orders of axes.
    """
    first = arrays[0]
    if first.size <= _PIECE or any(array.shape != first.shape for array in arrays):
        yield arrays
        return
    for same in (arrays, tuple(array.T for array in arrays)):
        if all(array.flags.c_contiguous for array in same):
            flat = [array.reshape(-1) for array in same]
            break
    else:
        yield arrays
        return
    for begin in range(0, first.size, _PIECE):
        yield tuple(array[begin : begin + _PIECE] for array in flat)


def is_finite(view: AnyArray) -> bool:
    """Tell whether all values are finite."""
    return all(
        math.isfinite(norm(part)) or bool(np.isfinite(part).all()) for (part,) in pieces(view)
    )


def norm(view: AnyArray) -> float:
    """Return the Euclidean norm in one pass over the values; infinite or NaN beyond its dtype."""
    flat = view.reshape(-1)
    return math.sqrt(abs(np.vdot(flat, flat)))


def largest_magnitude(view: AnyArray) -> float:
    """Return the largest magnitude of numbers with a sign; NaN if there is one."""
    largest = np.float64(0.0)
    for (part,) in pieces(view):
        if part.size:
            values = np.abs(part) if part.dtype.kind == "c" else part
            largest = np.maximum(largest, np.maximum(values.max(), -values.min()))
    return float(largest)
