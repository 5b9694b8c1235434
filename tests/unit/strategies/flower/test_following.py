"""A runtime may have an app's strategy scheduled otherwise."""

from __future__ import annotations

import pytest
from flwr.serverapp.strategy import FedAvg

from flower_scheduling.errors import ConfigError
from flower_scheduling.strategies.flower import RoundRecord, ScheduledStrategy, overriding


def wrapped() -> ScheduledStrategy:
    """Build the strategy as an app does."""
    return ScheduledStrategy(FedAvg(), "cs-ucb-q", num_selected=4, tau_max_s=9.0, beta=0.5)


def test_what_is_overridden_counts_and_the_rest_is_the_apps() -> None:
    with overriding({"num_selected": 2, "seed": 5}):
        found = wrapped().asked_settings
    assert (found["num-selected"], found["seed"], found["tau-max-s"]) == (2, 5, 9.0)
    assert (found["strategy"], found["beta"]) == ("cs-ucb-q", 0.5)
    assert wrapped().asked_settings["num-selected"] == 4, "only inside"


def test_another_policy_has_parameters_of_its_own() -> None:
    with overriding({"policy": "kl-ucb"}):
        assert "beta" not in wrapped().asked_settings
    with overriding({"policy": "cs-ucb-q", "beta": 0.25}):
        assert wrapped().asked_settings["beta"] == 0.25
    with overriding({"policy": "random", "beta": 0.25}), pytest.raises(ConfigError, match="beta"):
        wrapped()


def test_settings_are_checked_as_the_apps_own() -> None:
    with overriding({"num_selected": 0}), pytest.raises(ConfigError, match="num_selected"):
        wrapped()


def test_the_innermost_counts() -> None:
    with overriding({"num_selected": 3, "seed": 1}), overriding({"num_selected": 2}):
        found = wrapped().asked_settings
    assert (found["num-selected"], found["seed"]) == (2, 0)


def test_the_apps_own_end_counts_beside_another(record: RoundRecord) -> None:
    def build(own: bool | None) -> ScheduledStrategy:
        stop = None if own is None else (lambda record: bool(own))
        return ScheduledStrategy(FedAvg(), num_selected=1, stop_when=stop)

    for own, other, either in ((True, False, True), (False, True, True), (False, False, False)):
        with overriding({"stop_when": lambda record, other=other: other}):
            assert build(own)._stop_when(record) is either  # type: ignore[misc]
            assert build(None)._stop_when(record) is other  # type: ignore[misc]


@pytest.fixture
def record() -> RoundRecord:
    return object()  # type: ignore[return-value]


def test_the_mode_of_buffered_steps_is_among_the_settings() -> None:
    assert "mode" not in wrapped().asked_settings
    with overriding({"mode": "buffered", "buffer_size": 3}):
        found = wrapped().asked_settings
    assert (found["mode"], found["buffer-size"]) == ("buffered", 3)
