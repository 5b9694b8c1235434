"""Flower's aggregation strategies by name."""

from __future__ import annotations

import inspect
import math
from typing import Any, Final

import flwr.serverapp.strategy as flower
from flwr.serverapp.strategy import Strategy

from flower_scheduling.client.wire.protocol import TRAIN_LOSS
from flower_scheduling.errors import ConfigError, nearest
from flower_scheduling.schema import kebab

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

# Options that decide which clients train, and on how many: the scheduler's job.
_OURS: Final = {"fraction_train", "min_train_nodes", "min_available_nodes"}
# Annotations of options that have a text, as types and as strings: in a module that imports
# ``annotations`` from ``__future__`` they are not evaluated, and may name what is not imported.
_KINDS: Final[dict[object, type[int | float | str]]] = {
    spelled: kind for kind in (int, float, str) for spelled in (kind, kind.__name__)
}


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
    parameters = {
        key: parameter
        for key, parameter in inspect.signature(cls).parameters.items()
        if parameter.annotation in _KINDS and key not in _OURS
    }
    arguments: dict[str, Any] = {}
    for pair in filter(None, (part.strip() for part in options.split(","))):
        key, _, text = pair.partition("=")
        key = key.strip().replace("-", "_")
        if key not in parameters:
            known = list(map(kebab, parameters))
            message = f"is no option of {name}, which takes {', '.join(known)}"
            raise ConfigError("aggregation-option", pair, message, nearest(kebab(key), known))
        if key in arguments:
            raise ConfigError("aggregation-option", options, f"has several values for {kebab(key)}")
        arguments[key] = _value(key, text, _KINDS[parameters[key].annotation])
    if "train_loss_key" in parameters:
        arguments.setdefault("train_loss_key", TRAIN_LOSS)  # our clients' name for it
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in arguments:
            raise ConfigError(
                "aggregation-option", options, f"lacks {kebab(key)}=VALUE, which {name} needs"
            )
    try:
        return cls(**arguments)
    except ValueError as error:  # Flower checks some ranges itself
        raise ConfigError("aggregation-option", options, f"{name} refuses it: {error}") from None


def _value(key: str, text: str, kind: type[int | float | str]) -> int | float | str:
    try:
        value = kind(text)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError
    except ValueError:
        message = f"{kebab(key)} must be a finite {kind.__name__}"
        raise ConfigError("aggregation-option", f"{kebab(key)}={text}", message) from None
    return value
