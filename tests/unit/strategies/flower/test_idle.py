"""Arguments that have no effect are named when a run begins."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from flwr.serverapp.strategy import FedAvg

from flower_scheduling import ScheduledStrategy
from flower_scheduling.strategies.fairness import EqualFloors
from flower_scheduling.strategies.flower import LOGGER
from flower_scheduling.strategies.policies.cs_ucb_adaptive import CsUcbAdaptive


def named(caplog: pytest.LogCaptureFixture, **arguments: Any) -> list[str]:
    policy = arguments.pop("policy", "cs-ucb-q-adaptive")
    strategy = ScheduledStrategy(FedAvg(), policy, num_selected=2, **arguments)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger=LOGGER.name):
        strategy.summary()
    return [line.split(" has no effect: it is for ")[0] for line in caplog.messages]


STALE: dict[str, Any] = {"max_staleness": 3, "staleness_discount": 0.5}
EVEN: dict[str, Any] = {"even_weights": True}
FLOORS: dict[str, Any] = {"fairness": "equal:0.1"}
WORK: dict[str, Any] = {"least_work": 0.5, "most_work": 2.0}


def test_arguments_without_effect_are_named(caplog: pytest.LogCaptureFixture) -> None:
    assert named(caplog) == []
    assert named(caplog, **STALE, **EVEN, **WORK) == [*STALE, *EVEN, *WORK]
    assert named(caplog, **STALE, **EVEN, mode="buffered") == []
    assert named(caplog, **STALE, **EVEN, num_spare=1, late_updates="use") == [*EVEN]
    assert named(caplog, **WORK, local_work="equal-time", local_steps=5) == []
    assert named(caplog, **FLOORS) == []
    assert named(caplog, **FLOORS, policy="cs-ucb-adaptive") == [*FLOORS]
    assert named(caplog, fairness=EqualFloors(0.1), policy=CsUcbAdaptive) == [*FLOORS]
    assert named(caplog, fairness="none", policy="cs-ucb-adaptive") == []
    assert named(caplog, policy="cs-ucb-adaptive") == []
