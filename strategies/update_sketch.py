"""Sketch of an update: a few numbers by which updates of any size are compared.

The change of a model, as one row of numbers, is multiplied by random signs and added up in a row of
fixed width, and that row is projected on a few random directions. Both steps keep inner products
and squared distances in expectation; with S numbers a squared distance is off by sqrt(2 / S) of
itself (Johnson and Lindenstrauss, 1984; Charikar, Chen and Farach-Colton, 2002). The signs are
fixed, so that all sketches of models of one shape compare, whatever sent them and whenever.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

SKETCH_SIZE: Final = 32
"""Numbers of a sketch, S."""

_WIDTH: Final = 4096
_SEED: Final = 2504

_AnyArray: TypeAlias = NDArray[Any]


def sketch_of_change(
    parts: Iterable[tuple[_AnyArray, _AnyArray]],
) -> NDArray[np.float64] | None:
    """Compute the sketch of what training has changed.

    Parameters
    ----------
    parts : iterable of (array, array)
        The trained arrays and those that the training began from, of the same shapes, in the order
        of the model. How a row of numbers is cut into parts makes no difference.

    Returns
    -------
    (SKETCH_SIZE,) float64 or None
        ``None`` if a change is not finite; what is the same in both counts as no change, also
        where it is not finite.
    """
    folded = np.zeros(_WIDTH)
    position = 0
    for trained, sent in parts:
        values, base = trained.reshape(-1), sent.reshape(-1)
        begin = 0
        while begin < values.size:
            block, offset = divmod(position, _WIDTH)
            end = min(begin + _WIDTH - offset, values.size)
            change = _change(values[begin:end], base[begin:end])
            change *= _signs(block)[offset : offset + end - begin]
            folded[offset : offset + end - begin] += change
            position += end - begin
            begin = end
    if not np.isfinite(folded).all():
        return None
    return np.asarray(_directions() @ folded)


def _change(values: _AnyArray, base: _AnyArray) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore", over="ignore"):
        change = np.subtract(values, base, dtype=np.float64)
    if not np.isfinite(change).all():
        change[(values == base) | (np.isnan(values) & np.isnan(base))] = 0.0
    return change


@functools.lru_cache(maxsize=4096)
def _signs(block: int) -> NDArray[np.int8]:
    """Return the signs of the numbers of a block of the row, (_WIDTH,)."""
    return _random_signs((_WIDTH,), 1, block)


@functools.cache
def _directions() -> NDArray[np.float64]:
    return np.asarray(_random_signs((SKETCH_SIZE, _WIDTH), 2) / np.sqrt(SKETCH_SIZE))


def _random_signs(shape: tuple[int, ...], *stream: int) -> NDArray[np.int8]:
    rng = np.random.default_rng([_SEED, *stream])
    signs: NDArray[np.int8] = 2 * rng.integers(0, 2, shape, dtype=np.int8) - 1
    return signs
