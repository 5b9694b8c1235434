"""A run of our app on Flower's SuperLink, from its start to its results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from flower_scheduling.errors import ConfigError, SuperLinkError
from flower_scheduling.extras import require_extra
from flower_scheduling.strategies.flower import LOGGER

from ..app import prepare_run
from ..page.process import page_process
from ..runs.directory import ensure_empty
from ..settings.fleet import FleetConfig
from .app_bundle import write_app
from .signals import stoppable
from .superlink import SuperLink

STATE_FOLDER: Final = "superlink"
"""Folder of the run directory with the SuperLink's database, log and the submitted app."""
# Settings of our streams, and why they are of no use here.
_UNSUPPORTED: Final = {
    "app": "start that app by `flwr run . --stream` in its folder, on a SuperLink of your own, or "
    "leave out --runtime superlink",
    "metrics": "see its own log",
    "deny-list": "SuperNodes have no names before their first answer",
    "max-clients": "it takes all SuperNodes",
    "max-message-mb": "it has its own limit",
    "compress": "it has its own messages",
}


def run_superlink(
    config: FleetConfig, on_line: Callable[[str], None] | None = None
) -> dict[str, Any] | None:
    """Start a SuperLink, run our app on it once, and stop it all.

    The SuperLink keeps its state in an SQLite file below the run directory and installs nothing.
    Clients are stock SuperNodes; the app's bundle brings them our code.

    Parameters
    ----------
    config : FleetConfig
        Settings. ``address`` is where SuperNodes connect; ``tls`` a folder as ``flower-certs``
        makes it; ``run_dir`` must be given and not exist.
    on_line : callable, optional
        Takes each line of the ServerApp's log; by default they go to standard error.

    Returns
    -------
    dict or None
        The run in numbers, as in ``summary.json``.

    Raises
    ------
    ConfigError, ClientConfigError
        If a setting or a file is wrong, or the address cannot be had; nothing is left behind.
    SuperLinkError
        If Flower's programs are missing, the SuperLink does not start or ends, or the app fails.
    KeyboardInterrupt
        If stopped by SIGINT or SIGTERM, after everything was written and stopped.
    """
    _refuse_unsupported(config)
    if config.page:
        require_extra("--page", "page")
    prepare_run(config.server_config())
    run_dir = Path(config.run_dir).resolve()
    ensure_empty(run_dir)
    run_config = config.server_config().to_mapping() | {"run-dir": str(run_dir)}
    # The ServerApp creates the run directory; until all has ended, the state lies beside it.
    state = run_dir.with_name(f".{run_dir.name}-{STATE_FOLDER}")
    ensure_empty(state)
    superlink = SuperLink(state, config.address, Path(config.tls) if config.tls else None)
    with stoppable():
        try:
            with superlink, page_process(run_dir, config.page):
                LOGGER.info("on each device: %s", superlink.supernode_hint())
                run_id = superlink.submit(write_app(state / "app"), run_config)
                superlink.follow(run_id, on_line or _to_stderr)
        except SuperLinkError as error:
            raise SuperLinkError(f"{error}; see {run_dir / STATE_FOLDER}") from None
        finally:
            _keep(state, run_dir)
    summary = run_dir / "summary.json"
    numbers: dict[str, Any] | None = None
    if summary.exists():
        numbers = json.loads(summary.read_text(encoding="utf-8"))
    return numbers


def _refuse_unsupported(config: FleetConfig) -> None:
    if not config.run_dir:
        raise ConfigError("run-dir", "", "must be a folder, in which the SuperLink keeps its state")
    for key, instead in _UNSUPPORTED.items():
        field = FleetConfig.settings()[key]
        if (value := getattr(config, field.name)) != field.default:
            raise ConfigError(key, value, f"has no effect on the SuperLink runtime: {instead}")


def _keep(state: Path, run_dir: Path) -> None:
    """Move the state into the run directory; there is none if the app did not come that far."""
    if state.exists():
        run_dir.mkdir(parents=True, exist_ok=True)
        state.rename(run_dir / STATE_FOLDER)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
