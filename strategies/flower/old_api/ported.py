"""A strategy of Flower's old API as one of today's."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Self

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from flower_scheduling._flwr_old import (
    PRIVACY,
    TREES,
    Bulyan,
    ClientManager,
    ClientProxy,
    Code,
    Criterion,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    GridClientProxy,
    Krum,
    Scalar,
    evaluateins_to_recorddict,
    fitins_to_recorddict,
    recorddict_to_evaluateres,
)
from flower_scheduling._flwr_old import Strategy as OldStrategy
from flower_scheduling.errors import ConfigError

from ..timed_grid import LOGGER
from .records import fit_result, numbers, to_arrays, to_parameters

_FLOWER_MIN_CLIENTS: Final = 2
"""Flower's default for every minimum count; a larger one was set by the user."""


class ShownClients(ClientManager):
    """The clients that a strategy of the old API is shown, which come and go elsewhere.

    Parameters
    ----------
    grid : Grid
        Shows their nodes.
    take_all : bool
        Whether a sample is all of them, whatever its size; else it is random, as far as they go.
    """

    def __init__(self, grid: Grid, *, take_all: bool) -> None:
        run_id = grid.run.run_id
        proxies = [GridClientProxy(node, grid, run_id) for node in sorted(grid.get_node_ids())]
        self._clients: dict[str, ClientProxy] = {proxy.cid: proxy for proxy in proxies}
        self._take_all = take_all

    def __len__(self) -> int:
        return len(self._clients)

    def num_available(self) -> int:
        """Return the number of clients."""
        return len(self)

    def register(self, client: ClientProxy) -> bool:
        """Refuse further clients."""
        return False

    def unregister(self, client: ClientProxy) -> None:
        """Keep the client."""

    def all(self) -> dict[str, ClientProxy]:
        """Return the clients."""
        return dict(self._clients)

    def wait_for(self, num_clients: int, timeout: int = 86400) -> bool:
        """Tell whether there are so many, without a wait."""
        return len(self) >= num_clients

    def sample(
        self,
        num_clients: int,
        min_num_clients: int | None = None,
        criterion: Criterion | None = None,
    ) -> list[ClientProxy]:
        """Return all clients, or so many, that meet the criterion."""
        found = [each for each in self._clients.values() if not criterion or criterion.select(each)]
        return found if self._take_all else random.sample(found, min(num_clients, len(found)))


