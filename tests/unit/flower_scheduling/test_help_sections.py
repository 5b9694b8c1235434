"""Help texts: options by purpose, readable on eighty columns, no name broken."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from flower_scheduling.client.cli import cli as client
from flower_scheduling.help_sections import SECTIONS, HelpfulCommand, HelpfulGroup, section_of
from flower_scheduling.server.cli.certs import cli as certs
from flower_scheduling.server.cli.main import cli as server
from flower_scheduling.simulation.cli import cli as simulation
from flower_scheduling.strategies import POLICIES

PROGRAMS = {"client": client, "certs": certs, "server": server, "simulation": simulation}
GENERAL = {"--version", "--json", "--processes"}


def help_of(command: click.Command, *arguments: str) -> str:
    runner = CliRunner(env={"COLUMNS": "80"})
    answer = runner.invoke(command, [*arguments, "--help"], terminal_width=80)
    assert answer.exit_code == 0, answer.output
    return answer.output


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_option_of_a_program_has_a_section(name: str) -> None:
    loose = [
        option.opts[0]
        for option in PROGRAMS[name].params
        if section_of(option) == "General" and option.opts[0] not in GENERAL
    ]
    assert loose == [], "add them to SECTIONS in flower_scheduling/help_sections.py"


def test_no_option_is_in_two_sections() -> None:
    keys = [key for section in SECTIONS.values() for key in section]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("client", ()),
        ("certs", ("client",)),
        ("server", ()),
        *(("simulation", (each,)) for each in ("compare", "league", "paper", "replay", "demo")),
        ("simulation", ()),
    ],
)
def test_help_is_readable_on_eighty_columns(name: str, arguments: tuple[str, ...]) -> None:
    text = help_of(PROGRAMS[name], *arguments)
    assert all(len(line) <= 80 for line in text.splitlines())
    many = sum(line.startswith("  -") for line in text.splitlines()) >= 14
    assert ("\nOptions:\n" in text) != many
    section = 0
    for line in text.splitlines():  # no section is a wall
        section = 0 if line.endswith(":") and not line.startswith(" ") else section + 1
        assert section < 65, line


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_command_is_described_by_half_a_sentence(name: str) -> None:
    commands = help_of(PROGRAMS[name]).partition("\nCommands:\n")[2].partition("\n\n")[0]
    assert commands
    assert "..." not in commands


def test_no_name_is_broken_at_a_hyphen() -> None:
    words = help_of(simulation, "compare").replace(",", " ").replace(";", " ").split()
    assert {"modified-cs-ucb", "cs-ucb-q-adaptive", "cs-ucb-q-loss"} <= set(words)
    assert not [word for word in words if word.endswith("-") and f"{word}" != "-"]
    assert set(POLICIES) - {"oracle"} <= set(words)


def test_options_keep_the_order_of_their_section_and_commands_come_first() -> None:
    @click.group(cls=HelpfulGroup)
    def program() -> None:
        """Do it."""

    for key in ("seed", "rounds", "strategy", *(f"other-{n}" for n in range(12))):
        program.params.append(click.Option([f"--{key}"], help="x-y"))

    @program.command()
    def run() -> None:
        """Run."""

    assert isinstance(run, HelpfulCommand)
    text = help_of(program)
    places = [text.index(each) for each in ("run ", "Scheduling:", "--rounds", "--seed", "--other")]
    assert places == sorted(places)
    assert text.count("x-y") == 15
