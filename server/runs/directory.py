"""The run directory: one format for simulation and deployment, written as the run goes."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, Self

import filelock
import numpy as np
import safetensors.numpy
import tomli_w
from flwr.app import Array, ArrayRecord
from safetensors import SafetensorError

from flower_scheduling.errors import ConfigError
from flower_scheduling.files import write_whole
from flower_scheduling.strategies.flower import LOGGER, Arm, RoundRecord

from .model_files import model_file
from .round_lines import line_of, parse_round, read_line
from .scores import ScoreFile, end_of, read_scores

TRUTH: Final = "truth.json"
"""File with the clients' true expected times, where they are known: in simulations."""
ROUNDS: Final = "rounds.jsonl"
STARTS: Final = "start-[0-9]*"
"""Folders with the later runs of an app that starts several, in that of the first."""
# What may be in a folder in which no run has begun
_OF_NO_RUN: Final = frozenset(
    (".lock", ".config.toml.tmp", ".live.json.tmp", "live.json", "lost+found")
)


def start_folder(path: Path, number: int) -> Path:
    """Return the run directory of the first, second, ... run that an app starts."""
    return path if number == 1 else path / f"start-{number}"


def default_run_dir(what: str) -> Path:
    """Return a new name below ``runs``: the time, what runs, and a token.

    Two runs that start in the same second get two names.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{stamp}-{file_name(what)}-{secrets.token_hex(2)}"


def file_name(what: str) -> str:
    """Return a part of a file's name for a policy, which may be called ``module:Class``."""
    return re.sub(r"[^\w.-]+", "-", what)


def ensure_empty(path: Path) -> None:
    """Refuse a run directory in which there is something already, or that cannot be created.

    An empty folder is as good as none, and so is one in which a run was killed before it wrote
    its settings. Nothing is created to find out.

    Raises
    ------
    ConfigError
        If there is something: results are never overwritten or mixed. Or if nothing can be written.
    """
    try:
        names = {file.name for file in path.iterdir()}
    except FileNotFoundError:
        names = set()
    except NotADirectoryError:
        names = {path.name} if path.exists() else set()
    except OSError as error:  # a name that is too long, for one
        raise _no_folder(path, error.strerror) from None
    if names - _OF_NO_RUN:
        held = " (it holds a run, which can be resumed)" if ROUNDS in names else ""
        raise ConfigError(
            "run-dir", str(path), f"must be a folder that does not exist yet, or is empty{held}"
        )
    above = path.absolute()
    while not os.path.lexists(above):
        above = above.parent
    number = 0
    if not above.is_dir():  # a file, or a link to nowhere
        number = errno.ENOTDIR if above.exists() else errno.ENOENT
    elif not os.access(above, os.W_OK | os.X_OK):
        read_only = hasattr(os, "statvfs") and os.statvfs(above).f_flag & os.ST_RDONLY
        number = errno.EROFS if read_only else errno.EACCES
    if number:
        raise _no_folder(path, f"{os.strerror(number)}: {above}")


def _no_folder(path: Path, reason: str | None) -> ConfigError:
    return ConfigError("run-dir", str(path), f"must be a folder that can be created ({reason})")


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
        message = f"must be a run that no other process writes{_holder(path / '.lock')}"
        raise ConfigError("run-dir", str(path), message) from None
    return lock


def _holder(file: Path) -> str:
    """Return which process holds a lock, where Linux knows it, to be put behind a sentence."""
    with suppress(OSError):
        inode = os.stat(file).st_ino
        for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
            found = re.search(rf" (\d+) \w+:\w+:{inode} ", line)
            if found and int(found[1]):  # 0: of another namespace
                return f" (process {found[1]} does)"
    return ""


