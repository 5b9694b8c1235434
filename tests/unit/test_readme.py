"""What the README says holds: policies, commands, snippets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simulation.cli import cli
from strategies import POLICIES

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_policy_table_is_the_registry() -> None:
    rows = dict(re.findall(r"^\| `([a-z][a-z-]*)` \| (.*?) \|$", README, re.MULTILINE))
    assert rows == {name: spec.summary for name, spec in POLICIES.items()}


def test_flags_exist() -> None:
    commands = re.findall(r"python -m simulation ([^\n#]*)", README)
    used = {flag for command in commands for flag in re.findall(r"--[a-z-]+", command)}
    known = {
        option
        for command in (cli, *cli.commands.values())
        for parameter in command.params
        for option in parameter.opts
    }
    assert used
    assert used - known <= {"--help"}


@pytest.mark.parametrize("snippet", [s for s in SNIPPETS if "build_policy" in s])
def test_policy_snippet_runs(snippet: str) -> None:
    names: dict[str, object] = {}
    exec(snippet, names)
    policy = names["policy"]
    assert policy.play_count.tolist() == [1, 1, 0]  # type: ignore[attr-defined]
