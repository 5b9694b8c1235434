"""Seconds to an accuracy: who competes, what a row says, and what its flags refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from flower_scheduling.simulation.benchmark import training_track as track
from flower_scheduling.simulation.cli import main
from flower_scheduling.simulation.settings import SimulationConfig


@pytest.mark.parametrize("task", list(track.TASKS))
def test_the_settings_of_every_task_are_valid(task: str) -> None:
    config = SimulationConfig.from_mapping(track.TASKS[task].settings)
    environment = config.environment(model_bits=1)
    assert environment.num_arms == config.num_clients


def test_the_first_fifth_are_the_stragglers() -> None:
    """Those with the labels of their own, in the mean over places."""
    times = np.mean(
        [
            SimulationConfig.from_mapping({**track.TASKS["stragglers"].settings, "seed": seed})
            .environment(model_bits=1)
            .expected_time_s(20.0)
            for seed in range(20)
        ],
        axis=0,
    )
    assert set(np.argsort(-times)[:4]) == {0, 1, 2, 3}


def test_the_fast_clients_drift_away() -> None:
    config = SimulationConfig.from_mapping(track.TASKS["drifting"].settings)
    environment = config.environment(model_bits=1)
    first, last = (environment.expected_time_s(20.0, t) for t in (1, config.rounds))
    slower = np.flatnonzero(last > 1.5 * first)
    assert slower.tolist() == [14, 15, 16, 17, 18, 19]


def test_rows_say_what_the_runs_found() -> None:
    contestants = [track.Contestant("random"), track.Contestant("random", "buffered")]
    seconds = {"random": [10.0, 30.0], "random buffered": [10.0, np.inf]}
    results = {
        f"training-alike-{name.replace(' ', '-')}-{7 + place:02}": {
            "seconds": np.array(value),
            "rounds": np.array(5.0),
            "best": np.array(0.9),
            "slowest": np.array(0.25 * place),
        }
        for name, values in seconds.items()
        for place, value in enumerate(values)
    }
    rounds, buffered = track.rows(["alike"], contestants, range(7, 9), results)
    assert (rounds["seconds"], rounds["reached"], rounds["slowest_quarter"]) == (20.0, 2, 0.125)
    assert (buffered["seconds"], buffered["reached"], buffered["runs"]) == (None, 1, 2)
    text = track.markdown([rounds, buffered])
    assert "| `random buffered` | 1 of 2 runs |" in text
    assert "| `random buffered` | 0.125 |" in text


@pytest.mark.usefixtures("mnist")
def test_one_task_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--training", "--task", "alike", "--mode", "rounds", "--policy", "cs-ucb-adaptive"]
    more = ["--seeds", "2", "--first-seed", "100", "--processes", "1", "--out", str(tmp_path)]
    assert main(["league", *flags, *more]) == 0
    (row,) = json.loads((tmp_path / "training.json").read_text())
    assert (row["course"], row["policy"], row["runs"]) == ("alike", "cs-ucb-adaptive", 2)
    assert 0.5 < row["slowest_quarter"] < 1.0
    assert "alike, to 78%" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags", [["--task", "alike"], ["--first-seed", "3"], ["--mode", "rounds"]]
)
def test_flags_of_training_alone_are_refused_without_it(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["league", *flags]) == 2
    assert f"{flags[0]} needs --training" in capsys.readouterr().err
