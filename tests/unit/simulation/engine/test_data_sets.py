"""Simulations on other data sets and models than the paper's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from image_files import write_idx_dataset

from flower_scheduling.client.learning import datasets
from flower_scheduling.errors import ConfigError
from flower_scheduling.server.runs.data_note import DATA
from flower_scheduling.simulation.cli import main
from flower_scheduling.simulation.engine.runner import Simulation
from flower_scheduling.simulation.settings import SCENARIOS, SimulationConfig


def config_of(tmp_path: Path, **settings: object) -> SimulationConfig:
    flags = {name.replace("_", "-"): value for name, value in settings.items()}
    small = {"num-clients": 4, "num-selected": 2, "rounds": 3, "batch-size": 4}
    few = {**small, "eval-every": 3, "checkpoint-every": 2}
    kept = {"dataset": "fashion-mnist", "data-dir": str(tmp_path), "partitioner": "iid"}
    return SimulationConfig.from_mapping({**SCENARIOS["ideal"], **few, **kept, **flags})


@pytest.mark.parametrize("model", ["mlp", "cnn", "resnet18"])
def test_the_same_seed_gives_the_same_run(tmp_path: Path, model: str) -> None:
    write_idx_dataset(tmp_path, num_train=80)
    found = []
    for name in ("first", "second"):
        run_dir = tmp_path / "runs" / name
        config = config_of(tmp_path, model=model, run_dir=str(run_dir), seed=5)
        result = Simulation(config).run()
        found.append(((run_dir / "model.safetensors").read_bytes(), result.summary["accuracy"]))
    assert found[0] == found[1]


def test_the_run_directory_says_what_was_trained_on(tmp_path: Path) -> None:
    write_idx_dataset(tmp_path)
    run_dir = tmp_path / "run"
    Simulation(config_of(tmp_path, run_dir=str(run_dir))).run()
    note = json.loads((run_dir / DATA).read_text())
    assert note["dataset"] == "fashion-mnist"
    assert (note["train"], note["test"], note["classes"]) == (400, 100, 10)
    assert (note["mean"], note["std"]) == ([0.286], [0.353])
    assert len(note["digest"]) == 16
    log = (run_dir / "log.txt").read_text()
    assert "data set fashion-mnist: 400 training and 100 test images of 28 x 28 pixels" in log


def test_a_run_on_another_data_set_is_resumed_on_that_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_idx_dataset(tmp_path)
    run_dir = tmp_path / "run"
    Simulation(config_of(tmp_path, run_dir=str(run_dir))).run()
    assert main(["--resume", str(run_dir), "--dataset", "kmnist"]) == 2
    assert "dataset = 'fashion-mnist', not 'kmnist'" in capsys.readouterr().err
    assert main(["--resume", str(run_dir), "--rounds", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rounds"] == 4
    write_idx_dataset(tmp_path, seed=1)
    datasets._load.cache_clear()
    datasets._digest.cache_clear()
    assert main(["--resume", str(run_dir), "--rounds", "5"]) == 2
    assert "the run began on other files of fashion-mnist" in capsys.readouterr().err


def test_a_model_that_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    write_idx_dataset(tmp_path)
    run_dir = tmp_path / "run"
    with pytest.raises(ConfigError, match="takes no images of 28 x 28 pixels"):
        Simulation(config_of(tmp_path, model="alexnet", run_dir=str(run_dir)))
    assert not run_dir.exists()
