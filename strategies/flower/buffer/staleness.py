"""Updates that began from an earlier model, as if they had been trained from today's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from flower_scheduling._flwr import make_message
from flower_scheduling.client.wire.arrays import FastArray, decode_array

from ..updates.pieces import pieces

_RUNNING: Final = ("running_mean", "running_var")
"""How torch's names of running statistics end."""


def rebased(
    reply: Message,
    sent: ArrayRecord,
    model: ArrayRecord,
    *,
    scale: float = 1.0,
    per_step: float = 1.0,
    weight: float = 1.0,
    weighted_by_key: str = "",
) -> Message:
    """Return a reply as if its client had trained from another model than it was sent.

    Each array w_k becomes w + a b (w_k - w_sent), in its own dtype, so that any aggregation rule
    takes it as an update of w. What has no difference stays as it came: arrays that the model
    lacks or that have another shape, truth values, and values that are not finite, as in masks.

    Parameters
    ----------
    reply : Message
        With content. It is left unchanged.
    sent : ArrayRecord
        The model that its client began from, w_sent.
    model : ArrayRecord
        The model that it is to be an update of, w.
    scale : float
        a, above 0.
    per_step : float
        b, above 0: for another number of local steps, :meth:`.WorkBySpeed.scale`. Running
        statistics do not grow with the steps, and are spared: whole numbers, and torch's
        ``running_mean`` and ``running_var``.
    weight : float
        Factor of its aggregation weight, above 0.
    weighted_by_key : str
        Metric that carries the aggregation weight, in records that have it.
    """
    content = RecordDict()
    moved = sent is not model or scale != 1.0 or per_step != 1.0
    for name, record in reply.content.items():
        if isinstance(record, ArrayRecord) and moved:
            content[name] = _rebased_arrays(record, sent, model, scale, per_step)
        elif isinstance(record, MetricRecord) and weight != 1.0 and weighted_by_key in record:
            weighted = record.copy()
            weighted[weighted_by_key] = float(record[weighted_by_key]) * weight  # type: ignore[arg-type]
            content[name] = weighted
        else:
            content[name] = record
    return make_message(reply.metadata, content)


def _rebased_arrays(
    arrays: ArrayRecord, sent: ArrayRecord, model: ArrayRecord, scale: float, per_step: float
) -> ArrayRecord:
    bases = _views(sent), _views(model)
    result = ArrayRecord()
    for key, array in arrays.items():
        values = decode_array(array)
        base, now = (views.get(key) for views in bases)
        if (
            base is not None
            and now is not None
            and values.shape == base.shape == now.shape
            and values.dtype.kind in "iufc"
        ):
            statistic = values.dtype.kind in "iu" or key.endswith(_RUNNING)
            factor = scale if statistic else scale * per_step
            array = FastArray.of_numpy(_moved(values, base, now, factor))
        result[key] = array
    return result


def models_state(models: Mapping[int, ArrayRecord]) -> dict[str, Any]:
    """Return models by version for a checkpoint: their arrays, by key."""
    return {str(version): dict(_views(model)) for version, model in models.items()}


def models_of(state: Mapping[str, Any]) -> dict[int, ArrayRecord]:
    """Return the models that :func:`models_state` has saved."""
    return {
        int(version): ArrayRecord({key: Array(value) for key, value in model.items()})
        for version, model in state.items()
    }


def _views(arrays: ArrayRecord) -> Mapping[str, NDArray[Any]]:
    return {key: decode_array(array) for key, array in arrays.items()}


def _moved(
    values: NDArray[Any], base: NDArray[Any], now: NDArray[Any], scale: float
) -> NDArray[Any]:
    """Return ``now + scale (values - base)`` in the dtype of ``values``."""
    result = np.empty_like(values, order="C")
    begin, flat = 0, result.reshape(-1)
    for value, origin, target in pieces(values, base, now):
        with np.errstate(invalid="ignore", over="ignore"):
            moved = value - origin
            if scale != 1.0:
                moved = moved * scale
            moved = np.asarray(moved + target)
        if moved.dtype.kind == "f" and values.dtype.kind in "iu":
            moved = np.rint(moved)
        moved = moved.astype(values.dtype, copy=False)
        if moved.dtype.kind in "fc":
            moved = np.where(np.isfinite(moved), moved, value)
        flat[begin : begin + moved.size] = moved.reshape(-1)
        begin += moved.size
    return result
