"""``flower-server``: run federated learning for a fleet, from the command line."""

from __future__ import annotations

import json
import logging
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.logging import RichHandler

from flower_scheduling.client.wire.frames import package_version
from flower_scheduling.client.wire.health import check_health
from flower_scheduling.environment import check_environment
from flower_scheduling.errors import ConfigError, NotSavedError
from flower_scheduling.help_sections import HelpfulGroup
from flower_scheduling.schema import kebab
from flower_scheduling.strategies.flower import LOGGER

from ..monitoring.status import status_table
from ..page.process import TOKEN_VARIABLE
from ..runs.directory import STARTS, default_run_dir
from ..runs.resume import continued_settings, resumed_settings
from ..runtimes.fleet_server import run_fleet
from ..runtimes.other_app import FlowerLines
from ..settings.fleet import OF_ANY_APP, FleetConfig, set_by_the_app
from ..settings.run import idle_settings
from .operator import operator_channel, read_status
from .options import given_settings, resume_option, run_command, settings_options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return run_command(cli, arguments, "flower-server")


_PREFIX = "FLOWER_SERVER"  # of environment variables
_PIPED_WIDTH = 200  # of a table for grep, in characters


@click.group(
    cls=HelpfulGroup,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "auto_envvar_prefix": _PREFIX,
    },
)
@click.version_option(package_version(), prog_name="flower-server", allow_from_autoenv=False)
@settings_options(FleetConfig, lambda key, default: str(default))
@resume_option
@click.option(
    "--continue",
    "go_on",
    is_flag=True,
    envvar="FLOWER_SERVER_CONTINUE",
    help="Go on with the run in --run-dir if there is one, else begin it.",
)
@click.pass_context
def cli(context: click.Context, /, resume: Path | None, go_on: bool, **flags: Any) -> None:
    """Wait for flower-clients, schedule them, train, and leave the results in a run directory.

    Every flag can come from the environment, --num-selected as FLOWER_SERVER_NUM_SELECTED.
    """
    if context.invoked_subcommand is not None:
        return
    _refuse_unknown_variables(context)
    given = given_settings(flags)
    config, resume = _resolve(given, resume, go_on=go_on)
    if config.app:
        _refuse_idle_flags(context, flags)
    if not config.run_dir:
        what = config.app or config.strategy
        config = config.changed(run_dir=str(default_run_dir(what)))
    console = Console(stderr=True)
    handler = _handler(console)
    LOGGER.handlers, LOGGER.propagate = [handler], False
    LOGGER.setLevel(logging.INFO)
    flower = logging.getLogger("flwr")
    flower.setLevel(logging.INFO if config.app else logging.WARNING)
    flower_handlers, flower.handlers = flower.handlers, [FlowerLines()]
    for line in [] if config.app else idle_settings(given, [config.strategy]):
        LOGGER.warning(line)
    unsaved = NotSavedError([], {})
    try:
        if config.runtime == "superlink":
            from ..runtimes.superlink_run import run_superlink

            run_superlink(config)
        else:
            run_fleet(config, resume=resume is not None)
    except KeyboardInterrupt:
        console.print("stopped", highlight=False)
    except NotSavedError as error:
        unsaved = error
    finally:
        LOGGER.removeHandler(handler)
        flower.handlers = flower_handlers
    _print_results(console, Path(config.run_dir), unsaved.summaries)
    if unsaved.lost:
        raise unsaved


def _print_results(
    console: Console, run_dir: Path, unsaved: Mapping[str, Mapping[str, Any]]
) -> None:
    """Print the numbers of a run, and of those that the same app has started after it.

    Those of runs that are not all saved are in `unsaved`, by folder.
    """
    known = {Path(folder).absolute(): dict(numbers) for folder, numbers in unsaved.items()}
    later = sorted(run_dir.glob(STARTS), key=lambda folder: int(folder.name.partition("-")[2]))
    for folder in [run_dir, *later]:
        numbers = known.get(folder.absolute())
        if numbers is None and (summary := folder / "summary.json").exists():
            numbers = json.loads(summary.read_text(encoding="utf-8"))
        if numbers is not None:
            numbers.pop("arms")
            console.print_json(json.dumps(numbers))
            click.echo(folder)


