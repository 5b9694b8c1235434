"""The connection log: one line for a fleet that comes at once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from flower_scheduling.server.transport import connection_log
from flower_scheduling.server.transport.connection_log import ConnectionLog


def lines_of(
    waves: list[int], longest_s: float, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, str]]:
    """Return the lines, each with the wave after which it came, of so many clients at a time."""
    lines: list[tuple[int, str]] = []
    logger = logging.Logger("test")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append((wave, record.getMessage()))  # type: ignore[method-assign]
    logger.addHandler(handler)
    looks: list[object] = []
    now_s = 0.0
    wave = 0

    class Loop:
        def call_later(self, pause_s: float, look: object) -> None:
            looks.append(look)

    monkeypatch.setattr(asyncio, "get_running_loop", Loop)
    monkeypatch.setattr(connection_log, "_LONGEST_PAUSE_S", longest_s)
    log = ConnectionLog(lambda: now_s, logger)
    for wave, count in enumerate(waves):
        for number in range(count):
            log.log("connected", f"client-{wave}-{number}")
        now_s += 0.5
        for look in [looks.pop() for _ in looks]:
            look()  # type: ignore[operator]
    return lines


def test_a_fleet_that_comes_at_once_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ((wave, line),) = lines_of([2000, 3000, 5000, 3, 0], 60.0, monkeypatch)
    assert wave == 3, "when hardly any client comes any more"
    assert line.startswith("connected: client-0-0, client-0-1, ")
    assert line.endswith(" and 9998 more")


def test_a_few_are_logged_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of([2, 0, 1], 60.0, monkeypatch)
    assert lines == [(0, "connected: client-0-0, client-0-1"), (2, "connected: client-2-0")]


def test_a_fleet_that_comes_for_ever_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = lines_of([100] * 20, 2.0, monkeypatch)
    assert [wave for wave, _ in lines] == [3, 7, 11, 15, 19]
