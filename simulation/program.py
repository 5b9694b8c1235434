"""Name of the simulation's program, for help texts, errors and printed commands."""

from __future__ import annotations

import sys
from pathlib import Path

_SCRIPT = "flower-simulation"
_INSTALLED = "flower_scheduling.simulation"


def program_name() -> str:
    """Return the command that the program was started with, ``python -m simulation`` if unknown."""
    if Path(sys.argv[0]).stem == _SCRIPT:
        return _SCRIPT
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return f"python -m {_INSTALLED if spec and spec.parent == _INSTALLED else 'simulation'}"
