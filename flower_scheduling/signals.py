"""Signals by name: not every platform has all of them."""

from __future__ import annotations

import signal
from collections.abc import Iterator


def signals_of(*names: str) -> Iterator[signal.Signals]:
    """Yield those of the named signals that there are here: Windows lacks SIGHUP and SIGUSR1."""
    for name in names:
        if (found := getattr(signal, name, None)) is not None:
            yield found
