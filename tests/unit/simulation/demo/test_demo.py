"""The first look: one screen, the same draws, and a sentence that is true of them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flower_scheduling.simulation.cli import main
from flower_scheduling.simulation.demo import cli
from flower_scheduling.simulation.demo import race as race_module
from flower_scheduling.simulation.demo.outcome import sentence
from flower_scheduling.simulation.demo.race import Lane, Race, screen
from flower_scheduling.simulation.engine.runner import SimulationResult
from flower_scheduling.simulation.settings import SimulationConfig
from flower_scheduling.simulation.terminal.progress import RunStatus


def result(strategy: str, reached_s: float | None, time_s: float = 400.0) -> SimulationResult:
    summary: dict[str, Any] = {
        "rounds": 2000,
        "time_s": time_s if reached_s is None else reached_s,
        "target_time_s": reached_s,
    }
    mode = "buffered" if strategy == "cs-ucb-q-loss" else "rounds"
    config = SimulationConfig(strategy=strategy, mode=mode, target_accuracy=0.84)
    return SimulationResult(config, summary, [])


@pytest.mark.parametrize(
    ("random_s", "paper_s", "ours_s", "text"),
    [
        (
            300.0,
            150.0,
            100.0,
            "cs-ucb-q-loss buffered reached 84 % test accuracy in 100 s, random in 300 s: "
            "67 % saved; "
            "cs-ucb-q in 150 s: 50 % saved.",
        ),
        (
            None,
            None,
            100.0,
            "cs-ucb-q-loss buffered reached 84 % test accuracy in 100 s, random not even in 400 s: "
            "at least 75 % saved.",
        ),
        (
            300.0,
            330.0,
            100.0,
            "cs-ucb-q-loss buffered reached 84 % test accuracy in 100 s, random in 300 s: "
            "67 % saved; "
            "cs-ucb-q in 330 s: 10 % more.",
        ),
        (
            None,
            None,
            500.0,
            "cs-ucb-q-loss buffered reached 84 % test accuracy in 500 s, random not even in 400 s: "
            "no saving that this run can tell.",
        ),
        (
            300.0,
            150.0,
            None,
            "cs-ucb-q-loss buffered did not reach 84 % test accuracy in 2,000 steps: this run "
            "does not show what it saves.",
        ),
    ],
)
def test_the_sentence_compares_the_times_to_the_target(
    random_s: float | None, paper_s: float | None, ours_s: float | None, text: str
) -> None:
    found = [
        result("random", random_s),
        result("cs-ucb-q", paper_s),
        result("cs-ucb-q-loss", ours_s),
    ]
    assert " ".join(sentence(found).split()) == text


def lines(renderable: Any) -> list[str]:
    console = Console(file=io.StringIO(), width=80, height=24)
    console.print(renderable)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined,no-any-return]


def test_the_screen_shows_policies_side_by_side_and_leaves_room_below() -> None:
    lanes = {
        "random": Lane(8460, 3005.0, True, [(10.0 * n, 0.0028 * n) for n in range(301)]),
        "cs-ucb-q": Lane(4200, 1402.0, False, [(10.0 * n, 0.006 * n) for n in range(141)]),
        "cs-ucb-q-loss": Lane(3080, 975.0, True, [(10.0 * n, 0.0086 * n) for n in range(98)]),
    }
    shown = lines(screen(lanes, 0.84, 80))
    assert len(shown) <= 18
    assert all(len(line) <= 80 for line in shown)
    bars = [line.count("━") for line in shown[2:5]]
    assert bars[0] > 2 * bars[1] - 2
    assert bars[1] > bars[2] > 0
    assert "> 1,402" in shown[3]
    assert "to 84%" in shown[1]
    plot = "\n".join(shown[6:])
    assert all(letter in plot for letter in ".+#")


def test_before_the_first_round_there_is_a_screen_too() -> None:
    assert len(lines(screen({"random": Lane(), "cs-ucb-q": Lane()}, 0.84, 80))) > 10


def test_the_race_keeps_accuracies_and_is_lines_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(race_module.time, "monotonic", lambda: now[0])
    console = Console(file=io.StringIO(), width=80)
    with Race(console, ["random", "cs-ucb-q"], 0.84) as race:
        race.show("random", RunStatus(1, 0.4, None, ""))
        for step in range(4):
            now[0] += 6.0
            race.show("random", RunStatus(20 * step, 8.0 * step, 0.1 * step or None, "client-1"))
    assert console.file.getvalue() == (  # type: ignore[attr-defined]
        "accuracy so far: random 10.0%, cs-ucb-q 0.0%\n"
        "accuracy so far: random 30.0%, cs-ucb-q 0.0%\n"
    )


@pytest.mark.usefixtures("mnist")
def test_the_command_leaves_runs_of_the_same_clients_a_figure_and_the_way_to_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(cli, "_ROUNDS", 40)
    assert main(["demo", "--run-dir", "out", "--seed", "3", "--processes", "2"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) <= 23
    assert all(len(line) <= 80 for line in shown)
    assert "did not reach 84 %" in " ".join(" ".join(shown).split())
    assert shown[-1].endswith("watch out/cs-ucb-q-loss-buffered")
    available = []
    for name in ("random", "cs-ucb-q"):
        rounds = (tmp_path / "out" / name / "rounds.jsonl").read_text().splitlines()
        available.append([json.loads(each)["available"] for each in rounds])
    assert available[0] == available[1]
    for suffix in ("png", "svg"):
        assert (tmp_path / "out/figures" / f"accuracy-time.{suffix}").stat().st_size > 1000
    assert main(["demo", "--run-dir", "out"]) == 2, "never over an earlier one"
