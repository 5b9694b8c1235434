"""Reports of rounds to TensorBoard, MLflow and Weights & Biases, without harm to the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord

from flower_scheduling.strategies.flower import RoundRecord

from ...callbacks import RoundCallback, Run, RunEnd
from ...runs.directory import read_rounds
from .base import RoundPoint, TrackedRun
from .catalog import TRACKERS
from .metrics import RoundMetrics, summary_metrics
from .tracker_thread import TrackerThread, log_dropped


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without tables: trackers know keys and values."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        inner = value.items() if isinstance(value, Mapping) else ()
        flat |= {f"{key}.{name}": each for name, each in inner} if inner else {key: value}
    return flat


class Trackers(RoundCallback):
    """A callback for the trackers of a run. Nothing here raises.

    Parameters
    ----------
    names : sequence of str
        Of :data:`TRACKERS`.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._threads: list[TrackerThread] = []

    def on_start(self, run: Run) -> None:
        """Open the run in every tracker; what needs a network is not waited for."""
        assert run.directory is not None
        path, strategy, done = run.directory.path, run.strategy, run.done
        names = [arm.name for arm in strategy.arms.arms]
        self.begin(
            TrackedRun(
                path,
                _flat(run.directory.config),
                done,
                lambda first: read_rounds(path, done, names, queues_from=first),
            ),
            RoundMetrics(run.totals, lambda: strategy.floors, lambda: strategy.queues),
        )

    def begin(self, run: TrackedRun, metrics: RoundMetrics) -> None:
        """Open a run in every tracker, whose rounds become these metrics."""
        self._begin_s, self._metrics = run.begin_s, metrics
        self._threads = []
        for name in self._names:
            try:
                tracker = TRACKERS[name]()
            except Exception as error:
                log_dropped(name, error)
                continue
            thread = TrackerThread(name, tracker, run, metrics.of_earlier())
            self._threads.append(thread)
            thread.start()

    def on_round(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Report a round that the totals have counted."""
        if not self._threads:
            return
        point = RoundPoint(record.round, self._begin_s + record.time_s, self._metrics(record))
        for thread in self._threads:
            thread.log(point)

    def on_end(self, status: RunEnd, summary: Mapping[str, Any]) -> None:
        """Close the run in every tracker, and wait for that within bounds."""
        for thread in self._threads:
            thread.end(status, summary_metrics(summary))
        for thread in self._threads:
            thread.join()
