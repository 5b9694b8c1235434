"""The recorder of a run: writes its run directory and counts its rounds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from flwr.app import ArrayRecord

from flower_scheduling.strategies.flower import RoundRecord

from ..callbacks import RoundCallback, Run, RunEnd

_ARMS_S: Final = 1.0  # between two lists of the same arms: of a large fleet each takes a while


class RunRecorder(RoundCallback):
    """A callback that writes rounds, arms, models and summary, and counts what was written.

    To be the innermost callback: the others see each round in totals and run directory.
    """

    def on_start(self, run: Run) -> None:
        """Take the run."""
        self._run = run
        self._latest: tuple[RoundRecord, ArrayRecord] | None = None
        self._noted: tuple[int, list[float] | None] | None = None  # version of the arms, floors
        self._num_noted = 0
        self._noted_s = 0.0

    def on_round(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Write a round, and count it."""
        self._latest = record, arrays
        if (directory := self._run.directory) is not None:
            # The arms first: a reader of a round finds its clients in the list.
            self._note_arms(record.num_arms)
            directory.write_round(record, arrays)
        self._count_latest()

    def on_end(self, status: RunEnd, summary: Mapping[str, Any]) -> None:
        """Write arms, summary and the last model."""
        run, directory = self._run, self._run.directory
        if directory is None:
            return
        if self._latest is not None:  # an interrupt may have come between writing and counting
            written = directory.count_rounds()
            if run.totals.rounds < self._latest[0].round <= written:
                self._count_latest()
        self._write_arms()
        run.unsaved = directory.write_results(run.summary(), run.arrays)

    def _note_arms(self, num_arms: int) -> None:
        """Write the list of arms if there are new ones, or if it has changed for a while."""
        now = self._run.strategy.arms.version, self._run.strategy.floors
        if now == self._noted:
            return
        if num_arms > self._num_noted or time.monotonic() - self._noted_s >= _ARMS_S:
            self._write_arms()
            self._noted, self._num_noted, self._noted_s = now, num_arms, time.monotonic()

    def _write_arms(self) -> None:
        run = self._run
        assert run.directory is not None
        run.directory.note_arms(run.strategy.arms.arms, run.strategy.floors)

    def _count_latest(self) -> None:
        assert self._latest is not None
        record, self._run.arrays = self._latest
        self._run.totals.count(record)
