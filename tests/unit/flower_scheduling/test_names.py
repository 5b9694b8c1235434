"""Names of clients in lists and settings: which one may be meant."""

from __future__ import annotations

import pytest

from flower_scheduling.names import unknown_names

FLEET = ["dev-1", "dev-2", "near", "Ost"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("dev1", " (did you mean dev-1?)"),
        ("dev_01", " (did you mean dev-1?)"),
        ("DEV-2", " (did you mean dev-2?)"),
        ("deb-2", " (did you mean dev-2?)"),
        ("naer", " (did you mean near?)"),
        ("ost", " (did you mean Ost?)"),
        ("dev-3", ""),
        ("dev-12", ""),
        ("far away", ""),
    ],
)
def test_the_client_that_may_be_meant_is_named(name: str, hint: str) -> None:
    assert unknown_names([name], FLEET) == f"no client is called {name}{hint}"


def test_a_line_about_many_names_is_short_and_printable() -> None:
    assert unknown_names(["b", "a"], []) == "no client is called a or b"
    line = unknown_names([f"x{number}\n" for number in range(9)], [])
    assert line == "no client is called x0 , x1 , x2 , x3 , x4 or 4 more"
