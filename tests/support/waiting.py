"""Waiting for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 120.0  # for what takes milliseconds, or a start of Python: guards against hangs only
RUN_S = 600.0  # for a whole run of a small fleet, likewise

T = TypeVar("T")


def until(condition: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """Wait until a condition holds; return what it returned then."""
    deadline = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return found
