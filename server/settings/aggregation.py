"""Flower's aggregation strategies by name."""

from __future__ import annotations

import inspect
import math
from typing import Any, Final

import flwr.serverapp.strategy as flower
from flwr.serverapp.strategy import Strategy

from flower_scheduling.client.wire.protocol import TRAIN_LOSS
from flower_scheduling.errors import ConfigError, nearest

AGGREGATIONS: Final[dict[str, type[Strategy]]] = {
    cls.__name__.lower(): cls
    for cls in (
        flower.FedAvg,
        flower.FedAvgM,
        flower.FedProx,
        flower.FedAdagrad,
        flower.FedAdam,
        flower.FedYogi,
        flower.FedMedian,
        flower.FedTrimmedAvg,
        flower.Krum,
        flower.MultiKrum,
        flower.Bulyan,
        flower.QFedAvg,
    )
}
"""Strategies that train every node they see, by their lower-case names."""

_OURS: Final = {"fraction_train", "min_train_nodes", "min_available_nodes"}
"""Options that decide who trains: the scheduler's job."""


def build_aggregation(name: str, options: str = "") -> Strategy:
    """Build a Flower strategy.

    Parameters
    ----------
    name : str
        Key of :data:`AGGREGATIONS`.
    options : str
        Comma-separated ``key=value`` pairs in the strategy's own terms, kebab-case or not, e.g.
        ``"eta=0.01,beta-1=0.9"``.

    Raises
    ------
    ConfigError
        If the name or an option is unknown, a value has the wrong type or one is missing.
    """
    if name not in AGGREGATIONS:
        raise ConfigError(
            "aggregation",
            name,
            "must be one of " + ", ".join(AGGREGATIONS),
            nearest(name, AGGREGATIONS),
        )
    cls = AGGREGATIONS[name]
    options_of_cls = {
        key: parameter
        for key, parameter in inspect.signature(cls).parameters.items()
        if parameter.annotation in (int, float, str) and key not in _OURS
    }
    arguments: dict[str, Any] = {}
    if "train_loss_key" in options_of_cls:
        arguments["train_loss_key"] = TRAIN_LOSS  # our clients' name for it
    for pair in filter(None, (part.strip() for part in options.split(","))):
        key, _, text = pair.partition("=")
        key = key.strip().replace("-", "_")
        if key not in options_of_cls:
            known = list(map(_flag, options_of_cls))
            message = f"is no option of {name}, which takes {', '.join(known)}"
            raise ConfigError("aggregation-option", pair, message, nearest(_flag(key), known))
        if key in arguments and key != "train_loss_key":
            raise ConfigError("aggregation-option", options, f"has several values for {_flag(key)}")
        try:
            arguments[key] = options_of_cls[key].annotation(text)
            if isinstance(arguments[key], float) and not math.isfinite(arguments[key]):
                raise ValueError
        except ValueError:
            kind = options_of_cls[key].annotation.__name__
            raise ConfigError(
                "aggregation-option",
                pair,
                f"{_flag(key)} must be a finite {kind}",
            ) from None
    for key, parameter in options_of_cls.items():
        if parameter.default is parameter.empty and key not in arguments:
            raise ConfigError(
                "aggregation-option", options, f"lacks {_flag(key)}=VALUE, which {name} needs"
            )
    try:
        return cls(**arguments)
    except ValueError as error:  # Flower checks some ranges itself
        raise ConfigError("aggregation-option", options, f"{name} refuses it: {error}") from None


def _flag(name: str) -> str:
    return name.replace("_", "-")
