"""Signals by name, since not every platform has all of them, and interrupts while a program starts.

Programs import this before all else, so it imports next to nothing.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

EXIT_INTERRUPTED = 130


def signals_of(*names: str) -> Iterator[signal.Signals]:
    """Yield those of the named signals that there are here: Windows lacks SIGHUP and SIGUSR1."""
    for name in names:
        if (found := getattr(signal, name, None)) is not None:
            yield found


def end_on_interrupt() -> None:
    """Let an interrupt end the process at once: imports, which take seconds, would lose it.

    One that is ignored from outside stays so.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupted)


def raise_on_interrupt() -> None:
    """Let an interrupt raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupted(signum: int, frame: object) -> None:
    """End the process."""
    os._exit(EXIT_INTERRUPTED)
