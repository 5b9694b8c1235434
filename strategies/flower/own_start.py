"""Rounds for a strategy that runs them by a ``start`` of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from .client_evaluation import ClientEvaluation
from .grids import GridWrapper
from .record import RoundRecord
from .round import RoundParts, TrainingRound


class StartGuide(GridWrapper):
    """Schedule the rounds of a foreign ``start``: its grid, and its strategy's four methods.

    Such a ``start`` calls ``configure_train``, ``send_and_receive`` and ``aggregate_train``, and
    likewise to evaluate, as Flower's own does. Here the first selects, the second measures and
    the third lets the policy learn; a round ends when the next begins.

    Parameters
    ----------
    grid : Grid
        The grid that the app was given.
    parts : RoundParts
        What rounds share.
    evaluation : ClientEvaluation
        Evaluation on clients.
    begin_round : callable
        Opens a round for its number and model: waits for clients and selects.
    end_round : callable
        Called with a round that is over, its model, the metrics of the server's evaluation and
        those of the one on clients.
    deadline_s : float
        Deadline of training [s].
    """

    def __init__(
        self,
        grid: Grid,
        parts: RoundParts,
        evaluation: ClientEvaluation,
        *,
        begin_round: Callable[[int, ArrayRecord], TrainingRound],
        end_round: Callable[
            [TrainingRound, ArrayRecord, MetricRecord | None, MetricRecord | None], RoundRecord
        ],
        deadline_s: float,
    ) -> None:
        super().__init__(grid)
        self._parts = parts
        self._evaluation = evaluation
        self._begin_round = begin_round
        self._end_round = end_round
        self._deadline_s = deadline_s
        self._round: TrainingRound | None = None
        self._arrays = ArrayRecord()
        self._metrics: MetricRecord | None = None
        self._on_clients: MetricRecord | None = None
        self._sent: Callable[[list[Message], float], list[Message]] | None = None
        self.num_rounds = 0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Begin a round: select, and return the strategy's messages to the super arm."""
        self.end_round()
        self._round = self._begin_round(server_round, arrays)
        self._arrays = arrays
        self.num_rounds += 1
        self._sent = self._round.exchange
        return self._round.configure(arrays, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the strategy's aggregate; the policy learns."""
        assert self._round is not None
        arrays, metrics = self._round.aggregate(list(replies))
        if arrays is not None:
            self._arrays = arrays
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the strategy's messages to evaluate."""
        self._sent = lambda messages, _: self._evaluation.exchange(self._parts, messages)
        arms = self._round.arms if self._round is not None else []
        return self._evaluation.configure(self._parts, server_round, arrays, config, arms)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the strategy's aggregate of evaluations."""
        self._on_clients = self._evaluation.aggregate(self._parts, server_round, list(replies))
        return self._on_clients

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send what was configured last, measured; anything else as the grid does."""
        messages = list(messages)
        if self._sent is None:
            return super().send_and_receive(messages, timeout=timeout)
        sent, self._sent = self._sent, None
        deadline_s = self._deadline_s if timeout is None else min(timeout, self._deadline_s)
        return sent(messages, deadline_s)

    def noting(
        self, evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None
    ) -> Callable[[int, ArrayRecord], MetricRecord | None] | None:
        """Return an evaluation on the server that notes its metrics for the round's record."""
        if evaluate_fn is None:
            return None

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            self._metrics = metrics = evaluate_fn(server_round, arrays)
            return metrics

        return evaluate

    def end_round(self) -> None:
        """End the round that is open, if any."""
        if self._round is not None:
            self._round.end()
            self._end_round(self._round, self._arrays, self._metrics, self._on_clients)
        self._round, self._metrics, self._on_clients = None, None, None
