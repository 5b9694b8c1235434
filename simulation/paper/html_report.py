"""Report of the paper's claims: ``results.json``, one HTML file, a page of documentation."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..html import installed_versions, listed_versions, render
from .claims import DOES_NOT_HOLD, HOLDS, NOT_RESOLVED, Claim
from .figures import FigureData
from .settings import PaperConfig

# Version of ``results.json``.
SCHEMA: Final = 1
_TITLE: Final = "What the paper claims and what we measure"


def results_of(
    config: PaperConfig,
    claims: Sequence[Claim],
    figures: Sequence[FigureData],
    *,
    quick: bool,
    command: str,
) -> dict[str, Any]:
    """Return the contents of ``results.json``: verdicts, figures, settings, versions, commit.

    Parameters
    ----------
    config : PaperConfig
        Settings.
    claims : sequence of Claim
        Verdicts.
    figures : sequence of FigureData
        What was drawn, in order.
    quick : bool
        Whether it is a quick look.
    command : str
        The command that made them.
    """
    return {
        "schema": SCHEMA,
        "command": command,
        "quick": quick,
        "commit": _commit(),
        "versions": installed_versions(),
        "settings": dict(config.to_mapping()),
        "claims": [claim.to_dict() for claim in claims],
        "figures": [
            {"name": figure.name, "title": figure.title, "caption": figure.caption}
            for figure in figures
        ],
    }


def write_report(
    path: Path, results: Mapping[str, Any], figures: Sequence[FigureData], folder: Path
) -> None:
    """Write the report, one file that needs no network.

    Parameters
    ----------
    path : Path
        The HTML file.
    results : mapping
        As :func:`results_of` returns it.
    figures : sequence of FigureData
        What to show, in order.
    folder : Path
        Where their SVG files are.
    """
    shown_figures = [
        {
            "name": figure.name,
            "title": figure.title,
            "caption": figure.caption,
            "curves": _curves(figure),
            "columns": min(3, len(figure.panels)),
            "svg": (folder / f"{figure.name}.svg").read_bytes(),
        }
        for figure in figures
    ]
    text = render(
        "paper/report.html.j2",
        title=_TITLE,
        counts=_counts(results),
        figures=shown_figures,
        versions=listed_versions(results["versions"]),
        shown=shown,
        **{key: results[key] for key in ("quick", "command", "commit", "settings", "claims")},
    )
    path.write_text(text, encoding="utf-8")


def page(results: Mapping[str, Any], drawn: Mapping[str, Any], folder: str) -> str:
    """Return the documentation's page, Markdown made of results files alone.

    Parameters
    ----------
    results : mapping
        What the verdicts are from.
    drawn : mapping
        What the figures are from, perhaps a quick look.
    folder : str
        Where their SVG files are, seen from the page.
    """
    counts = _counts(results)
    lines = [
        f"# {_TITLE}",
        "",
        "The numerical section of Xia et al., “Multi-Armed Bandit Based Client Scheduling for",
        "Federated Learning”, computed anew from the policies that also run in a fleet. Intervals",
        "are 95 %, from paired draws; a verdict follows from the interval alone. Nothing is tuned",
        "to make a claim hold, and where printed algorithm and the paper's figure disagree both",
        "are judged.",
        "",
        f"{counts[HOLDS]} claims hold, {counts[DOES_NOT_HOLD]} do not, {counts[NOT_RESOLVED]} are "
        f"not resolved.{' A quick look: few repetitions.' if results['quick'] else ''} With so",
        "many verdicts one or two may be wrong by chance. “As printed” is the paper's algorithm,",
        "which truncates its index at 1; “untruncated” leaves that out. The",
        "[glossary](../glossary.md) has the words.",
        "",
        "```console",
        f"$ {results['command']}                                # some 20 minutes on two cores",
        "$ python -m simulation paper --quick                        # few seeds, some two minutes",
        "$ python -m simulation paper --figure ideal-gap --set ideal-rounds=10000",
        "$ python -m simulation paper --settings                     # what --set can change",
        "```",
        "",
        "These commands compute every figure of the paper's numerical section and four of our",
        "own. `runs/paper/` gets `report.html`, one file for a browser, `figures/` (PNG and SVG),",
        "`data/` (the numbers, CSV) and `results.json`; figures that are asked for by name go to",
        "`single/`. An interrupted computation goes on where it was, and changed settings compute",
        "only what they change. `make paper-page` draws the figures below anew and makes this page",
        "from them and from `docs/paper/results.json`.",
        "",
        "## Claims",
        "",
        _made_by(results),
        "",
        "| claim | measured | estimate | verdict |",
        "|---|---|---|---|",
    ]
    for claim in results["claims"]:
        note = f" *{claim['note']}*" if claim["note"] else ""
        cells = (
            claim["claim"],
            claim["measured"] + "." + note,
            f"{shown(claim['estimate'], claim['unit'])} (needed: {claim['side']})",
            f"**{claim['verdict']}**",
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += ["", "## Figures", "", _made_by(drawn)]
    if drawn["quick"]:
        lines += ["", "These are a quick look with few repetitions: their bands are wider than the"]
        lines += ["intervals above."]
    for figure in drawn["figures"]:
        lines += ["", f"### {figure['title']}", "", f"![{figure['title']}]"]
        lines[-1] += f"({folder}/{figure['name']}.svg)"
        lines += ["", figure["caption"]]
    lines += ["", "## Settings", "", "| setting | value |", "|---|---|"]
    lines += [f"| `{key}` | {value} |" for key, value in results["settings"].items()]
    return "\n".join(lines) + "\n"


def load_results(path: Path) -> dict[str, Any]:
    """Read a ``results.json``.

    Raises
    ------
    OSError, ValueError
        If it cannot be read, or is none.
    """
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    wanted = {"claims", "command", "commit", "quick", "settings", "versions"}
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or not wanted <= found.keys():
        raise ValueError(f"{path} is no results.json of this version")
    return found


def _made_by(results: Mapping[str, Any]) -> str:
    return (
        f"Made by `{results['command']}`: {listed_versions(results['versions'])}; "
        f"commit {results['commit']}; seed {results['settings']['seed']}."
    )


def shown(estimate: Mapping[str, Any], unit: str) -> str:
    """Return an estimate with its interval, as many digits as the interval bears."""
    half = (estimate["high"] - estimate["low"]) / 2
    # The first number of digits that shows two of the half-width.
    digits = next((digits for digits in range(5) if half >= 10 ** (1 - digits)), 5)
    mean, low, high = (f"{estimate[key]:.{digits}f}" for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]" + (f" {unit}" if unit else "")


def _counts(results: Mapping[str, Any]) -> dict[str, int]:
    counts = Counter(claim["verdict"] for claim in results["claims"])
    return {verdict: counts[verdict] for verdict in (HOLDS, DOES_NOT_HOLD, NOT_RESOLVED)}


def _curves(figure: FigureData) -> str:
    """Return what a screen reader says of a figure: where its curves end."""
    parts = []
    for panel in figure.panels:
        if panel.rows:
            ends = [f"{row} {panel.curves[-1].mean[i]:.3g}" for i, row in enumerate(panel.rows)]
        else:
            ends = [f"{curve.label} {curve.mean[-1]:.3g}" for curve in panel.curves]
        parts.append(f"{panel.title or panel.y_label}, at the end: " + ", ".join(ends))
    return "; ".join(parts)


_COMPUTING = ("flower_scheduling", "strategies", "client", "simulation")


def _commit() -> str:
    """Return the commit that was run, marked if the code differs from it."""
    root = Path(__file__).resolve().parents[2]
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--", *_COMPUTING)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("-changed" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
