"""What the adapter must know about Flower's own strategies to run one inside it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Final, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedXgbBagging,
    FedXgbCyclic,
    MultiKrum,
    QFedAvg,
    Strategy,
)
from numpy.typing import NDArray

from flower_scheduling._flwr import (
    FLOWER_FOLDER,
    FastRecordDict,
    new_message,
    new_record,
    only_averages,
)
from flower_scheduling.client.wire.protocol import NUM_EXAMPLES
from flower_scheduling.errors import ConfigError

from .old_api.ported import PortedStrategy
from .replies import ArraySpec, of_kind
from .updates.averaging import alike, weighted_mean

_FixedClipping: Final = (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
_ServerSideClipping: Final = (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
_FLOWER_MIN_NODES: Final = 2
"""Flower's default for every minimum count; a larger one was set by the user."""
_MINIMUM_COUNTS: Final = ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes")
_CALLED_BY_START: Final = (
    "configure_train",
    "aggregate_train",
    "configure_evaluate",
    "aggregate_evaluate",
)
"""Methods through which a strategy's ``start`` runs its rounds."""


_in_round: ContextVar[bool] = ContextVar("_in_round", default=False)


@contextmanager
def _as_part_of_a_round() -> Iterator[None]:
    token = _in_round.set(True)
    try:
        yield
    finally:
        _in_round.reset(token)


def is_round_line(record: logging.LogRecord) -> bool:
    """Tell whether Flower's own strategies log this in each scheduled round, which has our line."""
    of_flower = record.pathname.startswith(FLOWER_FOLDER)
    return _in_round.get() and of_flower and record.levelno < logging.WARNING


