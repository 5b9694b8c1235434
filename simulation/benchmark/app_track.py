"""Benchmark of policies on somebody's app: seconds to an accuracy, over seeds."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from flower_scheduling.errors import ConfigError
from flower_scheduling.strategies.flower import LOGGER

from ..engine.apps.settings import OVERRIDING, SIMULATED, AppConfig, app_config_of
from ..jobs import Arrays, Job, digest_files
from ..theory.time_to_target import first_reached_s
from .tasks import policy_code
from .training_track import row_of

POLICIES: Final = ("random", "cs-ucb-q", "cs-ucb-q-adaptive")
"""What is compared by default."""
_OURS: Final = frozenset(
    [
        *("strategy", "strategy-option", "beta", "truncate", "mode", "seed", "run-dir", "compute"),
        *("server-app", "client-app", "explain", "tracker", "overridden"),
        *("checkpoint-every", "checkpoint-required"),
    ]
)
SETTINGS: Final = (SIMULATED | OVERRIDING) - _OURS
"""Settings of the app's simulation that the command takes."""
_JOB_S: Final = 10.0
_CODE: Final = (".py", ".toml")


def settings_of(given: Mapping[str, Any], mode: str | None) -> dict[str, Any]:
    """Return the settings that all runs share.

    Raises
    ------
    ConfigError
        If one is wrong, or an accuracy to be reached is lacking.
    """
    found = {**given, **({"mode": mode} if mode else {})}
    config = app_config_of(found)
    if config.target_accuracy <= 0:
        message = "must be given: the accuracy to which seconds are counted"
        raise ConfigError("target-accuracy", config.target_accuracy, message)
    return found


def jobs_of(
    settings: Mapping[str, Any], policies: Sequence[str], seeds: Sequence[int]
) -> list[Job]:
    """Return the jobs: one run of the app per policy and seed.

    Raises
    ------
    ConfigError
        If a policy is none.
    """
    code = _digest(settings)
    return [
        Job(
            f"app-{_name(settings)}-{policy}-{seed:02}",
            partial(_simulate, _config(settings, policy, seed)),
            _JOB_S,
            code + policy_code(policy),
        )
        for policy in policies
        for seed in seeds
    ]


def rows(
    settings: Mapping[str, Any],
    policies: Sequence[str],
    seeds: Sequence[int],
    results: Mapping[str, Arrays],
) -> list[dict[str, Any]]:
    """Return one row per policy, as the training track has them."""
    name = _name(settings)
    return [
        row_of(
            name,
            policy,
            float(settings["target-accuracy"]),
            [results[f"app-{name}-{policy}-{seed:02}"] for seed in seeds],
            seeds[0],
        )
        for policy in policies
    ]


def _name(settings: Mapping[str, Any]) -> str:
    return Path(settings["app"]).resolve().name


def _config(settings: Mapping[str, Any], policy: str, seed: int) -> AppConfig:
    return app_config_of({**settings, "strategy": policy, "seed": seed, "explain": False})


def _digest(settings: Mapping[str, Any]) -> str:
    """Return a digest of the app's code, and of the round trips that it is given."""
    folder = Path(settings["app"])
    chosen = [path for path in folder.rglob("*") if path.suffix in _CODE and path.is_file()]
    if times := settings.get("times"):
        path = Path(times)
        chosen += [path / "rounds.jsonl", path / "config.toml"] if path.is_dir() else [path]
    return digest_files((str(path), path) for path in sorted(chosen))


def _simulate(config: AppConfig) -> Arrays:
    """Run the app once, in a process of its own: what the app prints is left out."""
    from ..engine.apps.app_simulation import AppSimulation

    LOGGER.handlers, LOGGER.propagate = (
        [logging.NullHandler()],
        False,
    )  # what Flower logs comes to it
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    with tempfile.TemporaryDirectory() as folder:
        result = AppSimulation(config.changed(run_dir=str(Path(folder, "run")))).run()
        if not result.scheduled:
            message = "must be an app whose strategy is wrapped in ScheduledStrategy"
            raise ConfigError("app", config.app, message)
    evaluations = [
        (record.round, record.time_s, record.accuracy)
        for record in result.records
        if record.accuracy is not None
    ]
    reached_s = first_reached_s(evaluations, config.target_accuracy)
    rounds = next((r for r, _, accuracy in evaluations if accuracy >= config.target_accuracy), None)
    return {
        "seconds": np.array(np.inf if reached_s is None else reached_s),
        "rounds": np.array(np.inf if rounds is None else rounds),
        "best": np.array(max((accuracy for _, _, accuracy in evaluations), default=0.0)),
    }
