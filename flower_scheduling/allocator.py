"""The C library's memory: what was freed goes back to the system when it is asked to."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Final


def _find() -> Callable[[int], object]:
    if sys.platform != "linux":
        return lambda pad: None
    return getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: None)  # musl has none


_malloc_trim: Final = _find()


def give_back() -> None:
    """Give freed memory back, a matter of milliseconds; where that cannot be asked for, do nothing.

    glibc keeps the holes of arrays of up to 32 MB, which the next ones need not fit: a model of a
    few such arrays would take a model more. Worth it between steps that each need a model's room.
    """
    _malloc_trim(0)
