"""The logger of the event loop: another thread writes its lines.

The loop stamps the arrival of replies. A terminal or pipe that blocks would hold it up, and make
every client look slow.
"""

from __future__ import annotations

import logging
import queue
from logging.handlers import QueueHandler, QueueListener
from typing import Any, Final

from flower_scheduling.strategies.flower import LOGGER

_MAX_QUEUED: Final = 10_000  # lines: what clients cause is rate-limited, but a block may last days


class LoopLogger(logging.Logger):
    """The adapter's logger, for code that must not wait until a line is written.

    Lines go through a queue to the handlers that the adapter's logger has when they are written,
    in order. Between :meth:`start` and :meth:`stop` a thread writes them; ``stop`` returns when
    all are written.
    """

    def __init__(self) -> None:
        super().__init__(LOGGER.name)
        lines: queue.Queue[Any] = queue.Queue(_MAX_QUEUED)
        handler = _BoundedHandler(lines)
        self.addHandler(handler)
        self._writer = _Writer(lines, handler)

    def isEnabledFor(self, level: int) -> bool:
        """Return whether the adapter's logger takes this level."""
        return LOGGER.isEnabledFor(level)

    def start(self) -> None:
        """Begin to write."""
        self._writer.start()

    def stop(self) -> None:
        """Write what is queued, and end the thread."""
        self._writer.stop()


class _BoundedHandler(QueueHandler):
    """A handler that queues lines, and counts those for which there is no room."""

    def __init__(self, lines: queue.Queue[Any]) -> None:
        super().__init__(lines)
        self.num_dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.num_dropped += 1


class _Writer(QueueListener):
    """The thread that takes lines from the queue and hands them to the adapter's logger.

    Not to handlers listed at the start: a run directory's log is opened after the server's start
    and closed before its end.
    """

    def __init__(self, lines: queue.Queue[Any], handler: _BoundedHandler) -> None:
        super().__init__(lines)
        self._lines = lines
        self._handler = handler
        self._num_reported = 0

    def handle(self, record: logging.LogRecord) -> None:
        try:
            LOGGER.handle(record)
            if dropped := self._handler.num_dropped - self._num_reported:
                self._num_reported += dropped
                LOGGER.warning("%d log lines were dropped: the log did not take them", dropped)
        except Exception:  # a handler that raises must not end the log
            self._handler.handleError(record)

    def enqueue_sentinel(self) -> None:
        self._lines.put(None)  # the base class does not wait for room
