"""The state of wrapped strategies."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedXgbBagging,
)
from scripted_grid import ScriptedGrid, erring

from flower_scheduling._flwr import take_identity
from flower_scheduling.errors import ConfigError
from flower_scheduling.server.settings.aggregation import AGGREGATIONS, build_aggregation
from flower_scheduling.strategies.flower.state import load_strategy_state, strategy_state


def _reply(message: Message, number: int) -> Message:
    arrays = ArrayRecord({"w": Array(np.full(3, 1.0 + number, np.float32))})
    metrics = MetricRecord({"num-examples": 1, "train_loss": 0.5, "train-loss": 0.5})
    message.metadata.__dict__["_message_id"] = "m"
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def test_momentum_and_the_like_are_saved_whatever_is_wrapped() -> None:
    options = {"qfedavg": "client-learning-rate=0.1"}
    for name in AGGREGATIONS:
        strategy_state(build_aggregation(name, options.get(name, "")))

    old = FedAdam(eta=0.5)
    old.current_arrays = {"w": np.ones(2, dtype=np.float32)}
    old.m_t, old.v_t = {"w": np.full(2, 0.25)}, {"w": np.full(2, 0.5)}
    wrapped = DifferentialPrivacyServerSideAdaptiveClipping(old, 0.1, 5)
    wrapped.clipping_norm = 0.7
    new = DifferentialPrivacyServerSideAdaptiveClipping(FedAdam(eta=0.5), 0.1, 5)
    load_strategy_state(new, strategy_state(wrapped))
    assert new.clipping_norm == 0.7
    inner = new.strategy
    assert isinstance(inner, FedAdam)
    assert inner.m_t is not None
    assert inner.m_t["w"].tolist() == [0.25, 0.25]
    momentum = FedAvgM()
    momentum.current_arrays = ArrayRecord({"w": Array(np.ones(2))})
    again = FedAvgM()
    load_strategy_state(again, strategy_state(momentum))
    assert again.current_arrays == momentum.current_arrays
    with pytest.raises(ConfigError, match="as it was saved"):
        load_strategy_state(FedAvg(), strategy_state(FedAdam()))


def test_what_a_strategy_gets_in_the_course_of_a_run_comes_back() -> None:
    trees = FedXgbBagging()
    trees.current_bst = b"\x00trees\xff"  # no attribute of an instance that is new
    again = FedXgbBagging()
    load_strategy_state(again, strategy_state(trees))
    assert again.current_bst == trees.current_bst
    state = strategy_state(trees)
    del state["__class__"]  # of an earlier version
    with pytest.raises(ConfigError, match="as it was saved"):
        load_strategy_state(FedXgbBagging(), state)


@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi", "fedavgm", "qfedavg"])
def test_a_state_stays_as_it_was_when_the_strategy_goes_on(name: str) -> None:
    options = {"qfedavg": "client-learning-rate=0.1", "fedavgm": "server-momentum=0.9"}
    strategy = build_aggregation(name, options.get(name, ""))
    arrays = ArrayRecord({"w": Array(np.ones(3, np.float32))})
    take_identity(1)
    states = []
    for number in range(1, 5):
        messages = strategy.configure_train(
            number, arrays, ConfigRecord(), ScriptedGrid([erring, erring])
        )
        replies = [_reply(message, k) for k, message in enumerate(messages)]
        new, _ = strategy.aggregate_train(number, replies)
        assert new is not None
        arrays = new
        state = strategy_state(strategy)
        states.append((state, copy.deepcopy(state)))
    for state, then in states:
        np.testing.assert_equal(state, then)


def test_an_array_that_an_app_changes_is_copied() -> None:
    class Mine(FedAdam):
        pass

    for strategy in (FedAdam(), Mine()):
        strategy.history = np.zeros(2)  # type: ignore[attr-defined]
        strategy.m_t = {"w": np.zeros(2)}
        state = strategy_state(strategy)
        strategy.history += 1  # type: ignore[attr-defined]
        if isinstance(strategy, Mine):
            strategy.m_t["w"] += 1
        assert state["history"].tolist() == state["m_t"]["w"].tolist() == [0.0, 0.0]


def test_what_cannot_be_saved_is_named() -> None:
    strategy = FedAvg()
    strategy.secret = [1, {"a": object()}]  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"FedAvg.secret\[1\]\['a'\] = 'a object'"):
        strategy_state(strategy)


def test_tensors_and_mappings_by_number_come_back() -> None:
    class Mine(FedAvg):
        def __init__(self) -> None:
            super().__init__()
            self.best: Any = None
            self.nodes: Any = {}

    strategy = Mine()
    strategy.best = {"w": torch.tensor([[1.0, 2.0]], requires_grad=True)}
    strategy.nodes = {17: 0, 18: 1}
    other = Mine()
    load_strategy_state(other, strategy_state(strategy))
    assert torch.equal(other.best["w"], torch.tensor([[1.0, 2.0]]))
    assert other.nodes == {17: 0, 18: 1}
