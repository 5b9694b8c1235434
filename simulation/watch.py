"""Command ``watch``: the page of a run directory, running or finished, or of a folder of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from flower_scheduling.errors import ConfigError
from flower_scheduling.files import write_whole
from flower_scheduling.help_sections import HelpfulCommand
from flower_scheduling.server.page.process import (
    DEFAULT_ADDRESS,
    page_token,
    serve_page,
    serve_runs,
)
from flower_scheduling.server.runtimes.signals import stoppable

from .environments.recorded import holds_runs, require_run
from .output_file import ensure_overwritable


@click.command("watch", cls=HelpfulCommand, short_help="Show RUN in the browser.")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--address",
    default=DEFAULT_ADDRESS,
    show_default=True,
    help="Where to listen, HOST:PORT (port 0: any); beyond loopback visitors need a token.",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the page as one HTML file instead of serving it.",
)
@click.option("--force", is_flag=True, help="Let --save overwrite what is no earlier page.")
def watch(run: Path, address: str, save: Path | None, force: bool) -> None:
    """Show RUN in the browser until Ctrl-C; a page only reads, so it cannot disturb the run.

    RUN is a run directory, or a folder of them: then its runs are listed and compared.

    --save replaces an earlier page, any other file only with --force, and a file of a run never.
    """
    if not (run / "config.toml").exists() and holds_runs(run):
        if save is not None:
            raise ConfigError("save", str(save), f"must be of one run: {run} is a folder of runs")
        _serve_until_stopped(partial(serve_runs, run, address, page_token(address)))
        return
    require_run(run)
    if save is not None:
        from flower_scheduling.server.page.run_view import RunView
        from flower_scheduling.server.page.saved import MARK, saved_page

        ensure_overwritable("save", save, mark=MARK, what="page", force=force)
        view = RunView(run)
        view.refresh()
        write_whole(save, saved_page(view))
        click.echo(save)
        return
    serve_until_stopped(run, address)


def serve_until_stopped(run: Path, address: str) -> None:
    """Serve the page of a run until Ctrl-C or SIGTERM.

    Raises
    ------
    ConfigError
        If the address cannot be had.
    """
    _serve_until_stopped(partial(serve_page, run, address, page_token(address)))


def _serve_until_stopped(serve: Callable[..., None]) -> None:
    console = Console(stderr=True)

    def print_url(url: str) -> None:
        console.print(f"page at {url} until Ctrl-C", highlight=False, soft_wrap=True, markup=False)

    try:
        with stoppable():
            serve(wait=threading.Event().wait, on_url=print_url)
    except KeyboardInterrupt:
        console.print("stopped", highlight=False)
