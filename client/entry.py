"""The program ``flower-client``: what must happen before seconds of imports."""

from __future__ import annotations

import os
import signal
import sys

from flower_scheduling.signals import signals_of

_wants_toggle = False


def client() -> None:
    """Run ``flower-client``; a signal is heeded from the first moment on."""
    for each in signals_of("SIGUSR1"):
        signal.signal(each, _remember)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its core tells of every ordinary goodbye
    try:
        from .cli import main

        sys.exit(main(available=lambda: not _wants_toggle))
    except KeyboardInterrupt:
        sys.exit(0)  # stopping is what was asked for


def _remember(signum: int, frame: object) -> None:
    global _wants_toggle
    _wants_toggle = not _wants_toggle
