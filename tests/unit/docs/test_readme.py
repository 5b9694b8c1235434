"""What the README says holds: policies, commands, snippets."""

from __future__ import annotations

import re
import tomllib

import click
import pytest
from paths import ROOT

from flower_scheduling.client.cli import cli as client_cli
from flower_scheduling.server.cli.certs import cli as certs_cli
from flower_scheduling.server.cli.main import cli as server_cli
from flower_scheduling.simulation.cli import cli as simulation_cli
from flower_scheduling.strategies import POLICIES

README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_policy_table_is_the_registry() -> None:
    rows = dict(re.findall(r"^\| `([a-z][a-z0-9-]*)` \| (.*?) \|$", README, re.MULTILINE))
    assert rows == {name: spec.summary for name, spec in POLICIES.items()}


@pytest.mark.parametrize(
    ("program", "cli"),
    [
        ("python -m simulation", simulation_cli),
        ("flower-server", server_cli),
        ("flower-client", client_cli),
        ("flower-certs", certs_cli),
    ],
)
def test_flags_exist(program: str, cli: click.Group) -> None:
    commands = re.findall(rf"{program} ([^\n#`]*)", README)
    used = {flag for command in commands for flag in re.findall(r"--[a-z-]+", command)}
    context = click.Context(cli)
    own = [cli.get_command(context, name) for name in cli.list_commands(context)]
    known = {
        option
        for command in (cli, *filter(None, own))
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


def test_the_foreign_app_depends_on_nothing_that_no_index_has() -> None:
    """A SuperLink with default options installs what an app depends on."""
    project = tomllib.loads((ROOT / "examples/foreign-app/pyproject.toml").read_text())
    names = [re.split(r"[<>=\[]", entry)[0] for entry in project["project"]["dependencies"]]
    assert names == ["flwr", "numpy"]
