"""``os._exit`` in code that is not ours: it would end our process at once, without a word."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from .errors import EXIT_FAILED, fail


class ProcessExit(SystemExit):
    """A call of ``os._exit``; ``code`` is the status that it asked for."""

    def __str__(self) -> str:
        return f"os._exit({self.code})"


@contextmanager
def exits_raised() -> Iterator[None]:
    """Let ``os._exit`` raise :class:`ProcessExit` inside the context, as ``sys.exit`` would.

    Processes that are forked inside end with it as ever. Another thread than this one, in which
    nothing would come of an exception, ends the process, as a failure and with a line that says so.
    """
    process, thread, leave = os.getpid(), threading.get_ident(), os._exit

    def raise_exit(status: int) -> NoReturn:
        if os.getpid() != process:
            leave(status)
        if threading.get_ident() != thread:
            name = threading.current_thread().name
            leave(fail(f"thread {name} of the app has called os._exit({status})", EXIT_FAILED))
        raise ProcessExit(status)

    os._exit = raise_exit
    try:
        yield
    finally:
        os._exit = leave
