"""Files of safetensors in pieces are those of the library, byte for byte."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from flower_scheduling.server.runs.tensor_file import can_store, tensor_file

NAMES = "bool uint8 int8 int16 uint16 float16 int32 uint32 float32 complex64 float64 int64 uint64"


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    """One of each dtype and form, in no order."""
    found = {name: np.arange(6).reshape(2, 3).astype(name) for name in NAMES.split()}
    found |= {f"second {name}": np.ones(1, name) for name in reversed(NAMES.split())}
    found["scalar"] = np.array(3, np.int64)
    found["empty"] = np.zeros((0, 3), np.float32)
    found['"ü\n\x01'] = np.zeros(3, np.int16)
    return found


@pytest.mark.parametrize("metadata", [None, {"state": '{"a": "ü\n"}'}])
def test_a_file_is_that_of_the_library(metadata: dict[str, str] | None) -> None:
    expected = safetensors.numpy.save(arrays(), metadata)
    assert b"".join(tensor_file(arrays(), metadata)) == expected
    assert b"".join(tensor_file({}, metadata)) == safetensors.numpy.save({}, metadata)


def test_orders_of_bytes_and_axes_are_the_formats() -> None:
    plain = {"w": np.arange(6.0).reshape(2, 3), "n": np.arange(4, dtype=np.int32)}
    turned = {"w": np.asfortranarray(plain["w"]), "n": plain["n"].astype(">i4")}
    strided = {"w": np.arange(12.0).reshape(2, 6)[:, ::2] / 2, "n": plain["n"]}
    for same in (turned, strided):
        assert b"".join(tensor_file(same)) == safetensors.numpy.save(plain)


def test_what_the_format_lacks_is_known() -> None:
    assert all(can_store(np.dtype(name)) for name in NAMES.split())
    assert not any(can_store(np.dtype(name)) for name in ("complex128", "g", "U3", "M8[s]", "V2"))


def test_a_large_array_comes_in_pieces_and_is_not_copied() -> None:
    values = np.arange(5_000_000, dtype=np.float32)
    tracemalloc.start()
    try:
        sizes = [len(piece) for piece in tensor_file({"w": values})]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(sizes[1:]) == values.nbytes
    assert max(sizes) <= 2**20
    assert peak < 2**20
    assert b"".join(tensor_file({"w": values})) == safetensors.numpy.save({"w": values})
