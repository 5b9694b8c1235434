"""Aggregations by name, and their options."""

from __future__ import annotations

import pytest
from flwr.serverapp.strategy import FedAdam, FedAvg, MultiKrum

from flower_scheduling.errors import ConfigError
from flower_scheduling.server.settings.aggregation import AGGREGATIONS, build_aggregation


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_every_aggregation_can_be_built(name: str) -> None:
    options = "client-learning-rate=0.1" if name == "qfedavg" else ""
    assert type(build_aggregation(name, options)) is AGGREGATIONS[name]


def test_option_that_has_no_default_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="lacks client-learning-rate=VALUE, which qfedavg needs"):
        build_aggregation("qfedavg")


def test_options_reach_the_strategy() -> None:
    strategy = build_aggregation("fedadam", "eta=0.01, beta-1=0.5")
    assert isinstance(strategy, FedAdam)
    assert (strategy.eta, strategy.beta_1) == (0.01, 0.5)
    krum = build_aggregation("multikrum", "num-malicious-nodes=1")
    assert isinstance(krum, MultiKrum)
    assert krum.num_malicious_nodes == 1
    assert type(build_aggregation("fedavg")) is FedAvg


@pytest.mark.parametrize("option", ["fraction-train=0.5", "min-available-nodes=3", "eta", "x=1"])
def test_options_that_are_not_the_users_are_refused(option: str) -> None:
    with pytest.raises(ConfigError, match="aggregation-option"):
        build_aggregation("fedadam", option)


class Stringed(FedAvg):
    """Written in a module that imports ``annotations`` from ``__future__``, as this one does."""

    def __init__(
        self,
        rate: float,
        steps: int = 3,
        hook: OnlyForTypeCheckers | None = None,  # type: ignore[name-defined]  # noqa: F821
        train_loss_key: str = "loss",
    ) -> None:
        super().__init__()
        self.rate, self.steps = rate, steps


def test_options_are_known_however_flower_writes_its_annotations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(AGGREGATIONS, "stringed", Stringed)
    strategy = build_aggregation("stringed", "rate=0.5,steps=4")
    assert isinstance(strategy, Stringed)
    assert (strategy.rate, strategy.steps) == (0.5, 4)
    with pytest.raises(ConfigError, match="steps must be a finite int"):
        build_aggregation("stringed", "rate=0.5,steps=4.5")
    with pytest.raises(ConfigError, match="which takes rate, steps, train-loss-key"):
        build_aggregation("stringed", "hook=1")
