"""MLflow: a tracking server, or a database in the run directory."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from flower_scheduling.extras import PROJECT

from ...callbacks import RunEnd
from .base import RoundPoint, TrackedRun, Tracker

_T = TypeVar("_T")


class MlflowTracker(Tracker):
    """A tracker for ``MLFLOW_TRACKING_URI``, or else a database in ``mlflow`` in the run directory.

    Rounds carry the time of the run's own clock. So rounds that a resumed simulation repeats are
    equal to what is there already, and MLflow keeps one of them.
    """

    package = "mlflow"
    _MOST_METRICS: Final = 1000  # in a request, as MLflow has it
    _MOST_PARAMS: Final = 100
    _LONGEST: Final = 5000
    _STATUS: Final = {
        RunEnd.FINISHED: "FINISHED",
        RunEnd.FAILED: "FAILED",
        RunEnd.KILLED: "KILLED",
    }

    def __init__(self) -> None:
        # No telemetry unless it is wanted, and no retries but ours.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        import mlflow

        for name in ("mlflow", "alembic", "urllib3"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self._mlflow = mlflow
        self._uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        self._client: Any = None
        self._run_id = ""

    @property
    def remote(self) -> bool:
        """Whether the store is neither a file nor a database of this machine."""
        scheme = urlsplit(self._uri).scheme
        return self._uri.startswith("databricks") or scheme not in ("", "file", "sqlite")

    def begin(self, run: TrackedRun) -> None:
        """Create a run, or go on with the one before."""
        uri, artifacts = self._uri, None
        if not uri:
            folder = run.folder / "mlflow"
            folder.mkdir(exist_ok=True)
            uri, artifacts = f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()
        self._client = client = self._mlflow.MlflowClient(tracking_uri=uri)
        if not self._run_id:
            self._run_id = self._reopen(run.noted("mlflow_run_id")) or self._create(run, artifacts)
            if self._run_id != run.noted("mlflow_run_id"):
                run.note_taken(self.package, 0)
            run.note("mlflow_run_id", self._run_id)
        known = client.get_run(self._run_id).data.params
        settings = {key: str(value)[: self._LONGEST] for key, value in run.settings.items()}
        param, tag = self._mlflow.entities.Param, self._mlflow.entities.RunTag
        new = [param(key, value) for key, value in settings.items() if key not in known]
        # What was logged stands; settings with which the run was resumed are tags.
        tags = [
            tag(f"resumed.{key}", value)
            for key, value in settings.items()
            if known.get(key, value) != value
        ]
        for some in _chunks(new, self._MOST_PARAMS):
            client.log_batch(self._run_id, params=some)
        client.log_batch(self._run_id, tags=tags)

    def log_rounds(self, points: Sequence[RoundPoint]) -> None:
        """Report all numbers of all rounds in as few requests as MLflow allows."""
        self._log(
            (key, value, point.time_s, point.step)
            for point in points
            for key, value in point.metrics.items()
        )

    def end(self, status: RunEnd, step: int, summary: Mapping[str, float]) -> None:
        """Report the summary, and how the run ended."""
        self._log((key, value, time.time(), step) for key, value in summary.items())
        self._client.set_terminated(self._run_id, status=self._STATUS[status])

    def _log(self, values: Iterator[tuple[str, float, float, int]]) -> None:
        metric = self._mlflow.entities.Metric
        for some in _chunks(values, self._MOST_METRICS):
            metrics = [metric(key, value, round(1000 * s), step) for key, value, s, step in some]
            self._client.log_batch(self._run_id, metrics=metrics)

    def _create(self, run: TrackedRun, artifacts: str | None) -> str:
        experiment = os.environ.get("MLFLOW_EXPERIMENT_ID", "")
        if not experiment:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
            if (found := self._client.get_experiment_by_name(name)) is None:
                # Another run that begins now may be faster.
                with suppress(self._mlflow.exceptions.MlflowException):
                    self._client.create_experiment(name, artifact_location=artifacts)
                found = self._client.get_experiment_by_name(name)
            if found is None:
                raise OSError(f"no experiment {name}, and none can be created")
            experiment = found.experiment_id
        begin_ms = round(1000 * run.begin_s)
        created = self._client.create_run(experiment, start_time=begin_ms, run_name=run.name)
        return str(created.info.run_id)

    def _reopen(self, run_id: str | None) -> str | None:
        """Return the run of an earlier part, open again; ``None`` if the store has none."""
        if run_id is None:
            return None
        try:
            self._client.update_run(run_id, status="RUNNING")
        except self._mlflow.exceptions.MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        return run_id


def _chunks(values: Iterable[_T], size: int) -> Iterator[list[_T]]:
    iterator = iter(values)
    while some := list(islice(iterator, size)):
        yield some