class WrappedStrategy:
    """A Flower strategy, possibly with others inside it, seen from outside.

    Parameters
    ----------
    strategy : Strategy
        The strategy that configures and aggregates.
    num_selected : int
        Size N of the super arm.
    min_replies : int
        Smallest number of usable updates that may change the model, on top of what the
        strategy's own rule needs.

    Attributes
    ----------
    outer : Strategy
        The strategy itself.
    chain : list of Strategy
        It and all that it holds, under any attribute, from the outside in.
    quorum : int
        Smallest number of nodes, and of updates, for which a step is made.
    min_available : int
        Clients that it waits for by itself, 1 where the user asked for no number.

    Raises
    ------
    ConfigError
        If the strategy trains nothing, needs more updates than ``num_selected`` or is a
        differential-privacy wrapper set up for another number of clients.
    """

    def __init__(self, strategy: Strategy, *, num_selected: int, min_replies: int = 1) -> None:
        self.outer = strategy
        self.chain = list(strategies_of(strategy))
        self._methods = {name: getattr(strategy, name) for name in _CALLED_BY_START}
        for inner in self.chain:
            if getattr(inner, "fraction_train", 1.0) == 0.0:
                message = "must be above 0: nothing would be trained"
                raise ConfigError("fraction_train", 0.0, message)
            sampled = getattr(inner, "num_sampled_clients", num_selected)
            if sampled != num_selected:
                raise ConfigError(
                    "num_sampled_clients", sampled, f"must be num_selected = {num_selected}"
                )
            if isinstance(inner, FedXgbCyclic) and num_selected != 1:
                message = "must be 1: FedXgbCyclic trains one client at a time"
                raise ConfigError("num_selected", num_selected, message)
        self.quorum = max(min_replies, *(quorum_of(inner) for inner in self.chain))
        if self.quorum > num_selected:
            raise ConfigError(
                "num_selected",
                num_selected,
                f"must be at least {self.quorum}, the updates that {type(self.chain[-1]).__name__} "
                "needs for a step",
            )
        counts = [int(getattr(inner, "min_available_nodes", 0)) for inner in self.chain]
        self.min_available = max(1, *(n for n in counts if n > _FLOWER_MIN_NODES), 1)

    @property
    def name(self) -> str:
        """Name of the strategy's class."""
        return type(self.outer).__name__

    @property
    def weighted_by_key(self) -> str:
        """Metric that carries the aggregation weight."""
        return str(getattr(self.chain[-1], "weighted_by_key", NUM_EXAMPLES))

    @property
    def shapes_grow(self) -> bool:
        """Whether updates have other shapes than the model, as tree ensembles have."""
        last = self.chain[-1]
        if isinstance(last, PortedStrategy):
            return last.shapes_grow
        return isinstance(last, FedXgbBagging | FedXgbCyclic)

    @property
    def own_train_rule(self) -> bool:
        """Whether it aggregates updates by a rule that is not Flower's."""
        if isinstance(self.outer, PortedStrategy):
            return not self.outer.averages
        return has_own(self.outer, "aggregate_train")

    @property
    def own_evaluate_rule(self) -> bool:
        """Whether it aggregates evaluations by a rule that is not Flower's."""
        return has_own(self.outer, "aggregate_evaluate")

    @property
    def own_start(self) -> bool:
        """Whether it runs its rounds by a ``start`` of its own."""
        return has_own(self.outer, "start")

    @property
    def fraction_train(self) -> float:
        """Smallest fraction of the clients that it would train by itself."""
        return min(float(getattr(inner, "fraction_train", 1.0)) for inner in self.chain)

    def check_model(self, specs: Mapping[str, ArraySpec]) -> None:
        """Refuse a model that the strategy's rule cannot aggregate.

        Raises
        ------
        ConfigError
            If Flower's own code (flwr 1.42) would raise in each round, by array.
        """
        for key, spec in specs.items():
            if spec.dtype.kind not in "biufc" and not self.own_train_rule:
                message = "must be numbers that numpy knows: send float32 instead of bfloat16"
                raise ConfigError(key, f"array of {spec.dtype}", message)
        for inner in self.chain:
            for key, spec in specs.items():
                whole = spec.dtype.kind in "biu"
                clipped = isinstance(inner, _ServerSideClipping) and (
                    spec.shape or spec.dtype.kind == "b"
                )
                if whole and (clipped or isinstance(inner, QFedAvg)):
                    raise ConfigError(
                        key,
                        f"array of {spec.dtype}",
                        f"{type(inner).__name__} cannot aggregate it: "
                        "send it as float32, or leave it out of the model",
                    )

    # -- what the strategy does in a round ------------------------------------------------------

    @_as_part_of_a_round()
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return its messages for the nodes of ``grid``, all of which it may train."""
        with self._set({"fraction_train": 1.0, **dict.fromkeys(_MINIMUM_COUNTS, 0)}):
            return list(self._methods["configure_train"](server_round, arrays, config, grid))

    @_as_part_of_a_round()
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message], *, consume: bool = False
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return its aggregate of usable replies.

        Flower adds differential-privacy noise for ``num_sampled_clients`` updates whatever their
        number (flwr 1.42), which protects a short round too little. With an accountant the sample
        size is part of its promise, and Flower makes no step in a short round.

        Parameters
        ----------
        server_round : int
            Flower's number of the round.
        replies : iterable of Message
            At least one.
        consume : bool
            Whether the replies may lose their arrays on the way, whose memory is free then.
        """
        replies = list(replies)
        if only_averages(self._methods["aggregate_train"]) and (views := alike(replies)):
            return self._average(server_round, replies, views, consume=consume)
        if consume:
            for reply in replies:
                reply.content = FastRecordDict(dict(reply.content))
        scaled = [each for each in self.chain if getattr(each, "accountant", None) is None]
        arrays: ArrayRecord | None
        with self._set({"num_sampled_clients": len(replies)}, scaled):
            arrays, metrics = self._methods["aggregate_train"](server_round, replies)
        return arrays, metrics

    def _average(
        self,
        server_round: int,
        replies: list[Message],
        views: list[dict[str, NDArray[Any]]],
        *,
        consume: bool,
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return Flower's weighted mean without its copies; all but the arrays goes through it."""
        light = [new_message(r.metadata, _without_arrays(r.content)) for r in replies]
        arrays: ArrayRecord | None
        arrays, metrics = self._methods["aggregate_train"](server_round, light)
        if arrays is None:
            return arrays, metrics
        if consume:
            for reply, without in zip(replies, light, strict=True):
                reply.content = without.content
        weights = [_weight(each.content, vars(self.outer)["weighted_by_key"]) for each in light]
        total = sum(weights)
        return weighted_mean(views, [weight / total for weight in weights]), metrics

    @_as_part_of_a_round()
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return its messages for the nodes of ``grid``: its fraction of them, as far as it goes.

        A minimum count above the number of nodes would wait for ever.
        """
        num_nodes = len(list(grid.get_node_ids()))
        with ExitStack() as stack:
            for inner in self.chain:
                counts = {name: getattr(inner, name, 0) for name in _MINIMUM_COUNTS}
                at_most = {name: min(count, num_nodes) for name, count in counts.items()}
                stack.enter_context(self._set(at_most, [inner]))
            return list(self._methods["configure_evaluate"](server_round, arrays, config, grid))

    @_as_part_of_a_round()
    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return its aggregate of evaluations."""
        metrics: MetricRecord | None = self._methods["aggregate_evaluate"](server_round, replies)
        return metrics

    @contextmanager
    def guided_by(self, guide: object) -> Iterator[Strategy]:
        """Let the strategy's own ``start`` call a guide's methods in place of its own."""
        try:
            for name in _CALLED_BY_START:
                setattr(self.outer, name, getattr(guide, name))
            yield self.outer
        finally:
            for name in _CALLED_BY_START:
                self.outer.__dict__.pop(name, None)

    @contextmanager
    def _set(
        self, values: Mapping[str, object], strategies: Iterable[Any] | None = None
    ) -> Iterator[None]:
        """Set attributes of the strategies that have them, for a while."""
        saved = [
            (inner, name, getattr(inner, name))
            for inner in (self.chain if strategies is None else strategies)
            for name in values
            if hasattr(inner, name)
        ]
        try:
            for inner, name, _ in saved:
                setattr(inner, name, values[name])
            yield
        finally:
            for inner, name, value in saved:
                setattr(inner, name, value)


def _without_arrays(content: RecordDict) -> RecordDict:
    """Return the same records, those of arrays empty."""
    return new_record(
        FastRecordDict,
        {
            name: new_record(ArrayRecord, {}) if isinstance(record, ArrayRecord) else record
            for name, record in content.items()
        },
    )


def _weight(content: RecordDict, key: str) -> float:
    """Return the weight of a reply that Flower has checked."""
    (metrics,) = of_kind(content, MetricRecord).values()
    return cast(float, metrics[key])


def strategies_of(strategy: Strategy) -> Iterator[Any]:
    """Yield a strategy and those that it holds, each once, from the outside in."""
    found: list[Any] = [strategy]
    for each in found:
        yield each
        for value in vars(each).values():
            values: Any = [value]
            if isinstance(value, Mapping):
                values = value.values()
            elif isinstance(value, list | tuple):
                values = value
            found.extend(
                inner
                for inner in values
                if isinstance(inner, Strategy) and not any(inner is known for known in found)
            )


def has_own(strategy: Strategy, method: str) -> bool:
    """Tell whether a method was written outside Flower."""
    function: Callable[..., Any] = getattr(type(strategy), method)
    return not str(getattr(function, "__module__", "")).startswith("flwr.")


def quorum_of(strategy: Any) -> int:
    """Return the smallest number of updates for which a strategy's rule keeps its promise."""
    minimum = int(getattr(strategy, "min_train_nodes", 0))
    quorum = minimum if minimum > _FLOWER_MIN_NODES else 1
    if isinstance(strategy, MultiKrum):  # Blanchard et al., 2017: n >= 2f + 3; Krum included
        quorum = max(quorum, 2 * strategy.num_malicious_nodes + 3)
    if isinstance(strategy, Bulyan):  # El Mhamdi et al., 2018: n >= 4f + 3
        quorum = max(quorum, 4 * strategy.num_malicious_nodes + 3)
    if isinstance(strategy, _FixedClipping) and strategy.accountant is not None:
        quorum = max(quorum, strategy.num_sampled_clients)
    return quorum
