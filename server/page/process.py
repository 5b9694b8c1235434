"""The page's process: it serves the page of a run without slowing the run down."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from flower_scheduling.client.wire.addresses import is_loopback, join_host_port, parse_address
from flower_scheduling.errors import ConfigError
from flower_scheduling.extras import require_extra

from ..transport.sockets import listen

DEFAULT_ADDRESS: Final = "127.0.0.1:8501"
TOKEN_VARIABLE: Final = "FLOWER_SERVER_PAGE_TOKEN"
"""Environment variable with the token that visitors need; without it one is made up."""
_PARENT_VARIABLE: Final = "FLOWER_SERVER_PAGE_PARENT"
_STOP_S: Final = 5.0
_FAREWELL_S: Final = 1.0  # the page outlives the run by this: visitors see how it ended
_NICENESS: Final = 10


def page_token(address: str) -> str | None:
    """Return what visitors of an address have to know; ``None`` on loopback: nothing."""
    if given := os.environ.get(TOKEN_VARIABLE):
        return given
    return None if is_loopback(_host(address)) else secrets.token_urlsafe(16)


def page_url(address: str, port: int, token: str | None) -> str:
    """Return where the page is, with the token."""
    host = _host(address)
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://{join_host_port(host, port)}/" + (f"?token={token}" if token else "")


def _host(address: str) -> str:
    return parse_address("page", address, any_port=True).host


def print_url(url: str) -> None:
    """Print a page's address: not to the log, which others may read, since it has the token."""
    print(f"page at {url}", file=sys.stderr, flush=True)


@contextmanager
def page_process(
    run_dir: Path, address: str, on_url: Callable[[str], None] = print_url
) -> Iterator[None]:
    """Serve the page of a run from a process of its own, from entering to leaving the context.

    Parameters
    ----------
    run_dir : Path
        The run directory; it may not exist yet.
    address : str
        Where to listen, ``host:port``; empty: there is no page.
    on_url : callable
        Takes the address of the page, token and all.

    Raises
    ------
    ConfigError
        If the address cannot be had, or the platform is Windows.
    MissingExtraError
        If what serves pages is not installed.
    """
    if not address:
        yield
        return
    require_extra("--page", "page")
    if os.name == "nt":  # which hands no sockets to other processes
        message = "is for Linux and macOS: use flower-simulation watch RUN, from another terminal"
        raise ConfigError("page", address, message)
    token = page_token(address)
    with listen("page", address) as listener:  # here, so that a fault ends it before the run
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # whence this process imports
            TOKEN_VARIABLE: token or "",
            _PARENT_VARIABLE: str(os.getpid()),
        }
        command = [
            "-P",
            "-m",
            "flower_scheduling.server.page",
            str(run_dir),
            address,
            str(listener.fileno()),
        ]
        process = subprocess.Popen(
            [sys.executable, *command],
            env=environment,
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process, which then ends that one
        )
        on_url(page_url(address, listener.getsockname()[1], token))
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def serve_page(
    run_dir: Path,
    address: str,
    token: str | None,
    wait: Callable[[], object],
    listener: socket.socket | None = None,
    on_url: Callable[[str], None] = lambda url: None,
    *,
    latest: bool = False,
) -> None:
    """Serve the page of a run.

    Parameters
    ----------
    run_dir : Path
        The run directory.
    address : str
        Where to listen, ``host:port``.
    token : str or None
        What visitors have to know.
    wait : callable
        Returns when it is time to stop.
    listener : socket, optional
        One that listens there already.
    on_url : callable
        Takes the address of the page.
    latest : bool
        Whether to turn to the next run of an app that starts several, once it has begun.

    Raises
    ------
    ConfigError
        If the address cannot be had.
    MissingExtraError
        If what serves pages is not installed.
    """
    require_extra("the page", "page")
    from .web import page_app, view_of

    with view_of(run_dir, latest=latest) as live:
        _serve(page_app(live, _host(address), token), address, token, wait, listener, on_url)


def serve_runs(
    folder: Path,
    address: str,
    token: str | None,
    wait: Callable[[], object],
    on_url: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve the page of a folder of runs; the parameters are those of :func:`serve_page`."""
    require_extra("the page", "page")
    from .web import folder_of_runs, runs_app

    listed, opened = folder_of_runs(folder)
    with listed, opened:
        _serve(runs_app(listed, opened, _host(address), token), address, token, wait, None, on_url)


def _serve(
    app: Any,
    address: str,
    token: str | None,
    wait: Callable[[], object],
    listener: socket.socket | None,
    on_url: Callable[[str], None],
) -> None:
    from ..monitoring.http_server import HttpServer

    with HttpServer("page", address, app, listener=listener) as server:
        on_url(page_url(address, server.port, token))
        wait()


def main() -> None:
    """Serve the page for the process that has started this one, as long as it lives."""
    run_dir, address, descriptor = sys.argv[1:]
    parent = int(os.environ.pop(_PARENT_VARIABLE))
    token = os.environ.pop(TOKEN_VARIABLE) or None
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda signum, frame: ended.set())
    if hasattr(os, "nice"):
        os.nice(_NICENESS)  # rounds come first

    def wait() -> None:
        while not ended.wait(1.0):
            if os.getppid() != parent:  # it was killed
                break
        else:
            time.sleep(_FAREWELL_S)
        os._exit(0)  # nothing is to be saved, and visitors would keep it for seconds

    listener = socket.socket(fileno=int(descriptor))
    serve_page(Path(run_dir), address, token, wait, listener, latest=True)
