"""Simulation of an app: its own ServerApp and ClientApp, in virtual time."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict

from flower_scheduling._flwr import SUPERLINK_NODE_ID
from flower_scheduling.client.wire.arrays import decode_array
from flower_scheduling.client.wire.compression import expected_share
from flower_scheduling.errors import (
    ConfigError,
    NoStepError,
    NotSavedError,
    SchedulingError,
    ServerAppError,
)
from flower_scheduling.server.callbacks import RoundCallback, Run, RunEnd
from flower_scheduling.server.monitoring.trackers.catalog import require_trackers
from flower_scheduling.server.runs.directory import read_rounds
from flower_scheduling.server.runs.recording import record_app
from flower_scheduling.server.runtimes.other_app import UNSCHEDULED, FlowerLines, run_server_app
from flower_scheduling.strategies.flower import (
    LOGGER,
    RoundHook,
    RoundRecord,
    overriding,
)

from ...environments.recorded import RecordedFleet, RunRecord
from ...environments.traces import TracedEnvironment, Traces
from ...settings import MODEL_PAYLOAD, SimulationConfig
from ...terminal.progress import RoundReporter
from ..runner import FleetEnvironment, SimulationResult, write_truth
from ..virtual_grid import MeasuredCompute
from .app_grid import AppGrid
from .clients import ClientCalls, processor_s, seed_all
from .settings import SIMULATED, AppConfig
from .source import AppSource, where_it_began

_SERVER = 102  # streams of random numbers beside those of the environment and the clients
_FACTORS = 103
_NOT_REPRODUCIBLE: Final = (
    "measured computing times are not reproducible: another run has others "
    "(--times RUN_DIR draws from those of a run)"
)


class AppSimulation:
    """Simulation of an app that is ready to run: settings checked, the app imported.

    Parameters
    ----------
    config : AppConfig
        Settings.
    resume : bool
        Whether to go on with the run in its ``run-dir``.

    Raises
    ------
    ConfigError
        If a setting is wrong, or there is no such app.
    """

    def __init__(self, config: AppConfig, *, resume: bool = False) -> None:
        self.config = config
        self._resume = resume
        require_trackers(config.tracker, config.run_dir)
        self._times = config.read_times()
        if isinstance(self._times, RunRecord | Traces):
            self._names = self._times.names
        else:
            self._names = tuple(f"client-{number + 1}" for number in range(config.num_clients))
        try:
            source = AppSource.of(config)
            with _shielded_process(), overriding(config.strategy_settings()):
                seed_all(self._stream(_SERVER))
                loaded = source.load(config.run_config)
        except ConfigError as error:
            if not resume:
                raise
            raise where_it_began(Path(config.run_dir), error) from None
        self._server_app, self._client_app, self._run_config = loaded
        self._server_path = source.server_app
        self._environment = self._environment_for(None, config)

    def run(self, hooks: Sequence[RoundHook] = (), *, resume: bool = False) -> SimulationResult:
        """Run the ServerApp, once.

        Parameters
        ----------
        hooks : sequence of callable
            Called after each round.
        resume : bool
            Whether to go on with the run in ``run-dir``, from its last checkpoint.

        Returns
        -------
        SimulationResult
            Of the first run that the app has started.

        Raises
        ------
        ConfigError, ServerAppError
            If a setting does not fit the app, or the app fails.
        """
        config = self.config
        measured = None
        if config.compute == "measured":
            LOGGER.warning(_NOT_REPRODUCIBLE)
            factor = config.factors(np.random.default_rng(self._stream(_FACTORS)))
            measured = MeasuredCompute(factor, processor_s)
        grid = AppGrid(
            ClientCalls(self._client_app, self._run_config, config.seed),
            self._environment,
            [
                {"partition-id": arm, "num-partitions": len(self._names), "name": name}
                for arm, name in enumerate(self._names)
            ],
            dict(self._run_config),
            late=config.late,
            compression=config.compression,
            measured=measured,
            run_id=config.run_id,
            on_unscheduled=lambda messages: self._begin_unscheduled(grid, messages),
        )
        context = Context(
            run_id=grid.run.run_id,
            node_id=SUPERLINK_NODE_ID,
            node_config={},
            state=RecordDict(),
            run_config=dict(self._run_config),
        )
        watches: list[_RunResults] = []

        def watch() -> list[RoundCallback]:
            watches.append(_RunResults(self, grid, [] if watches else hooks))
            return [watches[-1]]

        recording = record_app(
            config,
            self._run_config,
            watch,
            resume=resume,
            concerned=SIMULATED | {*config.overridden_keys},
        )
        failure = None
        with _shielded_process(), overriding(config.strategy_settings()):
            seed_all(self._stream(_SERVER))
            try:
                run_server_app(self._server_app, self._server_path, grid, context, recording)
            except (NoStepError, NotSavedError) as error:  # what the rounds took is a result too
                failure = error
        if not watches:
            return self._unscheduled(grid)
        return watches[0].result(failure, resume=resume)

    # -- times ----------------------------------------------------------------------------------

    def _environment_for(
        self, arrays: ArrayRecord | None, config: SimulationConfig
    ) -> FleetEnvironment:
        """Return where draws come from, for a model if it is known."""
        bits, shares = 0, (1.0, 1.0)
        if isinstance(self._times, RunRecord):
            return RecordedFleet(self._times, config.seed)
        if arrays is not None and config.payload_bits == MODEL_PAYLOAD:
            bits = 8 * sum(decode_array(array).nbytes for array in arrays.values())
        if arrays is not None and (kinds := config.compression):
            shares = expected_share(kinds.down, arrays), expected_share(kinds.up, arrays)
        # Without a model nothing is sent yet.
        base = config.environment(max(bits, 1), *shares)
        return base if self._times is None else TracedEnvironment(self._times, base)

    def begin(self, grid: AppGrid, run: Run) -> None:
        """Let the grid draw times for transfers of this run's model, and for its mode."""
        asked = run.strategy.asked_settings
        keys = {"mode": "mode", "buffer-size": "buffer_size", "num-selected": "num_selected"}
        changes = {name: asked[key] for key, name in keys.items() if key in asked}
        self._environment = self._environment_for(
            run.arrays, self.config.model_copy(update=changes)
        )
        grid.set_environment(self._environment)

    def leave_truth(self, run: Run) -> None:
        """Leave the clients' expected times in the run directory, where they are known."""
        if run.directory is not None and self.config.compute == "drawn":
            write_truth(run.directory.path, self._names, self._environment, run.tau_max_s)

    def _stream(self, which: int) -> np.random.SeedSequence:
        return np.random.SeedSequence((self.config.seed, which))

    # -- apps that schedule nothing ---------------------------------------------------------------

    def _begin_unscheduled(self, grid: AppGrid, messages: Sequence[Message]) -> None:
        if keys := self.config.overridden_keys:
            key = keys[0]
            value = getattr(self.config, key.replace("-", "_"))
            message = f"has no effect: {UNSCHEDULED % self._server_path}"
            raise ConfigError(key, value, message)
        LOGGER.warning(UNSCHEDULED, self._server_path)
        arrays = [*messages[0].content.array_records.values()]
        self._environment = self._environment_for(arrays[0] if arrays else None, self.config)
        grid.set_environment(self._environment)

    def _unscheduled(self, grid: AppGrid) -> SimulationResult:
        if not grid.own_rounds:
            raise ServerAppError(f"{self._server_path} ended and has trained nothing")
        if not grid.own_updates:
            raise ServerAppError(f"no client has delivered an update to {self._server_path}")
        summary = {"scheduled": False, "rounds": grid.own_rounds, "time_s": grid.now()}
        return SimulationResult(self.config, summary, [])


