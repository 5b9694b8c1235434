"""The program ``flower-simulation``: an interrupt is no traceback, even early."""

from __future__ import annotations

import sys

_INTERRUPTED = 130


def simulation() -> None:
    """Run ``flower-simulation``."""
    try:
        from .cli import main

        code = main()
    except KeyboardInterrupt:  # while the imports, which take seconds, were under way
        print("error: interrupted", file=sys.stderr)
        code = _INTERRUPTED
    sys.exit(code)
