"""Flower's weighted mean of replies, to the last bit, in little more memory than the replies'."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, Message

from flower_scheduling._flwr import new_record
from flower_scheduling.client.wire.arrays import FastArray, decode_array

from ..replies import of_kind
from .pieces import AnyArray, pieces


def alike(replies: Sequence[Message]) -> list[dict[str, AnyArray]] | None:
    """Return views of the replies' arrays; ``None`` if not all have one record with the same ones.

    Name of the record, keys, shapes and dtypes are the same then, so that a mean cannot fail.
    """
    found: list[dict[str, AnyArray]] = []
    first: object = None
    for reply in replies:
        records = of_kind(reply.content, ArrayRecord)
        if len(records) != 1:
            return None
        ((name, record),) = records.items()
        views = {key: decode_array(array) for key, array in record.items()}
        form = name, {key: (view.shape, view.dtype) for key, view in views.items()}
        if first is not None and form != first:
            return None
        first = form
        found.append(views)
    return found or None


def weighted_mean(records: Sequence[dict[str, AnyArray]], factors: Sequence[float]) -> ArrayRecord:
    """Return the weighted mean of arrays, array by array; the records are emptied on the way.

    The sum is formed in the order of the records, in the dtype that Flower's own has (flwr 1.42,
    ``aggregate_arrayrecords``), which copies each reply and holds all sums twice.

    Parameters
    ----------
    records : sequence of dict of str to array
        One at least, all :func:`alike`.
    factors : sequence of float
        Weight of each, of a sum of 1.
    """
    mean: dict[str, Array] = {}
    for key in list(records[0]):
        arrays = [record.pop(key) for record in records]
        total = _weighted_sum(arrays, factors)
        del arrays
        # Flower keeps numpy's order of axes; ours on the wire is C.
        in_order = total.flags.c_contiguous
        mean[key] = FastArray.of_numpy(total) if in_order else Array(total)
    return new_record(ArrayRecord, mean)


def _weighted_sum(arrays: Sequence[AnyArray], factors: Sequence[float]) -> AnyArray:
    total: AnyArray | None = None
    begin = 0
    for parts in pieces(*arrays):
        part = parts[0] * factors[0]
        for values, factor in zip(parts[1:], factors[1:], strict=True):
            part += values * factor
        if part.size == arrays[0].size:
            return np.asarray(part)
        if total is None:
            total = np.empty_like(arrays[0], dtype=part.dtype)
            flat = total.reshape(-1, order="A")
        flat[begin : begin + part.size] = part
        begin += part.size
    assert total is not None
    return total
