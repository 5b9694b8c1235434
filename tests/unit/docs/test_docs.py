"""Documentation that is made of results says what they say."""

from __future__ import annotations

import csv
import json

from paths import ROOT

from flower_scheduling.simulation.benchmark import training_track
from flower_scheduling.simulation.benchmark.results import markdown
from flower_scheduling.simulation.benchmark.scenario import suite
from flower_scheduling.simulation.paper.html_report import load_results, page
from flower_scheduling.simulation.paper.settings import PaperConfig


def test_documentation_page_is_made_of_its_results_file() -> None:
    results = load_results(ROOT / "docs" / "paper-results.json")
    assert (ROOT / "docs" / "paper.md").read_text(encoding="utf-8") == page(results)
    assert not results["quick"]
    assert results["settings"] == PaperConfig().to_mapping(), "the paper's settings, nothing tuned"


def test_tables_of_the_guidance_are_made_of_their_results() -> None:
    text = (ROOT / "docs" / "which-policy.md").read_text(encoding="utf-8")
    found = list(csv.DictReader((ROOT / "docs" / "league.csv").read_text().splitlines()))
    assert {row["scenario"] for row in found} == set(suite())
    header = next(line for line in text.splitlines() if line.startswith("| scenario |"))
    shown = [name.strip(" `") for name in header.strip("|").split("|")[1:]]
    assert markdown(found, shown) in text
    runs = json.loads((ROOT / "docs" / "league-training.json").read_text())
    assert training_track.markdown(runs) in text
