"""Arm discovery: ask new clients for name and size while the rounds of the others go on."""

from __future__ import annotations

import logging
import math
from typing import Final

from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from flower_scheduling._flwr import ErrorCode
from flower_scheduling.client.wire.protocol import CLIENT_INFO, LABEL_COUNTS, NAME, NUM_EXAMPLES

from .arm_table import Arm, ArmTable
from .logs.rate_limited_log import RateLimitedLog
from .replies import DEFAULT_MAX_NUM_EXAMPLES, error_text
from .timed_grid import TimedExchange

_NOT_THE_CLIENTS: Final = frozenset(
    (
        ErrorCode.MESSAGE_UNAVAILABLE,
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
        ErrorCode.NODE_UNAVAILABLE,
    )
)
"""Errors that a grid reports for a client that did not answer."""
_NO_FUNCTION: Final = "No query function registered"  # flwr 1.42
_HEADING: Final = "An exception was raised when processing a message by"  # of two that follow
_FLOWERS_LOG: Final = logging.getLogger("flwr")
_MAX_ERRORS: Final = 3  # of an app whose query function fails, before the others are not asked
_ASK_S: Final = 0.02  # time for the making of queries at each look
_AT_ONCE: Final = 32  # queries that are made before the clock is read
_PROBE_S: Final = 30.0  # time for the first node to answer, before another one is asked
_MAX_NAME_LENGTH: Final = 64
_MAX_LABELS: Final = 10_000


class _WithoutMissingFunction(logging.Filter):
    """Drop what Flower's simulation logs of an app without a query function (flwr 1.42)."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        return not (_NO_FUNCTION in text or text.startswith(_HEADING))


class ArmDiscovery:
    """Pending queries: each new arm is asked once for name and size; no round waits for it.

    An arm that cannot say its size, such as one whose ClientApp knows no queries, counts as
    average. One that does not answer at all is asked again, and takes no part until it does: a
    round must not wait for a client that only connects, unless there are too few others
    (:meth:`give_up`).

    All nodes run the same ClientApp. On a stock grid one without a query function leaves a
    traceback of 45 lines in the log of each node that is asked, so there a single node is asked
    first (:attr:`.TimedGrid.asks_one_first`), and the others only if it answers. Where the nodes
    log in this very process, as in Flower's simulation, that traceback is left out.

    Of a fleet that joins at once a few hundred are asked at each look: a round waits for the
    making of queries too.

    Parameters
    ----------
    table : ArmTable
        The arms; what is learned goes there.
    timeout_s : float
        Time for an answer [s].
    asks : bool
        Whether arms are asked at all; those that are not count as average.
    """

    def __init__(self, table: ArmTable, timeout_s: float, *, asks: bool = True) -> None:
        self._table = table
        self._asks = asks
        self._timeout_s = timeout_s
        self._asked: dict[str, Arm] = {}  # message id -> arm
        self._log: RateLimitedLog | None = None
        self._app_answers: bool | None = None  # known from the first answer
        self._num_errors = 0
        self._probed_s = -math.inf
        self._filter = _WithoutMissingFunction()

    def __len__(self) -> int:
        """Return how many have not answered yet."""
        return len(self._asked)

    def ask(self, grid: TimedExchange) -> None:
        """Ask free arms that were not asked, as many as there is time for."""
        silent = self._table.silent
        news = [arm for arm in self._table.unqueried() if arm.index not in silent]
        if not self._asks:
            news = self._not_asked(news)
        elif getattr(grid, "asks_one_first", False):
            news = self._first_of(news, grid.now())
            if news and not self._app_answers:
                _FLOWERS_LOG.addFilter(self._filter)
        end_s = grid.now() + _ASK_S
        for begin in range(0, len(news), _AT_ONCE):
            few = news[begin : begin + _AT_ONCE]
            messages = [
                Message(
                    content=RecordDict(),
                    dst_node_id=arm.node_id,
                    message_type=MessageType.QUERY,
                    ttl=self._timeout_s,
                )
                for arm in few
            ]
            # A grid that refuses the whole push returns fewer ids than messages.
            for message_id, arm in zip(grid.push_messages(messages), few, strict=False):
                if message_id:
                    self._asked[message_id] = arm
                    silent.add(arm.index)
            if grid.now() >= end_s:
                break

    def give_up(self) -> list[Arm]:
        """Take connected arms that have not answered for average; return them.

        Their answers are still read when they come.
        """
        arms = self._table.unqueried()
        for arm in arms:
            arm.queried = True
            self._table.silent.discard(arm.index)
            self._table.note(arm)
        return arms

    def _first_of(self, news: list[Arm], now_s: float) -> list[Arm]:
        """Return which new arms to ask, where it is in doubt whether their app answers."""
        if self._app_answers:
            return news
        if self._app_answers is False:
            return self._not_asked(news)
        if self._asked and now_s - self._probed_s < _PROBE_S:
            return []
        self._probed_s = now_s
        return news[:1]

    def _not_asked(self, news: list[Arm]) -> list[Arm]:
        """Take arms for asked; return which are to be asked: none."""
        for arm in news:
            arm.queried = True
            self._table.note(arm)
        return []

    def collect(self, grid: TimedExchange) -> bool:
        """Note the answers that are there; tell whether there are any."""
        if not self._asked:
            return False
        answered = False
        for reply in grid.pull_messages(list(self._asked)):
            arm = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if arm is None:
                continue
            self._table.silent.discard(arm.index)
            if reply.has_error() and reply.error.code in _NOT_THE_CLIENTS:
                continue
            answered = arm.queried = True
            self._learn(reply)
            self._note(grid, arm, reply)
            self._table.note(arm)
        if not self._asked:
            _FLOWERS_LOG.removeFilter(self._filter)
        return answered

    def _learn(self, reply: Message) -> None:
        """Learn from an answer whether the app has a function for queries."""
        if not reply.has_error():
            self._app_answers = True
            return
        self._num_errors += 1
        if self._app_answers is None and (
            _NO_FUNCTION in error_text(reply) or self._num_errors >= _MAX_ERRORS
        ):
            self._app_answers = False

    def _note(self, grid: TimedExchange, arm: Arm, reply: Message) -> None:
        """Believe of an answer what can be true."""
        info = reply.content.get(CLIENT_INFO) if reply.has_content() else None
        if not isinstance(info, ConfigRecord):
            self._log = self._log or RateLimitedLog(grid.now)
            why = f" ({error_text(reply)})" if reply.has_error() else ""
            text = f"{arm.name} does not tell its size{why}: counted as average"
            self._log.log("clients that do not tell their size", arm.name, text, logging.INFO)
            return
        name = info.get(NAME)
        # A name that the grid knows is proven; the client's own word must not replace it.
        if not arm.named and isinstance(name, str) and name.isprintable() and name.strip():
            arm.name = name.strip()[:_MAX_NAME_LENGTH]
        size = info.get(NUM_EXAMPLES)
        if type(size) is int and 0 <= size <= DEFAULT_MAX_NUM_EXAMPLES:
            arm.num_examples, arm.sized = size, True
        counts = info.get(LABEL_COUNTS)
        if (
            isinstance(counts, list)
            and len(counts) <= _MAX_LABELS
            and all(type(n) is int and n >= 0 for n in counts)
        ):
            arm.label_counts = [int(n) for n in counts]
