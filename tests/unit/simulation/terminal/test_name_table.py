"""Tables of names: whole names and units, in eighty columns."""

from __future__ import annotations

import io

import pytest
from rich.box import SIMPLE_HEAD
from rich.console import Console

from flower_scheduling.simulation.terminal.name_table import name_table

HEADINGS = ("time [s]", "95 %", "against the record", "of clients hardly known")


@pytest.mark.parametrize("name", ["cs-ucb-q-adaptive, again", "folder/of/mine/" * 6 + "a.py:Mine"])
def test_nothing_of_a_name_or_a_unit_is_lost(name: str) -> None:
    table = name_table("policy", [name], HEADINGS)
    table.add_row(name, "1234.5", "1000.1 to 1500.2", "+100%", "100%")
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert all(len(line) <= 80 for line in lines)
    shown = "\n".join(lines)
    assert "time [s]" in shown
    assert "…" not in shown
    assert "".join(line.split("│")[1].strip() for line in lines if "│" in line) == name


def test_the_table_of_the_league_cuts_no_name_of_a_policy_or_a_scenario() -> None:
    headings = ("mean", "worst", "in", "floors met", "with floors", "choice [µs]")
    table = name_table(
        "policy", ["cs-ucb-q-adaptive"], headings, left=("in",), box=SIMPLE_HEAD, padding=0
    )
    row = ("cs-ucb-q-adaptive", "1.029", "1.166", "lognormal-compute", "100%", "1.014", "8 to 1220")
    table.add_row(*row)
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    words = console.file.getvalue().split()  # type: ignore[attr-defined]
    assert {word for cell in (*row, *headings) for word in cell.split()} <= set(words)
