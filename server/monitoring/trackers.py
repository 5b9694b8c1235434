"""Report rounds to TensorBoard, MLflow and Weights & Biases, without harm to the run."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import re
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import urlsplit

from flwr.app import ArrayRecord

from flower_scheduling.errors import ConfigError, TrackerError, nearest
from flower_scheduling.files import write_whole
from flower_scheduling.strategies.flower import LOGGER, RoundRecord

from .round_metrics import RoundMetrics, summary_metrics

_PROJECT: Final = "flower-client-scheduling"
_IDS: Final = "trackers.json"
"""File of the run directory: what a resumed run needs to go on in the same place."""
_TAKEN: Final = "_last_round"
"""After the name of a tracker: the key under which it is noted what it has taken."""
_MOST_WAITING: Final = 10_000
"""Rounds that are kept for a tracker that does not take them."""
_BATCH: Final = 200
_LINGER_S: Final = 1.0
"""Time between two batches that are not full: seldom much disturbs the measuring less."""
_NOTE_S: Final = 1.0
"""Least time between two notes of what was taken: rounds since the last are sent twice."""
_RETRY_S: Final = 10.0
_DRAIN_S: Final = 30.0
"""Longest wait for a tracker at the end; for a local one, without anything being written."""

_T = TypeVar("_T")


class RunEnd(Enum):
    """How a run ended."""

    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"


@dataclass(frozen=True, slots=True)
class RoundPoint:
    """The numbers of one round.

    Attributes
    ----------
    step : int
        The round.
    time_s : float
        Its end, since the epoch by the run's own clock, which in simulations is virtual.
    metrics : dict of str to float
        By :data:`.METRICS`.
    """

    step: int
    time_s: float
    metrics: dict[str, float]


class TrackedRun:
    """What trackers need to know of a run, and where they note what they will need again.

    Parameters
    ----------
    folder : Path
        The run directory.
    settings : mapping
        All settings.
    done : int
        Rounds of an earlier part of the run.
    read : callable
        Reads these rounds one at a time, from the first one on, given the round from which on
        the virtual queues are wanted too.

    Attributes
    ----------
    name : str
        The folder's.
    begin_s : float
        When the run began, since the epoch [s].
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        done: int = 0,
        read: Callable[[int], Iterator[RoundRecord]] = lambda first: iter(()),
    ) -> None:
        self.folder = folder.resolve()
        self.name = self.folder.name
        self.settings = dict(settings)
        self.done = done
        self.read = read
        self._lock = threading.Lock()
        self._noted: dict[str, Any] = {}
        self._unwritable = False
        with suppress(OSError, ValueError):
            found = json.loads((folder / _IDS).read_text(encoding="utf-8"))
            self._noted = found if isinstance(found, dict) else {}
        begin_s = self._noted.get("begin_s")
        self.begin_s = float(begin_s) if isinstance(begin_s, int | float) else time.time()
        self.note("begin_s", self.begin_s)

    def noted(self, key: str) -> str | None:
        """Return what was noted under a key in an earlier part of the run."""
        value = self._noted.get(key)
        return value if isinstance(value, str) else None

    def taken(self, tracker: str) -> int:
        """Return up to which round of the earlier part a tracker has taken all of them."""
        value = self._noted.get(tracker + _TAKEN)
        return min(value, self.done) if isinstance(value, int) else 0

    def note_taken(self, tracker: str, last: int) -> None:
        """Note up to which round a tracker has taken all of them, if it is not noted yet."""
        if self._noted.get(tracker + _TAKEN, 0) != last:
            self.note(tracker + _TAKEN, last)

    def note(self, key: str, value: str | float) -> None:
        """Note something for a later part of the run."""
        with self._lock:
            self._noted[key] = value
            target = self.folder / _IDS
            try:
                write_whole(target, json.dumps(self._noted, indent=1) + "\n", durable=False)
                self._unwritable = False
            except OSError as error:
                if not self._unwritable:
                    LOGGER.warning("%s: %s", target, error.strerror)
                self._unwritable = True


