"""Which replies may enter the model: clients are not trusted."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from flower_scheduling.client.wire.arrays import decode_array
from flower_scheduling.client.wire.protocol import (
    LOCAL_STEPS,
    METRICS,
    OVERSIZED_CODE,
    REQUEST,
)
from flower_scheduling.columns import IsValid, columns
from flower_scheduling.errors import ConfigError, InvalidReplyError
from flower_scheduling.reasons import (
    BAD_WEIGHT,
    CLIENT_ERROR,
    NOT_FINITE,
    OVERSIZED,
    TOO_LARGE,
    WRONG_ARRAYS,
    WRONG_RECORDS,
)

from ..base import FloatArray
from .record import ArmResult
from .updates.pieces import largest_magnitude, norm, pieces

_T = TypeVar("_T", ArrayRecord, MetricRecord)

Signature: TypeAlias = tuple[str, str, frozenset[str]]
"""ArrayRecord's name, MetricRecord's name, metric keys: equal in all replies, or Flower stops.

A key is written ``:key``, or ``3:key`` if its value is a list of three: Flower averages lists item
by item, and stops as well where they differ in length.
"""


LARGEST_VALUE = 1e15
"""Largest value of a model: its square, summed over 10^8 of them, is still a float32."""
DEFAULT_MAX_NUM_EXAMPLES = LARGEST_VALUE
"""Most examples that a client is believed to have: they may be tokens."""
# By record of a reply: what it may report, as the name of the column, its key and its check
_REPORTED: dict[str, list[tuple[str, str, IsValid]]] = {}
for _name, _column in columns(ArmResult).items():
    if _column.reported is not None:
        _record, _key = _column.reported
        _REPORTED.setdefault(_record, []).append((_name, _key, _column.is_valid))
_MAX_METRICS = 1000
_SHOWN_KEYS = 10
_MAX_TEXT = 200
_MAX_SCANNED = 10_000
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TRACEBACK = re.compile(r'\A(?:<class .*)?Traceback|^ +File "', re.MULTILINE)
# How Flower writes an exception into an error reply, and what its own one says (flwr 1.42)
_FLOWERS = re.compile(r"<class '(?:[\w.]+\.)?([\w()]+)'>:<'(.*)", re.DOTALL)
_RAISED = "Exception ClientAppException occurred. Message: "


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and dtype that an array of the model must have."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def num_bytes(self) -> int:
        """Size of its values."""
        return math.prod(self.shape) * self.dtype.itemsize

    @staticmethod
    def of(arrays: ArrayRecord) -> dict[str, ArraySpec]:
        """Describe every array of a model."""
        views = {key: decode_array(array) for key, array in arrays.items()}
        return {key: ArraySpec(view.shape, view.dtype) for key, view in views.items()}


@dataclass(frozen=True, slots=True)
class Change:
    """Where an update first differs from the model that its client was sent.

    Attributes
    ----------
    key : str
        Of the array.
    place : int
        Of the value in it; -1: nowhere.
    values : bytes
        A few of the update's values from there on.
    """

    key: str
    place: int
    values: bytes


@dataclass(slots=True)
class Update:
    """A reply that may be aggregated.

    Attributes
    ----------
    message : Message
        The reply.
    metrics : MetricRecord
        Its metrics, of all its metric records.
    num_examples : float or None
        Its aggregation weight, finite and not negative; ``None`` where a strategy with a rule of
        its own needs none.
    signature : Signature
        Names that must agree between replies.
    unlike : str
        How its arrays differ from the model's, empty where they have the same keys and shapes.
    change : Change or None
        Where its values first do, see :class:`.FreeRiders`; ``None`` where this was not looked for.
    sketch : (SKETCH_SIZE,) float64 or None
        What it changed, see :func:`.sketch_of`; ``None`` where that is not known or not wanted.
    """

    message: Message
    metrics: MetricRecord
    num_examples: float | None
    signature: Signature
    unlike: str = ""
    change: Change | None = None
    sketch: FloatArray | None = None


class ReplyChecker:
    """Tell usable updates from errors, accidents and attacks.

    What protects the model is checked always: arrays that can be read, numbers that are finite
    where the model's are, a weight that can be one. What Flower's aggregation rules need, one
    record of arrays and one of metrics with a weight, is not asked of replies to a strategy that
    has a rule of its own.

    Parameters
    ----------
    weighted_by_key : str
        Metric that carries the aggregation weight (Flower's default: ``num-examples``).
    fixed_shapes : bool
        Whether arrays must keep their keys, shapes and kinds; false for tree ensembles, which
        grow, and for strategies that aggregate by a rule of their own.
    own_train_rule, own_evaluate_rule : bool
        Whether the strategy aggregates updates, or evaluations, by a rule of its own.
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
        own_train_rule: bool = False,
        own_evaluate_rule: bool = False,
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
        self._own_train_rule = own_train_rule
        self._own_evaluate_rule = own_evaluate_rule
        self._max_num_examples = max_num_examples
        self._max_update_norm = max_update_norm

    def read(
        self,
        message: Message,
        expected: Mapping[str, ArraySpec],
        model: ArrayRecord | None = None,
        *,
        lenient: bool = False,
    ) -> Update:
        """Check one reply by itself.

        Parameters
        ----------
        message : Message
            The reply.
        expected : mapping of str to ArraySpec
            What its arrays must be like.
        model : ArrayRecord, optional
            The model that it was trained from: where a value of it is not finite or larger than
            allowed, the same value is taken back. Without it, ``max_update_norm`` measures from
            zero.
        lenient : bool
            Whether arrays of other keys and shapes are noted in the update instead of refused.

        Raises
        ------
        InvalidReplyError
            If it is an error, its records are not one of arrays and one of metrics, its arrays
            are not like the model's, a value is not finite or too large, or its weight is no
            number of a sensible size.
        """
        _require_content(message)
        if self._own_train_rule:
            return self._read_free(message, expected, model)
        arrays_name, arrays = _only(message, ArrayRecord)
        unlike = self._check_arrays(arrays, expected, model)
        if unlike:
            if not lenient or self._max_update_norm is not None:
                raise InvalidReplyError(WRONG_ARRAYS, unlike)
            arrays_name += _structure(arrays)
        metrics_name, metrics, num_examples = self._read_metrics(message)
        signature = (arrays_name, metrics_name, _metric_keys(metrics))
        return Update(message, metrics, num_examples, signature, unlike)

    def read_evaluation(self, message: Message) -> Signature:
        """Check the reply to an evaluation: metrics, no arrays.

        Returns
        -------
        Signature
            Names that must agree between replies; that of the arrays is empty.

        Raises
        ------
        InvalidReplyError
            If it is an error, or its metrics are not those of :meth:`read` or not finite.
        """
        _require_content(message)
        if self._own_evaluate_rule:
            return ("", "", frozenset())
        metrics_name, metrics, _ = self._read_metrics(message)
        for key, value in metrics.items():
            if not all(map(_is_finite, value if isinstance(value, list) else [value])):
                raise InvalidReplyError(NOT_FINITE, f"metric {_shown(key)}")
        return ("", metrics_name, _metric_keys(metrics))

    def _read_free(
        self, message: Message, expected: Mapping[str, ArraySpec], model: ArrayRecord | None
    ) -> Update:
        """Check a reply whose records are the wrapped strategy's business."""
        names = []
        for name, arrays in of_kind(message.content, ArrayRecord).items():
            unlike = self._check_arrays(arrays, expected, model)
            names.append(name + (_structure(arrays) if unlike else ""))
        metrics = MetricRecord()
        own_metrics = of_kind(message.content, MetricRecord)
        for record in own_metrics.values():
            metrics.update(record)
        weight = None
        if self._weighted_by_key in metrics:
            weight = self._weight(metrics)
        metric_names = "\n".join(own_metrics)
        signature = ("\n".join(names), metric_names, _metric_keys(metrics))
        return Update(message, metrics, weight, signature)

    def _read_metrics(self, message: Message) -> tuple[str, MetricRecord, float]:
        """Return name, metrics and aggregation weight."""
        metrics_name, metrics = _only(message, MetricRecord)
        if len(metrics) > _MAX_METRICS:
            raise InvalidReplyError(
                WRONG_RECORDS, f"{len(metrics)} metrics, {_MAX_METRICS} at most"
            )
        return metrics_name, metrics, self._weight(metrics)

    def _weight(self, metrics: MetricRecord) -> float:
        key, weight = self._weighted_by_key, metrics.get(self._weighted_by_key)
        if isinstance(weight, int | float) and not _is_finite(weight):
            raise InvalidReplyError(NOT_FINITE, f"metric {_shown(key)}")
        if weight is None:
            raise InvalidReplyError(BAD_WEIGHT, f"metric {key!r} is missing")
        if isinstance(weight, list) or weight < 0:
            raise InvalidReplyError(
                BAD_WEIGHT, f"metric {key!r} is {_shown(weight)}, not a number of at least 0"
            )
        if weight > self._max_num_examples:
            raise InvalidReplyError(
                BAD_WEIGHT,
                f"metric {key!r} is {_shown(weight)}, "
                f"at most {self._max_num_examples:g} is believed",
            )
        return float(weight)

    def _check_arrays(
        self,
        arrays: ArrayRecord,
        expected: Mapping[str, ArraySpec],
        model: ArrayRecord | None,
    ) -> str:
        """Refuse arrays that would spoil a model; return how else they differ from it."""
        unlike = ""
        if arrays.keys() != expected.keys():
            unlike = f"keys {_shown_keys(arrays)} instead of {_shown_keys(expected)}"
        square = 0.0
        for key, array in arrays.items():
            try:
                view = decode_array(array)
            except ValueError as error:
                raise InvalidReplyError(
                    WRONG_ARRAYS, f"{_shown(key)} cannot be read: {error}"
                ) from None
            want = expected.get(key)
            like = want is not None and view.shape == want.shape
            if want is not None and not like and self._fixed_shapes:
                unlike = unlike or f"{_shown(key)} has shape {view.shape}, not {want.shape}"
            if want is not None and self._fixed_shapes and not _can_become(view.dtype, want.dtype):
                text = f"{_shown(key)} has dtype {view.dtype}, not {want.dtype}"
                raise InvalidReplyError(WRONG_ARRAYS, text + _dtype_hint(view.dtype))
            if view.dtype.kind in "fc":
                base = model.get(key) if like and model is not None else None
                dtype = view.dtype if want is None else want.dtype
                _check_values(key, view, dtype, base)
            if self._max_update_norm is not None and not unlike and want is not None:
                start = decode_array(model[key]) if model is not None else None
                square += _square(view, start, np.result_type(want.dtype, np.float64))
        if self._max_update_norm is not None and not math.sqrt(square) <= self._max_update_norm:
            raise InvalidReplyError(
                TOO_LARGE,
                f"the update's norm is {math.sqrt(square):.4g}, at most {self._max_update_norm:g}",
            )
        return unlike


@functools.lru_cache(maxsize=64)
def _can_become(dtype: np.dtype[Any], want: np.dtype[Any]) -> bool:
    """Tell whether values may be averaged into an array of another dtype.

    A whole number may come back as a fraction: Flower's own averages of counters are.
    """
    return np.can_cast(dtype, want, "same_kind") or (dtype.kind in "biuf" and want.kind in "biuf")


def _dtype_hint(dtype: np.dtype[Any]) -> str:
    # A dtype that numpy does not know, such as bfloat16, is written as bytes without a meaning.
    return " (send float32: numpy has no bfloat16)" if dtype.kind == "V" else ""


def _structure(arrays: ArrayRecord) -> str:
    return "\n" + repr(sorted((key, tuple(array.shape)) for key, array in arrays.items()))


def _require_content(message: Message) -> None:
    if message.has_error():
        oversized = message.error.code == OVERSIZED_CODE
        raise InvalidReplyError(OVERSIZED if oversized else CLIENT_ERROR, error_text(message))
    if not message.has_content():
        raise InvalidReplyError(WRONG_RECORDS, "none")


def _metric_keys(metrics: MetricRecord) -> frozenset[str]:
    """Return a signature's metric keys."""
    lengths = {key: len(v) if isinstance(v, list) else "" for key, v in metrics.items()}
    return frozenset(f"{length}:{key}" for key, length in lengths.items())


def _check_values(key: str, view: NDArray[Any], dtype: np.dtype[Any], base: Array | None) -> None:
    """Refuse values that are not finite, or not once they are in the model or squared.

    What the model itself has at the same place may come back: masks are often of -inf or of the
    dtype's lowest number.
    """
    limit = _limit(dtype)
    if all(norm(part) <= limit for (part,) in pieces(view)):
        return  # no value is larger than all of them together
    largest = largest_magnitude(view)
    if largest <= limit:
        return
    if base is not None:
        largest = 0.0
        for part, own in pieces(view, decode_array(base)):
            changed = (part != own) & ~(np.isnan(part) & np.isnan(own))
            largest = float(np.maximum(largest, largest_magnitude(part[changed])))
    if not math.isfinite(largest):
        raise InvalidReplyError(NOT_FINITE, f"array {_shown(key)}")
    if largest > limit:
        raise InvalidReplyError(
            TOO_LARGE, f"array {_shown(key)} has a value of {largest:.4g}, at most {limit:.4g}"
        )


def _square(view: NDArray[Any], start: NDArray[Any] | None, dtype: np.dtype[Any]) -> float:
    """Return the square of the distance of an array from another one, or from zero."""
    square = 0.0
    for part, *origin in pieces(view) if start is None else pieces(view, start):
        update = np.subtract(part, origin[0] if origin else 0.0, dtype=dtype)
        square += float(np.vdot(update, update).real)
    return square


@functools.lru_cache(maxsize=64)
def _limit(dtype: np.dtype[Any]) -> float:
    """Return the largest value that an array of the model may have."""
    if dtype.kind not in "fciu":
        return LARGEST_VALUE
    info = np.finfo(dtype) if dtype.kind in "fc" else np.iinfo(dtype)
    return min(LARGEST_VALUE, float(info.max))


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
    """Return what an error reply says, in one line of at most 200 printable characters.

    Of a traceback that is the line of the exception that the app raised, also where Flower and Ray
    have put exceptions of their own around it, and colours into the text.
    """
    reason = _COLOUR.sub("", message.error.reason or "")
    traced = _TRACEBACK.search(reason[:_MAX_SCANNED]) is not None
    reason = reason[-_MAX_SCANNED:] if traced else reason[:_MAX_SCANNED]
    if not traced and (wrapped := _FLOWERS.match(reason)):
        kind, text = wrapped.groups()
        text = text.replace(_RAISED, "").strip().removesuffix("'>")
        reason = text if kind == "ClientAppException" else f"{kind}: {text}"
    lines = [line for line in reason.splitlines() if line.strip()]
    if not lines:
        return f"no reason given, code {message.error.code}"
    line = (_raised_line(lines) if traced else lines[0].strip())[:_MAX_TEXT]
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def _raised_line(lines: list[str]) -> str:
    """Return the line of a traceback that names what was raised, as near to its cause as an app."""
    raised = [
        line
        for before, line in pairwise(lines)
        if not line[0].isspace() and (before[0].isspace() or before.startswith("Traceback"))
    ]
    apps = [line for line in raised if "ClientAppException" not in line and "ray::" not in line]
    if apps:
        return apps[-1].strip()
    return lines[-1].strip().replace(_RAISED, "").removesuffix("'>")


def reported(message: Message, metrics: MetricRecord) -> dict[str, Any]:
    """Return what a client reports of its work: columns of an :class:`.ArmResult` by name.

    What it does not report, or with a value that cannot be one, is missing.
    """
    found: dict[str, Any] = {}
    for record, its_columns in _REPORTED.items():
        source = metrics if record == METRICS else message.content.get(record)
        if isinstance(source, ConfigRecord | MetricRecord):
            for name, key, is_valid in its_columns:
                if (value := source.get(key)) is not None and is_valid(value):
                    found[name] = value
    return found


def client_steps(message: Message) -> int | None:
    """Return how many local steps a client reports to have made, ``None`` where it does not."""
    record = message.content.get(REQUEST)
    steps = record.get(LOCAL_STEPS) if isinstance(record, ConfigRecord) else None
    return steps if type(steps) is int and 1 <= steps <= LARGEST_VALUE else None


def _only(message: Message, kind: type[_T]) -> tuple[str, _T]:
    found = of_kind(message.content, kind)
    if len(found) != 1:
        raise InvalidReplyError(
            WRONG_RECORDS, f"{len(found)} {kind.__name__}s instead of exactly one"
        )
    return next(iter(found.items()))


def of_kind(content: RecordDict, kind: type[_T]) -> dict[str, _T]:
    """Return the records of one kind; see :class:`.FastRecordDict` for what Flower's views cost."""
    return {name: record for name, record in content.items() if isinstance(record, kind)}