def read_rounds(
    path: Path, num_rounds: int, names: Sequence[str], *, queues_from: int | None = None
) -> Iterator[RoundRecord]:
    """Read the first rounds of a run directory, one at a time.

    Parameters
    ----------
    path : Path
        The folder.
    num_rounds : int
        How many.
    names : sequence of str
        What its arms are called, by index.
    queues_from : int, optional
        Round from which on to read the virtual queues too, where they were recorded.

    Raises
    ------
    ConfigError
        If it holds fewer, or others.
    """
    file = path / ROUNDS
    found = 0
    with suppress(FileNotFoundError), file.open("rb") as lines:
        for line in islice(lines, num_rounds):
            found += 1
            try:
                record = parse_round(line, found, names)
            except ValueError as error:
                raise _damaged(path, found, error) from None
            if queues_from is not None and found >= queues_from:
                scores = read_scores(path, json.loads(line))
                if scores is not None and scores.owed is not None:
                    record = replace(record, queue=scores.owed.astype(np.float64))
            yield record
    if found < num_rounds:
        raise ConfigError(
            "resume", str(path), f"must be a run with {num_rounds} rounds in {file.name}"
        )


def _damaged(path: Path, number: int, error: ValueError) -> ConfigError:
    why = "" if isinstance(error, json.JSONDecodeError) else f" ({error})"
    message = f"line {number} of its {ROUNDS} is damaged{why}"
    return ConfigError("resume", str(path), message)


def digest_rounds(path: Path, num_rounds: int) -> str:
    """Return what :attr:`RunDirectory.digest` was after so many rounds."""
    digest = hashlib.sha256()
    with (path / ROUNDS).open("rb") as lines:
        for line in islice(lines, num_rounds):
            digest.update(line.rstrip(b"\n"))
    return digest.hexdigest()


def count_rounds(path: Path) -> int:
    """Return how many rounds a run directory holds."""
    try:
        with (path / ROUNDS).open("rb") as lines:
            return sum(line.endswith(b"\n") for line in lines)  # the last one may be torn
    except FileNotFoundError:
        return 0


def written_rounds(path: Path) -> list[dict[str, Any]]:
    """Return the rounds that a run directory holds, as they are written there.

    While another process writes, the last line may be half there: it is left out.
    """
    try:
        data = (path / ROUNDS).read_bytes()
    except FileNotFoundError:
        return []
    *lines, _half = data.split(b"\n")
    return [json.loads(line) for line in lines]


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
            "initial-model", str(path), f"must be a readable safetensors file ({reason})"
        ) from None
    want = {key: (array.shape, array.dtype) for key, array in like.items()}
    have = {key: (array.shape, str(array.dtype)) for key, array in found.items()}
    if have != want:
        raise ConfigError("initial-model", str(path), f"must be a model with the arrays {want}")
    return ArrayRecord({key: Array(found.pop(key)) for key in like})


