"""The run directory: whole lines as the run goes, never used twice."""

from __future__ import annotations

import json
import logging
import tomllib
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from factories import half_failed, small_model, three_arms
from flwr.app import Array, ArrayRecord

from flower_scheduling.errors import ConfigError
from flower_scheduling.server.runs.directory import (
    RunDirectory,
    count_rounds,
    load_model,
    written_rounds,
)
from flower_scheduling.strategies.flower import LOGGER


def test_who_reads_while_a_line_is_written_sees_whole_rounds_only(tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert written_rounds(path) == []
    directory = RunDirectory(path, {})
    directory.write_round(half_failed(), small_model())
    directory.write_round(half_failed(round=2), small_model())
    directory.close()
    data = (path / "rounds.jsonl").read_bytes()
    first = data.index(b"\n") + 1
    for end in (first, first + 1, len(data) - 1):
        (path / "rounds.jsonl").write_bytes(data[:end])
        assert [line["round"] for line in written_rounds(path)] == [1]
        assert count_rounds(path) == 1


def test_run_directory_holds_whole_lines_as_the_run_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER.name)
    directory = RunDirectory(tmp_path / "runs" / "x", {"rounds": 2, "strategy": "random"})
    path = directory.path
    assert tomllib.loads((path / "config.toml").read_text()) == {"rounds": 2, "strategy": "random"}
    directory.write_round(half_failed(accuracy=0.5), small_model(1.0))
    line = json.loads((path / "rounds.jsonl").read_text())  # readable before the run ends
    assert line["schema"] == 1
    assert line["available"] == [0, 1, 2]
    assert line["num_available"] == 3
    assert line["reason"] == [None, "timeout"]
    assert set(line["wall"]) == {"time_s"}
    directory.write_round(half_failed(round=2, accuracy=0.4, num_arms=201), small_model(2.0))
    second = (path / "rounds.jsonl").read_text().splitlines()[1]
    assert "available" not in json.loads(second), "not listed above 200 arms"
    directory.note_arms(three_arms(), [0.5, 0.25, 0.0])
    assert json.loads((path / "arms.json").read_text())[1] == {
        "index": 1,
        "name": "b",
        "num_examples": 20,
        "floor": 0.25,
    }
    directory.write_model("last", small_model(2.0))
    best = safetensors.numpy.load_file(path / "model-best.safetensors")
    last = safetensors.numpy.load_file(path / "model.safetensors")
    assert (best["w"][0], last["w"][0]) == (1.0, 2.0)
    LOGGER.warning("something happened")
    directory.close()
    LOGGER.warning("after the end")
    log = (path / "log.txt").read_text()
    assert "something happened" in log
    assert "after the end" not in log
    assert not any(isinstance(h, logging.FileHandler) for h in LOGGER.handlers)


def test_run_directory_is_never_reused(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "x", {}).close()
    for name in ("config.toml", "rounds.jsonl", "log.txt"):  # whatever is left of it
        with pytest.raises(ConfigError, match="does not exist yet"):
            RunDirectory(tmp_path / "x", {})
        (tmp_path / "x" / name).unlink()
    (tmp_path / "x" / "scores.bin").unlink()
    assert [file.name for file in (tmp_path / "x").iterdir()] == [".lock"]
    RunDirectory(tmp_path / "x", {}).close()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="can be created"):
        RunDirectory(tmp_path / "file" / "x", {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "x"]


def test_model_is_read_back_and_another_kind_is_refused(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "x", {})
    directory.write_model("last", small_model(2.0))
    directory.close()
    path = directory.path / "model.safetensors"
    assert load_model(path, like=small_model())["w"].numpy() == pytest.approx([2.0, 2.0])
    other = ArrayRecord({"w": Array(np.zeros(3, dtype=np.float32))})
    with pytest.raises(ConfigError, match="a model with the arrays"):
        load_model(path, like=other)
    path.write_bytes(b"garbage")
    with pytest.raises(ConfigError, match="a readable safetensors file"):
        load_model(path, like=small_model())
