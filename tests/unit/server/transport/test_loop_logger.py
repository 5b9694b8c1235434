"""The event loop's log: in order, nothing lost, bounded."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
from blocking_handler import BlockingHandler, blocking_handler
from waiting import PATIENCE_S, until

from flower_scheduling.server.transport import loop_logger
from flower_scheduling.server.transport.loop_logger import LoopLogger
from flower_scheduling.strategies.flower import LOGGER


@pytest.fixture
def handler() -> Iterator[BlockingHandler]:
    with blocking_handler() as handler:
        yield handler


def test_lines_are_written_in_order_and_to_the_last(handler: BlockingHandler) -> None:
    handler.released.set()
    logger = LoopLogger()
    logger.start()
    for number in range(1000):
        logger.info("%d", number)
        logger.debug("not at this level")
    logger.stop()
    assert handler.lines == [str(number) for number in range(1000)]


def test_level_and_handlers_are_those_of_the_moment(handler: BlockingHandler) -> None:
    handler.released.set()
    logger = LoopLogger()
    logger.start()
    logger.debug("too low")
    LOGGER.setLevel(logging.DEBUG)
    logger.debug("low enough by now")
    until(lambda: handler.lines == ["low enough by now"])
    LOGGER.removeHandler(handler)
    logger.warning("elsewhere")
    logger.stop()
    assert len(handler.lines) == 1


def test_lines_that_nothing_takes_are_bounded_and_counted(
    handler: BlockingHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_logger, "_MAX_QUEUED", 5)
    logger = LoopLogger()
    logger.start()
    logger.info("first")
    assert handler.blocked.wait(PATIENCE_S)
    for number in range(100):
        logger.info("%d", number)
    threading.Timer(0.05, handler.released.set).start()  # the end waits for it
    logger.stop()
    assert handler.lines == [
        "first",
        "95 log lines were dropped: the log did not take them",
        *"01234",
    ]


def test_handler_that_raises_does_not_end_the_log(
    handler: BlockingHandler, capsys: pytest.CaptureFixture[str]
) -> None:
    handler.released.set()
    broken = logging.Handler()
    broken.emit = lambda record: 1 // 0  # type: ignore[method-assign]
    LOGGER.addHandler(broken)
    logger = LoopLogger()
    logger.start()
    logger.info("one")
    logger.info("two")
    logger.stop()
    LOGGER.removeHandler(broken)
    assert handler.lines == ["one", "two"]
    assert "ZeroDivisionError" in capsys.readouterr().err