class RunDirectory:
    """The folder of a run, open for writing: settings, rounds, arms, models and summary.

    A reader sees files as a whole or not at all, and in ``rounds.jsonl`` whole lines but for the
    last, which counts once its line feed is there.

    Parameters
    ----------
    path : Path
        Folder to create; it must not exist, or be empty.
    config : mapping
        Resolved settings, written to ``config.toml``; kept as an attribute.
    disk_required : bool
        Whether a round that cannot be written ends the run. Otherwise it is kept in memory, and
        written when there is room again.

    Raises
    ------
    ConfigError
        If the folder is in use or cannot be created.
    """

    def __init__(
        self, path: Path, config: Mapping[str, Any], *, disk_required: bool = True
    ) -> None:
        ensure_empty(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                "run-dir", str(path), f"must be a folder that can be created ({error.strerror})"
            ) from None
        self._open(path, config, disk_required=disk_required)

    @classmethod
    def reopen(
        cls,
        path: Path,
        config: Mapping[str, Any],
        num_rounds: int,
        *,
        disk_required: bool = True,
    ) -> Self:
        """Go on with the directory of a run that was interrupted.

        Parameters
        ----------
        path : Path
            The folder.
        config : mapping
            Resolved settings, some of which may be new.
        num_rounds : int
            Rounds to keep: those after the checkpoint are cut from ``rounds.jsonl``.
        disk_required : bool
            As above.

        Raises
        ------
        ConfigError
            If another process writes it, or a round is damaged.
        OSError
            If it cannot be read or written.
        """
        directory = cls.__new__(cls)
        directory._open(path, config, num_rounds, disk_required=disk_required)
        return directory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _open(
        self,
        path: Path,
        config: Mapping[str, Any],
        num_rounds: int | None = None,
        *,
        disk_required: bool,
    ) -> None:
        """Lock the folder and open its files; with a number of rounds to keep, of an old run."""
        self.path = path
        self.config = dict(config)
        self._disk_required = disk_required
        self._digest = hashlib.sha256()
        self._unwritten: list[bytes] = []
        self._troubles: set[str] = set()
        self._begin = time.monotonic()
        self._best_accuracy = -1.0
        self._arms: list[str] | None = None
        with ExitStack() as stack:
            stack.callback(lock_run(path).release)
            if num_rounds is None:
                ensure_empty(path)  # another process may have been quicker
            self._write("config.toml", tomli_w.dumps(self.config))
            # Unbuffered: what could not be written must not turn up later, half of it or twice.
            self._rounds: FileIO = (path / ROUNDS).open("ab", buffering=0)
            stack.callback(_close, self._rounds)
            self._size = os.fstat(self._rounds.fileno()).st_size
            log = _QuietFileHandler(path / "log.txt", encoding="utf-8")
            log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            stack.callback(_close, log)
            LOGGER.addHandler(log)
            stack.callback(LOGGER.removeHandler, log)
            self._scores = ScoreFile(path, 0 if num_rounds is None else self._keep(num_rounds))
            stack.callback(_close, self._scores)
            self._resources = stack.pop_all()

    def _keep(self, num_rounds: int) -> int:
        """Read the rounds to keep, and cut off the others; return where their scores end."""
        end, length, text = 0, 0, b"\n"
        with (self.path / ROUNDS).open("rb") as lines:
            for number, text in enumerate(islice(lines, num_rounds), start=1):
                try:
                    line = read_line(text, number)
                    if line.get("scores") and line["scores"]["at"] != end:
                        raise ValueError("its scores do not follow those before")
                except ValueError as error:
                    raise _damaged(self.path, number, error) from None
                if line["accuracy"] is not None:
                    self._best_accuracy = max(self._best_accuracy, line["accuracy"])
                end = max(end, end_of(line))
                length += len(text)
                self._digest.update(text.rstrip(b"\n"))
        self._rounds.truncate(length)
        self._size = length
        if not text.endswith(b"\n"):  # its end is lost: the next round would share its line
            self._size += self._rounds.write(b"\n")
        if not (self.path / "model-best.safetensors").exists():
            self._best_accuracy = -1.0
        return end

    def read(self, num_rounds: int, names: Sequence[str]) -> Iterator[RoundRecord]:
        """Read its first rounds again; see :func:`read_rounds`."""
        return read_rounds(self.path, num_rounds, names)

    def write_round(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Append one line to ``rounds.jsonl`` and keep the best model; a round hook."""
        wall_s = round(time.monotonic() - self._begin, 6)
        line = {**line_of(record), "scores": None, "wall": {"time_s": wall_s}}
        with self.tolerating("scores of the clients"):
            line["scores"] = self._scores.append(record)
        text = json.dumps(line, separators=(",", ":"), allow_nan=False).encode()
        self._digest.update(text)
        self._unwritten.append(text + b"\n")
        with self.tolerating("record of the rounds"):
            self._write_rounds()
        if record.accuracy is not None and record.accuracy > self._best_accuracy:
            with self.tolerating("copy of the best model"):
                self.write_model("best", arrays)
                self._best_accuracy = record.accuracy

    def note_arms(self, arms: Sequence[Arm], floors: Sequence[float] | None) -> None:
        """Write ``arms.json``, if it has changed: index, name, examples and floor of each arm.

        ``rounds.jsonl`` knows arms by index, so this file must be there whatever ends the run.
        """
        rows = [
            json.dumps(
                {
                    "index": arm.index,
                    "name": arm.name,
                    "num_examples": arm.num_examples,
                    "floor": None if floors is None else floors[arm.index],
                }
            )
            for arm in arms
        ]
        if rows != self._arms:
            with self.tolerating("list of the arms"):
                self._write("arms.json", "[\n " + ",\n ".join(rows) + "\n]\n")
                self._arms = rows

    def write_model(self, which: str, arrays: ArrayRecord) -> None:
        """Write ``model.safetensors`` (``which="last"``) or ``model-best.safetensors``."""
        name = "model.safetensors" if which == "last" else f"model-{which}.safetensors"
        self._write(name, model_file(arrays))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``."""
        self._write("summary.json", json.dumps(dict(summary), indent=1) + "\n")

    def write_results(self, summary: Mapping[str, Any], arrays: ArrayRecord) -> list[str]:
        """Write what a run leaves: rounds that there was no room for so far, summary, last model.

        Returns
        -------
        list of str
            What could not be written, with file and reason; empty where the disk is required.

        Raises
        ------
        OSError
            If the disk is required, the first fault, when all that can be is written.
        """
        faults: list[tuple[str, OSError]] = []
        for what, write in (
            ("the last rounds", self._write_rounds),
            ("the summary", partial(self.write_summary, summary)),
            ("the final model", partial(self.write_model, "last", arrays)),
        ):
            try:
                write()
            except OSError as error:
                faults.append((what, error))
        if faults and self._disk_required:
            raise faults[0][1]
        return [f"{what} ({error.filename}: {error.strerror})" for what, error in faults]

    def sync(self) -> None:
        """Bring the rounds to the disk: a checkpoint must not outlive them.

        Raises
        ------
        OSError
            If that cannot be done, or the file was removed.
        """
        self._write_rounds()
        with self._naming_rounds():
            os.fsync(self._rounds.fileno())
            ours, there = os.fstat(self._rounds.fileno()), os.stat(self.path / ROUNDS)
            if not os.path.samestat(ours, there):
                raise OSError(errno.ESTALE, "it is no longer the file that this run writes")

    @contextmanager
    def tolerating(self, what: str) -> Iterator[None]:
        """Let faults of the disk pass, if that is wanted; they are logged once, until it works."""
        try:
            yield
        except OSError as error:
            if self._disk_required:
                raise
            if what not in self._troubles:
                text = "no %s: %s: %s; the run goes on"
                LOGGER.warning(text, what, error.filename, error.strerror)
            self._troubles.add(what)
        else:
            self._troubles.discard(what)

    @property
    def digest(self) -> str:
        """SHA-256 of all rounds so far: a checkpoint belongs to those it was made after."""
        return self._digest.hexdigest()

    def count_rounds(self) -> int:
        """Return how many rounds ``rounds.jsonl`` holds, or will when there is room."""
        return count_rounds(self.path) + len(self._unwritten)

    def close(self) -> None:
        """Close the open files, and let others have the folder."""
        self._resources.close()

    def _write_rounds(self) -> None:
        """Append the lines that wait, all of them or none."""
        data, written = b"".join(self._unwritten), 0
        end = os.fstat(self._rounds.fileno()).st_size
        with self._naming_rounds():
            if end != self._size:
                raise OSError(errno.ESTALE, "another process has changed it")
            try:
                while written < len(data):
                    written += self._rounds.write(data[written:])
            except OSError:
                with suppress(OSError):
                    self._rounds.truncate(end)
                raise
        self._size += written
        self._unwritten.clear()

    @contextmanager
    def _naming_rounds(self) -> Iterator[None]:
        """Give the system's errors the name of the file that they are about."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path / ROUNDS)) from None

    def _write(self, name: str, data: str | Iterable[bytes | memoryview]) -> None:
        write_whole(self.path / name, data)


def _close(file: IO[bytes] | ScoreFile | logging.Handler) -> None:
    with suppress(OSError):  # a full disk: the write has said so
        file.close()


class _QuietFileHandler(logging.FileHandler):
    """A log file without errors of its own: a full disk shows in the rounds, on the same disk."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass
