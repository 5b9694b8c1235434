"""The id of a run, by which clients know whose state they keep; it stays when a run goes on."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from flower_scheduling.files import write_whole

from ..callbacks import RoundCallback, Run

_FILE: Final = "run-id"  # in the run directory
_BEYOND: Final = 2**64  # Flower's ids


def noted_run_id(run_dir: str) -> int | None:
    """Return the id of the run in a folder; ``None`` if there is none, as of earlier versions."""
    if run_dir:
        with contextlib.suppress(OSError, ValueError):
            found = int((Path(run_dir) / _FILE).read_text(encoding="ascii"))
            return found if 0 < found < _BEYOND else None
    return None


class RunIdNote(RoundCallback):
    """A callback that notes a run's id in its directory.

    Parameters
    ----------
    run_id : int
        The id.
    """

    def __init__(self, run_id: int) -> None:
        self._run_id = run_id

    def on_start(self, run: Run) -> None:
        """Write it."""
        if run.directory is not None:
            with run.directory.tolerating("id of the run"):
                write_whole(run.directory.path / _FILE, f"{self._run_id}\n")
