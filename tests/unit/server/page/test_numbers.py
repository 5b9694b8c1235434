"""Tables for spreadsheets."""

from __future__ import annotations

import pytest

from flower_scheduling.server.page.numbers import csv_lines


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1", "-1", "@SUM(1)", "\tx", "\rx"])
def test_a_name_is_no_formula(name: str) -> None:
    (line,) = csv_lines([[name, -1.5, None]])
    assert line.lstrip('"').startswith(f"'{name[0]}")
    assert line.endswith(",-1.5,\r\n")


def test_commas_and_quotes_stay_in_their_field() -> None:
    assert list(csv_lines([["a,b", 'c"d'], [1, 2]])) == ['"a,b","c""d"\r\n', "1,2\r\n"]
