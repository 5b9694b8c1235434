"""The tracker interface: what a tracker gets of a run, and how it is called."""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from flower_scheduling.files import write_whole
from flower_scheduling.strategies.flower import LOGGER, RoundRecord

from ...callbacks import RunEnd

DRAIN_S: Final = 30.0  # longest wait at the end; for a local tracker, without any progress
_NOTES: Final = "trackers.json"  # in the run directory
_TAKEN: Final = "_last_round"  # behind a tracker's name: the key of the last round it has taken


@dataclass(frozen=True, slots=True)
class RoundPoint:
    """The metrics of one round.

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
    """A run as trackers see it, and their notes for a later part of it in ``trackers.json``.

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
            found = json.loads((folder / _NOTES).read_text(encoding="utf-8"))
            self._noted = found if isinstance(found, dict) else {}
        begin_s = self._noted.get("begin_s")
        self.begin_s = float(begin_s) if isinstance(begin_s, int | float) else time.time()
        self.note("begin_s", self.begin_s)

    def noted(self, key: str) -> str | None:
        """Return the text that was noted under a key in an earlier part of the run."""
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
            target = self.folder / _NOTES
            try:
                write_whole(target, json.dumps(self._noted, indent=1) + "\n", durable=False)
                self._unwritable = False
            except OSError as error:
                if not self._unwritable:
                    LOGGER.warning("%s: %s", target, error.strerror)
                self._unwritable = True


class Tracker(ABC):
    """A report of a run to one library.

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
