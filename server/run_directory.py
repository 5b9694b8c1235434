"""The run directory: one format for simulation and deployment, written as the run goes."""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, Self

import filelock
import safetensors.numpy
import tomli_w
from flwr.app import Array, ArrayRecord
from safetensors import SafetensorError

from strategies import ConfigError
from strategies.flower import LOGGER, Arm, RoundRecord

SCHEMA: Final = 1
"""Version of the lines in ``rounds.jsonl``."""
_ROUNDS: Final = "rounds.jsonl"
_MAX_LISTED_ARMS: Final = 200
"""Above this many arms the availability is not listed by arm."""


def default_run_dir(what: str) -> Path:
    """Return a new name below ``runs``: the time, what runs, and a token.

    Two runs that start in the same second get two names.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{stamp}-{what}-{secrets.token_hex(2)}"


def refuse_existing(path: Path) -> None:
    """Refuse a run directory that exists already.

    Raises
    ------
    ConfigError
        If it does: results are never overwritten or mixed.
    """
    try:
        exists = path.exists()
    except OSError as error:  # a name that is too long, for one
        raise ConfigError(
            "run-dir", str(path), f"a folder that can be created ({error.strerror})"
        ) from None
    if exists:
        raise ConfigError("run-dir", str(path), "a folder that does not exist yet")


def lock_run(path: Path) -> filelock.BaseFileLock:
    """Claim a run directory for this process, until the lock is released or the process ends.

    Raises
    ------
    ConfigError
        If another process writes it.
    OSError
        If it cannot be written.
    """
    lock = filelock.FileLock(path / ".lock", blocking=False)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise ConfigError("run-dir", str(path), "a run that no other process writes") from None
    return lock


def read_rounds(path: Path, num_rounds: int, names: Sequence[str]) -> Iterator[RoundRecord]:
    """Read the first rounds of a run directory, one at a time.

    Parameters
    ----------
    path : Path
        The folder.
    num_rounds : int
        How many.
    names : sequence of str
        What its arms are called, by index.

    Raises
    ------
    ConfigError
        If it holds fewer.
    """
    file = path / _ROUNDS
    found = 0
    with suppress(FileNotFoundError), file.open("rb") as lines:
        for line in islice(lines, num_rounds):
            found += 1
            try:
                record = _parse_round(line, names)
            except (ValueError, TypeError, LookupError):
                allowed = f"a run whose {file.name} can be read: line {found} is damaged"
                raise ConfigError("resume", str(path), allowed) from None
            yield record
    if found < num_rounds:
        raise ConfigError("resume", str(path), f"a run with {num_rounds} rounds in {file.name}")


def _parse_round(line: bytes, names: Sequence[str]) -> RoundRecord:
    found = json.loads(line)
    values = {f.name: found[f.name] for f in fields(RoundRecord) if f.name in found}
    values.setdefault("available", list(range(found["num_available"])))
    return RoundRecord(**values, names=[names[arm] for arm in found["selected"]])


def load_model(path: Path, *, like: ArrayRecord) -> ArrayRecord:
    """Read a model that a run directory holds.

    Parameters
    ----------
    path : Path
        A ``model.safetensors``.
    like : ArrayRecord
        A model of the kind that is expected.

    Raises
    ------
    ConfigError
        If it cannot be read, or holds other arrays than expected.
    """
    try:
        found = safetensors.numpy.load_file(path)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            "initial-model", str(path), f"a readable safetensors file ({reason})"
        ) from None
    want = {key: (array.shape, array.dtype) for key, array in like.items()}
    have = {key: (array.shape, str(array.dtype)) for key, array in found.items()}
    if have != want:
        raise ConfigError("initial-model", str(path), f"a model with the arrays {want}")
    return ArrayRecord({key: Array(found[key]) for key in like})


class RunDirectory:
    """Write a run's settings, rounds, arms, models and summary; a reader never sees half a line.

    Parameters
    ----------
    path : Path
        Folder to create; it must not exist.
    config : mapping
        Resolved settings, written to ``config.toml``.

    Raises
    ------
    ConfigError
        If the folder exists or cannot be created; nothing is left behind.
    """

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        refuse_existing(path)
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise ConfigError(
                "run-dir", str(path), f"a folder that can be created ({error.strerror})"
            ) from None
        self._open(path)
        self._write("config.toml", tomli_w.dumps(dict(config)))

    @classmethod
    def reopen(cls, path: Path, num_rounds: int) -> Self:
        """Go on with the directory of a run that was interrupted.

        Parameters
        ----------
        path : Path
            The folder.
        num_rounds : int
            Rounds to keep: those after the checkpoint are cut from ``rounds.jsonl``.

        Raises
        ------
        OSError
            If it cannot be read or written.
        """
        directory = cls.__new__(cls)
        directory._open(path)
        with (path / _ROUNDS).open("rb+") as lines:
            for line in islice(lines, num_rounds):
                accuracy = json.loads(line)["accuracy"]
                if accuracy is not None:
                    directory._best_accuracy = max(directory._best_accuracy, accuracy)
            lines.truncate()
        return directory

    def _open(self, path: Path) -> None:
        self.path = path
        self._lock = lock_run(path)
        self._rounds: IO[str] = (path / _ROUNDS).open("a", encoding="utf-8")
        self._log = logging.FileHandler(path / "log.txt", encoding="utf-8")
        self._log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        LOGGER.addHandler(self._log)
        self._begin = time.monotonic()
        self._best_accuracy = -1.0
        self._arms: list[dict[str, Any]] | None = None

    def write_round(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Append one line to ``rounds.jsonl`` and keep the best model; a round hook."""
        line: dict[str, Any] = {
            "schema": SCHEMA,
            "round": record.round,
            "time_s": record.time_s,
            "round_s": record.round_s,
            "num_arms": record.num_arms,
            "num_available": len(record.available),
        }
        if record.num_arms <= _MAX_LISTED_ARMS:
            line["available"] = record.available
            line["absent"] = record.absent
        line |= {
            "selected": record.selected,
            "rtt_s": record.rtt_s,
            "completed": record.completed,
            "reason": record.reason,
            "compute_s": record.compute_s,
            "link_s": record.link_s,
            "stepped": record.stepped,
            "no_step": record.no_step,
            "accuracy": record.accuracy,
            "loss": record.loss,
            "wall": {"time_s": round(time.monotonic() - self._begin, 6)},
        }
        # One write call per line: whoever reads along sees whole lines only.
        with self._naming_rounds():
            self._rounds.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
            self._rounds.flush()
        if record.accuracy is not None and record.accuracy > self._best_accuracy:
            self._best_accuracy = record.accuracy
            self.write_model("best", arrays)

    def note_arms(self, arms: Sequence[Arm], floors: Sequence[float] | None) -> None:
        """Write ``arms.json``, if it has changed: index, name, examples and floor of each arm.

        ``rounds.jsonl`` knows arms by index, so this file must be there whatever ends the run.
        """
        rows = [
            {
                "index": arm.index,
                "name": arm.name,
                "num_examples": arm.num_examples,
                "floor": None if floors is None else floors[arm.index],
            }
            for arm in arms
        ]
        if rows != self._arms:
            self._write("arms.json", json.dumps(rows, indent=1) + "\n")
            self._arms = rows

    def write_model(self, which: str, arrays: ArrayRecord) -> None:
        """Write ``model.safetensors`` (``which="last"``) or ``model-best.safetensors``."""
        name = "model.safetensors" if which == "last" else f"model-{which}.safetensors"
        data = safetensors.numpy.save({key: array.numpy() for key, array in arrays.items()})
        self._write(name, data)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``."""
        self._write("summary.json", json.dumps(dict(summary), indent=1) + "\n")

    def sync(self) -> None:
        """Bring the rounds to the disk: a checkpoint must not outlive them."""
        with self._naming_rounds():
            os.fsync(self._rounds.fileno())

    def count_rounds(self) -> int:
        """Return how many rounds ``rounds.jsonl`` holds."""
        with (self.path / _ROUNDS).open("rb") as lines:
            return sum(line.endswith(b"\n") for line in lines)  # the last one may be torn

    def close(self) -> None:
        """Close the open files, and let others have the folder."""
        LOGGER.removeHandler(self._log)
        for file in (self._rounds, self._log):
            with suppress(OSError):  # a full disk: whoever wrote has said so
                file.close()
        self._lock.release()

    @contextmanager
    def _naming_rounds(self) -> Iterator[None]:
        """Give the system's errors the name of the file that they are about."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path / _ROUNDS)) from None

    def _write(self, name: str, data: str | bytes) -> None:
        """Replace a file as a whole: a reader sees the old or the new one."""
        target = self.path / name
        temporary = target.with_name(f".{name}.tmp")
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)
        os.replace(temporary, target)
