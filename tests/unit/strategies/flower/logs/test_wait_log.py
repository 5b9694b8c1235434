"""A line a minute on who is waited for, and until when."""

from __future__ import annotations

import math
import time

import pytest

from flower_scheduling.strategies.flower import LOGGER, WaitLog

NAMES = {1: "a", **{node_id: f"dev-{node_id}" for node_id in range(2, 100)}}


def test_one_line_a_minute_says_who_is_waited_for_and_until_when(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "localtime", time.gmtime)
    now_s = 100.0
    log = WaitLog(now_s, NAMES.__getitem__, LOGGER, wall_clock=lambda: 86_300.0 + now_s)
    waiting = [1, 3]
    while now_s < 300.0:
        log.note(now_s, 3700.0, lambda: waiting, 10)
        now_s += 1.0
        if now_s == 231.0:
            waiting.remove(1)
    assert said == [
        "waiting for a, dev-3 for 1 min: 8 of 10 have answered, until 01:00:00 at the latest",
        "waiting for a, dev-3 for 2 min: 8 of 10 have answered, until 01:00:00 at the latest",
        "waiting for dev-3 for 3 min: 9 of 10 have answered, until 01:00:00 at the latest",
    ]


def test_a_large_fleet_is_one_line(said: list[str]) -> None:
    log = WaitLog(0.0, NAMES.__getitem__, LOGGER)
    log.note(60.0, math.inf, lambda: range(2, 100), 98)
    assert said == [
        "waiting for dev-2, dev-3, dev-4, dev-5, dev-6 and 93 more for 1 min: 0 of 98 have answered"
    ]
