"""Cached jobs: each is computed once, in one of several processes, and kept in a file."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from importlib.resources import files
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from flower_scheduling.errors import WorkerError
from flower_scheduling.files import replace_file

# Packages, folders and files that results follow from, beside a job's own description. Whole
# folders, so that what is added to one counts without being listed.
_COMPUTING: Final = (
    "strategies",
    "client/learning",
    "client/link",
    "server/settings",
    "simulation/settings.py",
    "simulation/benchmark",
    "simulation/engine",
    "simulation/environments",
    "simulation/paper",
    "simulation/scenarios",
    "simulation/theory",
)
_ONE_THREAD: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Arrays: TypeAlias = dict[str, NDArray[Any]]
"""Result of a job: arrays by name."""


@dataclass(frozen=True, slots=True)
class Job:
    """A computation whose result depends on its description and our code alone.

    Attributes
    ----------
    name : str
        Readable, unique among the jobs of a run; part of its file's name.
    compute : partial
        Makes the result; a partial of a function of a module, so that another process can call it.
    cost_s : float
        Estimate of the time it takes [s], for the progress and the order.
    code : str
        Digest of code besides ours that the result follows from.
    """

    name: str
    compute: partial[Arrays]
    cost_s: float
    code: str = ""

    def path(self, folder: Path) -> Path:
        """Return its file: another description, or other code, is another file."""
        found = [describe(self.compute), code_digest(), self.code]
        digest = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]
        name = re.sub(r"[^\w.,=-]+", "-", self.name)  # policies may be called folder/file.py:Class
        return folder / f"{name}-{digest}.npz"


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
    if isinstance(value, BaseModel):
        return {"class": describe(type(value)), "fields": describe(dict(value))}
    if is_dataclass(value) and not isinstance(value, type):
        items = {item.name: describe(getattr(value, item.name)) for item in fields(value)}
        return {"class": describe(type(value)), "fields": items}
    name = getattr(value, "__qualname__", "")
    if name and "<" not in name:  # no lambda, nothing local
        return f"{getattr(value, '__module__', '')}.{name}"
    raise TypeError(f"{value!r} has no description")


@cache
def code_digest() -> str:
    """Return a digest of the code and the scenarios that results follow from."""
    return digest_files(_computing_files())


def digest_files(named: Iterable[tuple[str, Path]]) -> str:
    """Return a digest of files and their names."""
    digest = hashlib.sha256()
    for name, file in named:
        digest.update(f"{name}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _computing_files() -> Iterator[tuple[str, Path]]:
    """Yield every file that results follow from, with its name."""
    for entry in _COMPUTING:
        package, _, inside = entry.partition("/")
        root = files(f"flower_scheduling.{package}") / inside
        assert isinstance(root, Path)
        found = [root] if root.is_file() else root.rglob("*")
        chosen = sorted(file for file in found if file.suffix in (".py", ".toml"))
        assert chosen, entry
        for file in chosen:
            yield f"{entry}/{file.relative_to(root).as_posix()}", file


def load(path: Path) -> Arrays | None:
    """Return the result in a file, or ``None`` if there is none that can be read."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            return dict(found)
    except Exception:  # a damaged file may raise anything, and is computed again
        return None


def run_jobs(
    jobs: Iterable[Job],
    folder: Path,
    *,
    num_processes: int,
    on_done: Callable[[Job, bool], None] = lambda job, computed: None,
    compute: Callable[[Sequence[Job]], Iterator[tuple[Job, Arrays]]] | None = None,
    apart: bool = False,
) -> dict[str, Arrays]:
    """Return the results of jobs, computing those that are not in the folder yet.

    Each is written as soon as it is done. Whatever stops this, no job is computed twice.

    Parameters
    ----------
    jobs : iterable of Job
        What is wanted.
    folder : Path
        Where results are kept; created if need be.
    num_processes : int, >= 1
        Processes that share the jobs. Results do not depend on it: a job is computed in a process
        of its own, with one thread, in any case.
    on_done : callable
        Called with each job and whether it had to be computed.
    compute : callable, optional
        Yields jobs and their results instead of processes here, for one :meth:`.Cluster.compute`.
    apart : bool
        Whether each job has a process of its own, so that nothing of one, such as what an app keeps
        in its modules, is left for the next.

    Returns
    -------
    dict of str to Arrays
        By name, in the order given.

    Raises
    ------
    WorkerError
        If a process was killed.
    """
    jobs = list(jobs)
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Arrays | None] = {}
    missing = []
    for job in jobs:
        results[job.name] = found = load(job.path(folder))
        if found is None:
            missing.append(job)
        else:
            on_done(job, False)
    if missing:
        missing.sort(key=lambda job: -job.cost_s)  # the longest first: workers end together
        for job, result in (compute or partial(_compute_here, num_processes, apart))(missing):
            _keep(result, job.path(folder))
            results[job.name] = result
            on_done(job, True)
    return {name: found for name, found in results.items() if found is not None}


def _compute_here(
    num_processes: int, apart: bool, jobs: Sequence[Job]
) -> Iterator[tuple[Job, Arrays]]:
    """Yield jobs and their results, computed in processes of this machine."""
    for variable in _ONE_THREAD:  # the processes inherit it, before they load numpy
        os.environ.setdefault(variable, "1")
    pool = ProcessPoolExecutor(
        min(num_processes, len(jobs)),
        mp_context=get_context("spawn"),
        initializer=_init_worker,
        max_tasks_per_child=1 if apart else None,
    )
    waiting: dict[Future[Arrays], Job] = {}
    try:
        waiting |= {pool.submit(_compute, job): job for job in jobs}
        for done in as_completed(waiting):
            yield waiting[done], done.result()
        pool.shutdown()
    except BaseException as error:
        if not apart:
            pool.shutdown(wait=False, cancel_futures=True)
        for future in waiting:
            future.cancel()
        for process in active_children():
            process.terminate()
        if apart:  # waited for: the pool's thread replaces processes for as long as it lives
            pool.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise WorkerError from None
        raise


def _init_worker() -> None:
    """Let the parent process handle Ctrl-C, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """Let this worker process end when its parent does."""
    parent, leave = parent_process(), os._exit  # an app may run under another os._exit
    assert parent is not None

    def exit_with_parent() -> None:
        parent.join()
        leave(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


def _compute(job: Job) -> Arrays:
    """Compute a job, in a worker process."""
    return job.compute()


def _keep(result: Arrays, path: Path) -> None:
    # A name of this process alone: another run may be at the same job.
    temporary = path.with_name(f".{path.stem}-{os.getpid()}.tmp.npz")
    np.savez_compressed(temporary, **result)  # type: ignore[arg-type]  # its stub: allow_pickle
    replace_file(temporary, path)
