"""The ServerApp: wires policy, aggregation, evaluation and the run directory together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MessageType, MetricRecord
from flwr.serverapp import Grid, ServerApp

from strategies import POLICIES
from strategies.flower import (
    LOGGER,
    Exchange,
    RoundHook,
    ScheduledStrategy,
    TimedExchange,
    TimedGrid,
)

from .aggregation import build_aggregation
from .config import ServerConfig
from .history import RunHistory
from .resume import checkpointer, load_checkpoint, restore
from .round_log import RoundLog
from .run_directory import RunDirectory, load_model, lock_run, refuse_existing


def build_strategy(config: ServerConfig, *, availability: float = 1.0) -> ScheduledStrategy:
    """Build the scheduled strategy that a configuration describes.

    Parameters
    ----------
    config : ServerConfig
        Settings.
    availability : float
        Expected share of rounds in which a client is available, for the check of the floors.

    Raises
    ------
    ConfigError, UnknownPolicyError
        If a setting is unknown, out of range or does not fit another.
    """
    target = config.target_accuracy
    return ScheduledStrategy(
        build_aggregation(config.aggregation, config.aggregation_option),
        config.strategy,
        num_selected=config.num_selected,
        tau_max_s=config.tau_max_s,
        fairness=config.fairness,
        availability=availability,
        seed=config.seed,
        min_clients=config.min_clients or None,
        wait_s=config.wait_s,
        eval_every=config.eval_every,
        client_eval_every=config.client_eval_every,
        max_update_norm=config.max_update_norm or None,
        stop_when=lambda record: target > 0 and (record.accuracy or 0.0) >= target,
        **policy_parameters(config),
    )


def check_settings(config: ServerConfig, *, resume: bool = False) -> None:
    """Refuse what :func:`create_app`'s app would refuse, before anything is opened or written.

    Raises
    ------
    ConfigError, UnknownPolicyError, ClientConfigError
        If a setting is unknown, out of range, does not fit another, or names a file that is wrong.
    """
    from client.partition import check_partitioner
    from client.task import initial_arrays

    strategy = build_strategy(config)
    check_partitioner(config.partitioner)
    arrays = initial_arrays(config.model, config.seed)
    if config.initial_model:
        load_model(Path(config.initial_model), like=arrays)
    if config.run_dir:
        if resume:
            lock_run(Path(config.run_dir)).release()
        else:
            refuse_existing(Path(config.run_dir))
    if config.checkpoint_every:
        strategy.require_savable()


def policy_parameters(config: ServerConfig) -> dict[str, Any]:
    """Return those settings that the configured policy takes as parameters of its own."""
    taken = POLICIES[config.strategy].parameters()
    offered: dict[str, Any] = {"beta": config.beta, "truncate": config.truncate}
    return {name: value for name, value in offered.items() if name in taken}


def create_app(
    *,
    hooks: Sequence[RoundHook] = (),
    settings: Mapping[str, Any] | None = None,
    availability: float = 1.0,
    resume: bool = False,
    on_strategy: Callable[[ScheduledStrategy], None] = lambda strategy: None,
    on_summary: Callable[[dict[str, Any]], None] = lambda summary: None,
) -> ServerApp:
    """Create the ServerApp.

    Parameters
    ----------
    hooks : sequence of callable
        Called after each round, after the run directory was written.
    settings : mapping, optional
        What ``config.toml`` records; by default the run configuration.
    availability : float
        Expected share of rounds in which a client is available.
    resume : bool
        Whether to go on with the run in ``run-dir`` instead of beginning one.
    on_strategy : callable
        Takes the strategy before it starts.
    on_summary : callable
        Takes the run in numbers, also if it was interrupted.

    Returns
    -------
    ServerApp
        Runs on any grid; its run configuration is that of :class:`ServerConfig`.
    """
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        # Imported here: torch and the data take seconds that help texts and errors can do without.
        from client.task import initial_arrays

        config = ServerConfig.from_mapping(context.run_config)
        arrays = initial_arrays(config.model, config.seed)
        if config.initial_model:
            arrays = load_model(Path(config.initial_model), like=arrays)
        strategy = build_strategy(config, availability=availability)
        timed = grid if isinstance(grid, TimedExchange) else _StockGrid(grid, config.tau_max_s)
        run_dir = Path(config.run_dir) if config.run_dir else None
        saved = load_checkpoint(run_dir, config) if resume and run_dir is not None else None
        history = RunHistory(arrays, target_accuracy=config.target_accuracy)
        if saved is not None and run_dir is not None:
            history = restore(saved, run_dir, config, strategy, timed, like=arrays)
        strategy.add_hook(history.record)
        evaluate = evaluator(config)
        directory = None
        if run_dir is not None:
            if resume:
                directory = RunDirectory.reopen(run_dir, saved.round if saved else 0)
            else:
                directory = RunDirectory(run_dir, settings or config.to_mapping())
            if resume and saved is None:
                LOGGER.warning("no checkpoint in %s: the run begins anew", run_dir)
            elif saved is not None:
                LOGGER.info("goes on after round %d", saved.round)
            # On a SuperLink the ServerApp runs where the SuperLink was started.
            LOGGER.info("results go to %s", run_dir.resolve())
            strategy.add_hook(directory.write_round)
            strategy.add_hook(
                lambda record, arrays: directory.note_arms(strategy.arms.arms, strategy.floors)
            )
            if config.checkpoint_every:
                strategy.require_savable()
                strategy.add_hook(checkpointer(directory, config, strategy, timed))
        for hook in hooks:
            strategy.add_hook(hook)
        on_strategy(strategy)

        def finish() -> None:
            try:
                _write_end(history, strategy, config, directory, on_summary)
            finally:
                if directory is not None:
                    directory.close()

        try:
            strategy.start(timed, history.arrays, num_rounds=config.rounds, evaluate_fn=evaluate)
        except OSError:  # the disk is full, say: a second fault must not hide the first
            with suppress(OSError):
                finish()
            raise
        except BaseException:
            finish()
            raise
        finish()

    return server_app


def _write_end(
    history: RunHistory,
    strategy: ScheduledStrategy,
    config: ServerConfig,
    directory: RunDirectory | None,
    on_summary: Callable[[dict[str, Any]], None],
) -> None:
    """Leave what a run that has ended, or was stopped, has to say."""
    if directory is not None:  # an interrupt between two hooks: what counts is what was written
        history.keep(directory.count_rounds())
    summary = history.summary(strategy.arms.arms, strategy.floors, tau_max_s=config.tau_max_s)
    if directory is not None:
        directory.note_arms(strategy.arms.arms, strategy.floors)
        directory.write_summary(summary)
        directory.write_model("last", history.arrays)
    on_summary(summary)


class _StockGrid(TimedGrid):
    """Time Flower's own grid, and say at the start how long a client takes that does nothing.

    Stock SuperNodes look for work every few seconds and start a process per message. The queries
    that newcomers answer train nothing, so their round trips are that floor.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    tau_max_s : float
        Deadline of a round [s]; below twice the floor it is warned about.
    """

    def __init__(self, grid: Grid, tau_max_s: float) -> None:
        super().__init__(grid)
        self._tau_max_s = tau_max_s
        self._reported = False

    def exchange(self, messages: Sequence[Message], timeout_s: float) -> list[Exchange]:
        """Send and time the messages; report on the first queries."""
        messages = list(messages)
        exchanges = super().exchange(messages, timeout_s)
        queries = all(m.metadata.message_type == MessageType.QUERY for m in messages)
        times = sorted(e.rtt_s for e in exchanges if e.rtt_s is not None)
        if times and queries and not self._reported:
            self._reported = True
            floor = median(times)
            LOGGER.info(
                "a client that does nothing takes %.1f s (median of %d, %.1f to %.1f s)",
                floor,
                len(times),
                times[0],
                times[-1],
            )
            if self._tau_max_s < 2 * floor:
                LOGGER.warning(
                    "tau-max-s = %g is below twice that floor: measured times tell clients apart "
                    "badly, and many will count as failed",
                    self._tau_max_s,
                )
        return exchanges


def evaluator(config: ServerConfig) -> Callable[[int, ArrayRecord], MetricRecord]:
    """Return the evaluation of a model on the 10,000 test images."""
    from client.mnist import load_mnist, scale_pixels
    from client.task import create_model, evaluate

    data = load_mnist(config.data_dir or None)
    images = scale_pixels(data.test_images)
    model = create_model(config.model, config.seed)

    def evaluate_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load(arrays)
        loss, accuracy = evaluate(model, images, data.test_labels)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    return evaluate_fn


app = create_app(hooks=(RoundLog(),))
