"""What the README and the page of all policies say holds: snippets, and what they need."""

from __future__ import annotations

import ast
import re
import tomllib

import pytest
from documentation import README as README_FILE
from flwr.serverapp.strategy import FedAvg
from paths import ROOT

from flower_scheduling import ScheduledStrategy

README = README_FILE.read_text(encoding="utf-8")
POLICY_PAGE = (ROOT / "docs/policies/list.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README + POLICY_PAGE, re.DOTALL)


def test_the_readme_is_one_screen_and_a_half() -> None:
    assert len(README.splitlines()) <= 110


@pytest.mark.parametrize("snippet", [s for s in SNIPPETS if "build_policy" in s])
def test_policy_snippet_runs(snippet: str) -> None:
    names: dict[str, object] = {}
    exec(snippet, names)
    policy = names["policy"]
    assert policy.play_count.tolist() == [1, 1, 0]  # type: ignore[attr-defined]


def test_three_lines_are_enough() -> None:
    (snippet,) = (s for s in SNIPPETS if "ScheduledStrategy" in s)
    lines = [line for line in snippet.splitlines() if line]
    assert len(lines) == 4, "an import that every app has, and three lines"
    names: dict[str, object] = {"FedAvg": FedAvg}
    exec("\n".join(lines[:3]), names)
    strategy = names["strategy"]
    assert isinstance(strategy, ScheduledStrategy)
    call = ast.parse(lines[3]).body[0]
    assert isinstance(call, ast.Assign)
    assert ast.unparse(call.value).startswith("strategy.start(grid, initial_arrays, num_rounds=")


def test_the_foreign_app_depends_on_nothing_that_no_index_has() -> None:
    """A SuperLink with default options installs what an app depends on."""
    project = tomllib.loads((ROOT / "examples/foreign-app/pyproject.toml").read_text())
    names = [re.split(r"[<>=\[]", entry)[0] for entry in project["project"]["dependencies"]]
    assert names == ["flwr", "numpy"]


def test_the_tutorial_shows_the_examples_lines() -> None:
    text = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    app = (ROOT / "examples/foreign-app/wind/server_app.py").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert {line for line in snippet.splitlines() if line} <= {
        line.strip() for line in app.splitlines()
    }
