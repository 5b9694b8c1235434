"""Columns of records: what their fields say of themselves, and which values can be one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from flower_scheduling.columns import (
    LARGEST,
    IsValid,
    When,
    column,
    columns,
    count,
    finite,
    flag,
    is_any,
    list_of,
    number,
    or_none,
    seconds,
    text,
)


@dataclass
class Measured:
    name: str
    energy_j: float | None = field(
        default=None, metadata=column(number, reported=("metrics", "energy-j"), since="2.0")
    )
    rank: int | None = field(default=None, metadata=column(count, when=When.IN_STEPS))
    time_s: float = field(default=0.0, metadata=column(seconds))


def test_a_field_says_of_itself_what_its_column_is() -> None:
    found = columns(Measured)
    assert list(found) == ["energy_j", "rank", "time_s"], "the name is none"
    assert found["energy_j"].reported == ("metrics", "energy-j")
    assert found["rank"].when is When.IN_STEPS
    assert [each.optional for each in found.values()] == [True, True, False]


@pytest.mark.parametrize(
    ("is_valid", "good", "wrong"),
    [
        (count, [0, 1, LARGEST], [-1, 1.0, True, LARGEST + 1, None, "1"]),
        (number, [0, -1.5, -LARGEST], [math.nan, math.inf, True, 10**400, None, "1", [1]]),
        (finite, [1e300, -1e300, 0], [math.nan, -math.inf, True, None]),
        (seconds, [0, 1.5], [-1e-9, math.nan, False, None]),
        (flag, [True, False], [0, 1, None]),
        (text, ["", "a"], [None, 1]),
        (or_none(count), [None, 1], [-1]),
        (list_of(count), [[], [1, 2]], [None, [-1], 1, (1,)]),
    ],
)
def test_values_that_can_be_one(is_valid: IsValid, good: list[Any], wrong: list[Any]) -> None:
    assert [value for value in good if not is_valid(value)] == []
    assert [value for value in wrong if is_valid(value)] == []


def test_zero_is_a_value_and_nothing_is_none() -> None:
    assert all(map(is_any, [0, 0.0, 1, True, "a", [0], {"a": 1}]))
    assert not any(map(is_any, [None, False, "", [], {}]))
