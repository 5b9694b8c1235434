"""Progress: bars that fit eighty columns, plain lines where there is no terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from rich.console import Console

from flower_scheduling.simulation.jobs import Job
from flower_scheduling.simulation.terminal import job_progress, progress, round_bar
from flower_scheduling.simulation.terminal.job_progress import JobProgress
from flower_scheduling.simulation.terminal.progress import RunProgress, RunStatus
from flower_scheduling.simulation.terminal.round_bar import RoundBar

STATUS = RunStatus(1240, 12345.6, 0.8012, "client-10")


def console(*, terminal: bool, width: int = 80) -> Console:
    # Of a terminal rich asks the size, which a file does not have.
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)


def shown(renderable: Any, width: int) -> list[str]:
    plain = console(terminal=True, width=width)
    plain.print(renderable)
    return plain.file.getvalue().splitlines()  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    for module in (progress, job_progress, round_bar):
        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("width", [80, 120])
def test_bars_of_runs_fit_and_cut_no_name(width: int) -> None:
    runs = {"modified-cs-ucb": 5000, "cs-ucb-q-adaptive": 5000}
    bars = RunProgress(console(terminal=True, width=width), runs)
    bars.show("cs-ucb-q-adaptive", STATUS)
    lines = shown(bars._progress.get_renderable(), width)
    assert len(lines) == 2
    assert all(len(line) <= width for line in lines)
    assert lines[0].startswith("modified-cs-ucb ")
    for part in ("cs-ucb-q-adaptive ", "1240/5000", "12,346 s", "80.1%", "━"):
        assert part in lines[1]
    assert ("client-10" in lines[1]) == (width == 120)


def test_runs_without_a_terminal_are_a_line_a_minute(clock: list[float]) -> None:
    out = console(terminal=False)
    with RunProgress(out, {"random": 5000}) as bars:
        clock[0] += 300.0  # others were first: nothing is late because of that
        for _ in range(5):
            clock[0] += 30.0
            bars.show("random", STATUS)
        line = "random: round 1240 of 5000, 12346 s, accuracy 80.1%\n"
        assert out.file.getvalue() == 2 * line  # type: ignore[attr-defined]
        clock[0] += 60.0
        bars.show("random", replace(STATUS, unit="step"))
    assert ": step 1240 of 5000," in out.file.getvalue()  # type: ignore[attr-defined]


def test_the_bar_of_jobs_fits_and_tells_the_time_that_is_left(clock: list[float]) -> None:
    jobs = [Job(f"paper-non-ideal-accuracy-cs-ucb-{n}", partial(dict), 100.0) for n in range(4)]
    bar = JobProgress(console(terminal=True), jobs)
    bar.update(jobs[0], False)  # of an earlier run: it says nothing of the speed
    assert "-:--:--" in shown(bar._progress.get_renderable(), 80)[0]
    clock[0] += 65.0
    bar.update(jobs[1], True)
    (line,) = shown(bar._progress.get_renderable(), 80)
    assert len(line) <= 80
    assert line.startswith("2 of 4 jobs ")
    assert "0:02:10" in line
    clock[0] += 10.0
    assert "0:02:00" in shown(bar._progress.get_renderable(), 80)[0]


def test_the_bar_of_rounds_fits_and_is_a_line_a_minute_without_a_terminal(
    clock: list[float],
) -> None:
    bar = RoundBar(console(terminal=True), "replaying the recorded times")
    bar(30, 120)
    (line,) = shown(bar._bar.get_renderable(), 80)
    assert len(line) <= 80
    assert "25 %" in line
    out = console(terminal=False)
    with RoundBar(out, "replaying") as bar:
        for done in range(5):
            clock[0] += 30.0
            bar(done, 4)
    assert out.file.getvalue() == "replaying: 25%\nreplaying: 75%\n"  # type: ignore[attr-defined]
