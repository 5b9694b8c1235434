"""The ServerApp: wires policy, aggregation, evaluation and the run directory together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MessageType, MetricRecord
from flwr.serverapp import Grid, ServerApp

from flower_scheduling.strategies.flower import (
    LOGGER,
    RoundHook,
    ScheduledStrategy,
    TimedExchange,
    TimedGrid,
)

from .monitoring.alarms import AlarmLog
from .monitoring.console import RoundLog
from .monitoring.round_metrics import RoundMetrics
from .monitoring.trackers import RunEnd, TrackedRun, Trackers, require_trackers, tracker_names
from .runs.directory import RunDirectory, load_model, lock_run, read_rounds, refuse_used
from .runs.resume import Checkpointer, has_model, load_checkpoint, restore
from .runs.totals import RunHistory
from .settings.aggregation import build_aggregation
from .settings.run import ServerConfig


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
        If a setting is unknown, out of range or does not fit another, or a tracker is missing.
    """
    require_trackers(config.tracker, config.run_dir)
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
        explain=config.explain and bool(config.run_dir),
        stop_when=lambda record: target > 0 and (record.accuracy or 0.0) >= target,
        **config.policy_params(),
    )


def check_settings(config: ServerConfig, *, resume: bool = False) -> None:
    """Refuse what :func:`create_app`'s app would refuse, before anything is opened or written.

    Raises
    ------
    ConfigError, UnknownPolicyError, ClientConfigError
        If a setting is unknown, out of range, does not fit another, or names a file that is wrong.
    """
    from flower_scheduling.client.learning.models import initial_arrays
    from flower_scheduling.client.learning.partitions import check_partitioner

    strategy = build_strategy(config)
    check_partitioner(config.partitioner)
    arrays = initial_arrays(config.model, config.seed)
    if config.run_dir:
        if resume:
            lock_run(Path(config.run_dir)).release()
        else:
            refuse_used(Path(config.run_dir))
    if config.initial_model and not has_model(config):
        load_model(Path(config.initial_model), like=arrays)
    if config.checkpoint_every:
        strategy.require_savable()


