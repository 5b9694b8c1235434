"""How the adapter sends messages and measures round-trip times, whatever carries them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from flwr.app import Message
from flwr.serverapp import Grid

from flower_scheduling._flwr import NodeInfo
from flower_scheduling.reasons import TIMEOUT, UNDELIVERABLE

from .grids import GridWrapper
from .logs.wait_log import WaitLog

LOGGER = logging.getLogger("flwr.scheduling")  # below Flower's logger: its handlers and level serve
_LOOK_S = 1.0  # longest pause between two queries of the connected nodes

LATE = "late"
"""No failure: the message was not answered yet when enough others were."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What became of one message.

    Attributes
    ----------
    node_id : int
        Node that the message was sent to.
    reply : Message or None
        The reply, with content or with an error; ``None`` if none came in time.
    rtt_s : float or None
        Round-trip time [s], push to arrival on the server's monotonic clock.
    failure : str or None
        Why there is no reply: :data:`TIMEOUT`, :data:`UNDELIVERABLE`, :data:`LATE` or a grid's own
        reason.
    sent_bytes, received_bytes : int or None
        Size of message and reply as they travel [bytes]; ``None`` if the grid does not know.
    """

    node_id: int
    reply: Message | None
    rtt_s: float | None
    failure: str | None = None
    sent_bytes: int | None = field(default=None, compare=False)
    received_bytes: int | None = field(default=None, compare=False)


@runtime_checkable
class TimedExchange(Protocol):
    """The timing protocol: what :class:`ScheduledStrategy` needs beyond Flower's ``Grid``.

    ``StreamGrid`` and ``VirtualGrid`` implement it and stamp arrivals themselves, exactly;
    :class:`TimedGrid` gives it to any other grid.
    """

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the connected nodes, as in Flower's ``Grid``."""

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the connected nodes with their public keys, as in Flower's ``Grid``."""

    def begin_round(self, server_round: int) -> None:
        """Take note that a round begins, before the available nodes are read."""

    def exchange(self, messages: Sequence[Message], timeout_s: float) -> list[Exchange]:
        """Send messages; return one :class:`Exchange` per message, in the same order.

        Returns as soon as the last reply is in, or at the deadline [s from now].
        """

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages and return their ids at once, as in Flower's ``Grid``."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there, errors included, as in Flower's ``Grid``."""

    def busy(self) -> set[int]:
        """Return the nodes that still work on an earlier message."""

    def opted_out(self) -> set[int]:
        """Return the connected nodes that do not take work at present."""

    def on_leave(self) -> set[int]:
        """Return the connected nodes that are owed no rounds at present, by their own will."""

    def now(self) -> float:
        """Return the grid's monotonic time [s], real or virtual."""

    def wait(self, seconds: float) -> None:
        """Let at most this much time pass; return when a client may have become available.

        Callers check then, and wait again. A grid that gets no notice of clients returns after a
        while.
        """


@runtime_checkable
class SpareExchange(TimedExchange, Protocol):
    """A timing protocol in which an exchange may end before all have answered.

    All three of our grids implement it.
    """

    def exchange(
        self,
        messages: Sequence[Message],
        timeout_s: float,
        enough: int | None = None,
        awaited: Collection[int] = (),
    ) -> list[Exchange]:
        """Send messages; return one :class:`Exchange` per message, in the same order.

        Returns as well when ``enough`` nodes have answered, without an error, and all that are
        ``awaited`` have, or have failed. The failure of the others is :data:`LATE`; they stay busy,
        and :meth:`late` tells what becomes of them.
        """

    def late(self) -> list[Exchange]:
        """Return what has become of late messages since the last call, with true times [s]."""


def enough_are_in(
    exchanges: Iterable[Exchange], enough: int | None, awaited: Collection[int]
) -> bool:
    """Tell whether an exchange with so many answers may end."""
    if enough is None:
        return False
    exchanges = list(exchanges)
    answers = [e for e in exchanges if e.reply is not None and e.reply.has_content()]
    return len(answers) >= enough and {e.node_id for e in exchanges}.issuperset(awaited)


