"""Resuming a run: its whole state is saved after rounds, and restored from a checkpoint."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from flwr.app import ArrayRecord

from flower_scheduling.errors import ConfigError
from flower_scheduling.strategies.flower import LOGGER, RoundRecord

from ..callbacks import RoundCallback, Run, RunEnd
from ..settings.base import Settings
from ..settings.fleet import APP_CONFIG, OF_ANY_APP, WRAPPED, FleetConfig
from ..settings.run import ServerConfig
from .checkpoint import Checkpoint, CheckpointFolder, PackedState
from .directory import ROUNDS, count_rounds, digest_rounds, read_rounds
from .model_files import pack_array, unpack_array

FOLDER: Final = "checkpoint"
"""Folder of the run directory."""
# Settings that a resumed run may have otherwise: what was learned does not depend on them.
MAY_DIFFER: Final = (OF_ANY_APP - {"app", "compress"}) | {
    *("rounds", "target-accuracy", "wait-s", "min-clients", "data-dir"),
    APP_CONFIG,  # which holds the app's own number of rounds
}
_ABSENT: Final = object()
_AT_ONCE_BYTES: Final = 2**20  # of arrays: a state that is written within milliseconds


@runtime_checkable
class StatefulGrid(Protocol):
    """A grid with a state of its own that the next round depends on: a simulated one."""

    def state_dict(self) -> dict[str, Any]:
        """Return it; nothing that needs pickle."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` left off."""


