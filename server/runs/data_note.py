"""Note of the data set of a run: its images, their normalisation, and a digest of it all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from flower_scheduling.errors import ConfigError
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
        """Write and log the note.

        Raises
        ------
        ConfigError
            If the run is to go on, and began on other data of that name.
        """
        if run.directory is not None and run.done:
            self._check_same(run.directory.path)
        LOGGER.info(
            "data set %(dataset)s: %(train)d training and %(test)d test images of %(size)s, "
            "%(classes)d classes",
            self.data,
        )
        if run.directory is not None:
            with run.directory.tolerating("note of the data set"):
                write_whole(run.directory.path / DATA, json.dumps(dict(self.data)) + "\n")

    def _check_same(self, run_dir: Path) -> None:
        try:
            digest = json.loads((run_dir / DATA).read_text(encoding="utf-8"))["digest"]
        except (OSError, ValueError, KeyError, TypeError):  # earlier versions wrote none
            return
        if digest != self.data["digest"]:
            message = (
                f"the run began on other files of {self.data['dataset']} "
                f"(digest {digest}, now {self.data['digest']})"
            )
            raise ConfigError("resume", str(run_dir), message)
