"""Evaluation of the model on clients, as the wrapped strategy wants it."""

from __future__ import annotations

from typing import Final

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord

from flower_scheduling.errors import ConfigError, SchedulingError, TooFewClientsError

from ..base import check_count
from ..deadline import GivenDeadline
from .grids import SelectedNodesGrid
from .replies import error_text
from .round import RoundParts, set_ttl
from .round_deadline import RoundDeadline
from .timed_grid import LOGGER

AVAILABLE: Final = "available"
"""The wrapped strategy's fraction of all clients that are available."""
SELECTED: Final = "selected"
"""The clients of the round's super arm."""
_NO_HANDLER: Final = "No evaluate function registered"  # in Flower's error (flwr 1.42)


class ClientEvaluation:
    """Ask clients to evaluate the model after a round; the policy learns nothing from it.

    Parameters
    ----------
    every : int, optional
        Rounds between two evaluations, 0 for none; by default each round in which the wrapped
        strategy configures one.
    on : str
        Which clients may be asked: :data:`AVAILABLE` or :data:`SELECTED`.
    timeout_s : float or "auto"
        Deadline [s]; ``"auto"``: it is found from what evaluations take.

    Attributes
    ----------
    deadline : RoundDeadline
        The deadline of each.

    Raises
    ------
    ConfigError
        If a setting is out of range.
    """

    def __init__(self, every: int | None, on: str, timeout_s: GivenDeadline) -> None:
        if every is not None:
            check_count("client_eval_every", every, minimum=0)
        if on not in (AVAILABLE, SELECTED):
            raise ConfigError("client_eval_on", on, f"must be {AVAILABLE} or {SELECTED}")
        self._every = 1 if every is None else every
        self._on = on
        self.deadline = RoundDeadline(timeout_s, key="client_eval_timeout_s")
        self._deadline_s = 0.0  # of the one that is under way
        self._silent = False  # whether no client has a function for it

    def configure(
        self,
        parts: RoundParts,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        selected: list[int],
    ) -> list[Message]:
        """Return the wrapped strategy's messages to clients that may be asked now."""
        if self._silent or not self._every or server_round % self._every:
            return []
        arms = selected
        if self._on == AVAILABLE:
            parts.sync()
            arms = parts.membership.table.available.nonzero()[0].tolist()
        nodes = parts.membership.table.node_ids(arms)
        if not nodes:
            return []
        name = parts.wrapped.name
        try:
            grid = SelectedNodesGrid(parts.grid, nodes)
            messages = parts.wrapped.configure_evaluate(server_round, arrays, config, grid)
        except TooFewClientsError as error:
            text = "%s %d: no evaluation by %s: %s"
            LOGGER.warning(text, parts.unit, server_round, name, error)
            return []
        if not {message.metadata.dst_node_id for message in messages} <= set(nodes):
            raise SchedulingError(
                f"{name} configured an evaluation of clients that it was not shown"
            )
        table = parts.membership.table
        asked = [table.arm_of(message.metadata.dst_node_id).index for message in messages]
        self._deadline_s = self.deadline.of(asked)
        set_ttl(messages, self._deadline_s)
        return messages

    def exchange(self, parts: RoundParts, messages: list[Message]) -> list[Message]:
        """Send the messages and return the replies that may be averaged."""
        if not messages:
            return []
        exchanges = parts.timed.exchange(messages, self._deadline_s)
        self.deadline.learn(exchanges, parts.membership.table)
        errors = [each.reply for each in exchanges if each.reply is not None]
        if errors and all(each.has_error() and _NO_HANDLER in _reason(each) for each in errors):
            self._silent = True
            LOGGER.info("no client has a function to evaluate: none is asked again")
            return []
        return parts.sorter.evaluation(exchanges)

    def aggregate(
        self, parts: RoundParts, server_round: int, replies: list[Message]
    ) -> MetricRecord | None:
        """Return the wrapped strategy's aggregate of the replies, if there are any."""
        if not replies:
            return None
        try:
            return parts.wrapped.aggregate_evaluate(server_round, replies)
        except Exception as error:  # a fault in an evaluation must not end the run
            text = "%s %d: evaluation on clients failed: %s"
            LOGGER.warning(text, parts.unit, server_round, error)
            return None


def _reason(message: Message) -> str:
    return message.error.reason or error_text(message)
