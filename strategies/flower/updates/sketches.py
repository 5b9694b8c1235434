"""Sketches of the updates that clients send, for policies that learn from them."""

from __future__ import annotations

from flwr.app import ArrayRecord

from flower_scheduling.client.wire.arrays import decode_array

from ...base import FloatArray
from ...update_sketch import sketch_of_change
from ..replies import Update
from .free_riders import arrays_of


def sketch_of(update: Update, model: ArrayRecord) -> FloatArray | None:
    """Return the sketch of an update, see :func:`.sketch_of_change`.

    Parameters
    ----------
    update : Update
        What a client sent.
    model : ArrayRecord
        What it was sent; its arrays of floats are compared.

    Returns
    -------
    (SKETCH_SIZE,) float64 or None
        ``None`` if the update lacks one of these arrays or has it in another shape, if two of its
        records have an array of one name, if the model has no floats, or a change is not finite.
    """
    arrays, parts = arrays_of(update), []
    for key, sent in model.items():
        base = decode_array(sent)
        if base.dtype.kind != "f":
            continue
        if key not in arrays:
            return None
        values = decode_array(arrays[key])
        if values.shape != base.shape or values.dtype.kind not in "fiu":
            return None
        parts.append((values, base))
    return sketch_of_change(parts) if parts else None
