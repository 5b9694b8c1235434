"""A client that begins anew in its process: what outlives the change."""

from __future__ import annotations

import os
import signal
import sys

from flower_scheduling.signals import signals_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final, NoReturn

__all__ = ["begin_anew", "end_children", "take_slot_number", "take_state", "takes_work"]

# Not FLOWER_CLIENT_: they are no flags.
_OPTED_OUT: Final = "_FLOWER_RESTART_OPTED_OUT"
_SLOT: Final = "_FLOWER_RESTART_SLOT"
_PATIENCE_S: Final = 1.0  # for a worker process of the app's to end
_STATE: Final = "_FLOWER_RESTART_STATE"  # number of an open file


def begin_anew(
    environment: Mapping[str, str], state: bytes, *, available: bool, slot: int | None
) -> NoReturn:
    """Replace this process's program by the same one, with the same arguments and process id.

    Parameters
    ----------
    environment : mapping
        Its variables: those at the start, whatever an app has changed.
    state : bytes
        Of :meth:`.StreamClient.kept_state`.
    available : bool
        Whether the client takes work.
    slot : int, optional
        The number that it has among the clients of its folder.
    """
    import tempfile  # not before it must: the program starts with this module

    end_children(_PATIENCE_S)
    with tempfile.TemporaryFile() as file:
        file.write(state)
        file.flush()
        os.set_inheritable(file.fileno(), True)
        kept = {
            _STATE: str(file.fileno()),
            _OPTED_OUT: "" if available else "1",
            _SLOT: "" if slot is None else str(slot),
        }
        for toggle in signals_of("SIGUSR1"):
            signal.signal(toggle, signal.SIG_IGN)  # until the program has its handler
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:
                stream.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**environment, **kept})


def end_children(patience_s: float) -> None:
    """End the app's worker processes, which would outlive its process."""
    import multiprocessing

    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    for child in children:
        child.join(patience_s)
        child.kill()


def takes_work() -> bool:
    """Return whether the client takes work at first: a restart keeps it opted out."""
    return not os.environ.pop(_OPTED_OUT, "")


def take_state() -> bytes:
    """Return the state of the app before a restart, once."""
    number = os.environ.pop(_STATE, "")
    if not number:
        return b""
    with open(int(number), "rb") as file:
        file.seek(0)
        return file.read()


def take_slot_number() -> int | None:
    """Return the number that the client had before a restart."""
    number = os.environ.pop(_SLOT, "")
    return int(number) if number else None