class PortedStrategy(Strategy):
    """Run a strategy of the old API by today's: made by :meth:`around`.

    Parameters
    ----------
    strategy : flwr.server.strategy.Strategy
        The strategy.

    Attributes
    ----------
    fraction_train, min_train_nodes, min_available_nodes
        What the old API calls ``fraction_fit``, ``min_fit_clients`` and ``min_available_clients``.
    shapes_grow : bool
        Whether updates have other shapes than the model, as tree ensembles have.
    needs_fixed_set : bool
        Whether a step must be made of clients that were asked together.
    """

    __slots__ = ("_grid",)  # no part of what a checkpoint saves

    as_they_are = False
    """Whether replies are left as clients of the old API sent them."""

    def __init__(self, strategy: OldStrategy) -> None:
        chain = list(_chain(strategy))
        self.strategy = strategy
        self.fraction_train = min(float(getattr(each, "fraction_fit", 1.0)) for each in chain)
        self.min_train_nodes = max(map(_quorum, chain))
        self.min_available_nodes = max(
            int(getattr(each, "min_available_clients", 0)) for each in chain
        )
        self.shapes_grow = any(isinstance(each, TREES) for each in chain)
        self.needs_fixed_set = any(isinstance(each, PRIVACY + TREES) for each in chain)
        self.num_asked = 0
        self._grid: Grid | None = None

    @classmethod
    def around(cls, strategy: OldStrategy, *more: Any, name: str = "") -> Self:
        """Port a strategy; log and records call it by ``name``, or by its own class's.

        Raises
        ------
        ConfigError
            If it is none of the old API.
        """
        if not isinstance(strategy, OldStrategy):
            message = "must be a strategy of Flower's old API, of flwr.server.strategy"
            raise ConfigError("strategy", strategy, message, "ScheduledStrategy takes all others")
        kind: Callable[..., Self] = type(name or type(strategy).__name__, (cls,), {})
        return kind(strategy, *more)

    @property
    def averages(self) -> bool:
        """Whether it aggregates arrays like the model's, by a rule of Flower's."""
        own = type(self.strategy).aggregate_fit.__module__.startswith("flwr.")
        return own and not self.shapes_grow

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return its messages for the nodes of ``grid``."""
        pairs = self.asked_to_train(server_round, arrays, grid)
        return [
            _message(fitins_to_recorddict(ins, True), MessageType.TRAIN, proxy, server_round)
            for proxy, ins in pairs
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return its aggregate of usable replies."""
        results: list[tuple[ClientProxy, FitRes]] = [
            (self._proxy(each), fit_result(each)) for each in replies
        ]
        arrays, metrics = self.aggregated(server_round, results)
        return arrays, measured(None, metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return its messages to evaluate, for nodes of ``grid``."""
        pairs = self.asked_to_evaluate(server_round, arrays, grid)
        return [
            _message(
                evaluateins_to_recorddict(ins, True), MessageType.EVALUATE, proxy, server_round
            )
            for proxy, ins in pairs
        ]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return its aggregate of evaluations: the loss and the metrics that are numbers."""
        return measured(*self.evaluated(server_round, replies))

    # -- the same in the old API's terms --------------------------------------------------------

    def asked_to_train(
        self, server_round: int, arrays: ArrayRecord, grid: Grid
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Return what its clients are to do."""
        self._grid = grid
        clients = ShownClients(grid, take_all=True)
        pairs = self.strategy.configure_fit(server_round, to_parameters(arrays), clients)
        self.num_asked = len(pairs)
        return pairs

    def aggregated(
        self, server_round: int, results: list[tuple[ClientProxy, FitRes]]
    ) -> tuple[ArrayRecord | None, Mapping[str, Scalar]]:
        """Return its aggregate of results, and the metrics."""
        missing = max(0, self.num_asked - len(results))
        failures: list[Any] = [RuntimeError("no usable reply") for _ in range(missing)]
        with self._noise_for(len(results)):
            model, metrics = self.strategy.aggregate_fit(server_round, results, failures)
        return None if model is None else to_arrays(model), metrics

    def asked_to_evaluate(
        self, server_round: int, arrays: ArrayRecord, grid: Grid
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Return what clients are to evaluate."""
        self._grid = grid
        clients = ShownClients(grid, take_all=False)
        return self.strategy.configure_evaluate(server_round, to_parameters(arrays), clients)

    def evaluated(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[float | None, Mapping[str, Scalar]]:
        """Return its aggregate of evaluations: a loss and metrics."""
        results: list[tuple[ClientProxy, EvaluateRes]] = []
        failures: list[Any] = []
        for reply in replies:
            result = recorddict_to_evaluateres(reply.content)
            found = results if result.status.code == Code.OK else failures
            found.append((self._proxy(reply), result))
        return self.strategy.aggregate_evaluate(server_round, results, failures)

    def summary(self) -> None:
        """Log what it is."""
        LOGGER.info("\t├──> %s, of Flower's old API", type(self.strategy).__name__)

    def _proxy(self, message: Message) -> GridClientProxy:
        """Return the client that a reply is from, as the old API knows it."""
        assert self._grid is not None
        return GridClientProxy(message.metadata.src_node_id, self._grid, self._grid.run.run_id)

    @contextmanager
    def _noise_for(self, num_results: int) -> Iterator[None]:
        """Let noise be for so many updates: for more than there are it protects too little."""
        chain = [each for each in _chain(self.strategy) if hasattr(each, "num_sampled_clients")]
        before = [each.num_sampled_clients for each in chain]
        for each in chain:
            each.num_sampled_clients = num_results
        try:
            yield
        finally:
            for each, value in zip(chain, before, strict=True):
                each.num_sampled_clients = value


def measured(loss: float | None, metrics: Mapping[str, Any]) -> MetricRecord | None:
    """Return an evaluation of the old API; ``None`` if there is nothing in it."""
    found = numbers(metrics) | ({} if loss is None else {"loss": float(loss)})
    return MetricRecord(found) if found else None  # type: ignore[arg-type]


def evaluation_of(strategy: OldStrategy) -> Callable[[int, ArrayRecord], MetricRecord | None]:
    """Return a strategy's evaluation on the server as today's API wants it."""

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        found = strategy.evaluate(server_round, to_parameters(arrays))
        return None if found is None else measured(*found)

    return evaluate


def _message(content: RecordDict, kind: str, proxy: ClientProxy, server_round: int) -> Message:
    return Message(content, int(proxy.cid), kind, group_id=str(server_round))


def _chain(strategy: OldStrategy) -> Iterator[Any]:
    """Yield a strategy and those that it holds, each once, from the outside in."""
    found: list[Any] = [strategy]
    for each in found:
        yield each
        found.extend(
            inner
            for inner in vars(each).values()
            if isinstance(inner, OldStrategy) and not any(inner is known for known in found)
        )


def _quorum(strategy: Any) -> int:
    """Return the smallest number of updates for which a rule keeps its promise, 0 for any."""
    minimum = int(getattr(strategy, "min_fit_clients", 0))
    quorum = minimum if minimum > _FLOWER_MIN_CLIENTS else 0
    if isinstance(strategy, Krum):  # Blanchard et al., 2017: n >= 2f + 3
        quorum = max(quorum, 2 * strategy.num_malicious_clients + 3)
    if isinstance(strategy, Bulyan):  # El Mhamdi et al., 2018: n >= 4f + 3
        quorum = max(quorum, 4 * strategy.num_malicious_clients + 3)
    return quorum
