"""The table of requests: which message is with which client, and how each one ended."""

from __future__ import annotations

import math
import queue
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from flwr.app import MessageType

from flower_scheduling.client.wire import frames as wire
from flower_scheduling.client.wire.compression import SentModel
from flower_scheduling.reasons import LOST, TIMEOUT

if TYPE_CHECKING:
    from flwr.app import Message

_KEEP_S: Final = 3600.0  # how long a held reply that is never pulled outlives its message
_UNKNOWN_WORK_S: Final = 600.0  # how long a client is busy with messages of an earlier server
_MAX_UNKNOWN_WORK: Final = 16  # of their ids, for each connection


@dataclass(slots=True, eq=False)
class Request:
    """A message to a client. It is settled once, by a reply or by a failure.

    Attributes
    ----------
    message_id : str
        Id of the message.
    node_id : int
        The client's node id.
    expires_s : float
        End of the message's time to live, on the server's clock [s].
    message : Message or None
        The message; None if an earlier server sent it.
    arrivals : SimpleQueue or None
        Takes the request when it is settled; None if the reply is held until it is pulled.
    abandoned : bool
        The caller waits no longer, but the client still works on it.
    late : bool
        The same, but the caller wants to know what becomes of it.
    sent_s, arrived_s : float
        When the message began to leave and when its reply had come, on the server's clock [s]; NaN
        before.
    waiting_s : float
        Since when it waits for the server, which sends to other clients [s]; NaN if it does not.
    reply : Packed or None
        The reply, as it came.
    failure : str or None
        Why there is no reply.
    model : SentModel or None
        The message's arrays, where replies may be updates of them.
    sent_bytes : int
        Size of the message as it travels [bytes].
    max_reply_bytes : int
        Most that the reply's arrays may have [bytes].
    work : Work or None
        The frame that carries it, as long as it may have to be sent again.
    session : str
        The client's process that it was sent to.
    """

    message_id: str
    node_id: int
    expires_s: float
    message: Message | None = None
    arrivals: queue.SimpleQueue[Request] | None = None
    abandoned: bool = False
    late: bool = False
    sent_s: float = math.nan
    arrived_s: float = math.nan
    waiting_s: float = math.nan
    reply: wire.Packed | None = None
    failure: str | None = None
    model: SentModel | None = None
    sent_bytes: int = 0
    max_reply_bytes: int = wire.NO_LIMIT
    work: wire.Work | None = None
    session: str = ""

    @property
    def settled(self) -> bool:
        """Whether a reply or a failure is there."""
        return self.reply is not None or self.failure is not None

    def wait(self, now_s: float) -> None:
        """Note that the message waits for the server from now on: that is not the client's time.

        One that is sent again does not: its time runs on from the first time.
        """
        if math.isnan(self.sent_s):
            self.waiting_s = now_s

    def stamp(self, now_s: float) -> bool:
        """Note that the message leaves now; False if it was settled before its turn."""
        if self.settled:
            return False
        if not math.isnan(self.waiting_s):
            self.expires_s += now_s - self.waiting_s
            self.waiting_s = math.nan
        if math.isnan(self.sent_s):
            self.sent_s = now_s
        return True

    def begun_s(self, now_s: float) -> float:
        """Return from when its deadline counts [s]; NaN if it has neither left nor waits."""
        return now_s if not math.isnan(self.waiting_s) else self.sent_s


