"""The programs ``flower-server`` and ``flower-certs``: an interrupt is no traceback, even early."""

from __future__ import annotations

import os
import sys

from flower_scheduling.signals import EXIT_INTERRUPTED, end_on_interrupt, raise_on_interrupt
from flower_scheduling.startup import print_any_text


def server() -> None:
    """Run ``flower-server``."""
    end_on_interrupt()
    print_any_text()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its core logs every ordinary goodbye
    # gRPC's handlers of fork() break worker processes of an app, such as PyTorch's loaders start.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    _run(".main")


def certs() -> None:
    """Run ``flower-certs``."""
    end_on_interrupt()
    print_any_text()
    _run(".certs")


def _run(module: str) -> None:
    from importlib import import_module

    main = import_module(module, __package__).main
    try:
        raise_on_interrupt()
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
