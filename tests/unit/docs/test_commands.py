"""Every command of every page names a program, a subcommand and flags that exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest
from documentation import README, TUTORIAL, blocks, pages, text_of, words
from paths import ROOT

from flower_scheduling.client.cli import cli as client_cli
from flower_scheduling.server.cli.certs import cli as certs_cli
from flower_scheduling.server.cli.main import cli as server_cli
from flower_scheduling.simulation.cli import cli as simulation_cli

PROGRAMS: dict[str, click.Command] = {
    "flower-server": server_cli,
    "flower-client": client_cli,
    "flower-certs": certs_cli,
    "flower-simulation": simulation_cli,
}
FOREIGN = {
    *("cd", "cp", "mkdir", "scp", "ssh", "tar", "gzip", "kill"),
    *("docker", "kubectl", "tensorboard", "mlflow", "flwr", "ray"),
    *("flower-superlink", "flower-supernode"),
}
PYTHON = {"python", ".venv/bin/python"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def check(command: str) -> None:
    """Refuse a command that could not be run as it stands."""
    parts = words(command)
    for joint in ("|", "&&"):
        if joint in parts:
            place = parts.index(joint)
            check(shlex.join(parts[:place]))
            check(shlex.join(parts[place + 1 :]))
            return
    while re.fullmatch(r"[A-Z_]+=.*", parts[0]):
        parts.pop(0)
    program, *arguments = parts
    if program in PYTHON and arguments[:2] == ["-m", "simulation"]:
        program, arguments = "flower-simulation", arguments[2:]
    if program in PROGRAMS:
        parse(PROGRAMS[program], program, arguments)
    elif program in PYTHON:
        named = [word for word in arguments if re.match(r"(docs|tests|benchmarks)/", word)]
        assert named, command
        assert all((ROOT / word).exists() for word in named), command
    elif program == "make":
        assert {word for word in arguments if "=" not in word} <= TARGETS, command
    elif program.endswith("pip"):
        assert arguments[0] in ("install", "wheel"), command
        ours = re.findall(r"(?:flower-client-scheduling|-any\.whl|(?<!\w)\.)\[(.*?)\]", command)
        extras = {extra for found in ours for extra in found.split(",")}
        assert extras <= set(PROJECT["optional-dependencies"]), command
    else:
        assert program in FOREIGN or program.startswith(".venv/bin/"), command


def parse(command: click.Command, name: str, arguments: list[str]) -> None:
    """Parse arguments down to the subcommand, without running anything."""
    context = click.Context(command, info_name=name)
    _, rest, _ = command.make_parser(context).parse_args(list(arguments))
    if not isinstance(command, click.Group):
        return
    if rest:
        found, chosen, remaining = command.resolve_command(context, rest)
        assert chosen is not None, f"{name} has no command {found}"
        parse(chosen, f"{name} {found}", remaining)


def options_of(command: click.Command) -> set[str]:
    """Return the flags of a program and of its subcommands."""
    found = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            own = command.get_command(context, name)
            found |= options_of(own) if own is not None else set()
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_blocks_exist(page: Path) -> None:
    for block in blocks(page):
        for command in block.commands:
            try:
                check(command)
            except click.UsageError as error:
                pytest.fail(f"{block}: {command}: {error.format_message()}")


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_flags_of_commands_in_sentences_exist(page: Path) -> None:
    names = "|".join([*PROGRAMS, "python -m simulation"])
    for program, rest in re.findall(rf"`({names})( [^`]*)?`", text_of(page).replace("\n", " ")):
        known = options_of(PROGRAMS.get(program, simulation_cli))
        used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest))
        assert used <= known | {"--help"}, (program, rest)


@pytest.mark.parametrize(
    "command",
    [
        "flower-server --num-selekted 3",
        "flower-simulation leage --quick",
        "python -m simulation replay runs/x --nothing",
        "make everything",
        "pip install '.[nothing]'",
        "python docs/draw_nothing.py",
        "flower-servr",
    ],
)
def test_a_wrong_command_is_found(command: str) -> None:
    with pytest.raises((AssertionError, click.UsageError)):
        check(command)


def test_readme_and_tutorial_have_blocks_that_run() -> None:
    for page, least in ((README, 2), (TUTORIAL, 5)):
        assert sum(not block.not_run for block in blocks(page)) >= least
