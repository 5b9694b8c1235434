"""``python -m simulation league``: compare all policies over the suite of scenarios."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from server.command_line import stoppable
from simulation.paper.command import PieceProgress
from simulation.paper.pieces import compute_all

from . import report
from .scenario import Scenario, suite
from .work import entrants, pieces_of, standings

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
    help="May be given several times. Default: all that learn from times alone.",
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
    quick: bool,
    seeds: int | None,
    out: Path | None,
    processes: int,
) -> None:
    """Compare scheduling policies with whoever knows everything, scenario by scenario.

    What was computed is kept: an interrupted run goes on, and a new policy computes only itself.
    """
    scenarios = [Scenario.load(name) for name in dict.fromkeys(names or suite())]
    if seeds or quick:
        few = seeds or _QUICK_SEEDS
        scenarios = [
            replace(each, seeds=few if seeds else min(few, each.seeds)) for each in scenarios
        ]
    taking_part = {each.name: _chosen(each, policies) for each in scenarios}
    out = out or Path("runs") / ("league-quick" if quick else "league")
    pieces = [piece for each in scenarios for piece in pieces_of(each, taking_part[each.name])]
    out.mkdir(parents=True, exist_ok=True)
    with stoppable(), PieceProgress(Console(stderr=True), pieces) as progress:
        results = compute_all(
            pieces, out / "pieces", num_processes=processes, on_done=progress.update
        )
    found = standings(scenarios, taking_part, results)
    console = Console()
    console.print(report.table(found))
    for path in report.write(found, out):
        console.print(f"written  {path}", highlight=False, markup=False, soft_wrap=True)


def _chosen(scenario: Scenario, wanted: Sequence[str]) -> list[str]:
    """Return the policies of a scenario in the order of the registry."""
    possible = entrants(scenario)
    for name in wanted:
        if name not in entrants(replace(scenario, floors=())):
            raise click.UsageError(f"--policy {name!r}: must be one of {', '.join(possible)}")
    return [name for name in possible if not wanted or name in wanted]
