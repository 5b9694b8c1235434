"""Command ``report``: one HTML file on what scheduling saved in a run."""

from __future__ import annotations

import json
import shlex
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from flower_scheduling.files import write_whole
from flower_scheduling.server.runtimes.signals import stoppable

from ..environments.recorded import open_run, record_of
from ..output_file import ensure_overwritable
from ..program import program_name
from ..terminal.round_bar import RoundBar
from .document import MARK, report_page
from .run_statistics import gather_statistics
from .savings import SEEDS, estimate_savings


@click.command("report", short_help="Write a report on RUN: what scheduling saved.")
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

    RUN is the run directory of a fleet or a simulation, finished or still running. An earlier
    report is replaced, any other file only with --force, and a file of a run never.
    """
    recorded = open_run(run)
    target = out or run / "report.html"
    ensure = partial(ensure_overwritable, "out", target, mark=MARK, what="report", force=force)
    ensure()
    errors = Console(stderr=True)
    with stoppable():
        with errors.status("reading the run"):
            record = record_of(recorded)
        with RoundBar(errors, "replaying the recorded times") as bar:
            savings = estimate_savings(record, seeds, on_round=bar)
        stats = gather_statistics(recorded, record)
        command = [*program_name().split(), "report", str(run)]
        command += ["--seeds", str(seeds)] if seeds else []
        text = report_page(recorded, savings, stats, command=shlex.join(command))
        ensure()
        write_whole(target, text)
    if as_json:
        shown = {"report": str(target), "rounds": recorded.num_rounds} | savings.to_dict()
        click.echo(json.dumps(shown, allow_nan=False))
        return
    console = Console()
    for line in (savings.sentence, *savings.caveats):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"written  {target}", highlight=False, markup=False, soft_wrap=True)
