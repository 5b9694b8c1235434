"""Tables of the documentation that are measured on fleets: read from runs as they are."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from paths import ROOT


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "bench_modes", ROOT / "benchmarks" / "bench_modes.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_modes"] = module  # its dataclasses look there for their types
    spec.loader.exec_module(module)
    return module


def written(folder: Path, lines: list[dict[str, Any]], floors: list[float]) -> Path:
    usual = {"stepped": True, "accuracy": None, "late_updates": []}
    text = "".join(json.dumps(usual | line) + "\n" for line in lines)
    (folder / "rounds.jsonl").write_text(text)
    arms = [{"index": index, "floor": floor} for index, floor in enumerate(floors)]
    (folder / "summary.json").write_text(json.dumps({"arms": arms}))
    return folder


def test_rounds_with_late_updates_are_read(bench: ModuleType, tmp_path: Path) -> None:
    first = {
        "time_s": 2.0,
        "selected": [0, 1],
        "completed": [True, False],
        "reason": [None, "timeout"],
        "rtt_s": [0.5, None],
        "deadline_s": 3600.0,
    }
    second = {
        "time_s": 5.0,
        "selected": [0],
        "completed": [True],
        "reason": [None],
        "rtt_s": [0.7],
        "deadline_s": 12.0,
        "accuracy": 0.81,
        "late_updates": [{"arm": 1, "reason": None, "staleness": 2}],
    }
    course = bench.read_course(written(tmp_path, [first, second], [0.5, 0.9]))
    assert (course.seconds, course.target_s, course.accuracy) == (5.0, 5.0, 0.81)
    assert (course.used, course.lost, course.failures["timeout"]) == (3, 1, 1)
    assert course.staleness == [0, 0, 2]
    assert course.owed == pytest.approx(2 * 0.9 - 1)
    assert course.deadlines_s == [3600.0, 12.0]


def test_floors_of_buffered_steps_are_shares_of_updates(bench: ModuleType, tmp_path: Path) -> None:
    step = {
        "time_s": 4.0,
        "buffered": True,
        "selected": [0, 0, 1, 0],
        "completed": [True, True, False, True],
        "reason": [None, None, "stale: 9 steps old", None],
        "rtt_s": [0.5, 0.6, 9.0, 0.4],
        "staleness": [0, 1, 9, 2],
    }
    course = bench.read_course(written(tmp_path, [step], [0.1, 0.3]))
    assert (course.used, course.lost, course.failures["stale"]) == (3, 1, 1)
    assert course.staleness == [0, 1, 2]
    assert course.owed == pytest.approx(4 * 0.3)
    assert "| 3 | 1 | 1.0, 2 | 1.2 |" in bench.row(bench.CASES[-1], course)


def test_the_documentation_has_every_row(bench: ModuleType) -> None:
    text = bench.PAGE.read_text(encoding="utf-8")
    for case in bench.CASES:
        assert text.count(f"| {case.mode} | `{case.policy}` |") == 1
