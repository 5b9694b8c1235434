"""Results of the benchmark as tables, CSV, JSON and a forest plot."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from flower_scheduling.palette import MEANINGS

from .. import plots
from ..terminal.name_table import name_table
from ..theory.estimate import Estimate, ratio_of_means
from .tasks import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# By how much a share may fall short of its floor and still count as met.
TOLERANCE: Final = 0.01


def ratio(result: Result) -> Estimate:
    """Return total time relative to the reference, with its 95 % interval."""
    return ratio_of_means(result.time_s, result.reference_s)


def rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return one row per scenario and policy, ready for CSV and JSON."""
    found = []
    for each in results:
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


def write(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write ``league.csv``, ``.json``, ``.md`` and ``forest.png``/``.svg``; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    found = rows(results)
    with (folder / "league.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(found[0]))
        writer.writeheader()
        writer.writerows(found)
    text = json.dumps(found, indent=1, allow_nan=False) + "\n"
    (folder / "league.json").write_text(text, encoding="utf-8")
    (folder / "league.md").write_text(markdown(found), encoding="utf-8")
    forest = folder / "forest.png", folder / "forest.svg"
    _draw(results, *forest)
    return [*(folder / f"league.{kind}" for kind in ("csv", "json", "md")), *forest]


def table(results: Sequence[Result]) -> Table:
    """Return the table of policies over all scenarios, for the terminal."""
    policies = list(dict.fromkeys(each.policy for each in results))
    shown = name_table(
        "policy",
        policies,
        ("mean", "worst", "in", "floors met", "with floors", "choice [µs]"),
        left=("in",),
        box=SIMPLE_HEAD,
        padding=0,  # room for the names of scenarios in 80 columns
        title="Total time, 1 = the clairvoyant oracle",
        caption="mean and worst over the scenarios without floors; floors: runs that met all, and "
        "the mean where there are some",
    )
    for policy in policies:
        own = [each for each in results if each.policy == policy]
        free = [each for each in own if each.shortfall is None]
        bound = [each for each in own if each.shortfall is not None]
        worst = max(free, key=lambda each: ratio(each).mean, default=None)
        times_s = sorted(each.decision_s for each in own)
        met = [float((each.shortfall <= TOLERANCE).mean()) for each in bound]
        shown.add_row(
            escape(policy),
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
        The best of them is bold; in parentheses policies that missed a floor in some run.
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


def _mean(results: Sequence[Result]) -> str:
    """Return the geometric mean of ratios."""
    if not results:
        return ""
    return f"{np.exp(np.mean([np.log(ratio(each).mean) for each in results])):.3f}"


def _meets(result: Result) -> bool:
    return result.shortfall is None or bool((result.shortfall <= TOLERANCE).all())


def _draw(results: Sequence[Result], *paths: Path) -> None:
    scenarios = list(dict.fromkeys(each.scenario.name for each in results))
    columns = min(3, len(scenarios))
    lines = -(-len(scenarios) // columns)
    tallest = max(sum(e.scenario.name == name for e in results) for name in scenarios)
    with plots.styled("league", **{"svg.fonttype": "none"}):
        size = (max(6.4, 4.6 * columns), (1.0 + 0.2 * tallest) * lines + 0.6)
        figure, panels = plots.new_figure(size, lines, columns)
        for panel, name in zip(panels, scenarios, strict=False):
            _draw_scenario(panel, [each for each in results if each.scenario.name == name])
        for panel in panels[len(scenarios) :]:
            panel.set_visible(False)
        plots.legend_below(figure)
        figure.suptitle("Total time relative to the clairvoyant oracle, means and 95 % intervals")
        plots.save(figure, *paths)


def _draw_scenario(panel: Axes, results: Sequence[Result]) -> None:
    ordered = sorted(results, key=lambda each: ratio(each).mean)
    for place, each in enumerate(ordered):
        found = ratio(each)
        met = _meets(each)
        panel.errorbar(
            found.mean,
            place,
            xerr=[[found.mean - found.low], [found.high - found.mean]],
            fmt="o" if met else "x",
            markersize=4 if met else 6,
            color=MEANINGS["ok" if met else "failed"].light,
            label="floors met, or none to meet" if met else "missed a floor in some run",
        )
    plots.mark(panel, 1.0, "zero", on="x")
    if results[0].scenario.target:
        plots.mark(panel, results[0].scenario.target, "target", "target", on="x")
    panel.set_xscale("log")
    least, most = panel.get_xlim()
    steps = (1, 1.1, 1.2, 1.5, 2, 3) if most < 4 else (1, 2, 3, 5, 10, 20, 50)
    if most < 1.2:
        steps = tuple(np.linspace(0.8, 1.2, 9 if most - least > 0.15 else 21).round(2).tolist())
    ticks = [value for value in steps if least <= value <= most]
    panel.set_xticks(ticks, [f"{value:g}" for value in ticks])
    panel.set_xticks([], minor=True)
    plots.label_rows(panel, [each.policy for each in ordered])
    panel.tick_params(axis="y", labelsize=7)
    panel.set(title=results[0].scenario.name, xlabel="time, 1 = oracle", ylabel="policy")
    panel.grid(False, axis="y")