class Tracker(ABC):
    """Reports a run to one library.

    It is made in the main thread, which may take the time of the imports; everything else is
    called in one thread, one after the other. Whatever it raises does not reach the run.
    """

    package: ClassVar[str]
    """What must be installed, as it is imported."""

    @property
    def remote(self) -> bool:
        """Whether it talks to a network: rounds never wait for it, and what failed is repeated."""
        return False

    @abstractmethod
    def begin(self, run: TrackedRun) -> None:
        """Open a run, or go on with that of an earlier part."""

    @abstractmethod
    def log_rounds(self, points: Sequence[RoundPoint]) -> None:
        """Report rounds, in order."""

    @abstractmethod
    def end(self, status: RunEnd, step: int, summary: Mapping[str, float]) -> None:
        """Close the run.

        Parameters
        ----------
        status : RunEnd
            How it ended.
        step : int
            The last round.
        summary : mapping
            The run in numbers.
        """

    def abandon(self) -> None:  # noqa: B027
        """Let go of what is open, after a fault; nothing else is called then."""


class TensorBoardTracker(Tracker):
    """Write event files to ``tensorboard`` in the run directory.

    TensorBoard's own record writer: neither torch nor TensorFlow is needed.
    """

    package = "tensorboard"

    def __init__(self) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2
        from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2, summary_v2
        from tensorboard.plugins.hparams import metadata as hparams
        from tensorboard.plugins.text import metadata as text
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._session_log = event_pb2.Event, event_pb2.SessionLog
        self._summary, self._tensor = summary_pb2.Summary, tensor_pb2.TensorProto
        self._status, self._hparams_data = api_pb2, plugin_data_pb2
        self._hparams_pb, self._hparams, self._text = summary_v2.hparams_pb, hparams, text
        self._record_writer = RecordWriter
        self._writer: Any = None

    def begin(self, run: TrackedRun) -> None:
        """Open a file; what older ones say of rounds that are still to come counts no more."""
        folder = run.folder / "tensorboard"
        folder.mkdir(exist_ok=True)
        resumed = any(folder.iterdir())
        seconds, rest = divmod(time.time_ns(), 10**9)
        # Event files are read in the order of their names.
        name = f"events.out.tfevents.{seconds:010d}.{rest:09d}.{socket.gethostname()}.{os.getpid()}"
        # Unbuffered: on a full disk nothing is left that fails again at the end of the process.
        self._writer = self._record_writer((folder / name).open("wb", buffering=0))
        self._write(file_version="brain.Event:2")
        if resumed:
            start = self._session_log(status=self._session_log.START)
            self._write(step=run.taken(self.package) + 1, session_log=start)
        self._write(step=run.done, summary=self._hparams_pb(run.settings, trial_id=run.name))
        rows = "".join(f"| {key} | {value} |\n" for key, value in run.settings.items())
        self._write_text("settings", "| setting | value |\n|---|---|\n" + rows, run.done)
        self._writer.flush()

    def log_rounds(self, points: Sequence[RoundPoint]) -> None:
        """Write one event per round."""
        for point in points:
            self._write_scalars(point.metrics, point.step, point.time_s)
        self._writer.flush()

    def end(self, status: RunEnd, step: int, summary: Mapping[str, float]) -> None:
        """Write the summary, and how the run ended, for the tabs of scalars, text and settings."""
        self._write_scalars(summary, step)
        self._write_text("status", status.value, step)
        finished = status is RunEnd.FINISHED
        ended = self._hparams_data.SessionEndInfo(
            status=self._status.STATUS_SUCCESS if finished else self._status.STATUS_FAILURE,
            end_time_secs=time.time(),
        )
        data = self._hparams_data.HParamsPluginData(session_end_info=ended)
        found = self._summary()
        found.value.add(
            tag=self._hparams.SESSION_END_INFO_TAG,
            metadata=self._hparams.create_summary_metadata(data),
            tensor=self._hparams.NULL_TENSOR,
        )
        self._write(step=step, summary=found)
        self._writer.close()

    def abandon(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()

    def _write_scalars(
        self, values: Mapping[str, float], step: int, time_s: float | None = None
    ) -> None:
        summary = self._summary()
        for tag, value in values.items():
            summary.value.add(tag=tag, simple_value=value)
        self._write(step=step, summary=summary, wall_time=time_s)

    def _write_text(self, tag: str, text: str, step: int) -> None:
        tensor = self._tensor(dtype="DT_STRING", string_val=[text.encode()])
        summary = self._summary()
        metadata = self._text.create_summary_metadata(display_name=tag, description="")
        summary.value.add(tag=tag, metadata=metadata, tensor=tensor)
        self._write(step=step, summary=summary)

    def _write(self, *, wall_time: float | None = None, **fields: Any) -> None:
        event = self._event(wall_time=time.time() if wall_time is None else wall_time, **fields)
        self._writer.write(event.SerializeToString())


class MlflowTracker(Tracker):
    """Report to ``MLFLOW_TRACKING_URI``, or else to a database in ``mlflow`` in the run directory.

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
        # Nothing is told to third parties unasked, and patience is in our own hands.
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
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or _PROJECT
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


class WandbTracker(Tracker):
    """Report to Weights & Biases as its own environment variables say, ``WANDB_MODE`` and others.

    Files go to ``wandb`` in the run directory; code, console output and Git are left alone.
    """

    package = "wandb"
    _EXIT_CODES: Final = {RunEnd.FINISHED: 0, RunEnd.FAILED: 1, RunEnd.KILLED: 255}

    def __init__(self) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self._wandb = wandb
        self._run: Any = None

    @property
    def remote(self) -> bool:
        """Whether it is not told to stay offline."""
        return os.environ.get("WANDB_MODE", "online") not in ("offline", "dryrun", "disabled")

    def begin(self, run: TrackedRun) -> None:
        """Create a run, or go on with the one before.

        Raises
        ------
        TrackerError
            If nobody has logged in: this is not the place to ask.
        """
        wandb = self._wandb
        quiet = wandb.Settings(silent=True)
        offline = wandb.setup(settings=quiet).settings.mode != "online"
        if not offline and not wandb.login(prompt=False):
            raise TrackerError("not logged in: wandb login, or WANDB_API_KEY or WANDB_MODE=offline")
        before = run.noted("wandb_run_id")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or _PROJECT,
            name=os.environ.get("WANDB_NAME") or run.name,
            id=before,
            resume="allow" if before and not offline else None,
            dir=str(run.folder),
            config=run.settings,
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_code=True,
                disable_git=True,
                finish_timeout=0.6 * _DRAIN_S,
            ),
        )
        run.note("wandb_run_id", self._run.id)

    def log_rounds(self, points: Sequence[RoundPoint]) -> None:
        """Hand rounds to wandb's own process."""
        for point in points:
            self._run.log(point.metrics, step=point.step)

    def end(self, status: RunEnd, step: int, summary: Mapping[str, float]) -> None:
        """Report the summary, and how the run ended."""
        self._run.summary.update({**summary, "status": status.value})
        self._run.finish(exit_code=self._EXIT_CODES[status])


TRACKERS: Final[Mapping[str, type[Tracker]]] = {
    "tensorboard": TensorBoardTracker,
    "mlflow": MlflowTracker,
    "wandb": WandbTracker,
}
"""By what users type, which is also the name of the extra."""


def tracker_names(text: str) -> list[str]:
    """Return the trackers that a setting names.

    Raises
    ------
    ConfigError
        If one is unknown or named twice.
    """
    names = [name.strip() for name in text.split(",")] if text else []
    for name in names:
        if name not in TRACKERS:
            message = f"must be {', '.join(TRACKERS)}, or several, separated by commas"
            raise ConfigError("tracker", text, message, nearest(name, TRACKERS))
    if len(set(names)) < len(names):
        raise ConfigError("tracker", text, "names one twice")
    return names


def require_trackers(text: str, run_dir: str) -> None:
    """Refuse trackers that are not installed, or have nowhere to write.

    Raises
    ------
    ConfigError
        If it is so; what to install is told.
    """
    names = tracker_names(text)
    missing = [name for name in names if importlib.util.find_spec(TRACKERS[name].package) is None]
    if missing:
        install = f"pip install '{_PROJECT}[{','.join(missing)}]'"
        raise ConfigError("tracker", text, f"is not installed: {install}")
    if names and not run_dir:
        raise ConfigError("tracker", text, "needs run-dir, where it keeps its files")


class Trackers:
    """The trackers of a run; :meth:`log_round` is a round hook. Nothing here raises.

    Parameters
    ----------
    names : sequence of str
        Of :data:`TRACKERS`.
    metrics : RoundMetrics
        Turns records into numbers.
    """

    def __init__(self, names: Sequence[str], metrics: RoundMetrics) -> None:
        self._names = names
        self._metrics = metrics
        self._begin_s = 0.0
        self._writers: list[_Writer] = []

    def begin(self, run: TrackedRun) -> None:
        """Open the run everywhere; what needs a network is not waited for."""
        self._begin_s = run.begin_s
        for name in self._names:
            try:
                tracker = TRACKERS[name]()
            except Exception as error:
                _say_dropped(name, error)
                continue
            writer = _Writer(name, tracker, run, self._metrics.of_earlier())
            self._writers.append(writer)
            writer.start()

    def log_round(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Report a round."""
        if not self._writers:
            return
        point = RoundPoint(record.round, self._begin_s + record.time_s, self._metrics(record))
        for writer in self._writers:
            writer.log(point)

    def end(self, status: RunEnd, summary: Mapping[str, Any] | None) -> None:
        """Close the run everywhere, and wait for that within bounds.

        Parameters
        ----------
        status : RunEnd
            How it ended.
        summary : mapping, optional
            As in ``summary.json``; ``None`` if there is none.
        """
        numbers = summary_metrics(summary or {})
        for writer in self._writers:
            writer.end(status, numbers)
        for writer in self._writers:
            writer.join()


class _Writer:
    """One tracker in a thread of its own, with a queue that is bounded.

    A local tracker is begun at once, by the caller: databases are laid out before times are
    measured. If its queue is full it is waited for, and dropped at the first error. A remote one
    is never waited for, and what it did not take is offered again; rounds for which there is no
    room are lost, which is told. Rounds of an earlier part of the run that the tracker has not
    got come first, from the run directory.
    """

    def __init__(self, name: str, tracker: Tracker, run: TrackedRun, metrics: RoundMetrics) -> None:
        self._name, self._tracker, self._run = name, tracker, run
        self._metrics = metrics
        self._thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._changed = threading.Condition()  # guards what follows
        self._waiting: deque[RoundPoint] = deque()
        self._end: Callable[[], None] | None = None
        self._last_step = run.done
        self._taken = run.taken(name)  # the tracker has all rounds up to this one
        self._num_earlier = run.done - self._taken  # that it has yet to take
        self._num_taken = 0
        self._num_lost = 0
        self._dropped = False
        # Of the thread alone:
        self._begun = False
        self._failing = False
        self._earlier: Iterator[RoundPoint] = iter(())
        self._again: list[RoundPoint] = []  # the next of them
        self._note_s = -math.inf

    def start(self) -> None:
        """Begin."""
        if self._tracker.remote or self._try(self._open):
            self._thread.start()

    def log(self, point: RoundPoint) -> None:
        """Put a round into the queue."""
        with self._changed:
            if not self._tracker.remote:
                while len(self._waiting) >= _MOST_WAITING and not self._dropped:
                    taken = self._num_taken
                    if not self._changed.wait(_DRAIN_S) and self._num_taken == taken:
                        self._drop(TimeoutError(f"has taken nothing for {_DRAIN_S:.0f} s"))
            self._last_step = point.step
            if self._dropped or len(self._waiting) >= _MOST_WAITING:
                if not self._dropped and not self._num_lost:
                    LOGGER.warning("tracker %s: rounds from %d on are lost", self._name, point.step)
                self._num_lost += 1
                return
            self._waiting.append(point)
            self._changed.notify_all()

    def end(self, status: RunEnd, summary: Mapping[str, float]) -> None:
        """Have the run closed once all rounds were taken."""
        with self._changed:
            step = self._last_step
            self._end = lambda: self._tracker.end(status, step, summary)
            self._changed.notify_all()

    def join(self) -> None:
        """Wait until all is done, or nothing is to be expected any more."""
        deadline_s, taken = time.monotonic() + _DRAIN_S, 0
        while self._thread.is_alive():
            self._thread.join(0.1)
            with self._changed:
                if not self._tracker.remote and self._num_taken > taken:
                    deadline_s, taken = time.monotonic() + _DRAIN_S, self._num_taken
                if time.monotonic() > deadline_s:
                    self._drop(TimeoutError(f"has not ended after {_DRAIN_S:.0f} s"))
                    break
        with self._changed:
            if self._num_lost:
                LOGGER.warning("tracker %s: rounds missing: %d", self._name, self._num_lost)
            begun, taken = self._begun, self._taken
        if begun:
            self._run.note_taken(self._name, taken)

    def _work(self) -> None:
        while not self._dropped:
            if not self._begun:
                self._try(self._open)
                continue
            if self._num_earlier and not self._again:
                self._try(self._read)
                continue
            with self._changed:
                self._changed.wait_for(
                    lambda: self._again or self._waiting or self._end or self._dropped
                )
                batch, end = self._again or list(islice(self._waiting, _BATCH)), self._end
            if batch:
                if self._try(lambda: self._tracker.log_rounds(batch)):  # noqa: B023
                    self._take(batch)
            elif end is not None and self._try(end):
                return

    def _take(self, batch: Sequence[RoundPoint]) -> None:
        """Strike out what was taken, note it, and wait for more."""
        with self._changed:
            if self._dropped:  # nobody waits any more
                return
            if self._again:
                self._again = []
                self._num_earlier -= len(batch)
            else:
                for _ in batch:
                    self._waiting.popleft()
            for point in batch:
                if point.step == self._taken + 1:  # not after rounds that were lost
                    self._taken = point.step
            self._num_taken += len(batch)
            self._changed.notify_all()
        if time.monotonic() - self._note_s >= _NOTE_S:
            self._note_s = time.monotonic()
            self._run.note_taken(self._name, self._taken)
        with self._changed:
            self._changed.wait_for(self._is_due, _LINGER_S)

    def _is_due(self) -> bool:
        waits = self._num_earlier > 0 or len(self._waiting) >= _BATCH
        return waits or self._end is not None or self._dropped

    def _open(self) -> None:
        # Before anything is replaced: what was there of the rounds that follow may be gone then.
        self._run.note_taken(self._name, self._run.taken(self._name))
        self._tracker.begin(self._run)
        self._taken = self._run.taken(self._name)
        self._num_earlier = self._run.done - self._taken
        self._earlier = self._read_earlier(self._taken + 1)
        self._begun = True

    def _read_earlier(self, first: int) -> Iterator[RoundPoint]:
        for record in self._run.read(first):
            if record.round < first:
                self._metrics.count(record)
            else:
                time_s = self._run.begin_s + record.time_s
                yield RoundPoint(record.round, time_s, self._metrics(record))

    def _read(self) -> None:
        """Have the next rounds of the earlier part ready."""
        try:
            self._again = list(islice(self._earlier, _BATCH))
        except Exception as error:
            raise TrackerError(_one_line(error)) from None
        if not self._again:
            self._num_earlier = 0

    def _try(self, call: Callable[[], None]) -> bool:
        """Call and tell whether it went well; a fault is told once, until it has passed."""
        try:
            call()
        except Exception as error:
            final = not self._tracker.remote or isinstance(error, TrackerError)
            with self._changed:
                final |= self._end is not None and self._failing
                if final:
                    self._drop(error)
                elif not self._failing:
                    LOGGER.warning("tracker %s: %s; trying again", self._name, _one_line(error))
                self._failing = True
                self._changed.wait_for(lambda: self._end or self._dropped, _RETRY_S)
            if final:
                with suppress(Exception):
                    self._tracker.abandon()
            return False
        if self._failing:
            LOGGER.info("tracker %s: works again", self._name)
            self._failing = False
        return True

    def _drop(self, error: Exception) -> None:
        """Give the tracker up; the lock is held."""
        if not self._dropped:
            self._dropped = True
            _say_dropped(self._name, error)
            self._num_lost += self._num_earlier + len(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()


def _say_dropped(name: str, error: Exception) -> None:
    LOGGER.warning("tracker %s: %s; not used any more", name, _one_line(error))


def _chunks(values: Iterable[_T], size: int) -> Iterator[list[_T]]:
    iterator = iter(values)
    while some := list(islice(iterator, size)):
        yield some


def _one_line(error: Exception) -> str:
    """Return what an error says, on one line, at no length, and without passwords in addresses."""
    text = " ".join(str(error).split()) or type(error).__name__
    return re.sub(r"//[^/@\s]*@", "//", text)[:200]
