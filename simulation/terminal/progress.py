"""Progress of simulations: a bar for each on a terminal, else a line a minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from flwr.app import ArrayRecord
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from flower_scheduling.strategies.flower import RoundHook, RoundRecord

from .live_screen import LiveScreen
from .sentences import print_sentence

_SHOW_EVERY_S: Final = 0.1
_LINE_EVERY_S: Final = 60.0
# Terminals as wide as this show the slowest client of the last round as well.
_WIDE: Final = 110
_LONGEST_NAME: Final = 24


@dataclass(frozen=True, slots=True)
class RunStatus:
    """How far a run is.

    Attributes
    ----------
    round : int
        The last round.
    time_s : float
        Virtual time since the start [s].
    accuracy : float or None
        The last that was measured.
    slowest : str
        Client that the last round waited for; empty if there was none.
    total : int or None
        Rounds at most, where they are known only when the run has begun.
    unit : str
        What rounds are called: steps in buffered mode.
    """

    round: int
    time_s: float
    accuracy: float | None
    slowest: str
    total: int | None = None
    unit: str = "round"


class Display(Protocol):
    """What shows how far runs are."""

    def show(self, name: str, status: RunStatus) -> None:
        """Show how far the run of this name is."""


class RoundReporter:
    """A round hook that reports some ten times a second how far a run is.

    Parameters
    ----------
    report : callable
        Takes the status.

    Attributes
    ----------
    total : int or None
        Rounds at most, where they are known only when the run has begun.
    """

    def __init__(self, report: Callable[[RunStatus], None]) -> None:
        self.total: int | None = None
        self._report = report
        self._accuracy: float | None = None
        self._next_s = 0.0

    def __call__(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Take note of a round."""
        if record.accuracy is not None:
            self._accuracy = record.accuracy
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _SHOW_EVERY_S
        slowest = ""
        if record.results:
            times = [record.round_s if rtt is None else rtt for rtt in record.rtt_s]
            slowest = record.names[times.index(max(times))]
        unit = "step" if record.buffered else "round"
        status = RunStatus(
            record.round, record.time_s, self._accuracy, slowest, self.total, unit=unit
        )
        self._report(status)


class RunProgress(LiveScreen):
    """A progress bar for each of some runs, with the time that its rounds will take at most.

    Parameters
    ----------
    console : Console
        Where the bars are. On anything but a terminal each run is a line a minute.
    runs : mapping of str to int or None
        Name of each run, and its rounds at most, if that is known.
    """

    def __init__(self, console: Console, runs: Mapping[str, int | None]) -> None:
        self._runs = runs
        fields = ["{task.fields[rounds]}", "{task.fields[time]}", "{task.fields[accuracy]}"]
        if console.width >= _WIDE:
            fields.append("{task.fields[slowest]}")
        self._progress = Progress(
            TextColumn(
                "[bold]{task.description}",
                table_column=Column(no_wrap=True, max_width=_LONGEST_NAME, overflow="ellipsis"),
            ),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            *(
                TextColumn(field, markup=False, table_column=Column(justify="right", no_wrap=True))
                for field in fields
            ),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            expand=True,
            transient=True,
        )
        super().__init__(console, self._progress)
        self._tasks = {
            name: self._progress.add_task(
                name, start=False, total=rounds, rounds="", time="", accuracy="", slowest=""
            )
            for name, rounds in runs.items()
        }
        self._next_line_s: dict[str, float] = {}

    def hook(self, name: str) -> RoundHook:
        """Return a round hook that shows how far a run of this process is."""
        return RoundReporter(partial(self.show, name))

    def show(self, name: str, status: RunStatus) -> None:
        """Show how far a run is; its time begins with the first round."""
        accuracy = "" if status.accuracy is None else f"{status.accuracy:.1%}"
        total = status.total or self._runs[name]
        if not self._progress.disable:
            self._progress.start_task(self._tasks[name])
            self._progress.update(
                self._tasks[name],
                completed=status.round,
                total=total,
                rounds=f"{status.round}/{total or '?'}",
                time=f"{status.time_s:,.0f} s",
                accuracy=accuracy,
                slowest=status.slowest,
            )
            return
        now_s = time.monotonic()
        if now_s >= self._next_line_s.setdefault(name, now_s + _LINE_EVERY_S):
            self._next_line_s[name] = now_s + _LINE_EVERY_S
            of = f" of {total}" if total else ""
            line = f"{name}: {status.unit} {status.round}{of}, {status.time_s:.0f} s"
            line += f", accuracy {accuracy}" if accuracy else ""
            print_sentence(self._console, line)
