"""Checkpoints are whole or not there."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_scheduling.server.runs.checkpoint import CheckpointFolder
from flower_scheduling.strategies.flower import LOGGER


def state(number: int) -> dict[str, Any]:
    return {
        "number": number,
        "text": "ä",
        "none": None,
        "nested": [{"array": np.arange(number, dtype=np.int64)}, [1.5, True]],
        "float": np.array([np.nan, np.inf, 0.1]),
        "mask": np.array([[True, False]]),
        "empty": np.zeros((0, 3), dtype=np.float32),
    }


def test_what_is_saved_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoint")
    assert folder.load() is None
    folder.save(7, state(3))
    found = folder.load()
    assert found is not None
    assert found.round == 7
    assert found.state["nested"][0]["array"].tolist() == [0, 1, 2]
    assert found.state["nested"][1] == [1.5, True]
    assert (found.state["number"], found.state["text"], found.state["none"]) == (3, "ä", None)
    for name in ("float", "mask", "empty"):
        expected = state(3)[name]
        assert found.state[name].dtype == expected.dtype
        assert found.state[name].shape == expected.shape
        assert found.state[name].tobytes() == expected.tobytes()


def test_two_are_kept_and_one_that_is_torn_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = CheckpointFolder(tmp_path)
    for number in (1, 2, 10):
        folder.save(number, state(number))
    second, newest = sorted(tmp_path.iterdir())
    assert (second.name[:8], newest.name[:8]) == ("00000002", "00000010")
    data = newest.read_bytes()
    for damaged in (data[:-1], data[: len(data) // 2], b"", data[:100] + b"X" + data[101:]):
        newest.write_bytes(damaged)
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger=LOGGER.name):
            found = folder.load()
        assert found is not None
        assert found.round == 2
        assert "passed over" in caplog.text
    second.unlink()
    assert folder.load() is None


def test_what_was_passed_over_does_not_push_out_what_is_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = CheckpointFolder(tmp_path)
    for number in (200, 250):
        folder.save(number, state(number))
    for file in tmp_path.iterdir():
        file.write_bytes(b"damaged")
    aside = tmp_path / "aside"
    CheckpointFolder(aside).save(150, state(150))
    (backup,) = aside.iterdir()
    backup.rename(tmp_path / backup.name)
    aside.rmdir()
    found = folder.load()
    assert found is not None
    assert found.round == 150
    folder.save(151, state(151))
    assert sorted(file.name[:8] for file in tmp_path.iterdir()) == ["00000150", "00000151"]
    folder.save(152, state(152))
    assert sorted(file.name[:8] for file in tmp_path.iterdir()) == ["00000151", "00000152"]
    folder.save(10**8, state(1))  # nine digits
    found = folder.load()
    assert found is not None
    assert found.round == 10**8


def test_what_is_no_file_is_no_checkpoint(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(1, state(1))
    name = "00000002-aaaaaaaaaaaaaaaa.safetensors"
    os.mkfifo(tmp_path / name)  # to open it would wait for ever
    assert folder.load() is not None
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    (tmp_path / "00000003-aaaaaaaaaaaaaaaa.safetensors").symlink_to("/nowhere")
    assert folder.load() is not None
    folder.save(4, state(4))
    found = folder.load()
    assert found is not None
    assert found.round == 4


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(1, state(1))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        folder.save(2, state(2))
    assert "00000002" in str(caught.value.filename)
    found = folder.load()
    assert found is not None
    assert found.round == 1
    assert len(list(tmp_path.iterdir())) == 1
