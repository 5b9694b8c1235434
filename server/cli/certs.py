"""``flower-certs``: make and renew the certificates of a fleet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from flower_scheduling.client.wire.frames import package_version
from flower_scheduling.help_sections import HelpfulGroup

from .certificates import CertificateFolder
from .options import run_command

_Command = TypeVar("_Command", bound=Callable[..., Any])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return run_command(cli, arguments, "flower-certs")


_folder = click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("certs"),
    show_default=True,
    help="Folder of the certificates.",
)


def _hosts(note: str = "", **more: Any) -> Callable[[_Command], _Command]:
    text = "Name or address under which clients reach the server; may be repeated."
    return click.option("--host", "hosts", multiple=True, help=text + note, **more)


@click.group(cls=HelpfulGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_version(), prog_name="flower-certs")
def cli() -> None:
    """Make a certificate authority, a server certificate and named client certificates.

    The name in a client's certificate is the client's name. Keep ca.key where only you reach it.
    """


@cli.command()
@_folder
@_hosts(default=("localhost", "127.0.0.1"), show_default=True)
def init(folder: Path, hosts: tuple[str, ...]) -> None:
    """Make the authority and the server's certificate."""
    CertificateFolder(folder).create(hosts)
    click.echo(f"server: {folder / 'ca.pem'} {folder / 'server.pem'} {folder / 'server.key'}")


@cli.command()
@_folder
@click.argument("names", nargs=-1, required=True)
def client(folder: Path, names: tuple[str, ...]) -> None:
    """Make a certificate for each client NAME."""
    for name in names:
        file = CertificateFolder(folder).issue_client(name)
        click.echo(f"{name}: {folder / 'ca.pem'} {file} {file.with_suffix('.key')}")


@cli.command()
@_folder
@_hosts(required=True)
@click.argument("names", nargs=-1)
def ensure(folder: Path, hosts: tuple[str, ...], names: tuple[str, ...]) -> None:
    """Make what is missing of an authority, a server and clients NAMES.

    Says what was made and why. A certificate that is broken, has expired or, the server's, names
    other hosts is made anew; what is whole stays as it is.
    """
    for name, reason in CertificateFolder(folder).ensure(hosts, names):
        click.echo(f"{name}: new certificate ({reason})")


@cli.command()
@_folder
@_hosts("  [default: those of its certificate]")
def renew(folder: Path, hosts: tuple[str, ...]) -> None:
    """Make new certificates for the server and every client. They replace the old ones."""
    for name in CertificateFolder(folder).renew(hosts):
        click.echo(name)
