"""A fleet's server: a stream grid, a ServerApp on it, a clean end."""

from __future__ import annotations

import errno
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from flwr.app import Context, RecordDict, UserConfig
from flwr.serverapp import ServerApp

from flower_scheduling._flwr import SUPERLINK_NODE_ID, flatten_dict
from flower_scheduling.allocator import keep_heaps
from flower_scheduling.client.wire.addresses import join_host_port, parse_address
from flower_scheduling.client.wire.credentials import server_credentials
from flower_scheduling.errors import ConfigError, SchedulingError, ServerAppError, nearest
from flower_scheduling.extras import require_extra
from flower_scheduling.loading import load_object
from flower_scheduling.strategies.flower import LOGGER, RoundHook, followed_by
from flower_scheduling.user_config import read_user_config

from ..app import create_app, prepare_run
from ..callbacks import RoundCallback
from ..monitoring.alarms import AlarmLog
from ..monitoring.live_file import LiveFile
from ..monitoring.status import ServerStatus
from ..monitoring.trackers.catalog import require_trackers
from ..page.process import page_process
from ..runs.directory import ensure_empty, lock_run
from ..runs.recording import record_app
from ..runs.resume import read_settings
from ..runs.run_id import RunIdNote, noted_run_id
from ..settings.fleet import APP_FOLDER, FleetConfig
from ..transport.deny_list import DenyList
from ..transport.grid import StreamGrid
from .signals import stoppable

PYPROJECT: Final = "pyproject.toml"
"""File of a Flower app's settings."""
_FULL_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def run_fleet(
    config: FleetConfig, hooks: Sequence[RoundHook] = (), *, resume: bool = False
) -> None:
    """Listen, run the ServerApp once, say goodbye to the clients, stop.

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
    ServerAppError
        If the ServerApp raised, or no round changed the model.
    KeyboardInterrupt
        If stopped by a signal, after everything was written and the clients got a goodbye.
    """
    for key in ("metrics", "page"):
        if getattr(config, key):
            require_extra(f"--{key}", "page")
    run_config: UserConfig = dict(config.server_config().to_mapping())
    credentials = server_credentials(Path(config.tls)) if config.tls else None
    alarm_log = AlarmLog()
    status = ServerStatus(None if config.app else config.rounds, alarm_log)
    live_file = LiveFile(lambda: status.connections(grid))
    recording = None

    def callbacks() -> list[RoundCallback]:
        return [RunIdNote(grid.run.run_id), live_file, status, alarm_log]

    if config.app:
        require_trackers(config.tracker, config.run_dir)
        server_app = _load_app(config.app, Path(config.run_dir) if resume else None)
        run_config = app_config(Path(), config.run_config, _file_of(config.app))
        recording = record_app(config, run_config, callbacks, resume=resume)
    else:
        prepared = prepare_run(config)  # refuses bad settings before a client can connect
        server_app = create_app(callbacks, hooks=hooks, prepared=prepared, resume=resume)
    _check_run_dir(Path(config.run_dir), resume=resume)
    deny_list = DenyList(config.deny_list, lambda: status.client_names(grid))

    def begin() -> None:
        deny_list.begin()
        if recording is not None and not recording.num_started:
            LOGGER.warning(
                "%s trains without ScheduledStrategy: nothing is scheduled or recorded. Wrap its "
                "strategy: ScheduledStrategy(strategy, num_selected=..., tau_max_s=...)",
                config.app,
            )

    keep_heaps()
    grid = StreamGrid(
        config.address,
        run_config=run_config,
        run_id=noted_run_id(config.run_dir) if resume else None,
        credentials=credentials,
        is_denied=deny_list,
        refresh_denied=deny_list.refresh,
        on_first_exchange=begin,
        status=status.snapshot,
        max_clients=config.max_clients,
        max_message_bytes=(config.max_message_mb << 20) or None,
        compress=config.compress,
    )
    context = Context(
        run_id=grid.run.run_id,
        node_id=SUPERLINK_NODE_ID,
        node_config={},
        state=RecordDict(),
        run_config=run_config,
    )
    with grid, _metrics(config.metrics, partial(status.snapshot, grid)):
        host = parse_address("address", config.address, any_port=True).host
        where = join_host_port(host, grid.port)
        LOGGER.info("listening on %s%s", where, "" if credentials else ", no TLS")
        with page_process(Path(config.run_dir), config.page), stoppable():
            if recording is None:
                server_app(grid, context)
                return
            with followed_by(recording):
                _run_app(server_app, config.app, grid, context)
    if not recording.num_started:
        LOGGER.warning(
            "the app has started no ScheduledStrategy: nothing was scheduled or recorded"
        )