def _resolve(
    given: dict[str, Any], resume: Path | None, *, go_on: bool
) -> tuple[FleetConfig, Path | None]:
    """Return the settings, and the run that they go on with, if any."""
    if go_on and not given.get("run-dir"):
        raise ConfigError("continue", True, "needs --run-dir")
    if resume is not None:
        config = FleetConfig.from_mapping(resumed_settings(resume, given, FleetConfig))
    else:
        config = FleetConfig.from_mapping(given)
        if go_on and (Path(config.run_dir) / "config.toml").exists():
            resume = Path(config.run_dir)
            config = FleetConfig.from_mapping(continued_settings(resume, config.to_mapping()))
    if resume is not None and config.runtime != "stream":
        raise ConfigError("resume", str(resume), "only runs on streams can be resumed")
    return config, resume


def _refuse_idle_flags(context: click.Context, flags: dict[str, Any]) -> None:
    """Refuse flags of our app that were given for another one."""
    for name, value in flags.items():
        source = context.get_parameter_source(name)  # the environment may be meant for other runs
        if kebab(name) not in OF_ANY_APP and source is ParameterSource.COMMANDLINE:
            raise set_by_the_app(kebab(name), value)


def _refuse_unknown_variables(context: click.Context) -> None:
    """Refuse variables that no flag is meant by: a typing error would go unnoticed."""
    prefix = f"{_PREFIX}_"
    known = {f"{prefix}{each.name.upper()}" for each in cli.params if each.name}
    for command in cli.commands.values():
        own = f"{prefix}{(command.name or '').upper()}_"
        known |= {f"{own}{each.name.upper()}" for each in command.params if each.name}
    known |= {f"{prefix}CONTINUE", TOKEN_VARIABLE}  # the first one's parameter has another name
    check_environment(_PREFIX, known)


def _handler(console: Console) -> logging.Handler:
    """Log for people at a terminal; else whole lines, as journals and grep want them."""
    if console.is_terminal:
        return RichHandler(console=console, show_path=False, markup=False)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    return handler


_address = click.option(
    "--address",
    envvar="FLOWER_SERVER_ADDRESS",
    help="HOST:PORT.  [default: that of the server, 127.0.0.1:9092]",
)
_tls = click.option(
    "--tls",
    type=click.Path(path_type=Path),
    envvar="FLOWER_SERVER_TLS",
    help="Folder of the server's files.",
)
_timeout_s = click.option("--timeout-s", type=float, default=5.0, show_default=True)


@cli.command()
@_address
@_tls
@_timeout_s
@click.pass_context
def health(
    context: click.Context, /, address: str | None, tls: Path | None, timeout_s: float
) -> None:
    """Exit with 0 if the server answers that it serves, else with 1."""
    address, tls = _where(context, address, tls)
    with operator_channel(address, tls) as (channel, own_fault):
        check_health(channel, address, timeout_s, own_fault)
    click.echo("serving")


@cli.command()
@_address
@_tls
@_timeout_s
@click.option("--json", "as_json", is_flag=True, help="All of it, for scripts.")
@click.pass_context
def status(
    context: click.Context,
    /,
    address: str | None,
    tls: Path | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Show which clients are connected, slow, owed rounds, or failing."""
    address, tls = _where(context, address, tls)
    with operator_channel(address, tls) as (channel, own_fault):
        answer = read_status(channel, address, timeout_s, own_fault)
    if as_json:
        click.echo(json.dumps(answer))
    else:
        console = Console()
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = _PIPED_WIDTH
        console.print(status_table(answer))


@cli.command(short_help="Write a Flower app to begin with into a new folder.")
@click.argument("folder", metavar="NAME", type=click.Path(path_type=Path))
def new(folder: Path) -> None:
    """Write a Flower app that runs at once into the new folder NAME, to begin with."""
    from .project.new import create_project

    for path in create_project(folder):
        click.echo(f"wrote {folder / path.name}")
    click.echo(f"now: cd {shlex.quote(str(folder))} and read README.md")


def _where(
    context: click.Context, address: str | None, tls: Path | None
) -> tuple[str, Path | None]:
    """Return what was given behind the command, or else before it."""
    before = context.parent.params if context.parent else {}
    if tls is None and before.get("tls"):
        tls = Path(before["tls"])
    return address or before.get("address") or FleetConfig().address, tls