class Checkpointer(RoundCallback):
    """A callback that saves everything that the next round depends on, every few rounds.

    Checkpoints go to the folder :data:`FOLDER` of the run directory. That of a large model is
    written by a thread, from the arrays themselves; one that is due meanwhile is made after the
    round in which the thread is done. At the end of the run the last state is on the disk.
    """

    def on_start(self, run: Run) -> None:
        """Save, of a new run, that there are no rounds yet: later it is known that one was saved.

        Raises
        ------
        ConfigError
            If the wrapped strategy holds something that cannot be saved.
        OSError
            If it cannot be written.
        """
        assert run.directory is not None
        run.strategy.require_savable()
        self._run, self._directory, self._unsavable = run, run.directory, False
        self._due = False
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None
        self._folder = CheckpointFolder(run.directory.path / FOLDER)
        run.saved_round = run.done
        if not run.done:
            with self._directory.tolerating("checkpoint"):
                self._folder.save(0, {"settings": dict(run.settings)})

    def on_round(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Save the state after a round, if it is due and the one before is written."""
        run = self._run
        if self._writing is not None and self._writing.done():
            self._finish_writing()
        if record.round % run.checkpoint_every == 0 or record.round == run.num_rounds:
            self._due = True
        if self._due and self._writing is None:
            self._save(record.round, arrays)

    def on_end(self, status: RunEnd, summary: Mapping[str, Any]) -> None:
        """Save the state after the last round, unless a fault ended the run.

        Not either if it was stopped within the next round, of which the policy has learned
        something already: the checkpoint before stands.
        """
        run, num_rounds = self._run, self._run.totals.rounds
        try:
            self._finish_writing()
            if status is RunEnd.FAILED or run.saved_round >= num_rounds:
                return
            if run.strategy.learned_rounds == num_rounds:
                self._save(num_rounds, run.arrays)
                self._finish_writing()
        finally:
            self._thread.shutdown()

    def _save(self, server_round: int, arrays: ArrayRecord) -> None:
        self._due = False
        run, grid = self._run, self._run.grid
        try:
            strategy = run.strategy.state_dict()
        except ConfigError as error:  # of something that it did not hold at the start
            if not self._unsavable:
                LOGGER.warning("no further checkpoints: %s", error)
            self._unsavable = True
            return
        state = {
            "settings": dict(run.settings),
            "model": {key: pack_array(array) for key, array in arrays.items()},
            "initial": run.initial,
            "strategy": strategy,
            "grid": grid.state_dict() if isinstance(grid, StatefulGrid) else None,
            "random": _random_state(),
            "rounds": self._directory.digest,
        }
        packed = PackedState.of(server_round, state)
        with self._directory.tolerating("checkpoint of these rounds"):
            self._directory.sync()
            self._writing = self._thread.submit(self._write, packed)
        if packed.num_bytes <= _AT_ONCE_BYTES:
            self._finish_writing()

    def _write(self, packed: PackedState) -> None:
        self._folder.write(packed)
        self._run.saved_round = packed.round

    def _finish_writing(self) -> None:
        """Wait until the thread has written what it writes."""
        if (writing := self._writing) is not None:
            wait([writing])
            self._writing = None
            with self._directory.tolerating("checkpoint"):
                writing.result()


def has_model(config: ServerConfig) -> bool:
    """Return whether a run has come so far that it needs no model to begin with."""
    return bool(config.run_dir) and CheckpointFolder(Path(config.run_dir) / FOLDER).has_rounds()


def load_checkpoint(
    run_dir: Path, settings: Mapping[str, Any], num_rounds: int
) -> Checkpoint | None:
    """Return the newest good checkpoint of a run; ``None`` if the run did not get as far as one.

    Parameters
    ----------
    run_dir : Path
        The run directory.
    settings : mapping
        The settings that the run is to go on with.
    num_rounds : int
        Rounds that are wanted.

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
    known = {key: value for key, value in ServerConfig().to_mapping().items() if key in settings}
    before = {**known, **found.state["settings"]}
    check_same_settings(run_dir, before, settings)
    if found.round > num_rounds:
        message = f"must be at least {found.round}, the rounds that were run"
        raise ConfigError("rounds", num_rounds, message)
    return found


def resumed_settings(
    run_dir: Path,
    given: Mapping[str, Any],
    kind: type[Settings],
    of_app: Collection[str] = (),
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
    of_app : collection of str
        Of the run of another app, the keys that the command goes on with; by default those of
        ``flower-server``.

    Raises
    ------
    ConfigError
        If there is no run, or one of another command, or a setting differs that must not.
    """
    before = read_settings(run_dir)
    if WRAPPED in before:
        if not of_app:
            _require_fleet(run_dir, before)
            kind = FleetConfig
        of_app = of_app or OF_ANY_APP
    elif before.keys() - kind.settings().keys() and kind.settings().keys() - before.keys():
        other = "python -m simulation" if "scenario" in before else "flower-server"
        raise ConfigError("resume", str(run_dir), f"must be a run of this command, not of {other}")
    if "run-dir" in given and Path(given["run-dir"]) != run_dir:
        raise ConfigError(
            "run-dir", given["run-dir"], "must not be given: --resume names the folder"
        )
    known = {key: field.default for key, field in kind.settings().items()} | before
    check_same_settings(run_dir, {key: known[key] for key in given if key in known}, given)
    if WRAPPED in before:
        before = {key: value for key, value in before.items() if key in of_app}
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
    before = read_settings(run_dir)
    if WRAPPED in before or now.get("app"):  # the rest is compared when the app starts its run
        before, now = {"app": before.get("app", "")}, {**now}
    check_same_settings(run_dir, before, {key: now[key] for key in now if key in before})
    return {**now, "run-dir": str(run_dir)}


def _require_fleet(run_dir: Path, before: Mapping[str, Any]) -> None:
    """Refuse a run of another app that was not one of ``flower-server``."""
    message = ""
    if "num-clients" in before:
        message = "must be a run of this command, not of python -m simulation"
    elif not before.get("app"):
        message = "is a run of an app of its own: start that with ScheduledStrategy(resume=True)"
    if message:
        raise ConfigError("resume", str(run_dir), message)


def read_settings(run_dir: Path) -> dict[str, Any]:
    """Return the settings that a run directory holds.

    Raises
    ------
    ConfigError
        If there are none.
    """
    file = run_dir / "config.toml"
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(error, FileNotFoundError):
            reason = f"it has no {file.name}"
        raise ConfigError(
            "resume", str(run_dir), f"must be the folder of a run ({reason})"
        ) from None


def check_same_settings(run_dir: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse settings that differ from those that the run began with.

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
        listed = "; ".join(f"{key} = {before.get(key)!r}, not {now.get(key)!r}" for key in keys)
        raise ConfigError("resume", str(run_dir), f"the run has other settings: {listed}")


def restore(saved: Checkpoint, run_dir: Path, run: Run) -> None:
    """Bring a run that was not started yet to a checkpoint: strategy, grid, model, totals.

    Parameters
    ----------
    saved : Checkpoint
        From :func:`load_checkpoint`.
    run_dir : Path
        Where its rounds are.
    run : Run
        With the initial model, and a strategy that was built with the same settings.

    Raises
    ------
    ConfigError
        If the rounds are not there, or anything does not fit.
    """
    state = saved.state
    model = state["model"]
    # Checkpoints of earlier versions do not know the initial model: its names are the model's.
    initial = state.get("initial")
    if (initial.keys() if initial is not None else model.keys()) != run.initial.keys() or (
        initial is not None and initial != run.initial
    ):
        message = f"must be a run whose model has the arrays {list(run.initial)}"
        raise ConfigError("resume", str(run_dir), message)
    run.strategy.load_state_dict(state["strategy"])
    if isinstance(run.grid, StatefulGrid) and state["grid"] is not None:
        run.grid.load_state_dict(state["grid"])
    _set_random_state(state["random"])
    names = [arm.name for arm in run.strategy.arms.arms]
    for record in read_rounds(run_dir, saved.round, names):
        run.totals.count(record)
    run.arrays = ArrayRecord({key: unpack_array(model.pop(key)) for key in list(model)})
    run.done = saved.round
    # Checkpoints of earlier versions have no digest of their rounds.
    if "rounds" in state and state["rounds"] != digest_rounds(run_dir, saved.round):
        message = f"its checkpoint was made after other rounds than those in its {ROUNDS}"
        raise ConfigError("resume", str(run_dir), message)


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
