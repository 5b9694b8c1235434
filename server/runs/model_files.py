"""Models as files: whatever an ArrayRecord holds, also what safetensors has no words for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from flower_scheduling.client.wire.arrays import decode_array

from .tensor_file import can_store, tensor_file

_RESERVED: Final = "__metadata__"
_RAW: Final = "raw"


def describe_model(arrays: ArrayRecord) -> dict[str, list[Any]]:
    """Return dtype and shape of each array of a model, ready for JSON."""
    return {key: [array.dtype, *array.shape] for key, array in arrays.items()}


def pack_array(array: Array) -> NDArray[Any] | dict[str, Any]:
    """Return an array for a checkpoint: as numpy where safetensors can hold it, else its bytes.

    Both are views of what the array holds, which cannot change.
    """
    view = _view(array)
    if view is not None and can_store(view.dtype):
        return view
    data = np.frombuffer(array.data, dtype=np.uint8)
    note = {"dtype": array.dtype, "shape": list(array.shape), "stype": array.stype}
    return {_RAW: data, **note}


def _view(array: Array) -> NDArray[Any] | None:
    try:
        return decode_array(array)
    except ValueError:
        pass
    try:
        return array.numpy()
    except (TypeError, ValueError):  # serialised in a way of the app's own
        return None


def unpack_array(packed: NDArray[Any] | Mapping[str, Any]) -> Array:
    """Return the array that :func:`pack_array` was given."""
    if isinstance(packed, np.ndarray):
        return Array(packed)
    return Array(
        dtype=packed["dtype"],
        shape=tuple(packed["shape"]),
        stype=packed["stype"],
        data=packed[_RAW].tobytes(),
    )


def model_file(arrays: ArrayRecord) -> Iterator[bytes | memoryview]:
    """Return a model as a safetensors file, in pieces.

    An array of a dtype that the format lacks is there as its serialised bytes, and the metadata
    says of what; so does it of the one name that the format keeps for itself.
    """
    stored: dict[str, NDArray[Any]] = {}
    notes: dict[str, dict[str, Any]] = {}
    for key, array in arrays.items():
        name = key
        while name == _RESERVED or name in stored:
            name += "_"
        packed = pack_array(array)
        if name != key:
            notes[name] = {"key": key}
        if isinstance(packed, dict):
            stored[name] = packed.pop(_RAW)
            notes[name] = {"key": key, **packed}
        else:
            stored[name] = packed
    metadata = {"arrays": json.dumps(notes)} if notes else None
    return tensor_file(stored, metadata)
