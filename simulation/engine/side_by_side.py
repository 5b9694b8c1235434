"""Simulations side by side: each in a process of its own, watched and stopped by this one."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Final, TypeAlias

from flwr.app import ArrayRecord

from flower_scheduling.errors import WorkerError
from flower_scheduling.server.runtimes.signals import stoppable
from flower_scheduling.signals import signals_of
from flower_scheduling.strategies.flower import LOGGER, RoundRecord

from ..jobs import end_with_parent
from ..settings import SimulationConfig
from ..terminal.progress import Display, RoundReporter, RunStatus
from .apps.settings import AppConfig
from .apps.written_files import files_since
from .runner import SimulationResult
from .simulations import create_simulation

_LOOK_S: Final = 0.1
_Report: TypeAlias = tuple[str, RunStatus] | logging.LogRecord
"""How far the run of a label is, or a line of its log."""

_reports: SimpleQueue[_Report]  # of a worker process, as is the next
_stop: Event


def simulate_side_by_side(
    configs: Sequence[SimulationConfig],
    num_processes: int,
    progress: Display,
    *,
    apart: bool = False,
) -> list[SimulationResult]:
    """Run simulations in several processes; results do not depend on how many.

    The first signal ends all of them after the round that is under way, and so does a fault in one
    of them: their run directories are complete then.

    Parameters
    ----------
    configs : sequence of SimulationConfig
        What to run, of different policies.
    num_processes : int, >= 1
        How many at once.
    progress : Display
        Where it is shown how far each of them is.
    apart : bool
        Whether each has a process of its own, so that nothing of one, such as what an app keeps in
        its modules, is left for the next.

    Returns
    -------
    list of SimulationResult
        In the order of the settings.

    Raises
    ------
    KeyboardInterrupt
        After a signal.
    WorkerError
        If a process was killed.
    Exception
        The first that a simulation has raised.
    """
    context = get_context("spawn")  # not fork: torch and gRPC have threads
    reports: SimpleQueue[_Report] = context.SimpleQueue()
    stop = context.Event()
    failure: BaseException | None = None
    num_processes = min(num_processes, len(configs))
    with stoppable(between_rounds=True) as raise_if_asked, ExitStack() as pools:

        def new_pool(size: int) -> ProcessPoolExecutor:
            return pools.enter_context(ProcessPoolExecutor(size, context, _begin, (reports, stop)))

        shared = None if apart else new_pool(num_processes)
        waiting, futures = list(configs), []
        running: set[Future[SimulationResult | None]] = set()
        while running or waiting:
            while waiting and len(running) < num_processes:
                pool = shared or new_pool(1)
                futures.append(pool.submit(_simulate, waiting.pop(0)))
                running.add(futures[-1])
                if shared is None:
                    pool.shutdown(wait=False)  # its process ends with its simulation
            done, running = wait(running, _LOOK_S)
            _pass_on(reports, progress)
            try:
                for future in done:
                    future.result()
                raise_if_asked()
            except BaseException as error:
                failure = failure or error
            if failure is not None:
                stop.set()
                waiting.clear()
                running = {future for future in running if not future.cancel()}
        _pass_on(reports, progress)
    if isinstance(failure, BrokenProcessPool):
        raise WorkerError from None
    if failure is not None:
        raise failure
    return [result for future in futures if (result := future.result()) is not None]


def _pass_on(reports: SimpleQueue[_Report], progress: Display) -> None:
    """Show and log what the processes have reported."""
    while not reports.empty():
        report = reports.get()
        if isinstance(report, logging.LogRecord):
            LOGGER.handle(report)
        else:
            progress.show(*report)


# --- in a worker process --------------------------------------------------------------------------


class _Forward(logging.Handler):
    """Sends lines of the log to the parent process."""

    def emit(self, record: logging.LogRecord) -> None:
        place, text = (record.pathname, record.lineno), record.getMessage()
        line = logging.LogRecord(record.name, record.levelno, *place, text, None, None)
        if record.exc_info:  # a traceback travels as text
            line.exc_text = logging.Formatter().formatException(record.exc_info)
        _reports.put(line)


def _begin(reports: SimpleQueue[_Report], stop: Event) -> None:
    """Leave signals to the parent process, and end with it."""
    global _reports, _stop
    _reports, _stop = reports, stop
    for each in signals_of("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(each, signal.SIG_IGN)
    end_with_parent()
    # Warnings alone: run directories have every line.
    LOGGER.handlers, LOGGER.propagate = [_Forward(logging.WARNING)], False
    LOGGER.setLevel(logging.INFO)


def _simulate(config: SimulationConfig) -> SimulationResult | None:
    """Run one simulation; ``None`` if it was stopped."""
    if _stop.is_set():
        return None
    report = RoundReporter(lambda status: _reports.put((config.label, status)))
    home, begin_ns = Path.cwd(), time.time_ns()
    try:
        result = create_simulation(config).run([report, _stop_if_asked])
    except KeyboardInterrupt:
        return None
    written: dict[str, int] = {}
    if isinstance(config, AppConfig):
        folders = [home, Path(config.app).resolve()] if config.app else [home]
        written = files_since(begin_ns, folders)
    # What only the run directory's files need does not travel.
    slim = [replace(record, explanation=None, queue=None, picks=[]) for record in result.records]
    return replace(result, records=slim, written=written)


def _stop_if_asked(record: RoundRecord, arrays: ArrayRecord) -> None:
    if _stop.is_set():
        raise KeyboardInterrupt
