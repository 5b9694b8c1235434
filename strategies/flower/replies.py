"""Which replies may enter the model: clients are not trusted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord

from client.arrays import decode_array
from client.protocol import COMPUTE_S, LINK_S, TIMING

_T = TypeVar("_T", ArrayRecord, MetricRecord)

Signature: TypeAlias = tuple[str, str, frozenset[str]]
"""ArrayRecord's name, MetricRecord's name, metric keys: equal in all replies, or Flower stops."""


CLIENT_ERROR = "client error"
"""Failure of a client whose app raised."""
WRONG_RECORDS = "wrong records"
"""Failure of a reply that has other records than one of arrays and one of metrics."""
WRONG_ARRAYS = "wrong arrays"
"""Failure of a reply whose arrays have other keys, shapes or dtypes than the model's."""
NOT_FINITE = "not finite"
"""Failure of a reply with infinities or NaN."""
BAD_WEIGHT = "bad weight"
"""Failure of a reply without a positive number of examples."""
OTHER_NAMES = "other names"
"""Failure of a reply whose record or metric names differ from the other clients'."""


class InvalidReplyError(Exception):
    """A reply must not be used; the text is ``kind: details``.

    Parameters
    ----------
    kind : str
        One of the constants above: what failures are counted and logged by. It must not hold what
        a client says, or a hostile one could make ever new kinds.
    details : str
        What exactly.
    """

    def __init__(self, kind: str, details: str) -> None:
        super().__init__(f"{kind}: {details}")


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
    """

    def __init__(self, weighted_by_key: str, *, fixed_shapes: bool = True) -> None:
        self._weighted_by_key = weighted_by_key
        self._fixed_shapes = fixed_shapes
        self._seen: Counter[Signature] = Counter()

    def read(self, message: Message, expected: Mapping[str, ArraySpec]) -> Update:
        """Check one reply by itself.

        Raises
        ------
        InvalidReplyError
            If it is an error, has other records than exactly one ArrayRecord and one
            MetricRecord, or holds anything that is not a finite number of the right shape.
        """
        if message.has_error():
            raise InvalidReplyError(CLIENT_ERROR, error_text(message))
        arrays_name, arrays = _only(message, ArrayRecord)
        metrics_name, metrics = _only(message, MetricRecord)
        self._check_arrays(arrays, expected)
        for key, value in metrics.items():
            if not all(math.isfinite(v) for v in (value if isinstance(value, list) else [value])):
                raise InvalidReplyError(NOT_FINITE, f"metric {key!r}")
        weight = metrics.get(self._weighted_by_key)
        if isinstance(weight, list) or weight is None or weight <= 0:
            raise InvalidReplyError(
                BAD_WEIGHT, f"metric {self._weighted_by_key!r} is {weight!r}, not a number above 0"
            )
        signature = (arrays_name, metrics_name, frozenset(metrics))
        return Update(message, metrics, float(weight), signature)

    def agree(self, updates: Iterable[Update]) -> Signature | None:
        """Return the names that most updates of this round use.

        Flower's strategies stop the run when replies differ in them, so the minority is refused.
        Ties are decided by earlier rounds, then by the order of the updates.
        """
        votes = Counter(update.signature for update in updates)
        if not votes:
            return None
        best = max(votes, key=lambda signature: (votes[signature], self._seen[signature]))
        self._seen[best] += votes[best]
        return best

    def state(self) -> list[list[Any]]:
        """Return what :meth:`agree` has learned, ready for JSON."""
        return [
            [arrays, metrics, sorted(keys), count]
            for (arrays, metrics, keys), count in self._seen.items()
        ]

    def load_state(self, state: Iterable[Sequence[Any]]) -> None:
        """Go on where :meth:`state` left off."""
        self._seen = Counter(
            {(arrays, metrics, frozenset(keys)): count for arrays, metrics, keys, count in state}
        )

    def _check_arrays(self, arrays: ArrayRecord, expected: Mapping[str, ArraySpec]) -> None:
        if arrays.keys() != expected.keys():
            raise InvalidReplyError(
                WRONG_ARRAYS, f"keys {sorted(arrays)} instead of {sorted(expected)}"
            )
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
            if view.dtype.kind in "fc" and not np.isfinite(view).all():
                raise InvalidReplyError(NOT_FINITE, f"array {key!r}")


def error_text(message: Message) -> str:
    """Return what an error reply says, in one line of at most 200 characters."""
    lines = [line.strip() for line in (message.error.reason or "").splitlines() if line.strip()]
    if not lines:
        return f"no reason given, code {message.error.code}"
    # Of a traceback the last line says it, of any other text the first.
    return (lines[-1] if lines[0].startswith("Traceback") else lines[0])[:200]


def client_timing(message: Message) -> tuple[float | None, float | None]:
    """Return the compute and link seconds that a client reports, ``None`` where it does not."""
    record = message.content.get(TIMING)
    if not isinstance(record, ConfigRecord):
        return None, None
    return _seconds(record.get(COMPUTE_S)), _seconds(record.get(LINK_S))


def _seconds(value: object) -> float | None:
    if isinstance(value, int | float) and math.isfinite(value) and value >= 0:
        return float(value)
    return None


def _only(message: Message, kind: type[_T]) -> tuple[str, _T]:
    found = [(name, record) for name, record in message.content.items() if isinstance(record, kind)]
    if len(found) != 1:
        raise InvalidReplyError(
            WRONG_RECORDS, f"{len(found)} {kind.__name__}s instead of exactly one"
        )
    return found[0]
