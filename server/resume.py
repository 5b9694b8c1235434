"""Save the whole state of a run after a round, and go on from it."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from flwr.app import Array, ArrayRecord

from strategies import ConfigError
from strategies.flower import LOGGER, RoundHook, RoundRecord, ScheduledStrategy, TimedExchange

from .checkpoint import Checkpoint, CheckpointFolder
from .config import ServerConfig
from .history import RunHistory
from .run_directory import RunDirectory, read_rounds

FOLDER: Final = "checkpoint"
"""Folder of the run directory."""
MAY_DIFFER: Final = frozenset(
    (
        *("rounds", "target-accuracy", "wait-s", "min-clients"),
        *("checkpoint-every", "checkpoint-required"),
        *("run-dir", "data-dir", "address", "tls", "insecure", "metrics", "deny-list"),
        *("max-clients", "max-message-mb"),
    )
)
"""Settings that a resumed run may have otherwise: what was learned does not depend on them."""


_ABSENT: Final = object()


@runtime_checkable
class StatefulGrid(Protocol):
    """A grid with a state of its own that the next round depends on: a simulated one."""

    def state_dict(self) -> dict[str, Any]:
        """Return it; nothing that needs pickle."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` left off."""


def checkpointer(
    directory: RunDirectory,
    config: ServerConfig,
    strategy: ScheduledStrategy,
    grid: TimedExchange,
) -> RoundHook:
    """Return a round hook that saves everything every ``checkpoint-every`` rounds."""
    folder = CheckpointFolder(directory.path / FOLDER)
    said: set[int | None] = set()  # faults since the last success

    def save(record: RoundRecord, arrays: ArrayRecord) -> None:
        if record.round % config.checkpoint_every and record.round != config.rounds:
            return
        state = {
            "settings": config.to_mapping(),
            "model": {key: array.numpy() for key, array in arrays.items()},
            "strategy": strategy.state_dict(),
            "grid": grid.state_dict() if isinstance(grid, StatefulGrid) else None,
            "random": _random_state(),
        }
        try:
            directory.sync()
            folder.save(record.round, state)
        except OSError as error:
            if config.checkpoint_required:
                raise
            if error.errno not in said:
                said.add(error.errno)
                LOGGER.warning(
                    "no checkpoint after round %d: %s: %s; the run goes on",
                    record.round,
                    error.filename,
                    error.strerror,
                )
        else:
            said.clear()

    return save


def load_checkpoint(run_dir: Path, config: ServerConfig) -> Checkpoint | None:
    """Return the newest good checkpoint of a run; ``None`` if it has none, and so begins anew.

    Raises
    ------
    ConfigError
        If it was made with other settings, which are named, or the run has ended.
    """
    found = CheckpointFolder(run_dir / FOLDER).load()
    if found is None:
        return None
    before, now = found.state["settings"], config.to_mapping()
    require_same(run_dir, before, now)
    if found.round >= config.rounds:
        raise ConfigError("rounds", config.rounds, f"above {found.round}: the run has ended")
    return found


def resumed_settings(run_dir: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that is to go on: its own, and those given that may differ.

    Parameters
    ----------
    run_dir : Path
        Its folder.
    given : mapping
        Settings from the command line.

    Raises
    ------
    ConfigError
        If there is no run, or a setting differs that must not.
    """
    file = run_dir / "config.toml"
    try:
        before = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError("resume", str(run_dir), f"the folder of a run ({reason})") from None
    require_same(run_dir, {key: before[key] for key in given if key in before}, given)
    return {**before, **given, "run-dir": str(run_dir)}


def require_same(run_dir: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse other settings than a run began with.

    Raises
    ------
    ConfigError
        If one differs; all that do are named.
    """
    keys = [
        key
        for key in sorted({*before, *now} - MAY_DIFFER)
        if before.get(key, _ABSENT) != now.get(key, _ABSENT)
    ]
    if keys:
        told = "; ".join(f"{key} = {before.get(key)!r}, not {now.get(key)!r}" for key in keys)
        raise ConfigError("resume", str(run_dir), f"resumed with its settings: {told}")


def restore(
    saved: Checkpoint,
    run_dir: Path,
    config: ServerConfig,
    strategy: ScheduledStrategy,
    grid: TimedExchange,
    *,
    like: ArrayRecord,
) -> RunHistory:
    """Bring strategy, grid and random numbers to a checkpoint, and return what was before.

    Parameters
    ----------
    saved : Checkpoint
        From :func:`load_checkpoint`.
    run_dir : Path
        Where its rounds are.
    config : ServerConfig
        Settings.
    strategy : ScheduledStrategy
        Built with the same settings, not yet started.
    grid : TimedExchange
        The grid that it will start on.
    like : ArrayRecord
        A model of the kind that is expected.

    Raises
    ------
    ConfigError
        If the rounds are not there, or anything does not fit.
    """
    state = saved.state
    model = state["model"]
    if model.keys() != like.keys():
        raise ConfigError("resume", str(run_dir), f"a run whose model has the arrays {list(like)}")
    strategy.load_state_dict(state["strategy"])
    if isinstance(grid, StatefulGrid) and state["grid"] is not None:
        grid.load_state_dict(state["grid"])
    names = [arm.name for arm in strategy.arms.arms]
    records = read_rounds(run_dir, saved.round, names)
    _set_random_state(state["random"])
    arrays = ArrayRecord({key: Array(model[key]) for key in like})
    return RunHistory(arrays, records, target_accuracy=config.target_accuracy)


def _random_state() -> dict[str, Any]:
    """Return the state of the global generators, which Flower draws from."""
    version, numbers, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return {
        "python": [version, np.array(numbers, dtype=np.uint32), gauss],
        "numpy": [kind, np.array(keys), *rest],
    }


def _set_random_state(state: Mapping[str, Any]) -> None:
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(int(n) for n in numbers), gauss))
    np.random.set_state(tuple(state["numpy"]))  # noqa: NPY002
