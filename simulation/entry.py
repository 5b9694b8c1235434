"""The program ``flower-simulation``: an interrupt is no traceback, even early."""

from __future__ import annotations

import gc
import sys

from flower_scheduling.signals import EXIT_INTERRUPTED, end_on_interrupt, raise_on_interrupt
from flower_scheduling.startup import print_any_text, without_collection


def simulation() -> None:
    """Run ``flower-simulation``."""
    end_on_interrupt()
    print_any_text()
    with without_collection():
        from .cli import main

    try:
        raise_on_interrupt()
        code = main()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        code = EXIT_INTERRUPTED
    gc.freeze()  # at its end Python would look for garbage in all of torch
    sys.exit(code)
