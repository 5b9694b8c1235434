"""Progress of cached jobs on the terminal, and what the commands that run jobs share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from flower_scheduling.server.runtimes.signals import stoppable

from ..cluster import Cluster
from ..jobs import Arrays, Job, run_jobs
from .sentences import print_sentence

_LINE_EVERY_S: Final = 60.0
_NAME_WIDTH: Final = 26  # of the last job that was done


def fetch_data(dataset: str = "mnist") -> None:
    """Download a data set into the cache, before several processes want it at once."""
    from flower_scheduling.client.learning.datasets import load_data

    load_data(dataset)


def run_shown(
    jobs: Sequence[Job],
    out: Path,
    num_processes: int,
    cluster: Cluster | None = None,
    *,
    apart: bool = False,
) -> dict[str, Arrays]:
    """Run jobs with their progress on standard error; their files are in ``out/jobs``.

    ``apart`` is that of :func:`.run_jobs`.
    """
    with stoppable(), JobProgress(Console(stderr=True), jobs) as progress:
        return run_jobs(
            jobs,
            out / "jobs",
            num_processes=num_processes,
            on_done=progress.update,
            compute=cluster.compute if cluster else None,
            apart=apart,
        )


class JobProgress:
    """Progress bar of jobs and the time that is left, by their estimated costs.

    On anything but a terminal it is a line a minute.
    """

    def __init__(self, console: Console, jobs: Sequence[Job]) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("[bold]{task.fields[done]} of {task.fields[jobs]} jobs"),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            _TimeLeft(),
            TextColumn(
                "{task.fields[last]}",
                markup=False,
                table_column=Column(width=_NAME_WIDTH, no_wrap=True, overflow="ellipsis"),
            ),
            console=console,
            disable=not console.is_terminal,
            expand=True,
        )
        self._num_jobs = len(jobs)
        self._done = 0
        self._left_s = sum(job.cost_s for job in jobs)
        self._spent_s = 0.0
        self._end_s: float | None = None
        self._begin_s = self._line_s = time.monotonic()
        self._task = self._progress.add_task(
            "", total=self._left_s, done=0, jobs=len(jobs), last="", end_s=None
        )

    def __enter__(self) -> JobProgress:
        self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._progress.stop()

    def update(self, job: Job, computed: bool) -> None:
        """Show that a job is done."""
        self._done += 1
        self._left_s -= job.cost_s
        now_s = time.monotonic()
        left_s = None
        if computed:  # what was computed before this run says nothing of its speed
            self._spent_s += job.cost_s
            left_s = max(self._left_s, 0.0) * (now_s - self._begin_s) / self._spent_s
            self._end_s = now_s + left_s
        self._progress.update(
            self._task, advance=job.cost_s, done=self._done, last=job.name, end_s=self._end_s
        )
        if self._console.is_terminal or left_s is None or now_s - self._line_s < _LINE_EVERY_S:
            return
        self._line_s = now_s
        line = f"{self._done} of {self._num_jobs} jobs, about {left_s / 60:.0f} min left"
        print_sentence(self._console, line)


class _TimeLeft(ProgressColumn):
    """The time that is left until the end as it was last estimated."""

    def render(self, task: Task) -> Text:
        end_s = task.fields["end_s"]
        if end_s is None:
            return Text("-:--:--", style="progress.remaining")
        minutes, seconds = divmod(round(max(end_s - time.monotonic(), 0.0)), 60)
        hours, minutes = divmod(minutes, 60)
        return Text(f"{hours}:{minutes:02}:{seconds:02}", style="progress.remaining")
