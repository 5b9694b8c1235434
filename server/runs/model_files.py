"""Models as files: whatever an ArrayRecord holds, also what safetensors has no words for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import safetensors.numpy
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

_STORED: Final = frozenset("?bhilqBHILQefdF")  # numpy's codes of the dtypes that safetensors knows
_RESERVED: Final = "__metadata__"
_RAW: Final = "raw"


def describe_model(arrays: ArrayRecord) -> dict[str, list[Any]]:
    """Return dtype and shape of each array of a model, ready for JSON."""
    return {key: [array.dtype, *array.shape] for key, array in arrays.items()}


def pack_array(array: Array) -> NDArray[Any] | dict[str, Any]:
    """Return an array for a checkpoint: as numpy where safetensors can hold it, else its bytes."""
    try:
        view = array.numpy()
    except (TypeError, ValueError):  # serialised in a way of the app's own
        view = None
    if view is not None and view.dtype.char in _STORED:
        return np.ascontiguousarray(view).reshape(view.shape)
    data = np.frombuffer(array.data, dtype=np.uint8)
    note = {"dtype": array.dtype, "shape": list(array.shape), "stype": array.stype}
    return {_RAW: data, **note}


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


def model_file(arrays: ArrayRecord) -> bytes:
    """Return a model as a safetensors file.

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
    return safetensors.numpy.save(stored, metadata=metadata)
