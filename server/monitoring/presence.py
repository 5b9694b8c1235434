"""Who is there right now, in a file of the run directory, for those who watch from outside."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from flower_scheduling.files import write_whole

FILE: Final = "live.json"
HEARTBEAT_S: Final = 5.0
"""The file is at most so old while the server lives."""
_INTERVAL_S: Final = 1.0


class PresenceWriter:
    """Write who is there once a second, from entering to leaving the context.

    Parameters
    ----------
    run_dir : Path
        The run directory; nothing is written before it exists.
    presence : callable
        Returns what to write, :meth:`.RunStatus.presence`.
    """

    def __init__(self, run_dir: Path, presence: Callable[[], Mapping[str, Any]]) -> None:
        self._file = run_dir / FILE
        self._presence = presence
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join()
        with suppress(OSError):
            self._file.unlink(missing_ok=True)

    def _run(self) -> None:
        written: Mapping[str, Any] = {}
        written_s = 0.0
        while not self._ended.wait(_INTERVAL_S):
            found, now_s = self._presence(), time.time()
            due = not 0.0 <= now_s - written_s < HEARTBEAT_S - _INTERVAL_S
            if (due or found != written) and self._file.parent.is_dir():
                text = json.dumps({"time": now_s, **found}, separators=(",", ":"))
                with suppress(OSError):  # a full disk is the run's concern
                    write_whole(self._file, text, durable=False)
                    written, written_s = found, now_s
