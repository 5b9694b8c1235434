"""The league's outcome: tables for people, CSV and JSON for programs, a forest plot."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich.table import Table

from ..theory.estimate import Estimate, ratio_of_means
from .tasks import Standing

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
                "ratio": _rounded(interval.mean),
                "low": _rounded(interval.low),
                "high": _rounded(interval.high),
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


def _rounded(value: float) -> float | None:
    return round(value, 5) if np.isfinite(value) else None


def write(standings: Sequence[Standing], folder: Path) -> list[Path]:
    """Write ``league.csv``, ``.json``, ``.md`` and ``forest.png``/``.svg``; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    found = rows(standings)
    with (folder / "league.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(found[0]))
        writer.writeheader()
        writer.writerows(found)
    text = json.dumps(found, indent=1, allow_nan=False) + "\n"
    (folder / "league.json").write_text(text, encoding="utf-8")
    (folder / "league.md").write_text(markdown(found), encoding="utf-8")
    _draw(standings, folder)
    names = ("league.csv", "league.json", "league.md", "forest.png", "forest.svg")
    return [folder / name for name in names]


def table(standings: Sequence[Standing]) -> Table:
    """Return how each policy did over all scenarios, for people; the scenarios are in the files."""
    shown = Table(
        title="Total time, 1 = whoever knows everything",
        caption="mean and worst over the scenarios without floors; floors: runs that met all, and "
        "the mean where there are some",
    )
    shown.add_column("policy")
    for column in ("mean", "worst", "in", "floors met", "with floors", "decision [µs]"):
        shown.add_column(column, justify="right" if column != "in" else "left")
    for policy in dict.fromkeys(each.policy for each in standings):
        own = [each for each in standings if each.policy == policy]
        free = [each for each in own if each.shortfall is None]
        bound = [each for each in own if each.shortfall is not None]
        worst = max(free, key=lambda each: ratio(each).mean, default=None)
        times_s = sorted(each.decision_s for each in own)
        met = [float((each.shortfall <= TOLERANCE).mean()) for each in bound]
        shown.add_row(
            policy,
            _mean(free),
            f"{ratio(worst).mean:.3f}" if worst else "",
            worst.scenario.name if worst else "",
            f"{min(met):.0%}" if met else "",
            _mean(bound),
            f"{1e6 * times_s[0]:.0f} to {1e6 * times_s[-1]:.0f}",
        )
    return shown


def markdown(found: Sequence[Mapping[str, Any]], policies: Sequence[str] = ()) -> str:
    """Return the ratios of policies in every scenario as a table, a scenario a line.

    Parameters
    ----------
    found : sequence of mapping
        From :func:`rows`, or as read from ``league.csv``.
    policies : sequence of str
        Which, in this order; all by default.

    Returns
    -------
    str
        The best of them is bold; in parentheses who missed a floor in some run.
    """
    policies = policies or list(dict.fromkeys(row["policy"] for row in found))
    by_place = {(row["policy"], row["scenario"]): row for row in found}
    lines = ["| scenario | " + " | ".join(f"`{name}`" for name in policies) + " |"]
    lines.append("|---" * (len(policies) + 1) + "|")
    for scenario in dict.fromkeys(row["scenario"] for row in found):
        here = {name: by_place[name, scenario] for name in policies if (name, scenario) in by_place}
        meeting = [float(row["ratio"] or np.nan) for row in here.values() if _met(row)]
        cells = []
        for name in policies:
            if name not in here:
                cells.append("")
                continue
            value = float(here[name]["ratio"] or np.nan)
            text = f"{value:.3f}" if value < 10 else f"{value:.1f}"
            bold = f"**{text}**" if value == min(meeting, default=None) else text
            cells.append(bold if _met(here[name]) else f"({text})")
        lines.append(f"| {scenario} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _met(row: Mapping[str, Any]) -> bool:
    return row["floors_met"] in (None, "") or float(row["floors_met"]) == 1.0


def _mean(standings: Sequence[Standing]) -> str:
    """Return the geometric mean of ratios."""
    if not standings:
        return ""
    return f"{np.exp(np.mean([np.log(ratio(each).mean) for each in standings])):.3f}"


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
