"""The memory of large messages: how the C library keeps it, gives it back and takes it."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Final

_TRIM_THRESHOLD: Final = -1  # glibc's names of these settings, as mallopt(3) has them
_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 64 * 2**20  # of freed memory, at the end of each heap
_LARGE_BYTES: Final = 8 * 2**20  # of what never is in a heap
_HUGE_PAGES: Final = 14  # MADV_HUGEPAGE, as madvise(2) has it
_PAGE_BYTES: Final = 4096


def _find(name: str) -> Callable[..., object]:
    """Return one of glibc's functions, or one that does nothing; musl has none of them."""
    if sys.platform != "linux":
        return lambda *arguments: None
    return getattr(ctypes.CDLL(None), name, lambda *arguments: None)


_malloc_trim: Final = _find("malloc_trim")
_mallopt: Final = _find("mallopt")
_madvise: Final = _find("madvise")


def keep_heaps() -> None:
    """Let the heaps of this process stay as large as they are, for messages that come and go.

    glibc gives the end of a heap back as soon as 128 kB are free, and takes it again page by page
    for the next chunk of a message: that takes longer than to copy the chunk. Large arrays stay
    apart from heaps, and are given back at once.
    """
    _mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
    _mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def give_back() -> None:
    """Give freed memory back, a matter of milliseconds; where that cannot be asked for, do nothing.

    Unless :func:`keep_heaps` was called, glibc keeps the holes of arrays of up to 32 MB, which the
    next ones need not fit: a model of a few such arrays would take a model more. Worth it between
    steps that each need a model's room.
    """
    _malloc_trim(0)


def freeze_loaded() -> None:
    """Take what is loaded, such as all of PyTorch, out of Python's search for garbage.

    Once, by a program of ours that is about to serve: looking through it would take
    :func:`collect` a tenth of a second each time.
    """
    if not gc.get_freeze_count():
        gc.freeze()


def collect() -> None:
    """Free what only refers to itself, and give its memory back.

    Flower's records form cycles as soon as a message's ``config_records`` or the like are asked
    for, and each keeps a model until Python looks for garbage, which it may not do for hours.
    """
    gc.collect()
    give_back()


def new_bytes(size: int) -> tuple[bytes, memoryview]:
    """Return bytes that are yet to be filled, and the view to fill them through.

    They are the object that its receiver keeps: nothing is copied at the end. Its pages are large
    ones, if the system has them: taking a gigabyte in small ones takes longer than filling it. No
    page is taken before it is filled.

    Until the view was filled and dropped, nothing may read the bytes or their hash; the view does
    not keep them alive.

    Parameters
    ----------
    size : int
        Their number.

    Raises
    ------
    MemoryError
        If there is no room.
    """
    made = _new_bytes(None, size)
    begin = _address_of(made)
    first = -(-begin // _PAGE_BYTES) * _PAGE_BYTES
    _madvise(ctypes.c_void_p(first), ctypes.c_size_t(begin + size - first), _HUGE_PAGES)
    return made, memoryview((ctypes.c_char * size).from_address(begin)).cast("B")


# CPython's way to make bytes that are filled before they are used (its C API says so).
_new_bytes: Final = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_ssize_t]
_address_of: Final = ctypes.pythonapi.PyBytes_AsString
_address_of.restype, _address_of.argtypes = ctypes.c_void_p, [ctypes.py_object]
