"""Settings of an app's simulation: what counts in place of the app's, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_scheduling.errors import ConfigError
from flower_scheduling.simulation.engine.apps.settings import (
    OVERRIDING,
    SIMULATED,
    AppConfig,
    AppSettings,
    app_config_of,
    names_app,
)

APP = {"app": "my-app"}


def strategy_settings(**given: Any) -> dict[str, Any]:
    keys = {key.replace("_", "-"): value for key, value in given.items()}
    return app_config_of({**APP, **keys}).strategy_settings()


def test_every_setting_is_the_simulations_or_counts_or_is_refused() -> None:
    keys = AppConfig.settings().keys()
    assert SIMULATED.isdisjoint(OVERRIDING)
    assert keys > SIMULATED | OVERRIDING
    for key in keys - SIMULATED - OVERRIDING:
        with pytest.raises(ConfigError, match="has no effect with --app"):
            app_config_of({**APP, key: AppConfig.settings()[key].default})


def test_only_what_is_given_counts_in_place_of_the_apps() -> None:
    assert strategy_settings() == {"seed": 0, "wait_s": 0.0, "availability": 1.0}
    assert strategy_settings(num_selected=3, seed=4, availability="0.5") == {
        "seed": 4, "wait_s": 0.0, "availability": 0.5, "num_selected": 3,
    }  # fmt: skip
    found = strategy_settings(strategy="cs-ucb-q", beta=0.5, strategy_option="")
    assert (found["policy"], found["beta"], found["truncate"]) == ("cs-ucb-q", 0.5, True)
    assert "strategy" not in found
    assert "num_selected" not in found


def test_zeros_that_mean_the_default_do() -> None:
    assert strategy_settings(min_clients=0)["min_clients"] is None
    assert strategy_settings(max_update_norm=0.0)["max_update_norm"] is None
    assert strategy_settings(mode="rounds")["buffer_size"] is None
    assert strategy_settings(even_weights="auto")["even_weights"] is None
    assert strategy_settings(even_weights="false")["even_weights"] is False


def test_what_fits_the_apps_own_mode_is_for_its_strategy_to_say() -> None:
    assert strategy_settings(buffer_size=20)["buffer_size"] == 20
    assert strategy_settings(late_updates="use")["late_updates"] == "use"
    with pytest.raises(ConfigError, match="0 without mode = buffered"):
        strategy_settings(buffer_size=20, mode="rounds")
    with pytest.raises(ConfigError, match="drop without num-spare"):
        strategy_settings(late_updates="use", num_spare=0)


def test_a_target_stops() -> None:
    class Record:
        accuracy: float | None = 0.7

    stop = strategy_settings(target_accuracy=0.7)["stop_when"]
    assert stop(Record())
    Record.accuracy = None
    assert not stop(Record())


def test_what_is_overridden_goes_on_when_resumed() -> None:
    config = app_config_of(
        {**APP, "overridden": "strategy", "strategy": "random", "fairness": "none"}
    )
    assert config.overridden_keys == ["fairness", "strategy"]
    with pytest.raises(ConfigError, match="overridden"):
        AppConfig.from_mapping({**APP, "overridden": "rounds"})


@pytest.mark.parametrize(
    ("text", "low", "high"), [("3", 3, 3), ("1,2,3", 1, 3), ("2-8", 2, 8), ("5-5", 5, 5)]
)
def test_factors_are_given_or_drawn_once(text: str, low: float, high: float) -> None:
    config = app_config_of({**APP, "num-clients": 3, "compute-factor": text})
    found = config.factors(np.random.default_rng(1))
    assert found.shape == (3,)
    assert low <= found.min() + 1e-9
    assert found.max() - 1e-9 <= high
    assert found.tolist() == config.factors(np.random.default_rng(1)).tolist()


@pytest.mark.parametrize(
    "text", ["0", "-1", "1,2", "8-2", "0-3", "a", "1-b", "", "inf", "nan", "1-"]
)
def test_other_factors_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be a number above 0, 3 of them, or LOW-HIGH"):
        app_config_of({**APP, "num-clients": 3, "compute-factor": text})


def test_an_app_is_named_or_none_of_its_settings_is_given() -> None:
    assert not names_app({"rounds": 5})
    assert names_app(APP)
    assert names_app({"server-app": "x:app"})
    for key in AppSettings.settings().keys() - {"app", "server-app", "client-app"}:
        with pytest.raises(ConfigError, match="has no effect without --app"):
            names_app({key: ""})


def test_given_times_say_who_the_clients_are(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("client,seconds\na,1\nb,2\n")
    given = {**APP, "times": str(file)}
    assert app_config_of(given).num_clients == 2
    assert app_config_of({**given, "num-clients": 2, "availability": "0.5"}).num_clients == 2
    for key, value in (("num-clients", 3), ("base-rate", 7.0), ("compute", "measured")):
        with pytest.raises(ConfigError, match="--times"):
            app_config_of({**given, key: value})
