"""Lines about rounds."""

from __future__ import annotations

import logging

import pytest
from factories import half_failed, small_model

from flower_scheduling.server.monitoring.console import ConsoleLog
from flower_scheduling.strategies.flower import LOGGER


def test_round_log_speaks_of_evaluated_rounds_and_breaks_long_silences(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(
        "flower_scheduling.server.monitoring.console.time.monotonic", lambda: now_s[0]
    )
    log = ConsoleLog()
    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        log.on_round(half_failed(round=1), small_model())
        log.on_round(half_failed(round=2), small_model())
        log.on_round(half_failed(round=3, accuracy=0.5), small_model())
        now_s[0] += 10.0
        log.on_round(
            half_failed(round=4, rtt_s=[None, None], reason=["timeout"] * 2), small_model()
        )
    assert [r.getMessage() for r in caplog.records] == [
        "round 1: 1.5 s, 3 clients available, slowest a 1.500 s, 1 of 2 failed",
        "round 3: 1.5 s, 3 clients available, accuracy 0.5000, slowest a 1.500 s, 1 of 2 failed",
        "round 4: 1.5 s, 3 clients available, 2 of 2 failed",
    ]
