"""Pieces of work that are computed once: in processes, kept in files, taken up where it stopped."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from importlib.resources import files
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

_COMPUTING: Final = (
    "strategies",
    "client.learning",
    "client.link",
    "simulation.benchmark",
    "simulation.engine",
    "simulation.environments",
    "simulation.paper",
    "simulation.theory",
)
"""Packages that results follow from, beside their settings."""
_ONE_THREAD: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Arrays: TypeAlias = dict[str, NDArray[Any]]
"""Result of a piece: arrays by name."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the work whose result depends on nothing but its description.

    Attributes
    ----------
    name : str
        Readable, unique among the pieces of a run; part of its file's name.
    compute : partial
        Makes the result; a partial of a function of a module, so that another process can call it.
    cost_s : float
        Estimate of the time it takes [s], for the progress and the order.
    """

    name: str
    compute: partial[Arrays]
    cost_s: float

    def path(self, folder: Path) -> Path:
        """Return its file: another description, or other code, is another file."""
        text = json.dumps([describe(self.compute), code_digest()], sort_keys=True)
        return folder / f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.npz"


def describe(value: object) -> Any:
    """Return what a value is made of, ready for JSON: equal descriptions, equal results.

    Raises
    ------
    TypeError
        If it holds something that has no such description, a lambda for one.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {"map": [[describe(key), describe(item)] for key, item in value.items()]}
    if isinstance(value, Sequence):
        return [describe(item) for item in value]
    if isinstance(value, partial):
        return {"call": describe(value.func), "args": describe([*value.args, value.keywords])}
    if is_dataclass(value) and not isinstance(value, type):
        items = {item.name: describe(getattr(value, item.name)) for item in fields(value)}
        return {"class": describe(type(value)), "fields": items}
    name = getattr(value, "__qualname__", "")
    if name and "<" not in name:  # no lambda, nothing local
        return f"{getattr(value, '__module__', '')}.{name}"
    raise TypeError(f"{value!r} has no description")


@cache
def code_digest() -> str:
    """Return a digest of the code that computes."""
    digest = hashlib.sha256()
    for package in _COMPUTING:
        folder = files(f"flower_scheduling.{package}")
        assert isinstance(folder, Path)
        for file in sorted(folder.rglob("*.py")):
            name = file.relative_to(folder).as_posix()
            digest.update(f"{package}\0{name}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def load(path: Path) -> Arrays | None:
    """Return the result in a file; nothing if there is none that can be read."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            return dict(found)
    except Exception:  # a damaged file may raise anything, and is computed again
        return None


def compute_all(
    pieces: Iterable[Piece],
    folder: Path,
    *,
    num_processes: int,
    on_done: Callable[[Piece, bool], None] = lambda piece, computed: None,
) -> dict[str, Arrays]:
    """Return the results of pieces, computing those that are not in the folder yet.

    Each is written as soon as it is done. Whatever stops this, no piece is computed twice.

    Parameters
    ----------
    pieces : iterable of Piece
        What is wanted.
    folder : Path
        Where results are kept; created if need be.
    num_processes : int, >= 1
        Processes that share the work. Results do not depend on it: a piece is computed in a fresh
        process with one thread in any case.
    on_done : callable
        Told of each piece, and whether it had to be computed.

    Returns
    -------
    dict of str to Arrays
        By name, in the order given.
    """
    pieces = list(pieces)
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Arrays | None] = {}
    missing = []
    for piece in pieces:
        results[piece.name] = found = load(piece.path(folder))
        if found is None:
            missing.append(piece)
        else:
            on_done(piece, False)
    if missing:
        for variable in _ONE_THREAD:  # the processes inherit it, before they load numpy
            os.environ.setdefault(variable, "1")
        missing.sort(key=lambda piece: -piece.cost_s)  # the longest first: both end together
        pool = ProcessPoolExecutor(
            min(num_processes, len(missing)),
            mp_context=get_context("spawn"),
            initializer=_begin,
        )
        try:
            waiting: dict[Future[Arrays], Piece] = {
                pool.submit(_compute, piece, folder): piece for piece in missing
            }
            for done in as_completed(waiting):
                piece = waiting[done]
                results[piece.name] = done.result()
                on_done(piece, True)
            pool.shutdown()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                process.terminate()
            raise
    return {name: found for name, found in results.items() if found is not None}


def _begin() -> None:
    """Make a worker that leaves Ctrl-C to whoever waits for it, and ends when nobody does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _compute(piece: Piece, folder: Path) -> Arrays:
    """Compute a piece and keep it, in a process of its own."""
    result = piece.compute()
    path = piece.path(folder)
    # Of this process alone: another run may be at the same piece.
    temporary = path.with_name(f".{path.stem}-{os.getpid()}.tmp.npz")
    np.savez_compressed(temporary, **result)  # type: ignore[arg-type]  # its stub: allow_pickle
    os.replace(temporary, path)
    return result
