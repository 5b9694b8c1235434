"""The ServerApp: wires policy, aggregation, evaluation and the run directory together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from strategies import POLICIES, build_policy
from strategies.flower import RoundHook, ScheduledStrategy

from .aggregation import build_aggregation
from .config import ServerConfig
from .history import RunHistory
from .run_directory import RunDirectory


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
    if config.strategy not in POLICIES:
        build_policy(config.strategy)  # raises: names the nearest policy and lists them all
    taken = POLICIES[config.strategy].parameters()
    offered: dict[str, Any] = {"beta": config.beta, "truncate": config.truncate}
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
        stop_when=lambda record: target > 0 and (record.accuracy or 0.0) >= target,
        **{name: value for name, value in offered.items() if name in taken},
    )


def create_app(
    *,
    hooks: Sequence[RoundHook] = (),
    settings: Mapping[str, Any] | None = None,
    availability: float = 1.0,
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
        history = RunHistory(initial_arrays(config.model, config.seed))
        strategy = build_strategy(config, availability=availability)
        strategy.add_hook(history.record)
        evaluate = evaluator(config)
        directory = None
        if config.run_dir:
            directory = RunDirectory(Path(config.run_dir), settings or config.to_mapping())
            strategy.add_hook(directory.write_round)
        for hook in hooks:
            strategy.add_hook(hook)
        try:
            strategy.start(grid, history.arrays, num_rounds=config.rounds, evaluate_fn=evaluate)
        finally:
            summary = history.summary(
                strategy.arms.arms,
                strategy.floors,
                tau_max_s=config.tau_max_s,
                target_accuracy=config.target_accuracy,
            )
            if directory is not None:
                directory.write_arms(strategy.arms.arms, strategy.floors)
                directory.write_summary(summary)
                directory.write_model("last", history.arrays)
                directory.close()
            on_summary(summary)

    return server_app


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


app = create_app()
