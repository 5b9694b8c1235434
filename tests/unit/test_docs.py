"""Documentation that is made of results says what they say."""

from __future__ import annotations

from pathlib import Path

from simulation.paper.config import PaperConfig
from simulation.paper.report import load_results, page

ROOT = Path(__file__).parents[2]


def test_documentation_page_is_made_of_its_results_file() -> None:
    results = load_results(ROOT / "docs" / "paper-results.json")
    assert (ROOT / "docs" / "paper.md").read_text(encoding="utf-8") == page(results)
    assert not results["quick"]
    assert results["settings"] == PaperConfig().to_mapping(), "the paper's settings, nothing tuned"
