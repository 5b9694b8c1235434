"""The ServerApp: wires policy, aggregation, evaluation and the run directory together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from flower_scheduling.client.wire import protocol
from flower_scheduling.extras import BUILT_IN_APP, require_extra
from flower_scheduling.strategies.flower import (
    RoundHook,
    ScheduledStrategy,
    TimedExchange,
    followed_by,
)
from flower_scheduling.strategies.flower.client_evaluation import SELECTED
from flower_scheduling.strategies.flower.idle import FAIRNESS
from flower_scheduling.strategies.registry import find_policy

from .callbacks import RoundCallback
from .monitoring.alarms import AlarmLog
from .monitoring.trackers.catalog import require_trackers
from .runs.data_note import DataNote
from .runs.directory import load_model
from .runs.recording import record_own
from .runs.resume import has_model
from .runtimes.stock_grid import StockGrid
from .settings.aggregation import build_aggregation
from .settings.run import ServerConfig

LOG_EVERY_S: Final = 10.0
"""Least time between two lines about rounds: our rounds may take milliseconds [s]."""
_SCALED_ONCE: Final = 2**26  # values of test images that are kept scaled, four bytes each


def build_strategy(
    config: ServerConfig, *, availability: float = 1.0, log_every_s: float = LOG_EVERY_S
) -> ScheduledStrategy:
    """Build the scheduled strategy that a configuration describes.

    Parameters
    ----------
    config : ServerConfig
        Settings.
    availability : float
        Expected share of rounds in which a client is available, for the check of the floors.
    log_every_s : float
        Least time between two lines about rounds [s].

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
        num_spare=config.spare,
        late_updates=config.late_updates,
        max_share=config.max_share,
        tau_max_s=config.tau_max_s,
        # Where that has no effect the command has said so.
        fairness=config.fairness if find_policy(config.strategy).keeps_floors else FAIRNESS,
        availability=availability,
        seed=config.seed,
        min_clients=config.min_clients or None,
        wait_s=config.wait_s,
        eval_every=config.eval_every,
        client_eval_every=config.client_eval_every,
        client_eval_on=SELECTED,
        max_update_norm=config.max_update_norm or None,
        accept_unchanged=config.accept_unchanged,
        explain=config.explain and bool(config.run_dir),
        log_every_s=log_every_s,
        mode=config.mode,
        buffer_size=config.buffer_size or None,
        max_staleness=config.max_staleness,
        staleness_discount=config.staleness_discount,
        even_weights={"true": True, "false": False}.get(config.even_weights),
        local_work=config.local_work,
        local_steps=config.local_steps,
        least_work=config.least_work,
        most_work=config.most_work,
        stop_when=lambda record: target > 0 and (record.accuracy or 0.0) >= target,
        **config.policy_params(),
    )


@dataclass(frozen=True)
class PreparedRun:
    """A run whose settings were checked, with the parts that the check has built.

    Attributes
    ----------
    config : ServerConfig
        Settings, possibly of a subclass: all of them go to ``config.toml``.
    strategy : ScheduledStrategy
        Built by them; it can be started once.
    arrays : ArrayRecord
        The model to begin with.
    """

    config: ServerConfig
    strategy: ScheduledStrategy
    arrays: ArrayRecord


def prepare_run(
    config: ServerConfig, *, availability: float = 1.0, log_every_s: float = LOG_EVERY_S
) -> PreparedRun:
    """Check settings, before anything is opened or written, and build what they describe.

    Parameters
    ----------
    config : ServerConfig
        Settings.
    availability : float
        Expected share of rounds in which a client is available.
    log_every_s : float
        Least time between two lines about rounds [s].

    Raises
    ------
    ConfigError, UnknownPolicyError, ClientConfigError, MissingExtraError
        If a setting is unknown, out of range, does not fit another, or names a file that is wrong,
        or torch is not installed.
    DataUnavailableError
        If the model depends on data of torchvision that cannot be had.
    """
    require_extra(BUILT_IN_APP, "learning")
    # Imported here: torch takes seconds that help texts and errors can do without.
    from flower_scheduling.client.learning.datasets import load_spec
    from flower_scheduling.client.learning.models import check_trainable, create_model
    from flower_scheduling.client.learning.partitions import check_partitioner

    strategy = build_strategy(config, availability=availability, log_every_s=log_every_s)
    check_partitioner(config.partitioner)
    model = create_model(config.model, config.seed, load_spec(config.dataset, config.data_dir))
    check_trainable(model, config.batch_size)
    arrays = model.arrays()
    if config.initial_model and not has_model(config):
        load_model(Path(config.initial_model), like=arrays)
    if config.run_dir and config.checkpoint_every:
        strategy.require_savable()
    return PreparedRun(config, strategy, arrays)


def create_app(
    callbacks: Callable[[], Sequence[RoundCallback]] = tuple,
    *,
    hooks: Sequence[RoundHook] = (),
    prepared: PreparedRun | None = None,
    resume: bool = False,
) -> ServerApp:
    """Create the ServerApp.

    Parameters
    ----------
    callbacks : callable
        Returns what follows a run, made anew for each run of the app.
    hooks : sequence of callable
        Called after each round, last of all.
    prepared : PreparedRun, optional
        The run; by default it is prepared by the run configuration.
    resume : bool
        Whether to go on with the run in ``run-dir`` instead of beginning one.

    Returns
    -------
    ServerApp
        Runs on any grid; its run configuration is that of :class:`ServerConfig`.
    """
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        ready = prepared or prepare_run(ServerConfig.from_mapping(context.run_config))
        config, strategy = ready.config, ready.strategy
        evaluate, note = evaluator(config), DataNote(_describe_data(config))
        digest = note.data["digest"]
        timed = grid if isinstance(grid, TimedExchange) else StockGrid(grid, config.tau_max_s)
        for hook in hooks:
            strategy.add_hook(hook)
        recording = record_own(config, lambda: [note, *callbacks()], resume=resume)
        with followed_by(recording):
            strategy.start(
                timed,
                ready.arrays,
                num_rounds=config.rounds,
                # MNIST's files are checked where they are read: a round is that much shorter.
                train_config=ConfigRecord({protocol.DATA_DIGEST: digest}) if digest else None,
                evaluate_fn=evaluate,
            )
        recording.require_saved()

    return server_app


def evaluator(config: ServerConfig) -> Callable[[int, ArrayRecord], MetricRecord]:
    """Return the evaluation of a model on all test images."""
    from flower_scheduling.client.learning.datasets import load_data
    from flower_scheduling.client.learning.models import create_model
    from flower_scheduling.client.learning.training import evaluate

    data = load_data(config.dataset, config.data_dir)
    images = data.test_images
    if images.numel() <= _SCALED_ONCE:
        images = data.spec.scale(images)
    model = create_model(config.model, config.seed, data.spec)

    def evaluate_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load(arrays)
        loss, accuracy = evaluate(model, images, data.test_labels)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    return evaluate_fn


def _describe_data(config: ServerConfig) -> dict[str, Any]:
    """Return the data set of a run in words and numbers."""
    from flower_scheduling.client.learning.datasets import data_digest, load_data

    data = load_data(config.dataset, config.data_dir)
    return {
        "dataset": config.dataset,
        "train": len(data.train_labels),
        "test": len(data.test_labels),
        "size": data.spec.describe_size(),
        "classes": data.spec.num_classes,
        "model_input": "(pixel / 255 - mean) / std, by channel",
        "mean": list(data.spec.mean),
        "std": list(data.spec.std),
        "digest": data_digest(config.dataset, config.data_dir),
    }


app = create_app(lambda: (AlarmLog(),))
