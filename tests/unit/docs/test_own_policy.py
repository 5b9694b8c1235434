"""The page about own policies: its code is the example's, and keeps the promises."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from flower_scheduling.strategies import SchedulingPolicy, parse_options
from flower_scheduling.strategies.testing import check_policy

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/how-to/own-policy.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples/own-policy"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def policies() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in BLOCKS:
        if "(SchedulingPolicy)" in block:
            exec(block, names)
    return {
        name: found
        for name, found in names.items()
        if isinstance(found, type) and issubclass(found, SchedulingPolicy)
    }


def test_the_example_is_that_of_the_page() -> None:
    assert BLOCKS[0].strip() in (EXAMPLE / "greedy.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["Greedy", "Patient"])
def test_policies_of_the_page_keep_their_promises(name: str) -> None:
    check_policy(policies()[name], num_cases=5)


def test_the_examples_own_tests_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    spec = importlib.util.spec_from_file_location("test_greedy", EXAMPLE / "test_greedy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.test_greedy_is_a_policy()
    module.test_greedy_stays_with_the_fastest()


def test_its_parameter_is_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "own", type("own", (), policies()))
    assert parse_options("own:Patient", "patience=0.05") == {"patience": 0.05}
