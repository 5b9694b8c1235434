"""Tables of a simulation's results, for the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..engine.runner import SimulationResult
from ..program import program_name
from .comparison import comparison
from .name_table import name_table
from .sentences import print_sentence

_MAX_ROWS = 30


def print_tables(
    results: Sequence[SimulationResult], figures: Sequence[Path], console: Console
) -> None:
    """Print the runs side by side, or one run's clients; then where the files are."""
    console.print(_runs(results))
    if len(results) == 1:
        console.print(_clients(results[0].summary))
    print_sentence(console, _headline(results))
    folders = {Path(result.config.run_dir) for result in results}
    where = next(iter(folders)) if len(folders) == 1 else next(iter(folders)).parent
    console.print(f"results  {where}", highlight=False, markup=False, soft_wrap=True)
    for what, command in (("page", "watch"), ("report", "report")):
        text = f"{what:8} {program_name()} {command} {shlex.quote(str(where))}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    for figure in figures:
        console.print(f"figure   {figure}", highlight=False, markup=False, soft_wrap=True)


def _runs(results: Sequence[SimulationResult]) -> Table:
    target = results[0].config.target_accuracy
    buffered = [result.config.mode == "buffered" for result in results]
    unit = "steps" if all(buffered) else "rounds, steps" if any(buffered) else "rounds"
    headings = [unit, "time [s]", "accuracy", "failures"]
    headings += [f"to {target:.1%} [s]"] if target else []
    table = name_table("strategy", [each.config.strategy for each in results], headings)
    for result in results:
        summary = result.summary
        row = [
            escape(result.config.strategy),
            str(summary["rounds"]),
            f"{summary['time_s']:.1f}",
            _number(summary["accuracy"], ".4f"),
            str(summary["failures"]),
        ]
        if target:
            reached_s = summary["target_time_s"]
            row.append("not reached" if reached_s is None else f"{reached_s:.1f}")
        table.add_row(*row)
    return table


def _clients(summary: dict[str, Any]) -> Table:
    arms, title = summary["arms"], None
    if len(arms) > _MAX_ROWS:
        arms = sorted(arms, key=lambda arm: -(arm["mean_rtt_s"] or 0.0))[:_MAX_ROWS]
        title = f"the {_MAX_ROWS} slowest of {len(summary['arms'])} clients"
    headings = ("examples", "share", "floor", "mean round trip [s]", "failures")
    table = name_table("client", [arm["name"] for arm in arms], headings, title=title)
    for arm in arms:
        below = arm["floor"] is not None and arm["share"] < arm["floor"] - 0.01
        table.add_row(
            escape(arm["name"]),
            _number(arm["num_examples"], "d"),
            f"[red]{arm['share']:.3f}[/red]" if below else f"{arm['share']:.3f}",
            _number(arm["floor"], ".3f"),
            _number(arm["mean_rtt_s"], ".3f"),
            str(arm["failures"]),
        )
    return table


def _headline(results: Sequence[SimulationResult]) -> str:
    if len(results) > 1:
        return comparison(results)
    summary = results[0].summary
    unit = "step" if results[0].config.mode == "buffered" else "round"
    if summary["target_round"] is not None:
        return (
            f"reached {summary['target_accuracy']:.1%} test accuracy in {unit} "
            f"{summary['target_round']}, after {summary['target_time_s']:.1f} s of virtual time"
        )
    if summary["accuracy"] is None:
        return f"{summary['rounds']} {unit}s"
    text = f"{summary['accuracy']:.1%} test accuracy after {summary['rounds']} {unit}s"
    if summary["target_accuracy"]:
        text += f"; the target of {summary['target_accuracy']:.1%} was not reached"
    return text


def _number(value: float | None, spec: str) -> str:
    return "–" if value is None else format(value, spec)
