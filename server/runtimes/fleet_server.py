"""A fleet's server: a stream grid, a ServerApp on it, a clean end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict, UserConfig

from flower_scheduling._flwr import SUPERLINK_NODE_ID
from flower_scheduling.allocator import freeze_loaded, keep_heaps
from flower_scheduling.client.wire.addresses import join_host_port, parse_address
from flower_scheduling.client.wire.credentials import server_credentials
from flower_scheduling.client.wire.frames import MEGABYTE
from flower_scheduling.extras import require_extra
from flower_scheduling.strategies.flower import LOGGER, RoundHook
from flower_scheduling.user_config import merged_overrides

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
from ..settings.fleet import FleetConfig
from ..transport.deny_list import DenyList
from ..transport.grid import StreamGrid
from .other_app import UNSCHEDULED, app_config, file_of, load_server_app, run_server_app
from .signals import stoppable


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
        server_app = load_server_app(config.app, Path(config.run_dir) if resume else None)
        if resume:  # what was given at first stays, unless it is given anew
            earlier = str(read_settings(Path(config.run_dir)).get("run-config", ""))
            merged = merged_overrides("run-config", earlier, config.run_config)
            config = config.model_copy(update={"run_config": merged})
        run_config = app_config(Path(), config.run_config, file_of(config.app))
        recording = record_app(config, run_config, callbacks, resume=resume)
    else:
        prepared = prepare_run(config)  # refuses bad settings before a client can connect
        server_app = create_app(callbacks, hooks=hooks, prepared=prepared, resume=resume)
    _check_run_dir(Path(config.run_dir), resume=resume)
    deny_list = DenyList(config.deny_list, lambda: status.client_names(grid))

    def begin() -> None:
        deny_list.begin()
        if recording is not None and not recording.num_started:
            LOGGER.warning(UNSCHEDULED, config.app)

    keep_heaps()
    freeze_loaded()
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
        max_message_bytes=(config.max_message_mb * MEGABYTE) or None,
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
            run_server_app(server_app, config.app, grid, context, recording)
    if not recording.num_started:
        LOGGER.warning(
            "the app has started no ScheduledStrategy: nothing was scheduled or recorded"
        )


def _check_run_dir(run_dir: Path, *, resume: bool) -> None:
    """Refuse a run directory that another process writes, or that is not new where it must be."""
    if resume:
        lock_run(run_dir).release()
    else:
        ensure_empty(run_dir)


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