def create_app(
    *,
    hooks: Sequence[RoundHook] = (),
    settings: Mapping[str, Any] | None = None,
    availability: float = 1.0,
    resume: bool = False,
    alarm_log: AlarmLog | None = None,
    on_strategy: Callable[[ScheduledStrategy, RunHistory], None] = lambda strategy, history: None,
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
    alarm_log : AlarmLog, optional
        What is to watch the rounds.
    on_strategy : callable
        Takes the strategy before it starts, and the rounds of an earlier part of the run.
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
        from flower_scheduling.client.learning.models import initial_arrays

        config = ServerConfig.from_mapping(context.run_config)
        arrays = initial_arrays(config.model, config.seed)
        strategy = build_strategy(config, availability=availability)
        timed = grid if isinstance(grid, TimedExchange) else _StockGrid(grid, config.tau_max_s)
        run_dir = Path(config.run_dir) if config.run_dir else None
        saved = load_checkpoint(run_dir, config) if resume and run_dir is not None else None
        if config.initial_model and not (saved and saved.round):
            arrays = load_model(Path(config.initial_model), like=arrays)
        history = RunHistory(arrays, target_accuracy=config.target_accuracy)
        done = saved.round if saved is not None else 0
        if saved is not None and done and run_dir is not None:
            history = restore(saved, run_dir, config, strategy, timed, like=arrays)
        strategy.add_hook(history.record)
        evaluate = evaluator(config)
        directory, checkpointer, tracked = None, None, None
        trackers = Trackers(
            tracker_names(config.tracker),
            RoundMetrics(lambda: strategy.floors, lambda: strategy.queues, history.tallies),
        )
        if run_dir is not None:
            noted = settings or config.to_mapping()
            required = config.checkpoint_required
            if resume:
                directory = RunDirectory.reopen(run_dir, noted, done, disk_required=required)
                LOGGER.info("goes on after round %d", done)
            else:
                directory = RunDirectory(run_dir, noted, disk_required=required)
            # On a SuperLink the ServerApp runs where the SuperLink was started.
            LOGGER.info("results go to %s", run_dir.resolve())
            # The arms first: whoever reads a round finds its clients in the list.
            strategy.add_hook(
                lambda record, arrays: directory.note_arms(strategy.arms.arms, strategy.floors)
            )
            strategy.add_hook(directory.write_round)
            if config.checkpoint_every:
                strategy.require_savable()
                checkpointer = Checkpointer(directory, config, strategy, timed)
                checkpointer.begin(done)
                strategy.add_hook(checkpointer)
            if config.tracker:
                names = [arm.name for arm in strategy.arms.arms]
                tracked = TrackedRun(
                    run_dir,
                    noted,
                    done,
                    lambda first: read_rounds(run_dir, done, names, queues_from=first),
                )
            strategy.add_hook(trackers.log_round)
        if alarm_log is not None:
            saver = checkpointer
            alarm_log.watch(
                strategy,
                tau_max_s=config.tau_max_s,
                checkpoint_every=config.checkpoint_every if saver else 0,
                saved_round=lambda: saver.saved_round if saver else 0,
            )
        for hook in hooks:
            strategy.add_hook(hook)
        on_strategy(strategy, history)

        def finish(status: RunEnd) -> None:
            summary = None
            try:
                summary = _write_end(history, strategy, config, directory)
                on_summary(summary)
                if status is not RunEnd.FAILED and checkpointer and directory is not None:
                    checkpointer.finish(directory.count_rounds(), history.arrays)
            except BaseException:
                status = RunEnd.FAILED
                raise
            finally:
                try:
                    trackers.end(status, summary)
                finally:
                    if directory is not None:
                        directory.close()

        # A run that was killed when it had reached its end has but to write its results.
        num_rounds = done if history.target_reached else config.rounds
        try:
            if tracked is not None:
                trackers.begin(tracked)
            strategy.start(timed, history.arrays, num_rounds=num_rounds, evaluate_fn=evaluate)
        except OSError:  # the disk is full, say: a second fault must not hide the first
            with suppress(OSError):
                finish(RunEnd.FAILED)
            raise
        except BaseException as error:
            # Flower's own programs turn a signal into SystemExit (flwr 1.42).
            stopped = isinstance(error, KeyboardInterrupt | SystemExit)
            finish(RunEnd.KILLED if stopped else RunEnd.FAILED)
            raise
        finish(RunEnd.FINISHED)

    return server_app


def _write_end(
    history: RunHistory,
    strategy: ScheduledStrategy,
    config: ServerConfig,
    directory: RunDirectory | None,
) -> dict[str, Any]:
    """Leave what a run that has ended, or was stopped, has to say; return it in numbers."""
    if directory is not None:  # an interrupt between two hooks: what counts is what was written
        history.keep(directory.count_rounds())
    summary = history.summary(strategy.arms.arms, strategy.floors, tau_max_s=config.tau_max_s)
    if directory is not None:
        directory.note_arms(strategy.arms.arms, strategy.floors)
        directory.write_summary(summary)
        directory.write_model("last", history.arrays)
    return summary


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
        self._asked_s: dict[str, float] = {}  # message id -> when; of the first newcomers
        self._times_s: list[float] = []
        self._reported = False

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages; note when the first queries went out."""
        messages = list(messages)
        message_ids = list(super().push_messages(messages))
        if not self._reported and all(
            m.metadata.message_type == MessageType.QUERY for m in messages
        ):
            self._asked_s |= dict.fromkeys(filter(None, message_ids), self.now())
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies; report how long the first queries took, once all have been answered."""
        replies = list(super().pull_messages(message_ids))
        for reply in replies:
            asked_s = self._asked_s.pop(reply.metadata.reply_to_message_id, None)
            if asked_s is not None:
                self._times_s.append(self.now() - asked_s)
        if self._times_s and not self._asked_s and not self._reported:
            self._reported = True
            self._report(sorted(self._times_s))
        return replies

    def _report(self, times_s: Sequence[float]) -> None:
        floor_s = median(times_s)
        LOGGER.info(
            "a client that does nothing takes %.1f s (median of %d, %.1f to %.1f s)",
            floor_s,
            len(times_s),
            times_s[0],
            times_s[-1],
        )
        if self._tau_max_s < 2 * floor_s:
            LOGGER.warning(
                "tau-max-s = %g is below twice that floor: measured times tell clients apart "
                "badly, and many will count as failed",
                self._tau_max_s,
            )


def evaluator(config: ServerConfig) -> Callable[[int, ArrayRecord], MetricRecord]:
    """Return the evaluation of a model on the 10,000 test images."""
    from flower_scheduling.client.learning.mnist import load_mnist, scale_pixels
    from flower_scheduling.client.learning.models import create_model
    from flower_scheduling.client.learning.training import evaluate

    data = load_mnist(config.data_dir or None)
    images = scale_pixels(data.test_images)
    model = create_model(config.model, config.seed)

    def evaluate_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load(arrays)
        loss, accuracy = evaluate(model, images, data.test_labels)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    return evaluate_fn


app = create_app(hooks=(RoundLog(),), alarm_log=AlarmLog())
