"""The programs ``flower-server`` and ``flower-certs``: an interrupt is no traceback, even early."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from flower_scheduling.errors import EXIT_INTERRUPTED


def server() -> None:
    """Run ``flower-server``."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its core logs every ordinary goodbye
    # gRPC's handlers of fork() break worker processes of an app, such as PyTorch's loaders start.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    _run(".main")


def certs() -> None:
    """Run ``flower-certs``."""
    _run(".certs")


def _run(module: str) -> None:
    try:
        sys.exit(import_module(module, __package__).main())
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
