"""Command ``report``: one HTML file on what scheduling saved in a run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from flower_scheduling.files import write_whole
from flower_scheduling.help_sections import HelpfulCommand
from flower_scheduling.server.runtimes.signals import stoppable

from ..environments.recorded import RecordedRun, holds_runs, open_run, record_of
from ..output_file import ensure_overwritable
from ..program import program_name
from ..terminal.round_bar import RoundBar
from ..wording import plain
from .compared_runs import compare_runs, compare_with_random_beside, comparison_page
from .document import MARK, report_page
from .run_group import read_group
from .run_statistics import gather_statistics
from .savings import SEEDS, estimate_savings


@click.command(
    "report",
    cls=HelpfulCommand,
    short_help="Write a report on RUN, or a folder of runs: what was saved.",
)
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File to write.  [default: report.html in RUN]",
)
@click.option("--force", is_flag=True, help="Overwrite a file that is no earlier report.")
@click.option(
    "--seeds",
    type=click.IntRange(min=2),
    help=f"Repetitions of the replay.  [default: {SEEDS}, fewer for large runs]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the estimate's numbers, for scripts.")
def report_command(
    run: Path, out: Path | None, force: bool, seeds: int | None, as_json: bool
) -> None:
    """Write a report on RUN: what scheduling saved against random, and where the time went.

    RUN is the run directory of a fleet or a simulation, finished or still running; or a folder of
    runs, such as compare and demo leave: then these are shown side by side, compared by the time to
    an accuracy. An earlier report is replaced, any other file only with --force, and a file of a
    run never.
    """
    target = out or run / "report.html"
    ensure = partial(ensure_overwritable, "out", target, mark=MARK, what="report", force=force)
    command = [*program_name().split(), "report", str(run)]
    if not (run / "config.toml").exists() and holds_runs(run):
        if seeds is not None:
            raise click.UsageError(f"--seeds is for one run: {run} is a folder of runs")
        lines, numbers, text = _of_folder(run, shlex.join(command), ensure)
    else:
        lines, numbers, text = _of_run(open_run(run), seeds, command, ensure)
    ensure()
    write_whole(target, text)
    if as_json:
        click.echo(json.dumps({"report": str(target)} | numbers, allow_nan=False))
        return
    console = Console()
    for line in (*lines, f"written  {target}"):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _of_folder(
    folder: Path, command: str, ensure: Callable[[], None]
) -> tuple[list[str], dict[str, Any], str]:
    """Return what is printed on a folder of runs, its numbers, and its report."""
    ensure()
    with stoppable(), Console(stderr=True).status("reading the runs"):
        found = compare_runs(*read_group(folder))
        text = comparison_page(folder, found, command=command)
    left_out = [f"left out  {plain(line, 200)}" for line in found.left_out]
    return [found.sentence, *left_out], found.to_dict(), text


def _of_run(
    recorded: RecordedRun, seeds: int | None, command: list[str], ensure: Callable[[], None]
) -> tuple[list[str], dict[str, Any], str]:
    """Return what is printed on a run, its numbers, and its report."""
    ensure()
    errors = Console(stderr=True)
    with stoppable():
        with errors.status("reading the run"):
            record = record_of(recorded)
        with RoundBar(errors, "replaying the recorded times") as bar:
            savings = estimate_savings(record, seeds, on_round=bar)
        stats = gather_statistics(recorded, record)
        pair = compare_with_random_beside(recorded)
        to_target = None if pair is None else pair.sentence
        command += ["--seeds", str(seeds)] if seeds else []
        text = report_page(recorded, savings, stats, to_target, command=shlex.join(command))
    lines = [savings.sentence, *([to_target] if to_target else []), *savings.caveats]
    numbers: dict[str, Any] = {"rounds": recorded.num_rounds} | savings.to_dict()
    numbers["to_target"] = None if pair is None else pair.to_dict()
    return lines, numbers, text
