"""Arrays in pieces: all of them, once, and nothing of an array's size beside them."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

from flower_scheduling.strategies.flower.updates.pieces import (
    is_finite,
    largest_magnitude,
    norm,
    pieces,
)

Array = np.ndarray[Any, Any]
LARGE = np.arange(3 * 100_000, dtype=np.float64).reshape(3, -1)


@pytest.mark.parametrize(
    "array", [np.array(3.0), np.zeros((0, 2)), np.arange(6.0), LARGE, LARGE.T, LARGE[:, ::2]]
)
def test_every_item_comes_once(array: Array) -> None:
    found = [item for (part,) in pieces(array) for item in part.ravel().tolist()]
    assert sorted(found) == array.ravel().tolist() if array.flags.c_contiguous else len(found)


def test_pieces_of_two_arrays_belong_together() -> None:
    for one, other in ((LARGE, -LARGE), (LARGE.T, -LARGE.T), (LARGE, np.asfortranarray(-LARGE))):
        parts = list(pieces(one, other))
        assert all((first == -second).all() for first, second in parts)
        assert sum(first.size for first, _ in parts) == one.size
    assert list(map(len, pieces(LARGE, np.zeros(1)))) == [2], "of other shapes: as they are"


@pytest.mark.parametrize("place", [0, 150_000, 299_999])
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_is_odd_is_found_wherever_it_is(place: int, order: Any) -> None:
    for value, largest in ((math.nan, math.nan), (-math.inf, math.inf)):
        array = np.array(LARGE, order=order)
        assert is_finite(array)
        assert largest_magnitude(array) == 299_999.0
        array.flat[place] = value
        assert not is_finite(array)
        assert largest_magnitude(array) == pytest.approx(largest, nan_ok=True)
        assert largest_magnitude(array + 0j) == pytest.approx(largest, nan_ok=True)
    assert largest_magnitude(np.zeros(0)) == 0.0
    assert largest_magnitude(np.array(-2.0)) == 2.0
    assert largest_magnitude(np.array([3 - 4j, 1])) == 5.0


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16"])
def test_values_whose_squares_have_no_room_in_their_dtype_are_finite(dtype: str) -> None:
    assert norm(np.array([3, -4], dtype)) == 5.0
    largest = np.full(3, np.finfo(dtype).max, dtype)
    assert math.isinf(norm(largest))
    assert is_finite(largest)
    largest[1] = math.nan
    assert not math.isfinite(norm(largest))


def test_no_temporary_is_as_large_as_the_array() -> None:
    array = np.ones(4_000_000, np.complex128)
    tracemalloc.start()
    try:
        assert is_finite(array)
        assert largest_magnitude(array) == 1.0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < array.nbytes / 20
