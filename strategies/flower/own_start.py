"""Rounds for a strategy that runs them by a ``start`` of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from flower_scheduling.errors import SchedulingError

from .client_evaluation import ClientEvaluation
from .grids import GridWrapper
from .record import RoundRecord
from .round import RoundParts, TrainingRound

_FLOWER: Final = inspect.signature(Strategy.start).parameters
_FLOWER_NAMES: Final = [name for name in _FLOWER if name != "self"]
_GRID: Final = "grid"


def _defaults(parameters: Iterable[inspect.Parameter]) -> dict[str, Any]:
    """Return the defaults of those parameters that have one."""
    return {each.name: each.default for each in parameters if each.default is not each.empty}


@dataclass
class StartCall:
    """A call of a strategy's ``start``, whose signature may be its own.

    Arguments are handed on as they were given, by place or by name; those that ``start`` has in
    common with Flower's can be read and replaced.

    Attributes
    ----------
    strategy : Strategy
        What is started.
    values : list
        Arguments by place.
    names : list of str
        What these places are called; empty: of no known name.
    named : dict
        Arguments by name.
    defaults : dict
        What those that are left out are.
    """

    strategy: Strategy
    values: list[Any]
    names: list[str]
    named: dict[str, Any]
    defaults: dict[str, Any]

    @classmethod
    def of(cls, strategy: Strategy, values: Sequence[Any], named: Mapping[str, Any]) -> Self:
        """Take the arguments of a call.

        Raises
        ------
        SchedulingError
            If they do not fit the strategy's signature.
        """
        signature = inspect.signature(strategy.start)
        try:
            signature.bind(*values, **named)
        except TypeError as error:
            kind = type(strategy).__name__
            raise SchedulingError(
                f"{kind}.start(): {error}; it takes {_listed(signature)}"
            ) from None
        parameters = signature.parameters.values()
        own = [
            each.name
            for each in parameters
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        ]
        names = own
        if own == _FLOWER_NAMES[: len(own)]:  # *args are for Flower's start then
            names = own + _FLOWER_NAMES[len(own) :]
        names = [*names, *[""] * len(values)][: len(values)]
        more = any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters)
        defaults = _defaults(_FLOWER.values()) if more else {}
        return cls(strategy, list(values), names, dict(named), defaults | _defaults(parameters))

    @property
    def grid(self) -> Grid:
        """The grid that the app was given.

        Raises
        ------
        SchedulingError
            If no argument is one.
        """
        found = self.get(_GRID)
        if isinstance(found, Grid):
            return found
        for value in [*self.values, *self.named.values()]:
            if isinstance(value, Grid):
                return value
        raise SchedulingError(f"{type(self.strategy).__name__}.start() was given no grid")

    def get(self, name: str) -> Any:
        """Return an argument, or its default; ``None`` for one that there is not."""
        if name in self.names:
            return self.values[self.names.index(name)]
        return self.named.get(name, self.defaults.get(name))

    def run(
        self, guide: Grid, noting: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> Result:
        """Start with another grid, and with an ``evaluate_fn`` that is noted."""
        grid, evaluate_fn = self.grid, self.get("evaluate_fn")

        def handed_on(value: Any) -> Any:
            if value is grid:
                return guide
            return noting(value) if value is evaluate_fn and callable(value) else value

        return self.strategy.start(
            *map(handed_on, self.values),
            **{name: handed_on(value) for name, value in self.named.items()},
        )


def _listed(signature: inspect.Signature) -> str:
    """Return the parameters of a signature, those that may be left out in brackets."""
    words = [
        f"[{each.name}]" if each.default is not each.empty else each.name
        for each in signature.parameters.values()
    ]
    return ", ".join(words)


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
        if not isinstance(arrays, ArrayRecord):
            raise SchedulingError(
                f"configure_train was given a {type(arrays).__name__} for the model: start() must "
                "hand it one ArrayRecord, into which several models can be packed"
            )
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

    def noting(self, evaluate_fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return an evaluation on the server that notes its metrics for the round's record."""

        def evaluate(*args: Any, **kwargs: Any) -> Any:
            metrics = evaluate_fn(*args, **kwargs)
            self._metrics = metrics if isinstance(metrics, MetricRecord) else None
            return metrics

        return evaluate

    def end_round(self) -> None:
        """End the round that is open, if any."""
        if self._round is not None:
            self._round.end()
            self._end_round(self._round, self._arrays, self._metrics, self._on_clients)
        self._round, self._metrics, self._on_clients = None, None, None
