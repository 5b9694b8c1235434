"""Progress bar of a simulation, on a terminal alone."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from flwr.app import ArrayRecord
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from flower_scheduling.strategies.flower import RoundRecord


class RunProgress:
    """Progress bar with virtual time, accuracy and the slowest client; `update` is a round hook.

    Parameters
    ----------
    console : Console
        Where the bar is; nothing is shown unless it is a terminal.
    label : str
        Name of what runs.
    num_rounds : int
        Rounds at most.
    """

    def __init__(self, console: Console, label: str, num_rounds: int) -> None:
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
        self._task = self._progress.add_task(label, total=num_rounds, status="")
        self._accuracy = ""

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def update(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Move on by one round."""
        if self._progress.disable:
            return
        if record.accuracy is not None:
            self._accuracy = f"  accuracy {record.accuracy:.3f}"
        slowest = ""
        if record.selected:
            times = [record.round_s if rtt is None else rtt for rtt in record.rtt_s]
            slowest = f"  slowest {record.names[times.index(max(times))]}"
        status = f"{record.time_s:.0f} s{self._accuracy}{slowest}"
        self._progress.update(self._task, completed=record.round, status=status)
