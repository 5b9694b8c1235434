"""Commands ``paper`` and ``paper-page``: compute, draw, judge, report."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import tomli_w
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flower_scheduling.errors import did_you_mean
from flower_scheduling.help_sections import HelpfulCommand

from ..cluster import Cluster
from ..program import cluster_option, processes_option, program_name
from ..terminal.job_progress import fetch_data, run_shown
from .claims import Claim, judge
from .figures import FIGURES, Results, jobs_of, write_figure
from .html_report import load_results, page, results_of, shown, write_report
from .settings import PaperConfig


def _figure_help() -> str:
    return "Only this one: " + ", ".join(FIGURES) + ". May be repeated."


@click.command(
    cls=HelpfulCommand, short_help="Compute the figures of the paper and judge its claims."
)
@click.option("--figure", "names", multiple=True, metavar="NAME", help=_figure_help())
@click.option("--quick", is_flag=True, help="Few seeds and shorter runs, some minutes.")
@click.option(
    "--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Change a setting; --settings lists."
)
@click.option("--settings", "list_settings", is_flag=True, help="List the settings and end.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of results; taken up where it was left.  [default: runs/paper, runs/paper-quick]",
)
@processes_option
@cluster_option
def paper(
    names: Sequence[str],
    quick: bool,
    pairs: Sequence[str],
    list_settings: bool,
    out: Path | None,
    processes: int,
    cluster: Cluster | None,
) -> None:
    """Compute every figure of the paper, judge its claims, and write a report.

    What was computed is kept: a run that was interrupted goes on, and changed settings compute
    only what they change.
    """
    config = PaperConfig.from_text(_pairs(pairs), quick=quick)
    console = Console()
    if list_settings:
        console.print(_settings_table(config))
        return
    for name in names:
        if name not in FIGURES:
            known = ", ".join(FIGURES)
            raise click.UsageError(
                f"--figure {name!r}: must be one of {known}{did_you_mean(name, FIGURES)}"
            )
    out = out or Path("runs") / ("paper-quick" if quick else "paper")
    wanted = list(dict.fromkeys(names)) or list(FIGURES)
    out.mkdir(parents=True, exist_ok=True)
    # A figure by itself may have other settings than the report: it must not mix with it.
    shown_in = out / "single" if names else out
    jobs = jobs_of(wanted, config)
    if any(job.name.startswith("train-") for job in jobs):
        fetch_data()
    results = Results(config, run_shown(jobs, out, processes, cluster))
    figures = [FIGURES[name].show(results) for name in wanted]
    paths = [
        path
        for figure in figures
        for path in write_figure(
            figure, shown_in / "figures", shown_in / "data", mark="quick look" if quick else ""
        )
    ]
    if names:
        for path in paths:
            console.print(f"written  {path}", highlight=False, markup=False, soft_wrap=True)
        return
    claims = judge(results)
    command = shlex.join(
        [*program_name().split(), "paper", *(["--quick"] if quick else [])]
        + [part for pair in pairs for part in ("--set", pair)]
    )
    found = results_of(config, claims, figures, quick=quick, command=command)
    (out / "config.toml").write_text(tomli_w.dumps(dict(config.to_mapping())), encoding="utf-8")
    text = json.dumps(found, indent=1, allow_nan=False) + "\n"
    (out / "results.json").write_text(text, encoding="utf-8")
    write_report(out / "report.html", found, figures, out / "figures")
    console.print(_claims_table(claims, quick=quick))
    for what in ("report.html", "results.json", "figures", "data"):
        console.print(f"written  {out / what}", highlight=False, markup=False, soft_wrap=True)


@click.command("paper-page", short_help="Write the page of the documentation on RESULTS.")
@click.argument("results", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--figures",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder of the figures to show, and of the results file that they are from.",
)
def paper_page(results: Path, target: Path, figures: Path) -> None:
    """Write the documentation's page TARGET from a RESULTS file of `paper`."""
    found, drawn = (_loaded(path) for path in (results, figures / "results.json"))
    if "figures" not in drawn:
        raise click.UsageError(f"{figures}: its results.json names no figures: run paper again")
    folder = os.path.relpath(figures, target.parent)
    target.write_text(page(found, drawn, Path(folder).as_posix()), encoding="utf-8")
    click.echo(f"written  {target}")


def _loaded(path: Path) -> dict[str, Any]:
    try:
        return load_results(path)
    except ValueError as error:
        raise click.UsageError(f"{path}: {error}") from None


def _pairs(pairs: Sequence[str]) -> dict[str, str]:
    values = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f"--set {pair!r}: must be KEY=VALUE")
        values[key.strip()] = value.strip()
    return values


def _settings_table(config: PaperConfig) -> Table:
    table = Table()
    table.add_column("setting", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("what it is")
    for key, setting in PaperConfig.settings().items():
        value = str(getattr(config, setting.name))
        table.add_row(key, escape(value), escape(setting.help))
    return table


def _claims_table(claims: Sequence[Claim], *, quick: bool) -> Table:
    table = Table(title="quick look: few repetitions" if quick else None)
    for column in ("claim", "estimate [95 % interval]", "verdict"):
        table.add_column(column.replace("[", r"\["))
    colour = {"holds": "green", "does not hold": "red", "not resolved": "yellow"}
    for claim in claims:
        text = shown(claim.to_dict()["estimate"], claim.unit).replace("[", r"\[")
        table.add_row(claim.claim, text, f"[{colour[claim.verdict]}]{claim.verdict}")
    return table
