"""A Flower grid over gRPC streams: one warm connection per client, timed to the millisecond."""

from __future__ import annotations

import contextlib
import itertools
import math
import queue
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Self

import grpc
from flwr.app import Message, MessageType, UserConfig

from flower_scheduling._flwr import NodeInfo
from flower_scheduling.client.wire.calls import DEFAULT_KEEPALIVE_S
from flower_scheduling.client.wire.compression import Compression
from flower_scheduling.client.wire.frames import Packed
from flower_scheduling.strategies.flower import (
    LATE,
    LOGGER,
    TIMEOUT,
    Exchange,
    OwnGrid,
    WaitLog,
    enough_are_in,
)

from .admission import DEFAULT_MAX_CLIENTS
from .messages import error_reply, exchange_of, pack_all, pulled_reply
from .open_files import raise_limit
from .requests import Request
from .servicer import FleetServicer
from .stream_server import StreamServer

# Longest wait for a client: callers log how long they have waited, and a signal that comes just
# before a wait begins, when Python has no more look at it, is handled after it.
_LOOK_S: Final = 1.0
_PAUSE_S: Final = 0.01  # between two returns of a wait


class StreamGrid(OwnGrid):
    """Carry messages to clients that hold a stream open, and time their answers.

    It implements Flower's ``Grid`` and the timing protocol
    (:class:`.TimedExchange`). A round trip lasts from just before the client's
    frame is written to the arrival of its reply, on this process's monotonic clock. A client whose
    stream broke may come back with its work: the round goes on.

    Parameters
    ----------
    address : str
        Where to listen, ``host:port``; port 0 picks a free one (see :attr:`port`).
    run_config : dict, optional
        Flower's run configuration, for the clients' contexts.
    run_id : int, optional
        Flower's run id, random by default: clients keep their state as long as it is the same.
    credentials : grpc.ServerCredentials, optional
        TLS; without it the streams are in the clear and names unproven.
    is_denied : callable, optional
        Tells whether a client of this name is refused; asked of every client that says hello, and
        every two seconds of those that are connected. It must answer at once.
    refresh_denied : callable, optional
        Called every two seconds, in a thread of its own, before ``is_denied`` is asked of the
        connected clients; :meth:`.DenyList.refresh` reads a file.
    on_first_exchange : callable, optional
        Called once, before the first messages are sent that a caller waits for: the first round
        begins.
    status : callable, optional
        Takes this grid, returns what the ``Status`` method answers, ready for JSON; called in a
        thread. With TLS only a caller with a server's certificate is answered: the status names
        every client.
    max_clients : int
        Names that are admitted; a client with a further one is refused. Each stays an arm for the
        rest of the run, and without TLS a name costs nothing.
    max_message_bytes : int, optional
        Largest message, in both directions [bytes]. By default a reply may have 512 MB, or four
        times what was sent if that is more.
    compress : str
        Kinds of compression, ``up=int8,down=bfloat16`` or one word for both directions; none by
        default. Clients that cannot are sent messages as they are, and answer so.
    keepalive_s : float
        Pause between two keepalive pings [s]; a dead peer is noticed within three times as long.
    lost_after_s : float
        A client without a stream for so long has lost its work [s].
    clock : callable
        Returns monotonic time [s].

    Examples
    --------
    >>> with StreamGrid("127.0.0.1:9092") as grid:
    ...     strategy.start(grid, initial_arrays, num_rounds=100)
    """

    def __init__(
        self,
        address: str,
        *,
        run_config: UserConfig | None = None,
        run_id: int | None = None,
        credentials: grpc.ServerCredentials | None = None,
        is_denied: Callable[[str], bool] = lambda name: False,
        refresh_denied: Callable[[], object] = lambda: None,
        on_first_exchange: Callable[[], object] | None = None,
        status: Callable[[StreamGrid], Mapping[str, Any]] = lambda grid: {},
        max_clients: int = DEFAULT_MAX_CLIENTS,
        max_message_bytes: int | None = None,
        compress: str = "",
        keepalive_s: float = DEFAULT_KEEPALIVE_S,
        lost_after_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(run_id or secrets.randbits(63) or 1)
        self._clock = clock
        self._max_clients = max_clients
        self._late: queue.SimpleQueue[Request] = queue.SimpleQueue()  # settled after their exchange
        self._waited_s = -math.inf  # end of the last wait for a client
        self._compression = Compression.parse(compress)
        self._on_first_exchange = on_first_exchange
        self._servicer = FleetServicer(
            run_id=lambda: self._run.run_id,
            run_config=dict(run_config or {}),
            secure=credentials is not None,
            status=lambda: status(self),
            is_denied=is_denied,
            refresh_denied=refresh_denied,
            max_clients=max_clients,
            max_message_bytes=max_message_bytes,
            compression=self._compression,
            lost_after_s=lost_after_s,
            clock=clock,
        )
        self._requests = self._servicer.requests
        self._server = StreamServer(address, self._servicer, credentials, keepalive_s)
        self._dispatched: dict[str, tuple[Request, float]] = {}  # message id -> request, deadline
        self._ended: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._wait_log: WaitLog | None = None  # since a dispatched message ended last
        # Ids must not repeat over restarts: a client may bring the reply of an earlier server.
        self._message_ids = map(f"{secrets.token_hex(8)}-{{}}".format, itertools.count(1))

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Listen and accept clients.

        Raises
        ------
        ConfigError
            If the address cannot be had, with key ``address``.
        """
        self._take_identity()
        raise_limit(self._max_clients)
        self._server.start()

    def stop(self, grace_s: float = 1.0) -> None:
        """Send goodbyes, end the streams, and free the port.

        An exchange that is under way in another thread returns at once.

        Parameters
        ----------
        grace_s : float
            Longest wait for streams to end [s].
        """
        self._server.stop(grace_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The port that clients connect to.

        Raises
        ------
        RuntimeError
            If the grid was not started.
        """
        if self._server.port is None:
            raise RuntimeError("the grid has no port before start()")
        return self._server.port

    @property
    def num_refused(self) -> int:
        """Connections that were refused."""
        return self._servicer.admission.num_refused

    @property
    def num_late_replies(self) -> int:
        """Replies that came after their deadline."""
        return self._requests.num_late_replies

    @property
    def fastest_late_s(self) -> float:
        """Shortest round trip of a late reply to training [s]; infinite: there was none."""
        return self._requests.fastest_late_s

    @property
    def num_ignored_replies(self) -> int:
        """Replies to messages that were unknown, another client's, or answered before."""
        return self._requests.num_ignored_replies

    # -- timing protocol ------------------------------------------------------------------------

    def begin_round(self, server_round: int) -> None:
        """Do nothing: streams know no rounds."""

    def exchange(
        self,
        messages: Sequence[Message],
        timeout_s: float,
        enough: int | None = None,
        awaited: Collection[int] = (),
    ) -> list[Exchange]:
        """Send the messages; return when enough are answered, or at the deadline.

        A client's time, and its deadline [s], count from when its bytes begin to leave: a large
        model leaves for one client after the other.
        """
        self._note_first()
        arrivals: queue.SimpleQueue[Request] = queue.SimpleQueue()
        requests = self._prepare(messages, arrivals)
        waiting = {request.message_id: request for request, _ in requests}
        exchanges: dict[str, Exchange] = {}
        early = False
        begin_s = self._clock()
        wait_log = WaitLog(begin_s, self._servicer.admission.name_of, LOGGER)
        try:
            deadline_s = begin_s + timeout_s
            self._servicer.send(requests)
            while len(exchanges) < len(waiting) and not early:
                left_s = min(max(0.0, deadline_s - self._clock()), _LOOK_S)
                try:
                    request = arrivals.get(timeout=left_s)
                except queue.Empty:
                    now_s = self._clock()
                    begun_s = (r.begun_s(now_s) for i, r in waiting.items() if i not in exchanges)
                    # NaN, of those that have not begun, loses against any number.
                    deadline_s = max(deadline_s, *(begin + timeout_s for begin in begun_s))
                    if now_s >= deadline_s:
                        break
                    wait_log.note(
                        now_s,
                        deadline_s,
                        lambda: [r.node_id for i, r in waiting.items() if i not in exchanges],
                        len(waiting),
                    )
                    continue
                # Read now, while others compute; its arrival is stamped already.
                exchanges[request.message_id] = self._conclude(request, timeout_s)
                early = enough_are_in(exchanges.values(), enough, awaited)
        finally:  # also when interrupted: a reply that comes now is late
            with self._servicer.lock:
                if early:
                    self._requests.keep(waiting.values(), self._late)
                else:
                    self._requests.abandon(waiting.values())
        return [
            exchanges.get(request.message_id) or self._conclude(request, timeout_s)
            for request in waiting.values()
        ]

    def dispatch(self, messages: Sequence[Message], timeout_s: float) -> None:
        """Send messages that are not waited for; a deadline counts as in :meth:`exchange`."""
        self._note_first()
        requests = self._prepare(messages, self._ended)
        self._dispatched |= {request.message_id: (request, timeout_s) for request, _ in requests}
        self._servicer.send(requests)

    def next_ended(self, wait_s: float) -> list[Exchange]:
        """Return what became of dispatched messages since, in the order of their ends."""
        now_s = self._clock()
        end_s = now_s + wait_s
        wait_log = self._wait_log or WaitLog(now_s, self._servicer.admission.name_of, LOGGER)
        self._wait_log = wait_log
        while True:
            found = self._take_ended()
            now_s = self._clock()
            if found or not self._dispatched:
                self._wait_log = None
            if found or now_s >= end_s or not self._dispatched:
                return found
            due_s = min(
                (
                    begin_s + timeout_s
                    for request, timeout_s in self._dispatched.values()
                    if not math.isnan(begin_s := request.begun_s(now_s))
                ),
                default=math.inf,
            )
            try:
                request = self._ended.get(
                    timeout=max(0.0, min(end_s - now_s, due_s - now_s, _LOOK_S))
                )
            except queue.Empty:
                wait_log.note(self._clock(), due_s, self._working)
                continue
            self._ended.put(request)  # behind any that came since: they are sorted when taken

    def _working(self) -> list[int]:
        return [request.node_id for request, _ in self._dispatched.values()]

    def _take_ended(self) -> list[Exchange]:
        """Return what has ended, and what has passed its deadline."""
        ended: list[Request] = []
        with contextlib.suppress(queue.Empty):
            while True:
                ended.append(self._ended.get_nowait())
        now_s = self._clock()
        overdue = [
            request
            for request, timeout_s in self._dispatched.values()
            if not request.settled and now_s >= request.begun_s(now_s) + timeout_s
        ]
        with self._servicer.lock:
            self._requests.abandon(overdue)
        # What was settled meanwhile is taken the next time.
        ended += [request for request in overdue if request.abandoned]
        ended.sort(
            key=lambda request: now_s if math.isnan(request.arrived_s) else request.arrived_s
        )
        return [
            self._conclude(request, self._dispatched.pop(request.message_id)[1])
            for request in ended
        ]

    def late(self) -> list[Exchange]:
        """Return what has become of late messages since the last call, with true times [s]."""
        self.busy()  # settles what has expired
        finished: list[Exchange] = []
        while True:
            try:
                request = self._late.get_nowait()
            except queue.Empty:
                return finished
            finished.append(exchange_of(request))

    def _note_first(self) -> None:
        on_first, self._on_first_exchange = self._on_first_exchange, None
        if on_first is not None:
            on_first()

    def busy(self) -> set[int]:
        """Return the nodes that still work on an earlier message."""
        with self._servicer.lock:
            return self._requests.busy()

    def opted_out(self) -> set[int]:
        """Return the connected nodes that do not take work at present."""
        with self._servicer.lock:
            return set(self._servicer.admission.opted_out)

    def on_leave(self) -> set[int]:
        """Return those that opted out: the rounds that they miss are not owed to them."""
        return self.opted_out()

    def now(self) -> float:
        """Return the server's monotonic time [s]."""
        return self._clock()

    def wait(self, seconds: float) -> None:
        """Wait until a client joins or becomes free, or it is time to log that none has."""
        self._servicer.changed.wait(min(seconds, _LOOK_S))
        # Of a fleet that joins at once each client would wake the caller.
        time.sleep(max(0.0, min(seconds, self._waited_s + _PAUSE_S - time.monotonic())))
        self._waited_s = time.monotonic()
        self._servicer.changed.clear()

    # -- Flower's grid --------------------------------------------------------------------------

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the connected clients."""
        with self._servicer.lock:
            return list(self._servicer.admission.connections)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the connected clients; the bytes of a client's name stand for its public key."""
        with self._servicer.lock:
            return list(self._servicer.admission.nodes.values())

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; what cannot be delivered is answered by an error when it is pulled."""
        messages = list(messages)
        if any(message.metadata.message_type != MessageType.QUERY for message in messages):
            self._note_first()
        requests = self._prepare(messages, None)
        with self._servicer.lock:
            self._requests.hold(request for request, _ in requests)
        self._servicer.send(requests)
        return [request.message_id for request, _ in requests]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there, errors for messages that failed or expired included.

        A reply is returned once.
        """
        with self._servicer.lock:
            settled = self._requests.pull(message_ids)
        return [pulled_reply(request) for request in settled]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return the replies that come within ``timeout`` [s].

        A message that cannot be delivered, is lost or outlives its time to live is answered by
        an error. Replies that come later are dropped.
        """
        messages = list(messages)
        limit_s = max((message.metadata.ttl for message in messages), default=0.0)
        timeout_s = math.inf if timeout is None else timeout
        exchanges = self.exchange(messages, min(limit_s, timeout_s))
        return [
            error_reply(message, exchange.failure) if exchange.reply is None else exchange.reply
            for message, exchange in zip(messages, exchanges, strict=True)
            if exchange.failure != TIMEOUT or message.metadata.ttl <= timeout_s
        ]

    # -------------------------------------------------------------------------------------------

    def _prepare(
        self, messages: Iterable[Message], arrivals: queue.SimpleQueue[Request] | None
    ) -> list[tuple[Request, Packed]]:
        """Return the requests for these messages, and the bytes to send."""
        requests = []
        for message, payload, model in pack_all(
            messages, self._message_ids, self._compression, self._servicer.can_compress
        ):
            metadata = message.metadata
            expires_s = self._clock() + metadata.ttl
            request = Request(
                metadata.message_id, metadata.dst_node_id, expires_s, message, arrivals
            )
            request.model, request.sent_bytes = model, len(payload)
            requests.append((request, payload))
        return requests

    def _conclude(self, request: Request, timeout_s: float) -> Exchange:
        if request.late:
            return Exchange(request.node_id, None, None, LATE, request.sent_bytes)
        if request.arrived_s - request.sent_s > timeout_s:
            with self._servicer.lock:
                self._requests.discard_late(request)
        return exchange_of(request)
