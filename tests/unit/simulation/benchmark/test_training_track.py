"""Seconds to an accuracy: who competes, what a row says, and what its flags refuse."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from image_files import write_idx_dataset

from flower_scheduling.client.learning import torchvision_data
from flower_scheduling.errors import DataUnavailableError
from flower_scheduling.simulation.benchmark import cli as benchmark_cli
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


def made_row(policy: str, seconds: list[float | None], first_seed: int = 0) -> dict[str, object]:
    return {
        **{"course": "alike", "policy": policy, "target": 0.78, "runs": len(seconds)},
        **{"first_seed": first_seed, "by_seed": seconds},
    }


def test_gains_are_of_pairs_of_one_seed_each() -> None:
    """Twice as soon in every run is twice as soon, however much the runs differ."""
    base = made_row("random", [100.0, 300.0])
    own = track.gain(made_row("fedbuff", [50.0, 150.0]), base)
    assert own is not None
    assert (own.mean, own.low, own.high) == pytest.approx((2.0, 2.0, 2.0))
    for other in ([50.0, None], [50.0, 150.0, 70.0]):
        assert track.gain(made_row("fedbuff", other), base) is None
    assert track.gain(made_row("fedbuff", [50.0, 150.0], first_seed=100), base) is None


def test_gains_of_seeds_that_were_seen_and_of_others_stand_together() -> None:
    seen = [made_row("random", [100.0, 300.0]), made_row("fedbuff", [50.0, 150.0])]
    others = [made_row("random", [100.0, 300.0], 100), made_row("fedbuff", [100.0, 100.0], 100)]
    text = track.gains_markdown({"0 to 1": seen, "100 to 101": others})
    header, _, first, second = text.splitlines()
    assert header == "| policy | seeds | `alike` |"
    assert first == "| `fedbuff` | 0 to 1 | 2.0 (2.0 to 2.0) |"
    assert second.startswith("| `fedbuff` | 100 to 101 | 2.0 (")
    assert second != first.replace("0 to 1", "100 to 101")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, which processes that are started find too."""
    monkeypatch.setattr(torchvision_data, "_PACKAGED", tmp_path / "nowhere")
    monkeypatch.setattr(
        torchvision_data, "download_dataset", lambda folder, name, words, report: "no network"
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "flower-client-scheduling"


@pytest.mark.skipif(sys.platform != "linux", reason="the cache folder is set as on Linux")
def test_a_convolutional_model_on_made_images(cache: Path, tmp_path: Path) -> None:
    write_idx_dataset(cache, num_train=2000)
    flags = ["--training", "--task", "fashion", "--policy", "proportional-fair", "--seeds", "2"]
    out = ["--mode", "buffered", "--processes", "1", "--out", str(tmp_path / "out")]
    assert main(["league", *flags, *out]) == 0
    found = json.loads((tmp_path / "out" / "training.json").read_text())
    assert [row["policy"] for row in found] == [
        "proportional-fair buffered",
        "proportional-fair buffered by N",
        "proportional-fair buffered by speed",
    ]
    for row in found:
        assert (row["course"], row["reached"], row["first_seed"]) == ("fashion", 2, 0)
        assert np.mean(row["by_seed"]) == pytest.approx(row["seconds"], abs=0.1)
        assert row["slowest_quarter"] > 0.7


@pytest.mark.skipif(sys.platform != "linux", reason="the cache folder is set as on Linux")
def test_a_task_without_data_says_where_they_belong(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["league", "--training", "--task", "fashion", "--out", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "install Debian's package dataset-fashion-mnist, or put train-images" in line
    assert line.endswith(str(cache / "FashionMNIST" / "raw"))


def test_all_tasks_are_those_whose_data_can_be_had(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetch(dataset: str) -> None:
        if dataset == "fashion-mnist":
            raise DataUnavailableError("fashion-mnist cannot be fetched")

    monkeypatch.setattr(benchmark_cli, "fetch_data", fetch)
    assert benchmark_cli.tasks_with_data() == [name for name in track.TASKS if name != "fashion"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "task fashion is left out: fashion-mnist cannot be fetched"


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
