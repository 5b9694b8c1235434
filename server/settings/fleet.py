"""Settings of ``flower-server``: those of a run, and how clients reach it."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import model_validator

from flower_scheduling.client.wire.addresses import is_loopback, parse_address
from flower_scheduling.errors import ConfigError
from flower_scheduling.schema import kebab

from ..transport.admission import DEFAULT_MAX_CLIENTS
from .base import CompressionSettings, setting
from .run import ServerConfig

WRAPPED: Final = "wrapped"
"""Key of the settings of a run of another app, which ours does not have: the wrapped strategy."""
APP_CONFIG: Final = "app-config"
"""Key of the run configuration of such an app."""
APP_FOLDER: Final = "app-folder"
"""Key of the folder in which the server of such an app was started, where the app is found."""
OF_ANY_APP: Final = frozenset(
    [
        "app",
        "run-config",
        "address",
        "tls",
        "insecure",
        "metrics",
        "page",
        "deny-list",
        "max-clients",
        "max-message-mb",
        "compress",
        "run-dir",
        "explain",
        "tracker",
        "checkpoint-every",
        "checkpoint-required",
    ]
)
"""Settings that concern another ServerApp too."""
_STRATEGY: Final = "ScheduledStrategy(..., {}=)"
ELSEWHERE: Final = {
    "strategy": _STRATEGY.format("policy"),
    "strategy-option": "the policy's parameters in ScheduledStrategy(...)",
    **{
        key: _STRATEGY.format(key.replace("-", "_"))
        for key in (
            "num-selected",
            "num-spare",
            "late-updates",
            "max-share",
            "tau-max-s",
            "mode",
            "buffer-size",
            "max-staleness",
            "staleness-discount",
            "even-weights",
            "local-work",
            "least-work",
            "most-work",
            "local-steps",
            "beta",
            "truncate",
            "fairness",
            "seed",
            "eval-every",
            "client-eval-every",
            "min-clients",
            "wait-s",
            "max-update-norm",
            "accept-unchanged",
        )
    },
    "rounds": "start(..., num_rounds=)",
    "target-accuracy": _STRATEGY.format("stop_when"),
    "aggregation": "the strategy that it wraps",
    "aggregation-option": "the strategy that it wraps",
    "initial-model": "the arrays that it calls start() with",
    "runtime": "`flwr run` in its folder",
}
"""Where another app sets what has no effect on it as a flag."""


def set_by_the_app(key: str, value: object) -> ConfigError:
    """Return the error for a flag of ours that was given for another app."""
    where = ELSEWHERE.get(key, "its own settings, [tool.flwr.app.config]")
    return ConfigError(key, value, f"has no effect with --app: that app sets it in {where}")


class FleetConfig(ServerConfig, CompressionSettings):
    """The settings of a run, and how clients reach it."""

    FLOORS_BY_NUMBER = False  # clients join in any order

    address: str = setting("127.0.0.1:9092", "Where to listen, HOST:PORT (port 0: any).")
    tls: str = setting("", "Folder of ca.pem, server.pem and server.key.")
    insecure: bool = setting(False, "Listen beyond loopback without TLS.")
    app: str = setting("", "Another ServerApp, MODULE:ATTRIBUTE, on our streams.")
    run_config: str = setting(
        "", 'Settings of --app as for flwr run, "num-server-rounds=5", or a TOML file.'
    )
    metrics: str = setting("", "Where Prometheus finds /metrics, HOST:PORT (default: off).")
    page: str = setting(
        "",
        "Where a browser finds the page of the run, HOST:PORT, e.g. 127.0.0.1:8501 (default: off).",
    )
    deny_list: str = setting("", "File of client names that are refused, one a line.")
    runtime: Literal["stream", "superlink"] = setting(
        "stream", "stream: our own streams; superlink: Flower's SuperLink and SuperNodes."
    )
    max_clients: int = setting(DEFAULT_MAX_CLIENTS, "Names that are let in, at most.", ge=1)
    max_message_mb: int = setting(
        0, "Largest message [MB]; 0: replies of 512, or of four times what is sent if more.", ge=0
    )

    @model_validator(mode="after")
    def _check_fleet(self) -> Self:
        self._require_address("address", secure=bool(self.tls))
        if self.run_config and not self.app:
            message = "has no effect without --app: the built-in app has flags"
            raise ConfigError("run-config", self.run_config, message)
        if self.metrics:  # in the clear, and for any client
            self._require_address("metrics", secure=False)
        if self.page:  # beyond loopback it wants a token
            self._require_host_and_port("page")
        return self

    def _require_address(self, name: str, *, secure: bool) -> None:
        host = self._require_host_and_port(name)
        self.require(
            name,
            secure or self.insecure or is_loopback(host),
            "on loopback, or with --insecure"
            + (", or with --tls FOLDER" if name == "address" else ""),
        )

    def _require_host_and_port(self, name: str) -> str:
        return parse_address(kebab(name), str(getattr(self, name)), any_port=True).host
