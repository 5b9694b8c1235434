"""Columns of recorded rounds: what a field of a record says of itself, once.

A field of ``ArmResult`` or ``RoundRecord`` that is declared ``field(metadata=column(seconds))`` is
read from replies, written to ``rounds.jsonl`` and checked when it is read back, without being
mentioned anywhere else. What it means stands in the docstring of its class, from which
``docs/reference/rounds.md`` has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final

IsValid = Callable[[object], bool]
LARGEST: Final = 2**53
"""Beyond it no offset and no time is."""
_METADATA: Final = "column"


class When(Enum):
    """In which lines a column is written, in the words of the documentation."""

    ALWAYS = ""
    IF_ANY = "if any"
    SMALL_FLEETS = "in small fleets"
    IN_STEPS = "in buffered mode"


@dataclass(frozen=True, slots=True)
class Column:
    """What a field of a record says of itself.

    Attributes
    ----------
    is_valid : callable
        Whether a value can be one: lines may have been edited, and clients are not trusted.
    when : When
        In which lines it is.
    since : str
        First version that writes it, empty: all do. In lines of earlier ones it has its default.
    reported : tuple of str, optional
        Record in a client's reply, and the number's key in it; ``metrics`` is any record of
        metrics. ``None``: it is not reported.
    """

    is_valid: IsValid
    when: When = When.ALWAYS
    since: str = ""
    reported: tuple[str, str] | None = None

    @property
    def optional(self) -> bool:
        """Whether there are lines without it."""
        return self.when is not When.ALWAYS or bool(self.since)


def column(
    is_valid: IsValid,
    *,
    when: When = When.ALWAYS,
    since: str = "",
    reported: tuple[str, str] | None = None,
) -> dict[str, Column]:
    """Return the metadata of a field that is a column; see :class:`Column`."""
    return {_METADATA: Column(is_valid, when, since, reported)}


def columns(record: type[Any]) -> dict[str, Column]:
    """Return the columns among the fields of a dataclass by name, in the order of the fields."""
    return {f.name: f.metadata[_METADATA] for f in fields(record) if _METADATA in f.metadata}


def is_any(value: object) -> bool:
    """Tell whether a value is written where that is asked: 0 is, nothing and false are not."""
    return number(value) or bool(value)


def count(value: object) -> bool:
    """Tell whether a value is a whole number of at least 0."""
    return type(value) is int and 0 <= value <= LARGEST


def number(value: object) -> bool:
    """Tell whether a value is a number of a sensible size."""
    # Whole numbers of any length are JSON; a flag is none.
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= LARGEST  # not where it is NaN
    )


def finite(value: object) -> bool:
    """Tell whether a value is a finite number."""
    return (isinstance(value, float) and math.isfinite(value)) or number(value)


def seconds(value: object) -> bool:
    """Tell whether a value is a time of at least 0."""
    return isinstance(value, int | float) and number(value) and value >= 0


def flag(value: object) -> bool:
    """Tell whether a value is true or false."""
    return type(value) is bool


def text(value: object) -> bool:
    """Tell whether a value is a text."""
    return isinstance(value, str)


def or_none(is_valid: IsValid) -> IsValid:
    """Accept ``None`` as well."""
    return lambda value: value is None or is_valid(value)


def list_of(is_valid: IsValid) -> IsValid:
    """Accept lists of such values."""
    return lambda value: isinstance(value, list) and all(map(is_valid, value))
