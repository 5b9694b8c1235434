"""Which replies may enter the model: clients are not trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from numpy.typing import NDArray

from flower_scheduling.client.wire.arrays import decode_array
from flower_scheduling.client.wire.protocol import COMPUTE_S, LINK_S, TIMING
from flower_scheduling.errors import ConfigError, InvalidReplyError

_T = TypeVar("_T", ArrayRecord, MetricRecord)

Signature: TypeAlias = tuple[str, str, frozenset[str]]
"""ArrayRecord's name, MetricRecord's name, metric keys: equal in all replies, or Flower stops.

A key is written ``:key``, or ``3:key`` if its value is a list of three: Flower averages lists item
by item, and stops as well where they differ in length.
"""


CLIENT_ERROR = "client error"
"""Failure of a client whose app raised."""
WRONG_RECORDS = "wrong records"
"""Failure of a reply that has other records than one of arrays and one of metrics."""
WRONG_ARRAYS = "wrong arrays"
"""Failure of a reply whose arrays have other keys, shapes or dtypes than the model's."""
NOT_FINITE = "not finite"
"""Failure of a reply with infinities or NaN."""
BAD_WEIGHT = "bad weight"
"""Failure of a reply without a positive number of examples, or with more than one can have."""
TOO_LARGE = "too large"
"""Failure of a reply with values, or an update with a norm, beyond what is sensible."""
OTHER_NAMES = "other names"
"""Failure of a reply whose record or metric names differ from the other clients'."""


DEFAULT_MAX_NUM_EXAMPLES = 1e9
"""Most examples that a client is believed to have."""
LARGEST_VALUE = 1e15
"""Largest value of a model: its square, summed over 10^8 of them, is still a float32."""
_MAX_METRICS = 1000
_SHOWN_KEYS = 10
_MAX_TEXT = 200
_MAX_SCANNED = 10_000


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and dtype that an array of the model must have."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @staticmethod
    def of(arrays: ArrayRecord) -> dict[str, ArraySpec]:
        """Describe every array of a model."""
        views = {key: decode_array(array) for key, array in arrays.items()}
        return {key: ArraySpec(view.shape, view.dtype) for key, view in views.items()}


@dataclass(frozen=True, slots=True)
class Update:
    """A reply that may be aggregated.

    Attributes
    ----------
    message : Message
        The reply.
    metrics : MetricRecord
        Its only metric record.
    num_examples : float
        Its aggregation weight, finite and positive.
    signature : Signature
        Names that must agree between replies.
    """

    message: Message
    metrics: MetricRecord
    num_examples: float
    signature: Signature


class ReplyChecker:
    """Tell usable updates from errors, accidents and attacks.

    Parameters
    ----------
    weighted_by_key : str
        Metric that carries the aggregation weight (Flower's default: ``num-examples``).
    fixed_shapes : bool
        Whether arrays must keep their shapes and kinds; false for tree ensembles, which grow.
    max_num_examples : float
        Largest aggregation weight: one client that claims 1e18 examples would be the average.
    max_update_norm : float, optional
        Largest Euclidean norm of the difference between a reply's arrays and the model's, all
        arrays together; no limit by default. Needs ``fixed_shapes`` and, in :meth:`read`, the
        model.

    Raises
    ------
    ConfigError
        If a limit is not above 0, or a norm is asked for where shapes vary.
    """

    def __init__(
        self,
        weighted_by_key: str,
        *,
        fixed_shapes: bool = True,
        max_num_examples: float = DEFAULT_MAX_NUM_EXAMPLES,
        max_update_norm: float | None = None,
    ) -> None:
        if not max_num_examples > 0:
            raise ConfigError("max_num_examples", max_num_examples, "must be above 0")
        if max_update_norm is not None and not (max_update_norm > 0 and fixed_shapes):
            raise ConfigError(
                "max_update_norm", max_update_norm, "must be above 0, for fixed shapes"
            )
        self._weighted_by_key = weighted_by_key
        self._fixed_shapes = fixed_shapes
        self._max_num_examples = max_num_examples
        self._max_update_norm = max_update_norm

    def read(
        self,
        message: Message,
        expected: Mapping[str, ArraySpec],
        model: ArrayRecord | None = None,
    ) -> Update:
        """Check one reply by itself.

        Parameters
        ----------
        message : Message
            The reply.
        expected : mapping of str to ArraySpec
            What its arrays must be like.
        model : ArrayRecord, optional
            The model that it was trained from, for ``max_update_norm``; zeros if left out, so
            that the norm of the reply's own arrays counts.

        Raises
        ------
        InvalidReplyError
            If it is an error, has other records than exactly one ArrayRecord and one
            MetricRecord, or holds anything that is not a finite number of the right shape and a
            sensible size.
        """
        _require_content(message)
        arrays_name, arrays = _only(message, ArrayRecord)
        self._check_arrays(arrays, expected, model)
        metrics_name, metrics, num_examples = self._read_metrics(message)
        signature = (arrays_name, metrics_name, _metric_keys(metrics))
        return Update(message, metrics, num_examples, signature)

    def read_evaluation(self, message: Message) -> Signature:
        """Check the reply to an evaluation: metrics, no arrays.

        Returns
        -------
        Signature
            Names that must agree between replies; that of the arrays is empty.

        Raises
        ------
        InvalidReplyError
            If it is an error, or its metrics are not those of :meth:`read`.
        """
        _require_content(message)
        metrics_name, metrics, _ = self._read_metrics(message)
        return ("", metrics_name, _metric_keys(metrics))

    def _read_metrics(self, message: Message) -> tuple[str, MetricRecord, float]:
        """Return name, metrics and aggregation weight."""
        metrics_name, metrics = _only(message, MetricRecord)
        if len(metrics) > _MAX_METRICS:
            raise InvalidReplyError(
                WRONG_RECORDS, f"{len(metrics)} metrics, {_MAX_METRICS} at most"
            )
        for key, value in metrics.items():
            if not all(map(_is_finite, value if isinstance(value, list) else [value])):
                raise InvalidReplyError(NOT_FINITE, f"metric {_shown(key)}")
        weight = metrics.get(self._weighted_by_key)
        if isinstance(weight, list) or weight is None or weight <= 0:
            raise InvalidReplyError(
                BAD_WEIGHT,
                f"metric {self._weighted_by_key!r} is {_shown(weight)}, not a number above 0",
            )
        if weight > self._max_num_examples:
            raise InvalidReplyError(
                BAD_WEIGHT,
                f"metric {self._weighted_by_key!r} is {_shown(weight)}, "
                f"at most {self._max_num_examples:g} is believed",
            )
        return metrics_name, metrics, float(weight)

    def _check_arrays(
        self,
        arrays: ArrayRecord,
        expected: Mapping[str, ArraySpec],
        model: ArrayRecord | None,
    ) -> None:
        if arrays.keys() != expected.keys():
            raise InvalidReplyError(
                WRONG_ARRAYS, f"keys {_shown_keys(arrays)} instead of {_shown_keys(expected)}"
            )
        square = 0.0
        for key, array in arrays.items():
            try:
                view = decode_array(array)
            except ValueError as error:
                raise InvalidReplyError(WRONG_ARRAYS, f"{key!r} cannot be read: {error}") from None
            if not self._fixed_shapes:
                continue
            want = expected[key]
            if view.shape != want.shape:
                raise InvalidReplyError(
                    WRONG_ARRAYS, f"{key!r} has shape {view.shape}, not {want.shape}"
                )
            if not np.can_cast(view.dtype, want.dtype, "same_kind"):
                raise InvalidReplyError(
                    WRONG_ARRAYS, f"{key!r} has dtype {view.dtype}, not {want.dtype}"
                )
            if view.dtype.kind in "fc":
                _check_values(key, view, want.dtype)
            if self._max_update_norm is not None:
                base = decode_array(model[key]) if model is not None else 0.0
                update = np.subtract(view, base, dtype=np.result_type(want.dtype, np.float64))
                square += float(np.vdot(update, update).real)
        if self._max_update_norm is not None and math.sqrt(square) > self._max_update_norm:
            raise InvalidReplyError(
                TOO_LARGE,
                f"the update's norm is {math.sqrt(square):.4g}, at most {self._max_update_norm:g}",
            )