class RequestTable:
    """Requests that are open, replies that are held, and acknowledgements that are due.

    It knows neither sockets nor threads: its owner calls it under one lock.

    Parameters
    ----------
    clock : callable
        Returns monotonic time [s].
    on_free : callable
        Called when a client has finished a request that was abandoned, and can take another.

    Attributes
    ----------
    num_late_replies : int
        Replies that came after their deadline; those to an earlier server are none.
    fastest_late_s : float
        Shortest round trip of those to training [s]; infinite: there were none.
    num_ignored_replies : int
        Replies to messages that were unknown, another client's, or answered before.
    """

    def __init__(
        self, clock: Callable[[], float], on_free: Callable[[], object] = lambda: None
    ) -> None:
        self._clock = clock
        self._on_free = on_free
        self._open: dict[str, Request] = {}  # message id -> request with a client
        self._by_node: dict[int, dict[str, Request]] = {}  # the same, by client
        self._held: dict[str, Request] = {}  # pushed messages, until their reply is pulled
        self._settled: dict[str, Request] = {}  # of these, those that can be pulled
        self._expiry_s = math.inf  # nothing that is open or held expires before
        self._unacknowledged: dict[int, list[str]] = {}  # node -> ids of replies that are here
        self.num_late_replies = 0
        self.fastest_late_s = math.inf
        self.num_ignored_replies = 0

    # -- the callers' side ----------------------------------------------------------------------

    def open(self, request: Request) -> list[str]:
        """Enter a request that is about to be sent; return the acknowledgements to go with it."""
        self._enter(request)
        return self.take_acknowledgements(request.node_id)

    def hold(self, requests: Iterable[Request]) -> None:
        """Keep what becomes of these requests until it is pulled."""
        for request in requests:
            self._held[request.message_id] = request
            if request.settled:
                self._settled[request.message_id] = request
            self._expiry_s = min(self._expiry_s, request.expires_s)

    def pull(self, message_ids: Iterable[str]) -> list[Request]:
        """Return the held requests of these ids that are settled, each of them once."""
        self._expire()
        # Many may be asked for, of which few are there.
        found = self._settled.keys() & set(message_ids) if self._settled else ()
        for message_id in found:
            del self._held[message_id]
        return [self._settled.pop(message_id) for message_id in found]

    def abandon(self, requests: Iterable[Request]) -> None:
        """Stop waiting for these; clients that have not answered stay busy."""
        for request in requests:
            request.abandoned = not request.settled
            request.work = None

    def keep(self, requests: Iterable[Request], arrivals: queue.SimpleQueue[Request]) -> None:
        """Stop waiting for those that are not settled; ``arrivals`` takes them when they are."""
        for request in requests:
            if not request.settled:
                request.late, request.arrivals = True, arrivals

    def discard_late(self, request: Request) -> None:
        """Count a reply that came after its caller's deadline, and make it a timeout."""
        self._count_late(request, request.arrived_s)
        request.reply, request.failure = None, TIMEOUT

    def busy(self) -> set[int]:
        """Return the nodes that still work on a message."""
        self._expire()
        return set(self._by_node)

    # -- the clients' side ----------------------------------------------------------------------

    def settle(
        self,
        request: Request,
        *,
        reply: wire.Packed | None = None,
        failure: str | None = None,
        arrived_s: float = math.nan,
    ) -> None:
        """Note how a request ended."""
        request.work = None
        if self._open.pop(request.message_id, None) is not None:
            own = self._by_node[request.node_id]
            del own[request.message_id]
            if not own:
                del self._by_node[request.node_id]
        if request.abandoned:
            self._on_free()
            return
        request.reply, request.failure, request.arrived_s = reply, failure, arrived_s
        if request.message_id in self._held:
            self._settled[request.message_id] = request
        if request.arrivals is not None:
            request.arrivals.put(request)
        if request.late:
            self._on_free()

    def settle_reply(
        self, node_id: int, message_id: str, reply: wire.Packed, arrived_s: float
    ) -> bool:
        """Settle the request that a client's reply answers; tell whether there is one."""
        request = self._open.get(message_id)
        # Ids can be guessed: an answer to what has not been sent yet has no round trip.
        if request is None or request.node_id != node_id or math.isnan(request.sent_s):
            self.num_ignored_replies += 1
            return False
        if request.abandoned:
            self._count_late(request, arrived_s)
        self.settle(request, reply=reply, arrived_s=arrived_s)
        return True

    def is_awaited(self, node_id: int, message_id: str) -> bool:
        """Tell whether a caller waits for a client's reply to this message."""
        request = self._open.get(message_id)
        return request is not None and request.node_id == node_id and not request.abandoned

    def reconcile(self, node_id: int, in_hand: Set[str], session: str = "") -> list[Request]:
        """Compare the table with what a client has in hand that has just connected.

        What it no longer has is lost if its process, the ``session``, is another. The same process
        has not got it: the connection was lost while it was on its way. It is returned, to be sent
        again. What the table does not know, of an earlier server or given up since, makes the
        client busy.
        """
        cut_off = []
        for request in self._of(node_id):
            if request.message_id in in_hand:
                continue
            if request.work is not None and request.session == session:
                cut_off.append(request)
            else:
                self.settle(request, failure=LOST)
        now_s = self._clock()
        for message_id in sorted(in_hand - self._open.keys())[:_MAX_UNKNOWN_WORK]:
            self._enter(
                Request(message_id, node_id, now_s + _UNKNOWN_WORK_S, abandoned=True, sent_s=now_s)
            )
        return cut_off

    def fail_pending(self, node_id: int) -> None:
        """Settle what a client has in hand as lost."""
        self._unacknowledged.pop(node_id, None)  # a reply that it offers again is acknowledged then
        for request in self._of(node_id):
            self.settle(request, failure=LOST)

    def fail_all(self) -> None:
        """Settle all that is open as lost."""
        for request in list(self._open.values()):
            self.settle(request, failure=LOST)

    # -- acknowledgements -----------------------------------------------------------------------

    def add_acknowledgement(self, node_id: int, message_id: str) -> bool:
        """Note that a reply is here; tell whether it is the client's first without one."""
        unacknowledged = self._unacknowledged.setdefault(node_id, [])
        if len(unacknowledged) < wire.MAX_IDS:
            unacknowledged.append(message_id)
        return len(unacknowledged) == 1

    def is_unacknowledged_since(self, node_id: int, message_id: str) -> bool:
        """Tell whether this reply is the client's first that was not acknowledged."""
        return self._unacknowledged.get(node_id, [""])[0] == message_id

    def take_acknowledgements(self, node_id: int) -> list[str]:
        """Return the ids of a client's replies that were not acknowledged yet, once."""
        return self._unacknowledged.pop(node_id, [])

    # -------------------------------------------------------------------------------------------

    def _count_late(self, request: Request, arrived_s: float) -> None:
        message = request.message
        if message is None:  # an earlier server's: whether it is late is not known
            return
        self.num_late_replies += 1
        if message.metadata.message_type.startswith(MessageType.TRAIN):
            self.fastest_late_s = min(self.fastest_late_s, arrived_s - request.sent_s)

    def _enter(self, request: Request) -> None:
        self._open[request.message_id] = request
        self._by_node.setdefault(request.node_id, {})[request.message_id] = request
        self._expiry_s = min(self._expiry_s, request.expires_s)

    def _of(self, node_id: int) -> list[Request]:
        return list(self._by_node.get(node_id, {}).values())

    def _expire(self) -> None:
        """Settle messages whose time to live is over; drop held replies that are never pulled."""
        now_s = self._clock()
        if now_s < self._expiry_s:
            return
        for request in [r for r in self._open.values() if r.expires_s <= now_s]:
            self.settle(request, failure=TIMEOUT)
        for message_id in [i for i, r in self._held.items() if r.expires_s + _KEEP_S <= now_s]:
            del self._held[message_id]
            self._settled.pop(message_id, None)
        # What is left is looked through again when the first of it is due.
        opened = min((r.expires_s for r in self._open.values()), default=math.inf)
        held = min((r.expires_s + _KEEP_S for r in self._held.values()), default=math.inf)
        self._expiry_s = min(opened, held)
