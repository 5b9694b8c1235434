"""Documentation that is made of results says what they say."""

from __future__ import annotations

import csv
import inspect
import json
import re

from paths import ROOT

from flower_scheduling import ScheduledStrategy
from flower_scheduling.simulation.benchmark import training_track
from flower_scheduling.simulation.benchmark.results import markdown
from flower_scheduling.simulation.benchmark.scenario import suite
from flower_scheduling.simulation.paper.figures import FIGURES
from flower_scheduling.simulation.paper.html_report import load_results, page
from flower_scheduling.simulation.paper.settings import PaperConfig


def test_documentation_page_is_made_of_its_results_file() -> None:
    results = load_results(ROOT / "docs/paper/results.json")
    drawn = load_results(ROOT / "docs/paper/figures/results.json")
    text = (ROOT / "docs/paper/claims.md").read_text(encoding="utf-8")
    assert text == page(results, drawn, "figures")
    files = {path.stem for path in (ROOT / "docs/paper/figures").glob("*.svg")}
    assert files == {figure["name"] for figure in drawn["figures"]} == set(FIGURES)
    assert not results["quick"]
    assert results["settings"] == PaperConfig().to_mapping(), "the paper's settings, nothing tuned"


def test_tables_of_the_guidance_are_made_of_their_results() -> None:
    text = (ROOT / "docs/policies/which-policy.md").read_text(encoding="utf-8")
    found = list(csv.DictReader((ROOT / "docs/policies/league.csv").read_text().splitlines()))
    assert {row["scenario"] for row in found} == set(suite())
    header = next(line for line in text.splitlines() if line.startswith("| scenario |"))
    shown = [name.strip(" `") for name in header.strip("|").split("|")[1:]]
    assert markdown(found, shown) in text
    runs = json.loads((ROOT / "docs/policies/league-training.json").read_text())
    assert training_track.markdown(runs) in text


def described_arguments() -> dict[str, str]:
    """Return the row of each argument of ScheduledStrategy, made of signature and docstring."""
    section = (inspect.getdoc(ScheduledStrategy) or "").split("Parameters\n----------\n")[1]
    rows = {}
    for name, parameter in inspect.signature(ScheduledStrategy).parameters.items():
        found = re.search(rf"^{name} : .*\n((?:    .*\n)+)", section, re.MULTILINE)
        if found is None:
            continue
        text = re.sub(r":\w+:`\.?(\w+)`", r"`\1`", " ".join(found[1].split())).replace("``", "`")
        default = "" if parameter.default is parameter.empty else f"`{parameter.default!r}`"
        shown = default.replace("'", '"')
        first = re.split(r"(?<=\.) (?=[A-Z])", text)[0]
        rows[name] = f"| `{name}` | {shown} | {first} |"
    return rows


def test_the_table_of_arguments_is_made_of_the_docstring() -> None:
    text = (ROOT / "docs/how-to/own-app.md").read_text(encoding="utf-8")
    table = text.split("| argument | default | what it is |\n|---|---|---|\n")[1].split("\n\n")[0]
    rows = described_arguments()
    shown = re.findall(r"^\| `(\w+)`", table, re.MULTILINE)
    assert table.splitlines() == [rows[name] for name in shown]
    matter = {"fairness", "min_clients", "wait_s", "seed", "min_replies", "tau_max_s", "run_dir"}
    assert matter <= set(shown)
