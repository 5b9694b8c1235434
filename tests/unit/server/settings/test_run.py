"""Settings of a run: there and back, and refused by their keys."""

from __future__ import annotations

import pytest

from flower_scheduling.errors import ConfigError
from flower_scheduling.server.settings.run import ServerConfig


def test_settings_know_their_keys_and_go_there_and_back() -> None:
    config = ServerConfig.from_mapping({"num-selected": 3, "tau-max-s": 7, "strategy": "random"})
    assert (config.num_selected, config.tau_max_s, config.strategy) == (3, 7.0, "random")
    assert type(config.tau_max_s) is float, "whole numbers become floats where a float is due"
    assert ServerConfig.from_mapping(config.to_mapping()) == config
    assert all(isinstance(v, int | float | bool | str) for v in config.to_mapping().values())


def test_a_deadline_may_be_left_to_be_found() -> None:
    config = ServerConfig.from_mapping({"tau-max-s": "auto"})
    assert config.to_mapping()["tau-max-s"] == "auto"
    known = ServerConfig.settings()
    assert (known["tau-max-s"].kind, known["tau-max-s"].word) == (float, "auto")
    assert (known["num-spare"].kind, known["num-spare"].word) == (int, "auto")
    assert {key for key, one in known.items() if one.word} == {"tau-max-s", "num-spare"}


def test_spare_clients_may_be_left_to_the_policy() -> None:
    asked = {"oort": 3, "cs-ucb-q": 0}
    for policy, spare in asked.items():
        settings = {"strategy": policy, "num-selected": 10}
        assert ServerConfig.from_mapping(settings).spare == spare
        assert ServerConfig.from_mapping({**settings, "num-spare": 2}).spare == 2
        assert ServerConfig.from_mapping({**settings, "mode": "buffered"}).spare == 0


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num-select", 3, "did you mean num-selected"),
        ("self", 3, "is no setting"),
        ("num-selected", 2.5, "num-selected = 2.5: must be a whole number"),
        ("num-selected", True, "num-selected = True: must be a whole number"),
        ("num-selected", "3", "num-selected = '3': must be a whole number"),
        ("tau-max-s", "fast", "tau-max-s = 'fast': must be a number or auto"),
        ("tau-max-s", True, "tau-max-s = True: must be a number or auto"),
        ("tau-max-s", 0, "tau-max-s = 0: must be above 0"),
        ("tau-max-s", float("nan"), "tau-max-s = nan: must be a finite number"),
        ("num-spare", "some", "num-spare = 'some': must be a whole number or auto"),
        ("num-spare", 1.5, "num-spare = 1.5: must be a whole number or auto"),
        ("num-spare", -1, "num-spare = -1: must be at least 0"),
        ("truncate", 1, "truncate = 1: must be true or false"),
        ("strategy", 7, "strategy = 7: must be a text"),
        ("wait-s", -1.0, "must be at least 0 and at most 604800"),
    ],
)
def test_wrong_settings_are_refused_by_key(key: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServerConfig.from_mapping({key: value})
