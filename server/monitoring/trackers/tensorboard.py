"""TensorBoard, by its own record writer: neither torch nor TensorFlow is needed."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ...callbacks import RunEnd
from .base import RoundPoint, TrackedRun, Tracker


class TensorBoardTracker(Tracker):
    """A tracker that writes event files to ``tensorboard`` in the run directory."""

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
        """Open a file; of older ones, rounds that are still to come count no more."""
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
