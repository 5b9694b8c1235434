"""A tracker in a thread of its own, behind a bounded queue: the run never waits for a network."""

from __future__ import annotations

import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from flower_scheduling.errors import TrackerError
from flower_scheduling.strategies.flower import LOGGER

from ...callbacks import RunEnd
from .base import DRAIN_S, RoundPoint, TrackedRun, Tracker
from .metrics import RoundMetrics

_MOST_WAITING: Final = 10_000  # rounds in the queue
_BATCH: Final = 200
_LINGER_S: Final = 1.0  # between two batches that are not full: it disturbs the measuring less
_NOTE_S: Final = 1.0  # between two notes of what was taken: rounds since the last are sent twice
_RETRY_S: Final = 10.0


class TrackerThread:
    """One tracker in a thread of its own, with a queue that is bounded.

    A local tracker is begun at once, by the caller: databases are laid out before times are
    measured. If its queue is full the run waits for it, and its first error drops it. For a remote
    one the run never waits, and what the tracker did not take is offered again; rounds for which
    there is no room are lost, with a line in the log. Rounds of an earlier part of the run that
    the tracker has not got come first, from the run directory.
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
                    if not self._changed.wait(DRAIN_S) and self._num_taken == taken:
                        self._drop(TimeoutError(f"has taken nothing for {DRAIN_S:.0f} s"))
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
        deadline_s, taken = time.monotonic() + DRAIN_S, 0
        while self._thread.is_alive():
            self._thread.join(0.1)
            with self._changed:
                if not self._tracker.remote and self._num_taken > taken:
                    deadline_s, taken = time.monotonic() + DRAIN_S, self._num_taken
                if time.monotonic() > deadline_s:
                    self._drop(TimeoutError(f"has not ended after {DRAIN_S:.0f} s"))
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
        """Remove from the queue what was taken, note it, and wait for more."""
        with self._changed:
            if self._dropped:  # the run has gone on without it
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
            self._metrics.totals.count(record)
            if record.round >= first:
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
        """Call, and return whether that succeeded; a fault is logged once, until it has passed."""
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
            log_dropped(self._name, error)
            self._num_lost += self._num_earlier + len(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()


def log_dropped(name: str, error: Exception) -> None:
    """Log that a tracker is not used any more, and why."""
    LOGGER.warning("tracker %s: %s; not used any more", name, _one_line(error))


def _one_line(error: Exception) -> str:
    """Return the text of an error: one short line, without passwords in addresses."""
    text = " ".join(str(error).split()) or type(error).__name__
    return re.sub(r"//[^/@\s]*@", "//", text)[:200]