def _load_app(path: str, run_dir: Path | None) -> ServerApp:
    """Import another app; a run that goes on may have begun in another folder."""
    try:
        app: ServerApp = load_object(path, ServerApp, "app")
    except ConfigError as error:
        began = "" if run_dir is None else str(read_settings(run_dir).get(APP_FOLDER, ""))
        if began in ("", str(Path.cwd())):  # earlier versions did not note it
            raise
        raise ConfigError("app", path, f"{error.message}, the run began in {began}") from None
    return app


def _check_run_dir(run_dir: Path, *, resume: bool) -> None:
    """Refuse a run directory that another process writes, or that is not new where it must be."""
    if resume:
        lock_run(run_dir).release()
    else:
        ensure_empty(run_dir)


def _run_app(server_app: ServerApp, path: str, grid: StreamGrid, context: Context) -> None:
    """Run a ServerApp whose code is not ours, ``path``: a fault of it is one line."""
    try:
        server_app(grid, context)
    except SchedulingError:  # it says what is wrong
        raise
    except OSError as error:
        if error.errno in _FULL_DISK:  # the app has no part in it
            raise
        raise _app_error(path, error, context.run_config) from None
    except Exception as error:
        raise _app_error(path, error, context.run_config) from None


def _app_error(path: str, error: Exception, run_config: UserConfig) -> ServerAppError:
    LOGGER.error("the ServerApp failed", exc_info=error)
    text = f"{path} raised {type(error).__name__}: {error}"
    if isinstance(error, KeyError) and not run_config:
        text += f" ({_no_config(Path.cwd())}, so the run configuration is empty)"
    return ServerAppError(text)


def _file_of(app: str) -> Path | None:
    """Return the file of an app that was loaded, ``MODULE:ATTRIBUTE`` or ``FILE.py:ATTRIBUTE``."""
    name = app.rpartition(":")[0]
    file = name if name.endswith(".py") else getattr(sys.modules.get(name), "__file__", None)
    return Path(file) if file else None


@contextmanager
def _metrics(address: str, snapshot: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Serve Prometheus metrics, where an address is given."""
    if not address:
        yield
        return
    from ..monitoring.prometheus import metrics_server

    with metrics_server(address, snapshot) as metrics:
        host = parse_address("metrics", address, any_port=True).host
        LOGGER.info("metrics at http://%s/metrics", join_host_port(host, metrics.port))
        yield


def app_config(folder: Path, overrides: str = "", code: Path | None = None) -> UserConfig:
    """Return the run configuration of the Flower app in a folder, as ``flwr run`` would.

    Parameters
    ----------
    folder : Path
        With the app's ``pyproject.toml``, if there is one.
    overrides : str
        As ``--run-config`` takes it: values for keys that the file names.
    code : Path, optional
        File of the ServerApp: without a Flower app in ``folder`` that counts in which it is.

    Returns
    -------
    dict
        ``[tool.flwr.app.config]`` of the file, nested keys joined by dots; empty where there is
        none.

    Raises
    ------
    ConfigError
        If the file cannot be read, a value is no number, truth value or text, or a key is
        overridden that the file does not name.
    """
    folder = folder.resolve()
    file = folder / PYPROJECT
    config: UserConfig = {}
    for place in [folder, *(code.resolve().parents if code is not None else ())]:
        if (found := _read_app(place / PYPROJECT)) is not None:
            file, config = place / PYPROJECT, found
            break
    if not config:
        LOGGER.info("%s: the run configuration is empty", _no_config(folder))
    elif file.parent != folder:
        LOGGER.info("run configuration of %s", file)
    given = read_user_config("run-config", overrides) if overrides else {}
    for key in sorted(given.keys() - config.keys()):
        message = f"{key} is not in [tool.flwr.app.config] of {file}"
        raise ConfigError("run-config", overrides, message, nearest(key, config))
    return {**config, **given}


def _read_app(file: Path) -> UserConfig | None:
    """Return the configuration of the Flower app of a project; ``None``: it is of no such app."""
    try:
        found: Any = tomllib.loads(file.read_text(encoding="utf-8"))
        for key in ("tool", "flwr", "app"):
            found = found.get(key, {})
        return flatten_dict(found.get("config")) if found else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, AttributeError) as error:  # AttributeError: a table is none
        raise ConfigError(
            PYPROJECT, str(file), f"must be a Flower app's settings ({error})"
        ) from None


def _no_config(folder: Path) -> str:
    return f"no [tool.flwr.app.config] was found in {folder}"
