"""The league's outcome: a table for people, CSV and JSON for programs, a forest plot."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich.table import Table

from simulation.paper.estimate import Estimate, ratio_of_means

from .work import Standing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOLERANCE: Final = 0.01
"""By how much a share may fall short of its floor and still count as met."""


def ratio(standing: Standing) -> Estimate:
    """Return total time relative to whoever knows everything, with its 95 % interval."""
    return ratio_of_means(standing.time_s, standing.reference_s)


def rows(standings: Sequence[Standing]) -> list[dict[str, Any]]:
    """Return one row per scenario and policy, ready for CSV and JSON."""
    found = []
    for each in standings:
        interval = ratio(each)
        floors = each.shortfall is not None
        found.append(
            {
                "scenario": each.scenario.name,
                "policy": each.policy,
                "ratio": round(interval.mean, 5),
                "low": round(interval.low, 5),
                "high": round(interval.high, 5),
                "time_s": round(float(each.time_s.mean()), 3),
                "reference_s": round(float(each.reference_s.mean()), 3),
                "floors_met": float((each.shortfall <= TOLERANCE).mean()) if floors else None,
                "worst_shortfall": round(float(each.shortfall.max()), 5) if floors else None,
                "target": each.scenario.target or None,
                "seeds": len(each.time_s),
                "rounds": each.scenario.rounds,
            }
        )
    return found


def write(standings: Sequence[Standing], folder: Path) -> list[Path]:
    """Write ``league.csv``, ``league.json`` and ``forest.png``/``.svg``; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    found = rows(standings)
    with (folder / "league.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(found[0]))
        writer.writeheader()
        writer.writerows(found)
    text = json.dumps(found, indent=1, allow_nan=False) + "\n"
    (folder / "league.json").write_text(text, encoding="utf-8")
    _draw(standings, folder)
    return [folder / name for name in ("league.csv", "league.json", "forest.png", "forest.svg")]


def table(standings: Sequence[Standing]) -> Table:
    """Return ratios by policy and scenario for people; the best of each scenario in bold."""
    scenarios = list(dict.fromkeys(each.scenario.name for each in standings))
    policies = list(dict.fromkeys(each.policy for each in standings))
    by_place = {(each.policy, each.scenario.name): each for each in standings}
    best = {
        name: min(
            (e for e in standings if e.scenario.name == name and _meets(e)),
            key=lambda each: ratio(each).mean,
            default=None,
        )
        for name in scenarios
    }
    shown = Table(
        title="Total time, 1 = whoever knows everything",
        caption="bold: best; red: a floor was missed in some run",
    )
    shown.add_column("scenario")
    for policy in policies:
        shown.add_column(policy, justify="right", overflow="fold")
    for name in scenarios:
        cells = [name]
        for policy in policies:
            each = by_place.get((policy, name))
            if each is None:
                cells.append("")
                continue
            text = f"{ratio(each).mean:.3f}"
            if not _meets(each):
                text = f"[red]{text}[/red]"
            elif each is best[name]:
                text = f"[bold]{text}[/bold]"
            cells.append(text)
        shown.add_row(*cells)
    cells = ["decision [µs]"]
    for policy in policies:
        times = [each.decision_s for each in standings if each.policy == policy]
        cells.append(f"{1e6 * min(times):.0f} to {1e6 * max(times):.0f}")
    shown.add_section()
    shown.add_row(*cells)
    return shown


def _meets(standing: Standing) -> bool:
    return standing.shortfall is None or bool((standing.shortfall <= TOLERANCE).all())


def _draw(standings: Sequence[Standing], folder: Path) -> None:
    # A figure of its own, not pyplot's: no display, no global state.
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scenarios = list(dict.fromkeys(each.scenario.name for each in standings))
    columns = min(3, len(scenarios))
    lines = -(-len(scenarios) // columns)
    tallest = max(sum(e.scenario.name == name for e in standings) for name in scenarios)
    figure = Figure(figsize=(4.6 * columns, (0.6 + 0.2 * tallest) * lines), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for panel, name in zip(panels, scenarios, strict=False):
        _draw_scenario(panel, [each for each in standings if each.scenario.name == name])
    for panel in panels[len(scenarios) :]:
        panel.set_visible(False)
    figure.suptitle("Total time relative to whoever knows everything, 95 % intervals")
    with mpl.rc_context({"svg.hashsalt": "league", "svg.fonttype": "none"}):
        figure.savefig(folder / "forest.svg", metadata={"Date": None})
    figure.savefig(folder / "forest.png", dpi=110)


def _draw_scenario(panel: Axes, standings: Sequence[Standing]) -> None:
    ordered = sorted(standings, key=lambda each: -ratio(each).mean)
    for place, each in enumerate(ordered):
        found = ratio(each)
        colour = "tab:red" if not _meets(each) else "tab:blue"
        panel.errorbar(
            found.mean,
            place,
            xerr=[[found.mean - found.low], [found.high - found.mean]],
            fmt="o",
            markersize=4,
            color=colour,
        )
    panel.axvline(1.0, color="0.5", linewidth=1)
    if standings[0].scenario.target:
        panel.axvline(standings[0].scenario.target, color="0.5", linewidth=1, linestyle=":")
    panel.set_xscale("log")
    most = panel.get_xlim()[1]
    steps = (1, 1.1, 1.2, 1.5, 2, 3) if most < 4 else (1, 2, 3, 5, 10, 20, 50)
    ticks = [value for value in steps if value <= most]
    panel.set_xticks(ticks, [f"{value:g}" for value in ticks])
    panel.set_xticks([], minor=True)
    panel.set_yticks(np.arange(len(ordered)), [each.policy for each in ordered], fontsize=7)
    panel.set_title(standings[0].scenario.name, fontsize=9)
    panel.grid(axis="x", alpha=0.3)
