"""Numbers as JSON can have them, and tables as spreadsheets can."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from numpy.typing import NDArray

_DIGITS: Final = 6
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")  # how formulas of spreadsheets begin


def numbers(values: NDArray[Any]) -> list[float | str | None]:
    """Return numbers as JSON can have them."""
    return [number(value) for value in values.tolist()]


def number(value: float) -> float | str | None:
    """Return a number as JSON can have it, to six digits."""
    if math.isfinite(value):
        return float(f"{value:.{_DIGITS}g}")
    return None if math.isnan(value) else "inf" if value > 0 else "-inf"


def to_json(value: Mapping[str, Any]) -> str:
    """Return compact JSON without infinities."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def csv_lines(rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """Yield the lines of a CSV file.

    A text that a spreadsheet would take for a formula, as a client's name may be, gets an
    apostrophe before it.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    for row in rows:
        writer.writerow([f"'{x}" if isinstance(x, str) and x[:1] in _FORMULA else x for x in row])
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