class TimedGrid(GridWrapper):
    """Give any Flower grid the timing protocol by polling for replies.

    Flower's own ``send_and_receive`` sleeps 3 s between two looks (flwr 1.42), too coarse to tell
    clients apart. This pulls every ``poll_interval_s`` and stamps arrivals with the server's
    monotonic clock. Device clocks are never compared with ours, and replies are attributed by
    ``reply_to_message_id``: errors made by the SuperLink carry the SuperLink's node id as source.

    Parameters
    ----------
    grid : Grid
        The grid that carries the messages.
    poll_interval_s : float
        Pause between two looks for replies [s]: the resolution of the measurement.
    clock : callable
        Returns monotonic time [s].
    sleep : callable
        Waits for a number of seconds.
    """

    asks_one_first = True
    """Whether it is in doubt that the nodes' app answers queries: :class:`.ArmDiscovery`."""

    def __init__(
        self,
        grid: Grid,
        *,
        poll_interval_s: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(grid)
        self._poll_interval_s = poll_interval_s
        self._clock = clock
        self._sleep = sleep
        self._unanswered: dict[str, tuple[int, float]] = {}  # message id -> node, expiry
        self._dispatched: dict[str, tuple[int, float, float]] = {}  # id -> node, begin, deadline
        self._undeliverable: list[Exchange] = []
        self._spare: dict[str, tuple[int, float]] = {}  # late message id -> node, start
        self._finished: list[Exchange] = []  # of these
        self.num_late_replies = 0

    def begin_round(self, server_round: int) -> None:
        """Do nothing: a stock grid has no notion of rounds."""

    def exchange(
        self,
        messages: Sequence[Message],
        timeout_s: float,
        enough: int | None = None,
        awaited: Collection[int] = (),
    ) -> list[Exchange]:
        """Push the messages and poll until enough are answered or the deadline has passed."""
        messages = list(messages)
        start = self._clock()
        ids = self._push(messages, start)
        pending = {message_id: i for i, message_id in enumerate(ids) if message_id}
        answers: dict[int, tuple[Message, float]] = {}
        early = False
        wait_log = WaitLog(start, "node {}".format, LOGGER)
        while pending and not early:
            replies = list(self._grid.pull_messages([*pending, *self._spare]))
            elapsed = self._clock() - start
            for reply in replies:
                index = pending.pop(reply.metadata.reply_to_message_id, None)
                if index is None:  # late, never asked, or answered before
                    self._finish(reply)
                    continue
                self._unanswered.pop(reply.metadata.reply_to_message_id, None)
                answers[index] = (reply, elapsed)
            early = elapsed < timeout_s and enough_are_in(
                (Exchange(messages[i].metadata.dst_node_id, *answers[i]) for i in answers),
                enough,
                awaited,
            )
            if elapsed >= timeout_s or not pending or early:
                break
            wait_log.note(
                start + elapsed,
                start + timeout_s,
                lambda: [messages[i].metadata.dst_node_id for i in pending.values()],
                len(messages),
            )
            self._sleep(min(self._poll_interval_s, timeout_s - elapsed))

        exchanges = []
        for i, message in enumerate(messages):
            node_id = message.metadata.dst_node_id
            if i in answers and answers[i][1] <= timeout_s:
                exchanges.append(Exchange(node_id, *answers[i]))
            else:
                message_id = ids[i]
                failure = TIMEOUT if message_id else UNDELIVERABLE
                if early and message_id:
                    failure = LATE
                    self._spare[message_id] = (node_id, start)
                exchanges.append(Exchange(node_id, None, None, failure))
        return exchanges

    def dispatch(self, messages: Sequence[Message], timeout_s: float) -> None:
        """Push messages that are not waited for."""
        messages = list(messages)
        begin_s = self._clock()
        for message_id, message in zip(self._push(messages, begin_s), messages, strict=True):
            node_id = message.metadata.dst_node_id
            if message_id:
                self._dispatched[message_id] = node_id, begin_s, begin_s + timeout_s
            else:
                self._undeliverable.append(Exchange(node_id, None, None, UNDELIVERABLE))

    def _push(self, messages: Sequence[Message], now_s: float) -> list[str | None]:
        """Push messages; return their ids, ``None`` for those that the grid would not take."""
        # A grid that refuses the whole push (message too large) returns fewer ids than messages.
        pushed = list(self._grid.push_messages(messages))
        ids: list[str | None] = [*pushed, *[None] * (len(messages) - len(pushed))]
        for message_id, message in zip(ids, messages, strict=True):
            if message_id:
                expiry_s = now_s + message.metadata.ttl
                self._unanswered[message_id] = message.metadata.dst_node_id, expiry_s
        return ids

    def next_ended(self, wait_s: float) -> list[Exchange]:
        """Poll for replies to dispatched messages; the interval is the resolution here, too."""
        end_s = self._clock() + wait_s
        while True:
            found, self._undeliverable = self._undeliverable, []
            replies = self._grid.pull_messages(list(self._dispatched)) if self._dispatched else []
            now_s = self._clock()
            for reply in replies:
                message_id = reply.metadata.reply_to_message_id
                if (sent := self._dispatched.pop(message_id, None)) is not None:
                    self._unanswered.pop(message_id, None)
                    node_id, begin_s, due_s = sent
                    if now_s <= due_s:
                        found.append(Exchange(node_id, reply, now_s - begin_s))
                    else:
                        self.num_late_replies += 1
                        found.append(Exchange(node_id, None, None, TIMEOUT))
            for message_id, (node_id, _, due_s) in list(self._dispatched.items()):
                if now_s >= due_s:
                    del self._dispatched[message_id]
                    found.append(Exchange(node_id, None, None, TIMEOUT))
            if found or now_s >= end_s or not self._dispatched:
                return found
            due_s = min(due_s for _, _, due_s in self._dispatched.values())
            self._sleep(min(self._poll_interval_s, end_s - now_s, due_s - now_s))

    def busy(self) -> set[int]:
        """Drain late replies, forget expired messages, and return the nodes still at work."""
        late = [message_id for message_id in self._unanswered if message_id not in self._dispatched]
        if late:
            for reply in self._grid.pull_messages(late):
                if self._finish(reply):
                    continue
                if self._unanswered.pop(reply.metadata.reply_to_message_id, None) is not None:
                    self.num_late_replies += 1
            now = self._clock()
            self._unanswered = {
                message_id: (node_id, expiry)
                for message_id, (node_id, expiry) in self._unanswered.items()
                if expiry > now
            }
        return {node_id for node_id, _ in self._unanswered.values()}

    def late(self) -> list[Exchange]:
        """Return what has become of late messages since the last call; an expired one timed out.

        A time ends when the reply is looked for: between two rounds that may be a while later.
        """
        self.busy()
        for message_id, (node_id, _) in list(self._spare.items()):
            if message_id not in self._unanswered:
                del self._spare[message_id]
                self._finished.append(Exchange(node_id, None, None, TIMEOUT))
        finished, self._finished = self._finished, []
        return finished

    def _finish(self, reply: Message) -> bool:
        """Take in the reply to a late message; tell whether it is one."""
        message_id = reply.metadata.reply_to_message_id
        if (found := self._spare.pop(message_id, None)) is None:
            return False
        self._unanswered.pop(message_id, None)
        node_id, start = found
        self._finished.append(Exchange(node_id, reply, self._clock() - start))
        return True

    def opted_out(self) -> set[int]:
        """Return the empty set: a stock grid does not know."""
        return set()

    def on_leave(self) -> set[int]:
        """Return the empty set: a stock grid does not know."""
        return set()

    def now(self) -> float:
        """Return the injected clock's time [s]."""
        return self._clock()

    def wait(self, seconds: float) -> None:
        """Sleep for ``seconds``, or until the connected nodes are to be read again."""
        self._sleep(min(seconds, _LOOK_S))
