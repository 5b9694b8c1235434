"""Flower's programs as processes: found, started, and ended with all that they have started."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, Final

import psutil

from flower_scheduling.errors import SuperLinkError

MARK: Final = "FLOWER_SCHEDULING_SUPERLINK"  # environment variable that descendants inherit
_PR_SET_PDEATHSIG: Final = 1  # of Linux


def find_program(program: str) -> str:
    """Return the path of one of Flower's programs: beside our interpreter, else on the path.

    Raises
    ------
    SuperLinkError
        If it is neither there nor there.
    """
    folders = [sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]
    found = shutil.which(program, path=os.pathsep.join(folders))
    if found is None:
        raise SuperLinkError(f"{program} is missing: install flwr, or put it on the PATH")
    return found


def start_program(
    command: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | int
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own; on Linux it ends when this process is killed.

    Parameters
    ----------
    command : sequence of str
        The program and its arguments.
    environment : mapping
        Its environment.
    output : file or int
        Where its output and its errors go, or :data:`subprocess.PIPE`.
    """
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,  # Flower asks questions at a terminal
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_end_with_parent,
    )


def marked_processes(mark: str, program: str = "") -> list[psutil.Process]:
    """Return the processes whose :data:`MARK` is this, of all programs or of one.

    Flower gives its executor a session of its own, and a process whose parent has ended belongs
    to another one: neither the group nor the tree of processes has them all.
    """
    return [
        process
        for process in psutil.process_iter(["environ", "cmdline"])
        if (process.info["environ"] or {}).get(MARK) == mark
        and program in " ".join(process.info["cmdline"] or ())
    ]


def end_marked(mark: str, signum: signal.Signals | None, patience_s: float, **only: Any) -> None:
    """Signal the processes with a mark, if a signal is given, and wait for their end."""
    processes = marked_processes(mark, **only)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if signum is not None:
                process.send_signal(signum)
    psutil.wait_procs(processes, patience_s)


def end_group(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """End a process and its group: by SIGTERM, and by SIGKILL when patience is over."""
    for signum, timeout_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, None)):
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signum)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout_s)


def _end_with_parent() -> None:
    """Have the kernel end this process when its parent was killed; called in a new child."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
