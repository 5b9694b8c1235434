"""``python -m simulation league``: compare all policies over the suite of scenarios."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from flower_scheduling.server.runtimes.signals import stoppable
from flower_scheduling.server.settings.run import runnable_policies

from ..job_progress import PieceProgress, fetch_data
from ..jobs import Arrays, Piece, compute_all
from . import results as report
from . import training as training_track
from .scenario import Scenario, suite
from .tasks import entrants, pieces_of, standings

_QUICK_SEEDS: Final = 10


@click.command()
@click.option(
    "--scenario",
    "names",
    multiple=True,
    metavar="NAME",
    help="One of the suite, or a TOML file; may be given several times. Default: all.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="May be given several times. Default: all that can do with times alone, or with "
    "--training the leading ones and those to beat.",
)
@click.option(
    "--training", is_flag=True, help="Seconds to an accuracy instead, on three kinds of data."
)
@click.option("--quick", is_flag=True, help=f"{_QUICK_SEEDS} seeds: wide intervals.")
@click.option("--seeds", type=click.IntRange(min=2), help="Instead of the scenarios' own numbers.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder (default: runs/league).")
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=os.cpu_count() or 1,
    show_default="all cores",
    help="Processes; results do not depend on it.",
)
def league(
    names: Sequence[str],
    policies: Sequence[str],
    training: bool,
    quick: bool,
    seeds: int | None,
    out: Path | None,
    processes: int,
) -> None:
    """Compare scheduling policies with whoever knows everything, scenario by scenario.

    What was computed is kept: an interrupted run goes on, and a new policy computes only itself.
    """
    out = out or Path("runs") / ("league-quick" if quick else "league")
    if training:
        if names:
            raise click.UsageError("--training has data of its own: leave out --scenario")
        _train(policies, seeds or _QUICK_SEEDS, out, processes)
        return
    scenarios = [Scenario.load(name) for name in dict.fromkeys(names or suite())]
    stems = [each.name for each in scenarios]
    if twice := sorted({stem for stem in stems if stems.count(stem) > 1}):
        raise click.UsageError(f"two scenarios are called {twice[0]}: rename a file")
    if seeds or quick:
        few = seeds or _QUICK_SEEDS
        scenarios = [
            replace(each, seeds=few if seeds else min(few, each.seeds)) for each in scenarios
        ]
    taking_part = {each.name: _chosen(each, policies) for each in scenarios}
    pieces = [piece for each in scenarios for piece in pieces_of(each, taking_part[each.name])]
    found = standings(scenarios, taking_part, _compute(pieces, out, processes))
    console = Console()
    console.print(report.table(found))
    for path in report.write(found, out):
        console.print(f"written  {path}", highlight=False, markup=False, soft_wrap=True)


def _train(policies: Sequence[str], num_seeds: int, out: Path, processes: int) -> None:
    for name in policies:
        if name not in runnable_policies():
            known = ", ".join(runnable_policies())
            raise click.UsageError(f"--policy {name!r}: must be one of {known}")
    wanted = list(policies) or list(training_track.POLICIES_SHOWN)
    fetch_data()
    results = _compute(training_track.pieces_of(wanted, num_seeds), out, processes)
    found = training_track.rows(wanted, num_seeds, results)
    console = Console()
    console.print(training_track.table(found))
    path = out / "training.json"
    path.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    console.print(f"written  {path}", highlight=False, markup=False, soft_wrap=True)


def _compute(pieces: Sequence[Piece], out: Path, processes: int) -> dict[str, Arrays]:
    out.mkdir(parents=True, exist_ok=True)
    with stoppable(), PieceProgress(Console(stderr=True), pieces) as progress:
        return compute_all(pieces, out / "pieces", num_processes=processes, on_done=progress.update)


def _chosen(scenario: Scenario, wanted: Sequence[str]) -> list[str]:
    """Return the policies of a scenario in the order of the registry."""
    possible = entrants(scenario)
    for name in wanted:
        if name not in entrants(replace(scenario, floors=())):
            raise click.UsageError(f"--policy {name!r}: must be one of {', '.join(possible)}")
    return [name for name in possible if not wanted or name in wanted]