def _require_content(message: Message) -> None:
    if message.has_error():
        raise InvalidReplyError(CLIENT_ERROR, error_text(message))
    if not message.has_content():
        raise InvalidReplyError(WRONG_RECORDS, "none")


def _metric_keys(metrics: MetricRecord) -> frozenset[str]:
    """Return a signature's metric keys."""
    lengths = {key: len(v) if isinstance(v, list) else "" for key, v in metrics.items()}
    return frozenset(f"{length}:{key}" for key, length in lengths.items())


def _check_values(key: str, view: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Refuse values that are not finite, or not once they are in the model or squared."""
    if not view.size:
        return
    values = np.abs(view) if view.dtype.kind == "c" else view
    largest = max(float(values.max()), -float(values.min()))
    if not math.isfinite(largest):
        raise InvalidReplyError(NOT_FINITE, f"array {key!r}")
    limit = min(LARGEST_VALUE, float(np.finfo(dtype).max))
    if largest > limit:
        raise InvalidReplyError(
            TOO_LARGE, f"array {key!r} has a value of {largest:.4g}, at most {limit:.4g}"
        )


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, list) else f"a list of {len(value)}"
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "..."


def _shown_keys(keys: Mapping[str, object]) -> str:
    if len(keys) > _SHOWN_KEYS:
        return f"{len(keys)} of them"
    return ", ".join(_shown(key) for key in sorted(keys)).join("[]")


def error_text(message: Message) -> str:
    """Return what an error reply says, in one line of at most 200 printable characters."""
    reason = message.error.reason or ""
    traced = reason.startswith("Traceback")
    reason = reason[-_MAX_SCANNED:] if traced else reason[:_MAX_SCANNED]
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    if not lines:
        return f"no reason given, code {message.error.code}"
    # Of a traceback the last line says it, of any other text the first.
    line = (lines[-1] if traced else lines[0])[:_MAX_TEXT]
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def client_timing(message: Message) -> tuple[float | None, float | None]:
    """Return the compute and link seconds that a client reports, ``None`` where it does not."""
    record = message.content.get(TIMING)
    if not isinstance(record, ConfigRecord):
        return None, None
    return _seconds(record.get(COMPUTE_S)), _seconds(record.get(LINK_S))


def _seconds(value: object) -> float | None:
    if isinstance(value, int | float) and 0 <= value <= LARGEST_VALUE:
        return float(value)
    return None


def _only(message: Message, kind: type[_T]) -> tuple[str, _T]:
    found = [(name, record) for name, record in message.content.items() if isinstance(record, kind)]
    if len(found) != 1:
        raise InvalidReplyError(
            WRONG_RECORDS, f"{len(found)} {kind.__name__}s instead of exactly one"
        )
    return found[0]
