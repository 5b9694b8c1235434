"""Scheduling for a workflow of Flower's old API, such as that of secure aggregation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from flower_scheduling._flwr import make_message
from flower_scheduling._flwr_old import (
    ClientManager,
    ClientProxy,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    LegacyContext,
    Parameters,
    Scalar,
)
from flower_scheduling._flwr_old import Strategy as OldStrategy
from flower_scheduling.errors import ConfigError

from ..own_start import StartGuide
from ..round import set_ttl
from ..spares import Answers
from ..strategy import ScheduledStrategy
from ..timed_grid import Exchange
from .ported import PortedStrategy, measured
from .records import to_arrays, to_parameters

Workflow: TypeAlias = Callable[[Grid, LegacyContext], None]
"""What Flower calls a workflow: it runs all rounds of a context."""
_Evaluate: TypeAlias = Callable[[int, Parameters], MetricRecord | None]


class ScheduledWorkflow:
    """Let a scheduling policy choose the clients of each round of a workflow of the old API.

    A round may take several messages to each client, as those of secure aggregation do: its
    round-trip time is the sum of theirs, and its deadline is for all of them.

    Parameters
    ----------
    workflow : callable
        Flower's ``DefaultWorkflow``, with any ``fit_workflow``, or one like it.
    **settings
        Arguments of :class:`.ScheduledStrategy`, but for buffered mode and spare clients, which
        a workflow of fixed steps cannot have.

    Examples
    --------
    >>> workflow = DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(3, 2))
    >>> workflow = ScheduledWorkflow(workflow, num_selected=5)
    >>> workflow(grid, context)
    """

    def __init__(self, workflow: Workflow, **settings: Any) -> None:
        if settings.get("num_spare"):
            message = "must be 0: a workflow waits for all of its clients"
            raise ConfigError("num_spare", settings["num_spare"], message)
        self._workflow = workflow
        self._settings = settings

    def __call__(self, grid: Grid, context: LegacyContext) -> None:
        """Run the rounds of a context, which has the results afterwards.

        Raises
        ------
        ConfigError, SchedulingError
            As :class:`.ScheduledStrategy` and its ``start`` do.
        """
        name = type(self._workflow).__name__
        strategy = PortedWorkflow.around(context.strategy, self._workflow, context, name=name)
        scheduled = ScheduledStrategy(strategy, **self._settings)
        scheduled.start(grid, context.config.num_rounds, strategy.measure)


class WorkflowGuide(StartGuide):
    """Schedule the rounds of a workflow: all that it sends to train counts, message by message."""

    _exchanges: Mapping[int, Exchange] = MappingProxyType({})  # by node, of the open round
    _evaluations: Sequence[Message] = ()
    _spent_s = 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Begin a round, see :meth:`.StartGuide.configure_train`."""
        messages = super().configure_train(server_round, arrays, config, grid)
        self._sent, self._spent_s = None, 0.0  # what is sent next is the workflow's own
        return messages

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages and return the replies, measured."""
        messages, one = list(messages), self._round
        if self._sent is not None or one is None:
            self._evaluations = list(super().send_and_receive(messages, timeout=timeout))
            return [*self._evaluations]
        timed = self._parts.timed
        deadline_s = min(self._deadline_s, one.deadline_s)
        left_s = max(0.0, deadline_s - self._spent_s)
        set_ttl(messages, deadline_s)
        begin_s = timed.now()
        exchanges = timed.exchange(messages, left_s if timeout is None else min(timeout, left_s))
        self._spent_s += timed.now() - begin_s
        found = {
            each.node_id: _joined(self._exchanges.get(each.node_id), each) for each in exchanges
        }
        self._exchanges = {**self._exchanges, **found}
        return [_copy(each.reply) for each in exchanges if each.reply is not None]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the strategy's aggregate of the round's updates; the policy learns."""
        return super().aggregate_train(server_round, self._take())

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the strategy's aggregate of the evaluations that came last."""
        return super().aggregate_evaluate(server_round, self._evaluations)

    def end_round(self) -> None:
        """End the round that is open, if any; the policy learns of one that was given up, too."""
        self._take()
        super().end_round()

    def _take(self) -> list[Message]:
        if self._round is None or not self._exchanges:
            return []
        exchanges, self._exchanges = [*self._exchanges.values()], {}
        return self._round.take(Answers(exchanges))


def _joined(before: Exchange | None, now: Exchange) -> Exchange:
    """Return what became of a client's messages of a round, of which the times add up."""
    if before is None or now.rtt_s is None or before.rtt_s is None:
        return now
    reply = now.reply
    if reply is not None and reply.has_content() and not _has_update(reply):
        reply = before.reply if before.reply and _has_update(before.reply) else reply
    return Exchange(
        now.node_id,
        reply,
        before.rtt_s + now.rtt_s,
        now.failure,
        _sum(before.sent_bytes, now.sent_bytes),
        _sum(before.received_bytes, now.received_bytes),
    )


def _has_update(message: Message) -> bool:
    return message.has_content() and bool(message.content.array_records)


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def _copy(message: Message) -> Message:
    """Return a message of the same arrays: a workflow takes out of its records what it has read."""
    if message.has_error():
        return message
    content = RecordDict({name: record.copy() for name, record in message.content.items()})
    return make_message(message.metadata, content)


