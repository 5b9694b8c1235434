"""Settings of the simulation of a Flower app, and which of its strategy's they override."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from flower_scheduling.errors import ConfigError
from flower_scheduling.server.runs.resume import read_settings, resumed_settings
from flower_scheduling.server.settings.base import CompressionSettings, Settings, setting
from flower_scheduling.server.settings.fleet import WRAPPED, set_by_the_app
from flower_scheduling.server.settings.run import ServerConfig
from flower_scheduling.user_config import merged_overrides

from ...environments.recorded import RunRecord, read_record, require_run
from ...environments.traces import Traces, read_traces
from ...settings import RadioSettings, SimulationConfig

Times: TypeAlias = RunRecord | Traces | None
"""Where round trips come from: a recorded run, a file, or the link and computing models."""

_APP: Final = "app"
_WHOLE: Final = "or --server-app MODULE:ATTRIBUTE and --client-app MODULE:ATTRIBUTE"

OVERRIDING: Final = frozenset(
    [
        "strategy",
        "strategy-option",
        "beta",
        "truncate",
        "num-selected",
        "num-spare",
        "late-updates",
        "tau-max-s",
        "fairness",
        "mode",
        "buffer-size",
        "max-staleness",
        "staleness-discount",
        "even-weights",
        "local-work",
        "least-work",
        "most-work",
        "eval-every",
        "client-eval-every",
        "min-clients",
        "max-update-norm",
    ]
)
"""Settings that count in place of what the app has wrapped its strategy with, when given."""
_OF_THE_POLICY: Final = ("strategy-option", "beta", "truncate")
_OF_THE_MODELS: Final = frozenset(
    [
        *("compute-law", "compute-shape", "distances-m", "payload-bits", "samples-per-round"),
        *RadioSettings.settings(),
    ]
)
_RECORDED_TOO: Final = ("availability", "failure-probability", "joins", "slowdowns")


class AppSettings(Settings):
    """The settings that name an app and how long it takes; each is a flag."""

    app: str = setting(
        "", "Folder of a Flower app, with its pyproject.toml, to simulate in place of MNIST."
    )
    server_app: str = setting("", "Its ServerApp, MODULE:ATTRIBUTE, in place of --app.")
    client_app: str = setting("", "Its ClientApp, MODULE:ATTRIBUTE, in place of --app.")
    run_config: str = setting(
        "", 'Settings of the app as for flwr run, "num-server-rounds=5", or a TOML file.'
    )
    times: str = setting(
        "",
        "Round trips of the app's clients: a run directory, or a CSV file with the columns "
        "client,seconds (default: the link and computing models).",
    )
    compute: Literal["drawn", "measured"] = setting(
        "drawn",
        "How long a client of the app computes: drawn from the computing model, or measured, the "
        "processor time here times a factor.",
    )
    compute_factor: str = setting(
        "1-10", "That factor: one, one per client, or LOW-HIGH, drawn once for each."
    )


class AppConfig(SimulationConfig, AppSettings):
    """Settings of the simulation of an app."""

    checkpoint_every: int = setting(
        ServerConfig().checkpoint_every, "Rounds between two checkpoints (0: never).", ge=0
    )
    overridden: str = setting("", "Settings in place of the app's own, with commas between.")

    @model_validator(mode="after")
    def _check_app(self) -> Self:
        self.factors(np.random.default_rng(0))
        if not {*self.overridden_keys} <= OVERRIDING:
            raise ConfigError("overridden", self.overridden, f"must be of {sorted(OVERRIDING)}")
        return self

    @property
    def label(self) -> str:
        """What the run is called: its policy if it is given, else the app."""
        return self.strategy if "strategy" in self.overridden_keys else self.app_name

    @property
    def run_id(self) -> int:
        """Id of the run: the same for the same policy and seed, another one for others."""
        said = json.dumps([self.label, self.strategy_option, self.mode, self.seed])
        digest = hashlib.sha256(said.encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1 or 1

    @property
    def app_name(self) -> str:
        """What the app is called."""
        return Path(self.app).resolve().name if self.app else self.server_app.partition(":")[0]

    @property
    def overridden_keys(self) -> list[str]:
        """The settings that count in place of the app's own."""
        return [key for key in self.overridden.split(",") if key]

    def _decides(self, key: str) -> bool:
        return key in self.overridden_keys

    def factors(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return how many times as long as this machine each client computes, (num_clients,)."""
        allowed = f"a number above 0, {self.num_clients} of them, or LOW-HIGH"
        low, dash, high = self.compute_factor.partition("-")
        try:
            if dash:
                bounds = [float(low), float(high)]
                ends = np.log(np.maximum(bounds, 1e-300))
                values = np.exp(rng.uniform(ends[0], ends[1], self.num_clients))
                good = 0 < bounds[0] <= bounds[1]
            else:
                values = np.array([float(part) for part in low.split(",")])
                good = values.size in (1, self.num_clients) and bool((values > 0).all())
        except ValueError:
            good = False
        self.require("compute_factor", good and bool(np.isfinite(values).all()), allowed)
        return np.broadcast_to(values, self.num_clients).copy()

    def strategy_settings(self) -> dict[str, Any]:
        """Return the arguments of a ScheduledStrategy that count in place of the app's."""
        keys = set(self.overridden_keys)
        found: dict[str, Any] = {
            "seed": self.seed,
            "wait_s": self.wait_s,
            "availability": float(self.per_client("availability").mean()),
        }
        zero_is_none = ("buffer-size", "min-clients", "max-update-norm")
        for key in sorted(keys - {"strategy", "even-weights", *_OF_THE_POLICY}):
            name = key.replace("-", "_")
            value = getattr(self, name)
            found[name] = None if key in zero_is_none and not value else value
        if "even-weights" in keys:
            found["even_weights"] = {"true": True, "false": False}.get(self.even_weights)
        if found.get("mode") == "rounds":
            found["buffer_size"] = None
        if "strategy" in keys:
            found |= {"policy": self.strategy, **self.policy_params()}
        if (target := self.target_accuracy) > 0:
            found["stop_when"] = lambda record: (record.accuracy or 0.0) >= target
        return found

    def read_times(self) -> Times:
        """Read what ``times`` names.

        Raises
        ------
        ConfigError
            If it is neither a run nor a file of round trips.
        """
        return _read_times(self.times)

    def require_same_draws(self) -> None:
        """Refuse a comparison on times that every run would measure anew.

        Raises
        ------
        ConfigError
            If computing times are measured.
        """
        if self.compute == "measured":
            message = "compare needs the same times for all: run the app once, then compare"
            raise ConfigError("compute", self.compute, f"{message} with --times RUN_DIR")

    def times_text(self) -> str:
        """Say in a line where the times come from."""
        if self.times:
            return f"round trips of {self.times}"
        size = "the model's size" if self.payload_bits == "model" else f"{self.payload_bits} bits"
        link = f"the link model, {size} a transfer"
        if self.compute == "measured":
            return f"{link}; computing as measured here, times {self.compute_factor}"
        return f"{link}; computing drawn from the computing model"


SIMULATED: Final = frozenset(
    [
        *AppSettings.settings(),
        *CompressionSettings.settings(),
        *_OF_THE_MODELS,
        *_RECORDED_TOO,
        "num-clients",
        "late",
        "seed",
        "wait-s",
        "run-dir",
        "explain",
        "tracker",
        "checkpoint-every",
        "checkpoint-required",
        "target-accuracy",
        "overridden",
    ]
)
"""Settings of a simulated app that are not its strategy's."""


def names_app(given: Mapping[str, Any]) -> bool:
    """Return whether settings are those of an app's simulation.

    Raises
    ------
    ConfigError
        If there are some of them, and no app.
    """
    keys = [key for key in given if key in AppSettings.settings()]
    if keys and not {_APP, "server-app", "client-app"} & {*keys}:
        message = "has no effect without --app FOLDER, the app to simulate"
        raise ConfigError(keys[0], given[keys[0]], message)
    return bool(keys)


def app_config_of(given: Mapping[str, Any]) -> AppConfig:
    """Return the settings of an app's simulation, from those that were given.

    Raises
    ------
    ConfigError
        If one is wrong, has no effect or is the app's own business.
    """
    server, client = given.get("server-app", ""), given.get("client-app", "")
    if given.get(_APP) and (server or client):
        key = "server-app" if server else "client-app"
        raise ConfigError(key, given[key], "must not be given beside --app, which has both")
    if not given.get(_APP) and not (server and client):
        key = "server-app" if server else "client-app" if client else _APP
        message = "needs --client-app" if server else "needs --server-app"
        if key == _APP:
            message = f"must be the folder of a Flower app, {_WHOLE}"
        raise ConfigError(key, given.get(key, ""), message)
    for key, value in given.items():
        if key not in SIMULATED | OVERRIDING:
            raise set_by_the_app(key, value)
    for key in _OF_THE_POLICY:
        if key in given and "strategy" not in given:
            raise ConfigError(key, given[key], "needs --strategy, whose parameter it is")
    kept = given.get("overridden", "").split(",")
    overridden = sorted({*kept, *(key for key in given if key in OVERRIDING)} - {""})
    settings = {**given, "overridden": ",".join(overridden)}
    times = _read_times(str(given.get("times", "")))
    if times is not None:
        _check_times(given, times)
        settings["num-clients"] = len(times.names)
    # What is not given is the app's: it must not be found unfit for the fleet here.
    settings.setdefault("num-selected", 1)
    return AppConfig.from_mapping(settings)


def _read_times(path: str) -> Times:
    if not path:
        return None
    if Path(path).is_dir():
        try:
            require_run(Path(path))
            return read_record(Path(path))
        except ConfigError as error:
            raise ConfigError("times", path, error.message) from None
    return read_traces(Path(path), "times")


def _check_times(given: Mapping[str, Any], times: RunRecord | Traces) -> None:
    """Refuse settings that have no effect on given round trips."""
    recorded = isinstance(times, RunRecord)
    idle = [*_OF_THE_MODELS, "compute", "compute-factor", *(_RECORDED_TOO if recorded else ())]
    for key in given:
        if key in idle and given[key] != AppConfig.settings()[key].default:
            raise ConfigError(key, given[key], "has no effect on the round trips of --times")
    if (wanted := given.get("num-clients", len(times.names))) != len(times.names):
        raise ConfigError("num-clients", wanted, f"must be the {len(times.names)} of --times")


def is_app_run(run_dir: Path) -> bool:
    """Return whether a run directory is that of an app, simulated or not.

    Raises
    ------
    ConfigError
        If it has no settings.
    """
    return WRAPPED in read_settings(run_dir)


def resumed_app_config(run_dir: Path, given: Mapping[str, Any]) -> AppConfig:
    """Return the settings of an app's run that is to go on: its own, and those given.

    Raises
    ------
    ConfigError
        If it was no simulation, or a setting differs that must not.
    """
    before = read_settings(run_dir)
    if "num-clients" not in before:
        message = "must be a run of this command, not of flower-server or of an app of its own"
        raise ConfigError("resume", str(run_dir), message)
    settings = resumed_settings(run_dir, given, AppConfig, app_keys(before))
    if "run-config" in given:  # what was given at first stays, unless it is given anew
        earlier, later = str(before.get("run-config", "")), str(given["run-config"])
        settings["run-config"] = merged_overrides("run-config", earlier, later)
    return app_config_of(settings)


def app_keys(settings: Mapping[str, Any]) -> frozenset[str]:
    """Return which settings of a simulated app's run are no business of the app."""
    return SIMULATED | {*str(settings.get("overridden", "")).split(",")}
