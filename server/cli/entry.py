"""The programs ``flower-server`` and ``flower-certs``: an interrupt is no traceback, even early."""

from __future__ import annotations

import os
import sys

_INTERRUPTED = 130


def server() -> None:
    """Run ``flower-server``."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its core tells of every ordinary goodbye
    try:
        from .main import main

        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def certs() -> None:
    """Run ``flower-certs``."""
    try:
        from .certs import main

        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
