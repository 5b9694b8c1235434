"""``flower-server``: run federated learning for a fleet, from the command line."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.logging import RichHandler

from client.health import check_health
from strategies.flower import LOGGER

from .command_line import given_settings, run_command, settings_options
from .fleet import FleetConfig, run_fleet
from .operator_channel import operator_channel, read_status
from .run_directory import default_run_dir
from .status import status_table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return run_command(cli, arguments, "flower-server")


def entry_point() -> None:
    """Run as a program."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # its core tells of every ordinary goodbye
    sys.exit(main())


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@settings_options(FleetConfig, lambda key, default: str(default))
@click.pass_context
def cli(context: click.Context, /, **flags: Any) -> None:
    """Wait for flower-clients, schedule them, train, and leave the results in a run directory."""
    if context.invoked_subcommand is not None:
        return
    config = FleetConfig.from_mapping(given_settings(flags))
    if not config.run_dir and not config.app:
        config = replace(config, run_dir=str(default_run_dir(config.strategy)))
    console = Console(stderr=True)
    LOGGER.handlers = [RichHandler(console=console, show_path=False, markup=False)]
    LOGGER.propagate = False
    LOGGER.setLevel(logging.INFO)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    try:
        if config.runtime == "superlink":
            from .superlink import run_superlink

            run_superlink(config)
        else:
            run_fleet(config)
    except KeyboardInterrupt:
        told = ", the clients were told" if config.runtime == "stream" else ""
        console.print(f"stopped: the round was abandoned{told}", highlight=False)
    if config.run_dir and (summary := Path(config.run_dir) / "summary.json").exists():
        numbers = json.loads(summary.read_text())
        numbers.pop("arms")
        console.print_json(json.dumps(numbers))
        click.echo(config.run_dir)


_address = click.option("--address", default="127.0.0.1:9092", show_default=True, help="HOST:PORT.")
_tls = click.option("--tls", type=click.Path(path_type=Path), help="Folder of the server's files.")
_timeout_s = click.option("--timeout-s", type=float, default=5.0, show_default=True)


@cli.command()
@_address
@_tls
@_timeout_s
def health(address: str, tls: Path | None, timeout_s: float) -> None:
    """Exit with 0 if the server answers that it serves, else with 1."""
    with operator_channel(address, tls) as channel:
        check_health(channel, address, timeout_s)
    click.echo("serving")


@cli.command()
@_address
@_tls
@_timeout_s
@click.option("--json", "as_json", is_flag=True, help="All of it, for scripts.")
def status(address: str, tls: Path | None, timeout_s: float, as_json: bool) -> None:
    """Show who is connected, who is slow, who is owed rounds, and who fails."""
    with operator_channel(address, tls) as channel:
        answer = read_status(channel, address, timeout_s)
    if as_json:
        click.echo(json.dumps(answer))
    else:
        Console().print(status_table(answer))
