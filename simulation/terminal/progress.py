"""Progress bars of simulations, on a terminal alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Final, Self

from flwr.app import ArrayRecord
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from flower_scheduling.strategies.flower import RoundHook, RoundRecord

_SHOW_EVERY_S: Final = 0.1


class RoundReporter:
    """A round hook that reports some ten times a second how far a run is.

    Parameters
    ----------
    report : callable
        Takes the last round, and a text with virtual time, accuracy and the slowest client.
    """

    def __init__(self, report: Callable[[int, str], None]) -> None:
        self._report = report
        self._accuracy = ""
        self._next_s = 0.0

    def __call__(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Take note of a round."""
        if record.accuracy is not None:
            self._accuracy = f"  accuracy {record.accuracy:.3f}"
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _SHOW_EVERY_S
        slowest = ""
        if record.results:
            times = [record.round_s if rtt is None else rtt for rtt in record.rtt_s]
            slowest = f"  slowest {record.names[times.index(max(times))]}"
        self._report(record.round, f"{record.time_s:.0f} s{self._accuracy}{slowest}")


class RunProgress:
    """A progress bar for each of some runs.

    Parameters
    ----------
    console : Console
        Where the bars are; nothing is shown unless it is a terminal.
    runs : mapping of str to int
        Name of each run, and its rounds at most.
    """

    def __init__(self, console: Console, runs: Mapping[str, int]) -> None:
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}", markup=False),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._tasks = {
            name: self._progress.add_task(name, start=False, total=rounds, status="")
            for name, rounds in runs.items()
        }

    def __enter__(self) -> Self:
        if not self._progress.disable:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._progress.disable:  # it would print an empty line
            self._progress.stop()

    def hook(self, name: str) -> RoundHook:
        """Return a round hook that shows how far a run of this process is."""
        return RoundReporter(partial(self.show, name))

    def show(self, name: str, completed: int, status: str) -> None:
        """Show how far a run is; its time begins with the first round."""
        if not self._progress.disable:
            self._progress.start_task(self._tasks[name])
            self._progress.update(self._tasks[name], completed=completed, status=status)
