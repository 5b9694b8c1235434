"""The program ``flower-client``: what must happen before seconds of imports."""

from __future__ import annotations

import os
import signal
import sys

from flower_scheduling.signals import end_on_interrupt, signals_of
from flower_scheduling.startup import print_any_text

from .restart import end_children, takes_work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

EXIT_GRACE_S: Final = 2.0  # for an app that is still at work to return
_LEFTOVERS_S: Final = 5.0  # for what an app runs at the end of its process, or left running

_wants_toggle = False


def client() -> None:
    """Run ``flower-client``; a signal is heeded from the first moment on."""
    end_on_interrupt()  # until the client heeds it
    print_any_text()
    for toggle in signals_of("SIGUSR1"):
        signal.signal(toggle, remember_toggle)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its core tells of every ordinary goodbye
    # gRPC's handlers of fork() break the workers of PyTorch's loaders, and fork() itself at times.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    available = takes_work()
    try:
        from .cli import main

        code = main(available=lambda: available != _wants_toggle)
    except KeyboardInterrupt:
        code = 0  # stopping is what was asked for
    _end_soon(code)
    sys.exit(code)


def remember_toggle(signum: int, frame: object) -> None:
    """Note a SIGUSR1 that comes before there is a client."""
    global _wants_toggle
    _wants_toggle = not _wants_toggle


def _end_soon(code: int) -> None:
    """End the process in a moment even if threads or processes of the app's hold it up."""
    import threading

    timer = threading.Timer(_LEFTOVERS_S, end_at_once, (code,))
    timer.daemon = True
    timer.start()


def end_at_once(code: int) -> None:
    """End the process, and the app's worker processes."""
    end_children(0.0)
    os._exit(code)