class _RunResults(RoundCallback):
    """Callback that times the transfers of a run and collects its rounds and summary."""

    def __init__(
        self, simulation: AppSimulation, grid: AppGrid, hooks: Sequence[RoundHook]
    ) -> None:
        self._simulation = simulation
        self._grid = grid
        self._hooks = hooks
        self._run: Run | None = None
        self._records: list[RoundRecord] = []
        self._summary: dict[str, Any] = {}

    def on_start(self, run: Run) -> None:
        self._run = run
        self._simulation.begin(self._grid, run)
        self._simulation.leave_truth(run)
        for hook in self._hooks:
            if isinstance(hook, RoundReporter):
                hook.total = run.num_rounds or None

    def on_round(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        self._records.append(record)
        for hook in self._hooks:
            hook(record, arrays)

    def on_end(self, status: RunEnd, summary: Mapping[str, Any]) -> None:
        self._summary = dict(summary)

    def result(self, failure: SchedulingError | None, *, resume: bool) -> SimulationResult:
        """Return the result of the run, under the settings that it had."""
        assert self._run is not None
        config = self._simulation.config
        asked = self._run.strategy.asked_settings
        changes = {
            key: asked[key.replace("_", "-")] for key in ("strategy", "num_selected", "tau_max_s")
        }
        if resume:  # with what was before
            names = [arm["name"] for arm in self._summary["arms"]]
            earlier = self._summary["rounds"] - len(self._records)
            self._records[:0] = read_rounds(Path(config.run_dir), earlier, names)
        # A policy of the app's own has no name that a setting could have.
        shown = config.model_copy(update=changes)
        summary = {
            "times": config.times_text(),
            **({} if config.times else {"compute": config.compute}),
            **self._summary,
        }
        return SimulationResult(shown, summary, self._records, failure)


@contextmanager
def _shielded_process() -> Iterator[None]:
    """Let an app print, log and go where it likes; what it prints goes to standard error.

    Flower's lines and the app's own go where ours do.
    """
    folder = os.getcwd()
    flower = logging.getLogger("flwr")
    handlers, level = flower.handlers, flower.level
    with ExitStack() as stack:
        stack.callback(_set_logger, flower, handlers, level)
        flower.handlers = [FlowerLines()]
        LOGGER.setLevel(LOGGER.getEffectiveLevel())
        flower.setLevel(logging.INFO)
        stack.callback(os.chdir, folder)
        stack.enter_context(redirect_stdout(sys.stderr))
        stack.enter_context(_output_to_errors())
        yield


def _set_logger(logger: logging.Logger, handlers: list[logging.Handler], level: int) -> None:
    logger.handlers = handlers
    logger.setLevel(level)


@contextmanager
def _output_to_errors() -> Iterator[None]:
    """Let processes that the app starts print to standard error, too."""
    try:
        saved = os.dup(1)
    except OSError:  # it is closed
        yield
        return
    try:
        with suppress(OSError):
            os.dup2(2, 1)
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
