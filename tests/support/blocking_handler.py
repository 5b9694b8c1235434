"""A handler of log lines that blocks, as a terminal or a pipe may."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from waiting import PATIENCE_S

from flower_scheduling.strategies.flower import LOGGER


class BlockingHandler(logging.Handler):
    """Takes no line of the adapter's logger until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(lambda record: record.name == LOGGER.name)  # not the client's lines
        self.lines: list[str] = []
        self.blocked = threading.Event()
        self.released = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.blocked.set()
        assert self.released.wait(2 * PATIENCE_S)
        self.lines.append(record.getMessage())


@contextmanager
def blocking_handler() -> Iterator[BlockingHandler]:
    """Add one to the adapter's logger, from INFO on."""
    handler = BlockingHandler()
    level = LOGGER.level
    LOGGER.setLevel(logging.INFO)
    LOGGER.addHandler(handler)
    yield handler
    handler.released.set()
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)
