"""What a liar and a free rider get, with and without what stands against them."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest
from paths import ROOT


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "bench_lies", ROOT / "benchmarks" / "bench_lies.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("cheat", "policy", "mode", "most_without"),
    [
        ("liar", "cs-ucb-q-loss", "rounds", 0.15),
        ("free rider", "cs-ucb-q-adaptive", "rounds", 0.15),
        ("free rider", "cs-ucb-q-adaptive", "buffered", 0.8),
    ],
)
def test_a_cheat_wins_nothing(
    bench: ModuleType, cheat: str, policy: str, mode: str, most_without: float
) -> None:
    """One seed of 60 rounds: deterministic, since time is virtual."""
    case = bench.Case(cheat, policy, mode)
    honest, without, by_default, bounded = bench.cells(case, [0], 60)
    assert without[1] > most_without
    assert by_default[0] < honest[0] + 0.05
    assert bounded[0] < bench.MAX_SHARE / 5 + 2 / 60
    if cheat == "free rider":  # in buffered mode a few before any other client has answered
        assert by_default[1] < 0.05


def test_the_documentation_has_every_row(bench: ModuleType) -> None:
    text = bench.PAGE.read_text(encoding="utf-8")
    _, table, _ = text.split(bench.MARK)
    header, _, *rows = table.splitlines()
    assert header.endswith(f"| honest | {' | '.join(bench.GUARDS)} |")
    shown = [tuple(cell.strip(" `") for cell in row.split("|")[1:4]) for row in rows]
    assert shown == [(case.cheat, case.policy, case.mode) for case in bench.CASES]
    for case, row in zip(bench.CASES, rows, strict=True):
        honest, without, by_default, bounded = (
            [float(part.strip(" %")) / 100 for part in cell.split("/")]
            for cell in row.strip(" |").split("|")[3:]
        )
        assert without[0] > honest[0] + 0.05, row
        if case.policy != "oort" or case.cheat == bench.FREE_RIDER:
            assert by_default[1] < 0.05, row
        assert bounded[0] < without[0], row
