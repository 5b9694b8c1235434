"""What the tests of the transport share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from flower_scheduling.strategies.flower import LOGGER


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What client and server log, from INFO on."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    level = LOGGER.level
    LOGGER.setLevel(logging.INFO)
    LOGGER.addHandler(handler)  # the client's logger is below it
    yield lines
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)
