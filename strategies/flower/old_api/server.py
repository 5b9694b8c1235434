"""Scheduling for an app whose ``server_fn`` returns a strategy of Flower's old API."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Final

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

from flower_scheduling._flwr_old import (
    ClientManager,
    GridClientProxy,
    History,
    Server,
    SimpleClientManager,
    Strategy,
)

from ..strategy import ScheduledStrategy
from .ported import PortedStrategy, evaluation_of
from .records import to_arrays, to_parameters

_LOSS: Final = "loss"


class ScheduledServer(Server):
    """Let a scheduling policy choose the clients of each round of a strategy of the old API.

    Takes the strategy's place in ``ServerAppComponents``. What holds for
    :class:`.ScheduledStrategy` holds here: N takes the place of ``fraction_fit``, and a
    ``min_fit_clients`` above Flower's default is the least number of updates for a step.

    Parameters
    ----------
    strategy : flwr.server.strategy.Strategy
        Any strategy of the old API.
    client_manager : flwr.server.ClientManager, optional
        Knows the clients until the first round begins.
    **settings
        Arguments of :class:`.ScheduledStrategy`.

    Attributes
    ----------
    scheduled : ScheduledStrategy
        What runs the rounds.

    Raises
    ------
    ConfigError, UnknownPolicyError
        If a setting is out of range or does not fit the strategy.

    Examples
    --------
    >>> def server_fn(context):
    ...     server = ScheduledServer(FedAvg(), num_selected=5)
    ...     return ServerAppComponents(server=server, config=ServerConfig(num_rounds=100))
    """

    def __init__(
        self, strategy: Strategy, *, client_manager: ClientManager | None = None, **settings: Any
    ) -> None:
        super().__init__(client_manager=client_manager or SimpleClientManager(), strategy=strategy)
        self.scheduled = ScheduledStrategy(PortedStrategy.around(strategy), **settings)

    def fit(self, num_rounds: int, timeout: float | None) -> tuple[History, float]:
        """Run the rounds; return what was measured, and how long they took [s].

        Raises
        ------
        SchedulingError
            As :meth:`.ScheduledStrategy.start` does.
        """
        manager = self.client_manager()
        manager.wait_for(1, timeout=86400)
        proxy = next(iter(manager.all().values()))
        assert isinstance(proxy, GridClientProxy), "a ServerApp has no other clients"
        self.parameters = self._get_initial_parameters(server_round=0, timeout=timeout)
        begin_s = time.monotonic()
        result = self.scheduled.start(
            proxy.grid,
            to_arrays(self.parameters),
            num_rounds,
            math.inf if timeout is None else timeout,
            evaluate_fn=evaluation_of(self.strategy),
        )
        self.parameters = to_parameters(result.arrays)
        return _history(result), time.monotonic() - begin_s


def _history(result: Result) -> History:
    """Return the metrics of a run as the old API keeps them."""
    history = History()
    for number, metrics in result.train_metrics_clientapp.items():
        history.add_metrics_distributed_fit(number, _plain(metrics))
    for number, metrics in result.evaluate_metrics_clientapp.items():
        found = _plain(metrics)
        if _LOSS in found:
            history.add_loss_distributed(number, found.pop(_LOSS))
        history.add_metrics_distributed(number, found)
    for number, metrics in result.evaluate_metrics_serverapp.items():
        found = _plain(metrics)
        if _LOSS in found:
            history.add_loss_centralized(number, found.pop(_LOSS))
        history.add_metrics_centralized(number, found)
    return history


def _plain(metrics: Mapping[str, Any] | MetricRecord) -> dict[str, Any]:
    return dict(metrics)
