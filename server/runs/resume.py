"""Save the whole state of a run after a round, and go on from it."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from flwr.app import Array, ArrayRecord

from flower_scheduling.errors import ConfigError
from flower_scheduling.strategies.flower import RoundRecord, ScheduledStrategy, TimedExchange

from ..settings.base import Settings
from ..settings.run import ServerConfig
from .checkpoint import Checkpoint, CheckpointFolder
from .directory import ROUNDS, RunDirectory, count_rounds, digest_rounds, read_rounds
from .totals import RunHistory

FOLDER: Final = "checkpoint"
"""Folder of the run directory."""
MAY_DIFFER: Final = frozenset(
    (
        *("rounds", "target-accuracy", "wait-s", "min-clients"),
        *("checkpoint-every", "checkpoint-required"),
        *("run-dir", "data-dir", "address", "tls", "insecure", "metrics", "page", "deny-list"),
        *("explain", "tracker"),
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


class Checkpointer:
    """Save everything every ``checkpoint-every`` rounds; a round hook.

    Parameters
    ----------
    directory : RunDirectory
        Where to; the folder is :data:`FOLDER` in it.
    config : ServerConfig
        Settings.
    strategy : ScheduledStrategy
        What to save.
    grid : TimedExchange
        The grid that it runs on.

    Attributes
    ----------
    saved_round : int
        The round of the last checkpoint.
    """

    def __init__(
        self,
        directory: RunDirectory,
        config: ServerConfig,
        strategy: ScheduledStrategy,
        grid: TimedExchange,
    ) -> None:
        self._directory = directory
        self._config = config
        self._strategy = strategy
        self._grid = grid
        self._folder = CheckpointFolder(directory.path / FOLDER)
        self.saved_round = 0

    def begin(self, num_rounds: int) -> None:
        """Take note of the rounds that are done; of a new run save that there are none.

        Who finds no checkpoint then knows that there was one.
        """
        self.saved_round = num_rounds
        if not num_rounds:
            with self._directory.tolerating("checkpoint"):
                self._folder.save(0, {"settings": self._config.to_mapping()})

    def __call__(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Save the state after a round, if it is due."""
        config = self._config
        if record.round % config.checkpoint_every == 0 or record.round == config.rounds:
            self._save(record.round, arrays)

    def finish(self, num_rounds: int, arrays: ArrayRecord) -> None:
        """Save the state after the last round of a run that ends or was stopped.

        Not if it was stopped within the next round, of which something was learned already: the
        checkpoint before stands.
        """
        if self.saved_round < num_rounds == self._strategy.policy.last_round:
            self._save(num_rounds, arrays)

    def _save(self, server_round: int, arrays: ArrayRecord) -> None:
        grid = self._grid
        state = {
            "settings": self._config.to_mapping(),
            "model": {key: array.numpy() for key, array in arrays.items()},
            "strategy": self._strategy.state_dict(),
            "grid": grid.state_dict() if isinstance(grid, StatefulGrid) else None,
            "random": _random_state(),
            "rounds": self._directory.digest,
        }
        with self._directory.tolerating("checkpoint"):
            self._directory.sync()
            self._folder.save(server_round, state)
            self.saved_round = server_round


def has_model(config: ServerConfig) -> bool:
    """Tell whether a run has come so far that it needs no model to begin with."""
    return bool(config.run_dir) and CheckpointFolder(Path(config.run_dir) / FOLDER).has_rounds()


def load_checkpoint(run_dir: Path, config: ServerConfig) -> Checkpoint | None:
    """Return the newest good checkpoint of a run; ``None`` if the run did not get as far as one.

    Raises
    ------
    ConfigError
        If it was made with other settings, which are named, or has more rounds than are wanted,
        or if there are rounds but no checkpoint that can be read: they would be overwritten.
    """
    found = CheckpointFolder(run_dir / FOLDER).load()
    if found is None:
        if rounds := count_rounds(run_dir):
            message = f"has {rounds} rounds, and no checkpoint that can be read"
            raise ConfigError("resume", str(run_dir), message)
        return None
    # What an earlier version did not know has its default.
    before, now = {**ServerConfig().to_mapping(), **found.state["settings"]}, config.to_mapping()
    require_same(run_dir, before, now)
    if found.round > config.rounds:
        message = f"must be at least {found.round}, the rounds that were run"
        raise ConfigError("rounds", config.rounds, message)
    return found


def resumed_settings(
    run_dir: Path, given: Mapping[str, Any], kind: type[Settings]
) -> dict[str, Any]:
    """Return the settings of a run that is to go on: its own, and those given that may differ.

    Parameters
    ----------
    run_dir : Path
        Its folder.
    given : mapping
        Settings from the command line.
    kind : type of Settings
        What the command takes.

    Raises
    ------
    ConfigError
        If there is no run, or one of another command, or a setting differs that must not.
    """
    before = _read_settings(run_dir)
    if before.keys() - kind.settings().keys() and kind.settings().keys() - before.keys():
        other = "python -m simulation" if "scenario" in before else "flower-server"
        raise ConfigError("resume", str(run_dir), f"must be a run of this command, not of {other}")
    if "run-dir" in given and Path(given["run-dir"]) != run_dir:
        raise ConfigError(
            "run-dir", given["run-dir"], "must not be given: --resume names the folder"
        )
    known = {key: field.default for key, field in kind.settings().items()} | before
    require_same(run_dir, {key: known[key] for key in given if key in known}, given)
    return {**before, **given, "run-dir": str(run_dir)}


def continued_settings(run_dir: Path, now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that is to go on as a whole new set of them says.

    Unlike with :func:`resumed_settings` what is not given is not the run's, but the default: a
    setting that was taken back is taken back.

    Parameters
    ----------
    run_dir : Path
        Its folder.
    now : mapping
        All settings.

    Raises
    ------
    ConfigError
        If there is no run, or a setting differs that must not.
    """
    before = _read_settings(run_dir)
    require_same(run_dir, before, {key: now[key] for key in now if key in before})
    return {**now, "run-dir": str(run_dir)}


def _read_settings(run_dir: Path) -> dict[str, Any]:
    file = run_dir / "config.toml"
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            "resume", str(run_dir), f"must be the folder of a run ({reason})"
        ) from None


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
        raise ConfigError("resume", str(run_dir), f"the run has other settings: {told}")


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
        raise ConfigError(
            "resume", str(run_dir), f"must be a run whose model has the arrays {list(like)}"
        )
    strategy.load_state_dict(state["strategy"])
    if isinstance(grid, StatefulGrid) and state["grid"] is not None:
        grid.load_state_dict(state["grid"])
    names = [arm.name for arm in strategy.arms.arms]
    records = read_rounds(run_dir, saved.round, names)
    _set_random_state(state["random"])
    arrays = ArrayRecord({key: Array(model[key]) for key in like})
    history = RunHistory(arrays, records, target_accuracy=config.target_accuracy)
    # Earlier versions did not note of which rounds a checkpoint was made.
    if "rounds" in state and state["rounds"] != digest_rounds(run_dir, saved.round):
        message = f"its checkpoint was made after other rounds than those in its {ROUNDS}"
        raise ConfigError("resume", str(run_dir), message)
    return history


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
