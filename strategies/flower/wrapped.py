"""What the adapter must know about Flower's own strategies (flwr 1.42) to run one inside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedXgbBagging,
    FedXgbCyclic,
    MultiKrum,
    Strategy,
)

from flower_scheduling.client.wire.protocol import NUM_EXAMPLES
from flower_scheduling.errors import ConfigError

_FixedClipping = (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
_FLOWER_MIN_NODES = 2
"""Flower's default for every minimum count; a larger one was set by the user."""
_MINIMUM_COUNTS = ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes")


class WrappedStrategy:
    """A Flower strategy, possibly a chain of wrappers around one, seen from outside.

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
    chain : list of Strategy
        The wrappers from the outside in, the strategy itself last.
    quorum : int
        Smallest number of nodes, and of updates, for which a step is made.

    Raises
    ------
    ConfigError
        If the strategy samples a fraction of its own, needs more updates than ``num_selected``
        or is a differential-privacy wrapper set up for another number of clients.
    """

    def __init__(self, strategy: Strategy, *, num_selected: int, min_replies: int = 1) -> None:
        self.outer = strategy
        self.chain = list(_chain(strategy))
        for inner in self.chain:
            fraction = getattr(inner, "fraction_train", 1.0)
            if fraction != 1.0:
                raise ConfigError(
                    "fraction_train",
                    fraction,
                    "must be 1.0: the scheduler selects the clients of a round",
                )
            sampled = getattr(inner, "num_sampled_clients", num_selected)
            if sampled != num_selected:
                raise ConfigError(
                    "num_sampled_clients", sampled, f"must be num_selected = {num_selected}"
                )
        self.quorum = max(min_replies, *(_quorum(inner) for inner in self.chain))
        if self.quorum > num_selected:
            raise ConfigError(
                "num_selected",
                num_selected,
                f"must be at least {self.quorum}, the updates that {type(self.chain[-1]).__name__} "
                "needs for a step",
            )

    @property
    def weighted_by_key(self) -> str:
        """Metric that carries the aggregation weight."""
        return str(getattr(self.chain[-1], "weighted_by_key", NUM_EXAMPLES))

    @property
    def fixed_shapes(self) -> bool:
        """Whether updates have the shapes of the model; tree ensembles grow."""
        return not isinstance(self.chain[-1], FedXgbBagging | FedXgbCyclic)

    @contextmanager
    def without_minimum_counts(self) -> Iterator[Strategy]:
        """Set Flower's minimum counts aside, else a short round would wait for ever."""
        saved: list[tuple[Any, str, Any]] = []
        for inner in self.chain:
            for name in _MINIMUM_COUNTS:
                if hasattr(inner, name):
                    saved.append((inner, name, getattr(inner, name)))
                    setattr(inner, name, 0)
        try:
            yield self.outer
        finally:
            for inner, name, value in saved:
                setattr(inner, name, value)

    @contextmanager
    def for_replies(self, num_replies: int) -> Iterator[Strategy]:
        """Scale differential-privacy noise to the updates that came.

        Flower adds noise for ``num_sampled_clients`` updates whatever their number (flwr 1.42),
        which protects a short round too little. With an accountant the sample size is part of
        its promise, and Flower makes no step in a short round.
        """
        scaled = [
            inner
            for inner in self.chain
            if hasattr(inner, "num_sampled_clients") and getattr(inner, "accountant", None) is None
        ]
        saved = [inner.num_sampled_clients for inner in scaled]
        for inner in scaled:
            inner.num_sampled_clients = num_replies
        try:
            yield self.outer
        finally:
            for inner, value in zip(scaled, saved, strict=True):
                inner.num_sampled_clients = value


def _chain(strategy: Strategy) -> Iterator[Any]:
    inner: Any = strategy
    while isinstance(inner, Strategy):
        yield inner
        inner = getattr(inner, "strategy", None)


def _quorum(strategy: Any) -> int:
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
