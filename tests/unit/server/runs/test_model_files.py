"""Models of every kind as files and in checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from flwr.app import Array, ArrayRecord

from flower_scheduling.server.runs.checkpoint import CheckpointFolder
from flower_scheduling.server.runs.model_files import model_file, pack_array, unpack_array

ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "scalar": np.array(3, dtype=np.int64),
    "empty": np.zeros((0, 3), np.float32),
    "half": np.ones(2, np.float16),
    "flags": np.array([True, False]),
    "turned": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "": np.arange(3, dtype=np.uint16),
    "__metadata__": np.ones(2),
    "__metadata___": np.zeros(2),
    "complex": np.array([1 + 2j]),
    "text": np.array(["a", "bc"]),
}


@pytest.fixture
def model() -> ArrayRecord:
    record = ArrayRecord({key: Array(value) for key, value in ARRAYS.items()})
    record["own"] = Array(dtype="bfloat16", shape=(2,), stype="my.bytes", data=b"\x01\x02\x03\x04")
    return record


def test_a_file_has_all_that_a_model_holds(model: ArrayRecord, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"".join(model_file(model)))
    found = safetensors.numpy.load_file(file)
    with safetensors.safe_open(file, "numpy") as opened:
        notes = json.loads(opened.metadata()["arrays"])
    names = {note["key"]: name for name, note in notes.items()}
    assert len(found) == len(model)
    for key, array in model.items():
        stored = found[names.get(key, key)]
        if key in ("complex", "text", "own"):
            assert stored.tobytes() == array.data
            assert notes[key]["dtype"] == array.dtype
        else:
            assert stored.tolist() == ARRAYS[key].tolist()
            assert (stored.shape, stored.dtype) == (ARRAYS[key].shape, ARRAYS[key].dtype)


def test_a_plain_model_has_a_plain_file() -> None:
    model = ArrayRecord({"w": Array(np.ones(2))})
    assert b"".join(model_file(model)) == safetensors.numpy.save({"w": np.ones(2)})


def test_a_checkpoint_brings_every_model_back(model: ArrayRecord, tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(1, {"model": {key: pack_array(array) for key, array in model.items()}})
    saved = folder.load()
    assert saved is not None
    again = {key: unpack_array(packed) for key, packed in saved.state["model"].items()}
    assert list(again) == list(model)
    for key, array in model.items():
        assert (again[key].dtype, again[key].shape) == (array.dtype, array.shape)
        if key in ARRAYS:
            assert again[key].numpy().tolist() == ARRAYS[key].tolist()
        else:
            assert again[key].data == array.data
