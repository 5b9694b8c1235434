"""The report of a folder of runs: compared by the time to an accuracy, which it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from reports import Page, a_round, a_run, check_self_contained

from flower_scheduling.simulation.cli import main
from flower_scheduling.simulation.environments.recorded import open_run
from flower_scheduling.simulation.report.compared_runs import compare_with_random_beside
from flower_scheduling.simulation.report.run_group import common_target, read_compared
from flower_scheduling.simulation.theory.time_to_target import (
    TimeToTarget,
    ranking_sentence,
    saving_sentence,
)


def rounds(length_s: float, gain: float, count: int = 20, **changes: Any) -> list[dict[str, Any]]:
    """Return rounds of one length, in each of which the accuracy grows by as much."""
    return [
        a_round(
            number,
            {0: length_s, 1: length_s / 2},
            time_s=length_s * number,
            accuracy=min(gain * number, 1.0),
            **changes,
        )
        for number in range(1, count + 1)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return three runs: ours takes half the time a round, and a third of the time to 80 %."""
    parent = tmp_path / "compared"
    parent.mkdir()
    a_run(parent / "ours", rounds(1.0, 0.06, 16), strategy="cs-ucb-q")
    a_run(parent / "at-random", rounds(2.0, 0.08, 12), strategy="random")
    a_run(parent / "slower", rounds(4.0, 0.08, 12), strategy="round-robin")
    return parent


def reported(folder: Path, *arguments: str) -> tuple[Page, str]:
    assert main(["report", str(folder), *arguments]) == 0
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    check_self_contained(text, page)
    return page, " ".join(page.text.split())


def test_runs_stand_side_by_side_with_both_measures(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, text = reported(folder)
    # 96 % are what all have reached at least half of: the middle of 0.96, 0.96, 0.96.
    sentence = (
        "ours reached 96 % test accuracy in 16.0 s, at-random in 24.0 s: 33 % saved; slower in "
        "48.0 s: 100 % more."
    )
    assert sentence in text
    assert capsys.readouterr().out.splitlines() == [
        sentence,
        f"written  {folder / 'report.html'}",
    ]
    assert "Measured by the time to 96 % test accuracy, against at-random" in text
    assert "ourscs-ucb-q1616.0 s96.00 %0 of 3216.0 s33 %50 %, 12 rounds" in text
    assert len(page.figures) == 3
    assert "strategy" in text
    assert "differ in more than" not in text


def test_numbers_for_scripts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["base"] == "at-random"
    ours = next(run for run in found["runs"] if run["name"] == "ours")
    assert ours["saved_to_target"] == pytest.approx(1 / 3)
    assert ours["saved_in_as_many_rounds"] == pytest.approx(0.5)
    assert ours["as_many_rounds"] == 12


def test_steps_are_not_compared_as_rounds(folder: Path) -> None:
    steps = rounds(0.5, 0.06, 16, buffered=True, staleness=[0, 0], begin_s=[0.0, 0.0])
    a_run(folder / "steps", steps, strategy="cs-ucb", mode="buffered")
    _, text = reported(folder)
    assert "stepscs-ucb16 steps8.00 s96.00 %0 of 328.00 s67 %–" in text
    assert "Buffered steps are no rounds" in text


def test_what_is_not_of_the_same_clients_is_said(folder: Path) -> None:
    a_run(folder / "other", rounds(1.0, 0.06), strategy="cs-ucb", seed=4)
    (folder / "empty").mkdir()
    (folder / "empty" / "config.toml").write_text("strategy = 'x'")
    _, text = reported(folder)
    assert "These runs differ in more than their scheduling: seed." in text
    assert "Left out: empty: must be a run directory" in text


def test_without_a_run_at_random_the_first_is_named(tmp_path: Path) -> None:
    parent = tmp_path / "compared"
    parent.mkdir()
    a_run(parent / "a", rounds(1.0, 0.06, 16), strategy="cs-ucb")
    a_run(parent / "b", rounds(2.0, 0.06, 16), strategy="oort")
    page, text = reported(parent)
    assert "a reached 96.0% test accuracy first, after 16.0 s; b took 2.00 times as long." in text
    assert "saved in as many rounds" not in text
    assert "% saved" not in page.text


@pytest.mark.parametrize(
    ("gain", "text"),
    [(None, "These runs were not evaluated"), (0.01, "80 % test accuracy was not reached by any")],
)
def test_what_says_nothing_about_accuracy(gain: float | None, text: str, tmp_path: Path) -> None:
    parent = tmp_path / "compared"
    parent.mkdir()
    lines = rounds(1.0, gain or 0.0)
    if gain is None:
        lines = [{**line, "accuracy": None} for line in lines]
    target = {} if gain is None else {"target-accuracy": 0.8}
    for name in ("random", "cs-ucb"):
        a_run(parent / name, lines, strategy=name, **target)
    assert text in reported(parent)[1]


def test_seeds_are_of_one_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder), "--seeds", "4"]) == 2
    assert "--seeds is for one run" in capsys.readouterr().err


