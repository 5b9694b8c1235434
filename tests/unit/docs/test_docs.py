"""Documentation that is made of results says what they say."""

from __future__ import annotations

import csv
import importlib.util
import json
from difflib import unified_diff
from types import ModuleType

from paths import ROOT

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
    folder = ROOT / "docs/policies"
    names = ("league-training.json", "league-training-held-out.json")
    runs, held_out = (json.loads((folder / name).read_text()) for name in names)
    assert f"\n{training_track.markdown(runs)}\n<!-- end -->" in text
    gains = training_track.gains_markdown({"0 to 9": runs, "100 to 109": held_out})
    assert f"\n{gains}\n<!-- end -->" in text
    by_speed = training_track.by_speed_markdown(runs, ("dirichlet", "stragglers"))
    assert by_speed.count("\n") >= 8
    assert f"\n{by_speed}\n<!-- end -->" in (ROOT / "docs/how-to/work-by-speed.md").read_text()


def test_scenarios_that_were_held_out_keep_to_their_targets() -> None:
    text = (ROOT / "docs/policies/which-policy.md").read_text(encoding="utf-8")
    _, table, _ = text.split("<!-- bench_held_out.py -->\n")
    rows = [line.strip("|").split("|") for line in table.splitlines()[2:]]
    assert len(rows) >= 15
    for scenario, target, *ratios in rows:
        assert len(ratios) == 2
        for ratio in ratios:
            low = float(ratio.split("(")[1].split(" to ")[0])
            assert low <= float(target), (
                f"{scenario.strip()}: beyond its target by more than chance"
            )


def table_writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_tables", ROOT / "docs/write_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_of_what_the_code_says_are_as_it_says() -> None:
    for path, text in table_writer().pages():
        now = path.read_text(encoding="utf-8")
        changes = list(unified_diff(now.splitlines(), text.splitlines(), n=0, lineterm=""))
        assert not changes, f"python docs/write_tables.py changes {path}"


def test_a_table_has_new_rows_where_the_old_ones_were() -> None:
    writer, page = table_writer(), "a\n\n| x | y |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n\nb\n"
    assert writer.rows_under(page, "| x | y |") == ["| 1 | 2 |", "| 3 | 4 |"]
    changed = page.replace("| 1 | 2 |\n| 3 | 4 |", "| 5 | 6 |")
    assert writer.with_rows(page, "| x | y |", ["| 5 | 6 |"]) == changed


def test_the_table_of_arguments_has_those_that_matter() -> None:
    text = (ROOT / "docs/how-to/own-app.md").read_text(encoding="utf-8")
    rows = table_writer().rows_under(text, "| argument | default | what it is |")
    matter = {"fairness", "min_clients", "wait_s", "seed", "min_replies", "tau_max_s", "run_dir"}
    assert matter <= {row.split("`")[1] for row in rows}
