"""The trackers by name, and the check of the setting that lists them."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Final

from flower_scheduling.errors import ConfigError, nearest
from flower_scheduling.extras import install_command

from .base import Tracker
from .mlflow import MlflowTracker
from .tensorboard import TensorBoardTracker
from .wandb import WandbTracker

TRACKERS: Final[Mapping[str, type[Tracker]]] = {
    "tensorboard": TensorBoardTracker,
    "mlflow": MlflowTracker,
    "wandb": WandbTracker,
}
"""Trackers by the names that users type, which are those of the extras too."""


def tracker_names(text: str) -> list[str]:
    """Return the trackers that a setting names.

    Raises
    ------
    ConfigError
        If one is unknown or named twice.
    """
    names = [name.strip() for name in text.split(",")] if text else []
    for name in names:
        if name not in TRACKERS:
            message = f"must be {', '.join(TRACKERS)}, or several, separated by commas"
            raise ConfigError("tracker", text, message, nearest(name, TRACKERS))
    if len(set(names)) < len(names):
        raise ConfigError("tracker", text, "names one twice")
    return names


def require_trackers(text: str, run_dir: str) -> None:
    """Refuse trackers that are not installed, or have nowhere to write.

    Raises
    ------
    ConfigError
        If it is so; it names what to install.
    """
    names = tracker_names(text)
    missing = [name for name in names if importlib.util.find_spec(TRACKERS[name].package) is None]
    if missing:
        raise ConfigError("tracker", text, f"is not installed: {install_command(*missing)}")
    if names and not run_dir:
        raise ConfigError("tracker", text, "needs run-dir, where it keeps its files")