def test_a_folder_of_runs_that_cannot_be_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path / "run", rounds(1.0, 0.1))
    (run / "arms.json").unlink()
    assert main(["report", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "must be a run, or a folder of runs (run: must be a run directory" in line
    assert not (tmp_path / "report.html").exists()


def test_a_run_is_compared_with_the_one_at_random_beside_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "ours reached 96 % test accuracy in 16.0 s, at-random in 24.0 s: 33 % saved."
    assert main(["report", str(folder / "ours"), "--seeds", "4"]) == 0
    assert sentence in capsys.readouterr().out.splitlines()
    text = " ".join(Page((folder / "ours" / "report.html").read_text()).text.split())
    assert f"By the time to an accuracy: {sentence}" in text


@pytest.mark.parametrize(
    "change", [{"seed": 3}, {"strategy": "oort"}, {"tau-max-s": 9.0}, {"mode": "buffered"}]
)
def test_a_run_with_other_settings_is_none_to_compare_with(
    change: dict[str, Any], tmp_path: Path
) -> None:
    own = a_run(tmp_path / "ours", rounds(1.0, 0.06), strategy="cs-ucb", seed=4)
    buffered = "mode" in change
    lines = rounds(
        2.0,
        0.06,
        **({"buffered": True, "staleness": [0, 0], "begin_s": [0.0, 0.0]} if buffered else {}),
    )
    a_run(tmp_path / "random", lines, **{"strategy": "random", "seed": 4, **change})
    assert compare_with_random_beside(open_run(own)) is None


def test_the_target_is_the_given_one_or_what_half_of_the_runs_have_reached(
    tmp_path: Path,
) -> None:
    gains = {"a": 0.02, "b": 0.034, "c": 0.04}
    found = []
    for name, gain in gains.items():
        a_run(tmp_path / name, rounds(1.0, gain), **{"target-accuracy": 0.0})
        found.append(read_compared(open_run(tmp_path / name)))
    assert common_target(found) == 0.68
    a_run(tmp_path / "d", rounds(1.0, 0.04), **{"target-accuracy": 0.5})
    given = read_compared(open_run(tmp_path / "d"))
    assert common_target([given]) == 0.5
    assert common_target([given, *found]) == 0.68
    assert common_target(found[:1]) is None


def test_sentences_know_what_was_not_reached() -> None:
    base = TimeToTarget("random", 400, 100.0, None)
    ours = TimeToTarget("ours", 300, 40.0, 40.0)
    assert saving_sentence([base, ours], 0.8) == (
        "ours reached 80 % test accuracy in 40.0 s, random not even in 100 s: at least 60 % saved."
    )
    assert "does not show what it saves" in saving_sentence([ours, base], 0.8)
    assert ours.saved_share(base) is None
    assert ranking_sentence([base, ours], 0.8) == (
        "ours reached 80.0% test accuracy first, after 40.0 s; not reached by 1 of 2 in 400 "
        "rounds: random."
    )
