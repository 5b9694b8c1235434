"""Note of the data set of a run: its images, their normalisation, and a digest of it all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from flower_scheduling.files import write_whole
from flower_scheduling.strategies.flower import LOGGER

from ..callbacks import RoundCallback, Run

DATA: Final = "data.json"
"""File of the run directory."""


class DataNote(RoundCallback):
    """A callback that logs what a run is trained on, and writes it to :data:`DATA`.

    Parameters
    ----------
    data : mapping
        The data set in words and numbers, ready for JSON.

    Attributes
    ----------
    data : mapping
        The same.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data

    def on_start(self, run: Run) -> None:
        """Write and log the note."""
        LOGGER.info(
            "data set %(dataset)s: %(train)d training and %(test)d test images of %(size)s, "
            "%(classes)d classes",
            self.data,
        )
        if run.directory is not None:
            with run.directory.tolerating("note of the data set"):
                write_whole(run.directory.path / DATA, json.dumps(dict(self.data)) + "\n")
