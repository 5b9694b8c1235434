"""Models and replies of Flower's old API as the records of today's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from flower_scheduling._flwr import make_message, new_array
from flower_scheduling._flwr_old import (
    Code,
    FitRes,
    Parameters,
    Scalar,
    Status,
    recorddict_to_fitres,
)
from flower_scheduling.client.wire.arrays import FastArray, decode_array, encode_array
from flower_scheduling.client.wire.protocol import NUM_EXAMPLES
from flower_scheduling.errors import InvalidReplyError
from flower_scheduling.reasons import CLIENT_ERROR, WRONG_ARRAYS, WRONG_RECORDS

from ..replies import ArraySpec, ReplyChecker, Update

_NUMPY: Final = "numpy.ndarray"  # tensor type of arrays; anything else is bytes of the app's own
_RAW: Final = "bytes-"  # begins the names of these
_ARRAYS: Final = "arrays"
_METRICS: Final = "metrics"
_OWN_METRICS: Final = "fitres.metrics"  # also on the wire (flwr 1.42)


def to_arrays(parameters: Parameters) -> ArrayRecord:
    """Return parameters, which have no names, as arrays named by their place.

    Tensors that are no arrays, such as trees, become arrays of bytes.

    Raises
    ------
    ValueError
        If a tensor that should be an array cannot be read.
    """
    arrays = ArrayRecord()
    for place, tensor in enumerate(parameters.tensors):
        if parameters.tensor_type != _NUMPY:
            arrays[f"{_RAW}{place}"] = encode_array(np.frombuffer(tensor, np.uint8))
            continue
        array = new_array(FastArray, dtype="", shape=(), stype=_NUMPY, data=tensor)
        view = decode_array(array)
        array.__dict__.update(dtype=str(view.dtype), shape=view.shape)
        arrays[str(place)] = array
    return arrays


def to_parameters(arrays: ArrayRecord) -> Parameters:
    """Return what :func:`to_arrays` was given."""
    if any(key.startswith(_RAW) for key in arrays):
        return Parameters([decode_array(array).tobytes() for array in arrays.values()], "")
    return Parameters([array.data for array in arrays.values()], _NUMPY)


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return those metrics that are numbers: the old API has texts and bytes, too."""
    return {
        name: float(value) if isinstance(value, float | np.floating) else int(value)
        for name, value in metrics.items()
        if isinstance(value, int | float | np.integer | np.floating)
    }


def fit_result(message: Message) -> FitRes:
    """Return the old API's result of a reply that :class:`OldReplyChecker` has read."""
    content: Any = message.content
    metrics: dict[str, Scalar] = dict(content[_OWN_METRICS])
    parameters = to_parameters(content[_ARRAYS])
    num_examples = content[_METRICS][NUM_EXAMPLES]
    return FitRes(Status(Code.OK, ""), parameters, num_examples, metrics)


class OldReplyChecker(ReplyChecker):
    """Check replies of clients of the old API as those of today's are.

    Parameters
    ----------
    *args, **kwargs
        As of :class:`.ReplyChecker`.
    as_they_are : bool
        Whether an update keeps the reply as the client sent it, for a workflow that reads it.
    """

    def __init__(self, *args: Any, as_they_are: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._as_they_are = as_they_are

    def read(
        self,
        message: Message,
        expected: Mapping[str, ArraySpec],
        model: ArrayRecord | None = None,
        *,
        lenient: bool = False,
    ) -> Update:
        """Check one reply by itself, see :meth:`.ReplyChecker.read`.

        The old API's rules do not mind which metrics a client sends.
        """
        translated = message if message.has_error() else _translated(message)
        update = super().read(translated, expected, model, lenient=lenient)
        return replace(
            update,
            message=message if self._as_they_are else translated,
            signature=(update.signature[0], "", frozenset()),
        )


def _translated(message: Message) -> Message:
    """Return the reply in today's records; as it is, if it is no result of training."""
    content = message.content
    if _OWN_METRICS not in content:
        return message
    try:
        result = recorddict_to_fitres(content, keep_input=True)
        own = ConfigRecord(dict(content.config_records[_OWN_METRICS]))
        metrics = MetricRecord({**numbers(result.metrics), NUM_EXAMPLES: result.num_examples})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        text = f"no result of the old API: {type(error).__name__}: {error}"
        raise InvalidReplyError(WRONG_RECORDS, text) from None
    if result.status.code != Code.OK:
        raise InvalidReplyError(CLIENT_ERROR, result.status.message or result.status.code.name)
    try:
        arrays = to_arrays(result.parameters)
    except ValueError as error:
        raise InvalidReplyError(WRONG_ARRAYS, f"cannot be read: {error}") from None
    records = RecordDict({_ARRAYS: arrays, _METRICS: metrics, _OWN_METRICS: own})
    return make_message(message.metadata, records)
