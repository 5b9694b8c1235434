"""Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from flower_scheduling.errors import TrackerError
from flower_scheduling.extras import PROJECT

from ...callbacks import RunEnd
from .base import DRAIN_S, RoundPoint, TrackedRun, Tracker


class WandbTracker(Tracker):
    """A tracker for Weights & Biases by its own environment variables, ``WANDB_MODE`` and others.

    Files go to ``wandb`` in the run directory; code, console output and Git are left alone.
    """

    package = "wandb"
    _EXIT_CODES: Final = {RunEnd.FINISHED: 0, RunEnd.FAILED: 1, RunEnd.KILLED: 255}

    def __init__(self) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self._wandb = wandb
        self._run: Any = None

    @property
    def remote(self) -> bool:
        """Whether it is not set to stay offline."""
        return os.environ.get("WANDB_MODE", "online") not in ("offline", "dryrun", "disabled")

    def begin(self, run: TrackedRun) -> None:
        """Create a run, or go on with the one before.

        Raises
        ------
        TrackerError
            If there is no login: a run is not the place for a prompt.
        """
        wandb = self._wandb
        quiet = wandb.Settings(silent=True)
        offline = wandb.setup(settings=quiet).settings.mode != "online"
        if not offline and not wandb.login(prompt=False):
            raise TrackerError("not logged in: wandb login, or WANDB_API_KEY or WANDB_MODE=offline")
        before = run.noted("wandb_run_id")
        self._run = wandb.init(
            project=os.environ.get("WANDBPROJECT") or PROJECT,
            name=os.environ.get("WANDB_NAME") or run.name,
            id=before,
            resume="allow" if before and not offline else None,
            dir=str(run.folder),
            config=run.settings,
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_code=True,
                disable_git=True,
                finish_timeout=0.6 * DRAIN_S,
            ),
        )
        run.note("wandb_run_id", self._run.id)

    def log_rounds(self, points: Sequence[RoundPoint]) -> None:
        """Hand rounds to wandb's own process."""
        for point in points:
            self._run.log(point.metrics, step=point.step)

    def end(self, status: RunEnd, step: int, summary: Mapping[str, float]) -> None:
        """Report the summary, and how the run ended."""
        self._run.summary.update({**summary, "status": status.value})
        self._run.finish(exit_code=self._EXIT_CODES[status])
