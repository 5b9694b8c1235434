"""Our programs where POSIX is not: what Windows lacks is taken away before they are imported."""

from __future__ import annotations

import importlib
import os
import signal
import sys

_SIGNALS = (
    "SIGUSR1 SIGUSR2 SIGHUP SIGALRM SIGQUIT SIGKILL SIGCHLD SIGPIPE setitimer alarm "
    "pthread_kill pthread_sigmask"
)
# Not the number of the user: libraries of this platform want it.
_SYSTEM = "fork forkpty nice killpg setsid getpgid mkfifo chown lchown"
_MODULES = ("resource", "pwd", "grp", "termios", "syslog")
_PROGRAMS = {
    "client": ("client.entry", "client"),
    "server": ("server.cli.entry", "server"),
    "certs": ("server.cli.entry", "certs"),
    "simulation": ("simulation.entry", "simulation"),
}


def main() -> None:
    """Run the program that the first argument names; the others are its own."""
    program = sys.argv.pop(1)
    sys.argv[0] = f"flower-{program}"
    for name in _SIGNALS.split():
        delattr(signal, name)
    for name in _SYSTEM.split():
        delattr(os, name)
    for name in _MODULES:
        sys.modules[name] = None  # type: ignore[assignment]  # an ImportError
    module, function = _PROGRAMS[program]
    getattr(importlib.import_module(f"flower_scheduling.{module}"), function)()
