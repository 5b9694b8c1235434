"""Signals that end a run in order: the first one stops it, a later one kills the process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from flower_scheduling.signals import signals_of

_SAME_STOP_S: Final = 1.0  # signals within this time count as one


@contextmanager
def stoppable(*, between_rounds: bool = False) -> Iterator[Callable[..., None]]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into KeyboardInterrupt, and let a later one kill.

    A signal that is ignored stays so: a shell's background jobs ignore SIGINT, nohup's SIGHUP.
    Signals of the same second are one: the end of a session, or of a whole group, sends several.

    Parameters
    ----------
    between_rounds : bool
        Whether the round that is under way ends first, so that nothing of the next has happened.

    Yields
    ------
    callable
        To be called after each round, last of all hooks, for `between_rounds`: raises
        KeyboardInterrupt if there was a signal.
    """
    asked_s: float | None = None
    process = os.getpid()

    def stop(signum: int, frame: FrameType | None) -> None:
        nonlocal asked_s
        if os.getpid() != process:  # a worker process of an app's, which is to die of it
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        elif asked_s is None:
            asked_s = time.monotonic()
            if not between_rounds:
                raise KeyboardInterrupt
        elif time.monotonic() - asked_s > _SAME_STOP_S:
            for each in saved:
                signal.signal(each, signal.SIG_DFL)
            signal.raise_signal(signum)

    def check(*round_hook_takes: object) -> None:
        if asked_s is not None:
            raise KeyboardInterrupt

    saved = {
        each: signal.getsignal(each)
        for each in signals_of("SIGINT", "SIGTERM", "SIGHUP")
        if signal.getsignal(each) is not signal.SIG_IGN
    }
    for each in saved:
        signal.signal(each, stop)
    try:
        yield check
    finally:
        for each, handler in saved.items():
            if signal.getsignal(each) is stop:
                signal.signal(each, handler)
