"""``flower-server``'s settings and life: a stream grid, a ServerApp on it, a clean end."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from flwr.app import Context, RecordDict, UserConfig
from flwr.serverapp import ServerApp

from flower_scheduling._flwr import SUPERLINK_NODE_ID, flatten_dict
from flower_scheduling.client.wire.credentials import server_credentials
from flower_scheduling.errors import ConfigError
from flower_scheduling.loading import load_object
from flower_scheduling.strategies.flower import LOGGER, RoundHook

from ..app import check_settings, create_app
from ..cli.options import stoppable
from ..monitoring.alarms import AlarmLog
from ..monitoring.console import RoundLog
from ..monitoring.presence import PresenceWriter
from ..monitoring.status import RunStatus
from ..page.process import page_process
from ..settings.fleet import FleetConfig
from ..transport.deny_list import DenyList
from ..transport.grid import StreamGrid


def run_fleet(
    config: FleetConfig, hooks: Sequence[RoundHook] = (), *, resume: bool = False
) -> None:
    """Listen, run the ServerApp once, tell the clients, stop.

    SIGINT and SIGTERM abandon the round; what was learned so far is written. A second signal
    ends the process at once.

    Parameters
    ----------
    config : FleetConfig
        Settings.
    hooks : sequence of callable
        Called after each round.
    resume : bool
        Whether to go on with the run in ``run-dir``.

    Raises
    ------
    ConfigError, ClientConfigError
        If a setting or a file is wrong, or the address cannot be had.
    AppFailed
        If the ServerApp raised, or no round changed the model.
    KeyboardInterrupt
        If stopped by a signal, after everything was written and the clients were told.
    """
    run_config: UserConfig = dict(config.server_config().to_mapping())
    credentials: grpc.ServerCredentials | None = None
    if config.tls:
        credentials = server_credentials(Path(config.tls))
    summaries: list[dict[str, Any]] = []
    alarm_log = AlarmLog()
    status = RunStatus(None if config.app else config.rounds, alarm_log)
    if config.app:
        server_app = load_object(config.app, ServerApp, "app")
        run_config = app_config(Path())
    else:
        check_settings(config.server_config(), resume=resume)  # before anybody can connect
        server_app = create_app(
            hooks=(RoundLog(), *hooks),
            settings=config.to_mapping(),
            resume=resume,
            alarm_log=alarm_log,
            on_strategy=status.watch,
            on_summary=summaries.append,
        )
    deny_list = DenyList(config.deny_list)
    grid = StreamGrid(
        config.address,
        run_config=run_config,
        credentials=credentials,
        is_denied=deny_list,
        refresh_denied=deny_list.refresh,
        status=status.snapshot,
        max_clients=config.max_clients,
        max_message_bytes=config.max_message_mb << 20,
    )
    context = Context(
        run_id=1,
        node_id=SUPERLINK_NODE_ID,
        node_config={},
        state=RecordDict(),
        run_config=run_config,
    )
    with ExitStack() as stack:
        stack.enter_context(grid)
        host = config.address.rpartition(":")[0]
        LOGGER.info("listening on %s:%d%s", host, grid.port, "" if credentials else ", no TLS")
        if config.metrics:
            from ..monitoring.prometheus import metrics_server

            metrics = stack.enter_context(
                metrics_server(config.metrics, partial(status.snapshot, grid))
            )
            host = config.metrics.rpartition(":")[0]
            LOGGER.info("metrics at http://%s:%d/metrics", host, metrics.port)
        stack.enter_context(page_process(Path(config.run_dir), config.page))
        if config.run_dir and not config.app:
            presence = partial(status.presence, grid)
            stack.enter_context(PresenceWriter(Path(config.run_dir), presence))
        stack.enter_context(stoppable())
        try:
            server_app(grid, context)
        except Exception as error:
            if not config.app:
                raise
            LOGGER.error("the ServerApp failed", exc_info=error)  # whose code we do not know
            raise AppFailed(f"{config.app} raised {type(error).__name__}: {error}") from None
    if summaries and 0 < summaries[-1]["rounds"] == summaries[-1]["rounds_without_step"]:
        raise AppFailed("no round has changed the model: see the reasons in the log")


class AppFailed(ChildProcessError):
    """The ServerApp failed; the text is one line."""


def app_config(folder: Path) -> UserConfig:
    """Return the run configuration of the Flower app in a folder, as ``flwr run`` would.

    Returns
    -------
    dict
        ``[tool.flwr.app.config]`` of its ``pyproject.toml``, nested keys joined by dots; empty
        where there is none.

    Raises
    ------
    ConfigError
        If the file cannot be read, or a value is no number, truth value or text.
    """
    file = folder / "pyproject.toml"
    if not file.exists():
        return {}
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
        config = flatten_dict(found.get("tool", {}).get("flwr", {}).get("app", {}).get("config"))
    except (OSError, ValueError) as error:
        raise ConfigError("app", str(file), f"must be a Flower app's settings ({error})") from None
    return config