class PortedWorkflow(PortedStrategy):
    """A workflow and its strategy, which runs its rounds by a ``start`` of its own.

    Parameters
    ----------
    strategy : flwr.server.strategy.Strategy
        The context's.
    workflow : callable
        The workflow.
    context : LegacyContext
        What it works on.

    Attributes
    ----------
    asked : dict of str to tuple
        By client, what it was asked last.
    results : list of tuple
        What the workflow has made of the replies of the round.
    metrics : mapping
        The strategy's, of training.
    evaluation : tuple
        Its loss and metrics on clients.
    on_server : tuple or None
        The same on the server.
    """

    start_guide = WorkflowGuide
    as_they_are = True
    averages = False  # what replies hold is the workflow's business

    def __init__(self, strategy: OldStrategy, workflow: Workflow, context: LegacyContext) -> None:
        super().__init__(strategy)
        self._workflow = workflow
        self._context = context
        self.asked: dict[str, tuple[ClientProxy, Any]] = {}
        self.results: list[tuple[ClientProxy, FitRes]] = []
        self.metrics: Mapping[str, Scalar] = {}
        self.evaluation: tuple[float | None, Mapping[str, Scalar]] = (None, {})
        self.on_server: tuple[float, Mapping[str, Scalar]] | None = None

    def start(  # type: ignore[override]
        self, grid: Grid, num_rounds: int, evaluate_fn: _Evaluate
    ) -> Result:
        """Run the workflow on a grid that schedules; the number of rounds is the context's."""
        self._context.strategy = _Bridge(self, grid, evaluate_fn)
        try:
            self._workflow(grid, self._context)
        finally:
            self._context.strategy = self.strategy
        return Result()

    def measure(self, server_round: int, parameters: Parameters) -> MetricRecord | None:
        """Return the strategy's evaluation on the server."""
        self.on_server = self.strategy.evaluate(server_round, parameters)
        return None if self.on_server is None else measured(*self.on_server)

    def asked_to_train(
        self, server_round: int, arrays: ArrayRecord, grid: Grid
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Return what its clients are to do."""
        pairs = super().asked_to_train(server_round, arrays, grid)
        self.asked = {proxy.cid: (proxy, ins) for proxy, ins in pairs}
        return pairs

    def asked_to_evaluate(
        self, server_round: int, arrays: ArrayRecord, grid: Grid
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Return what clients are to evaluate."""
        pairs = super().asked_to_evaluate(server_round, arrays, grid)
        self.asked = {proxy.cid: (proxy, ins) for proxy, ins in pairs}
        return pairs

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the strategy's aggregate of the results that the workflow has made."""
        used = {str(reply.metadata.src_node_id) for reply in replies}
        results = [(proxy, result) for proxy, result in self.results if proxy.cid in used]
        arrays, self.metrics = self.aggregated(server_round, results)
        return arrays, measured(None, self.metrics)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the strategy's aggregate of evaluations."""
        self.evaluation = self.evaluated(server_round, replies)
        return measured(*self.evaluation)


class _Bridge(OldStrategy):
    """What a workflow takes for its strategy: each of its steps is one of the schedule.

    Parameters
    ----------
    ported : PortedWorkflow
        Its four methods select, measure and aggregate.
    grid : Grid
        The grid that schedules.
    evaluate_fn : callable
        Measures the model on the server.
    """

    def __init__(self, ported: PortedWorkflow, grid: Grid, evaluate_fn: _Evaluate) -> None:
        self._ported = ported
        self._grid = grid
        self._evaluate_fn = evaluate_fn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._ported.strategy, name)

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters | None:
        return self._ported.strategy.initialize_parameters(client_manager)

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        ported = self._ported
        ported.asked, ported.metrics = {}, {}
        arrays = to_arrays(parameters)
        return self._of(ported.configure_train(server_round, arrays, ConfigRecord(), self._grid))

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[Any],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        ported = self._ported
        ported.results = results
        arrays, _ = ported.aggregate_train(server_round, [])
        ported.results = []
        return None if arrays is None else to_parameters(arrays), dict(ported.metrics)

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        ported = self._ported
        ported.asked, ported.evaluation = {}, (None, {})
        arrays = to_arrays(parameters)
        return self._of(ported.configure_evaluate(server_round, arrays, ConfigRecord(), self._grid))

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[Any],
    ) -> tuple[float | None, dict[str, Scalar]]:
        self._ported.aggregate_evaluate(server_round, [])
        loss, metrics = self._ported.evaluation
        return loss, dict(metrics)

    def evaluate(
        self, server_round: int, parameters: Parameters
    ) -> tuple[float, dict[str, Scalar]] | None:
        self._evaluate_fn(server_round, parameters)
        found = self._ported.on_server
        return None if found is None else (found[0], dict(found[1]))

    def _of(self, messages: Iterable[Message]) -> list[tuple[ClientProxy, Any]]:
        """Return what the strategy asks of the clients of these messages."""
        asked = self._ported.asked
        return [asked[str(message.metadata.dst_node_id)] for message in messages]
