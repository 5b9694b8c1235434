"""``live.json`` in the run directory: which clients are connected now, for readers outside."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from flower_scheduling.files import write_whole

from ..callbacks import RoundCallback, Run, RunEnd

FILE: Final = "live.json"
HEARTBEAT_S: Final = 5.0  # greatest age of the file while the server lives
_INTERVAL_S: Final = 1.0


class LiveFile(RoundCallback):
    """A callback that keeps ``live.json`` up to date during a run, by a thread of its own.

    Parameters
    ----------
    content : callable
        Returns what to write, :meth:`.ServerStatus.connections`.
    """

    def __init__(self, content: Callable[[], Mapping[str, Any]]) -> None:
        self._content = content

    def on_start(self, run: Run) -> None:
        """Begin, if there is a run directory."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if run.directory is not None:
            self._file = run.directory.path / FILE
            self._thread = threading.Thread(target=self._work, name="live-file", daemon=True)
            self._thread.start()

    def on_end(self, status: RunEnd, summary: Mapping[str, Any]) -> None:
        """Remove the file."""
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            with suppress(OSError):
                self._file.unlink(missing_ok=True)

    def _work(self) -> None:
        written: Mapping[str, Any] = {}
        written_s = 0.0
        while not self._ended.wait(_INTERVAL_S):
            found, now_s = self._content(), time.time()
            due = not 0.0 <= now_s - written_s < HEARTBEAT_S - _INTERVAL_S
            if due or found != written:
                text = json.dumps({"time": now_s, **found}, separators=(",", ":"))
                with suppress(OSError):  # a full disk is the run's concern
                    write_whole(self._file, text, durable=False)
                    written, written_s = found, now_s
