"""Tables of names: whole names and units, in eighty columns."""

from __future__ import annotations

import io

import pytest
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
