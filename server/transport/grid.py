"""A Flower grid over gRPC streams: one warm connection per client, timed to the millisecond.

An event loop in a thread of its own moves the frames and stamps them; the callers' threads turn
messages into bytes and back, so that nothing but the network and the client lies between the two
stamps of a round trip. What both need to know is kept under one lock.

Clients are not trusted, and who has not said hello is less than a client. Whatever one of them can
make this process keep, do or log is bounded, each by a constant here or in what this module uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import math
import queue
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Self

import grpc
from flwr.app import Error, Message, UserConfig
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto, recorddict_to_proto
from flwr.common.serde_utils import metadata_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import NodeInfo
from grpc_health.v1 import health, health_pb2_grpc

from flower_scheduling.client.wire import chunks
from flower_scheduling.client.wire import frames as wire
from flower_scheduling.client.wire.arrays import read_message
from flower_scheduling.client.wire.calls import DEFAULT_KEEPALIVE_S, server_options
from flower_scheduling.errors import ConfigError, WireError
from flower_scheduling.strategies.flower import (
    LOGGER,
    TIMEOUT,
    UNDELIVERABLE,
    Exchange,
    LimitedLog,
    OwnGrid,
)

from .admission import Strangers
from .connection import FAREWELL_S, Connection, certified_names, host_of, is_server, node_id_of
from .connection_log import AttendanceLog
from .sockets import FREE_PORT

LOST: Final = "connection lost"
"""Failure of a message whose client went away with it."""
UNREADABLE: Final = "unreadable reply"
"""Failure of a message whose answer is not Flower's."""

DEFAULT_MAX_CLIENTS: Final = 10_000

_DENIED = "it is on the server's deny list"
_KEEP_S = 3600.0  # how long a reply that nobody pulls outlives its message
_LONGEST_WAIT_S = 3600.0
_LOOK_S = 1.0  # longest wait for somebody to come: callers tell how long they have waited
_UNKNOWN_WORK_S = 600.0  # how long a client is busy with what this server knows nothing of
_MAX_UNKNOWN_WORK = 16  # of its ids
_AVAILABILITY_S = 1.0  # between two changes of a client's mind: each one wakes the scheduler
_FREE_FRAMES = 100  # frames without use before a client's next ones are put off
_PAUSE_S = 0.02  # after each of them
_MAX_REASON_LENGTH = 200
_REVIEW_S = 2.0  # between two looks whether a connected client has been denied since
_ACK_DELAY_S = 2.0  # mostly the client's next work comes first, and carries the acknowledgement
_Payload = tuple[bytes, bytes]  # parts of a serialised message


@dataclass(slots=True, eq=False)
class _Request:
    """A message on its way. It is settled once: by a reply or by a failure."""

    message_id: str
    node_id: int
    expires_s: float  # on the server's clock
    message: Message | None = None  # None: some earlier server's
    arrivals: queue.SimpleQueue[_Request] | None = None  # to be told; None: it is pulled
    abandoned: bool = False  # nobody waits for it any more, but the client still works on it
    sent_s: float = math.nan
    arrived_s: float = math.nan
    reply: bytes | memoryview | None = None
    failure: str | None = None

    @property
    def settled(self) -> bool:
        return self.reply is not None or self.failure is not None


class StreamGrid(OwnGrid):
    """Carry messages to clients that hold a stream open, and time their answers.

    It implements Flower's ``Grid`` and the timing protocol
    (:class:`.TimedExchange`). A round trip lasts from just before the client's
    frame is written to the arrival of its reply, on this process's monotonic clock.

    A client is known by its name. A second connection under the name of a connected client is
    refused, unless it proves to be the same client: by a certificate of that name or as the same
    process. Then it takes the place of the old one, since half-open connections are normal on
    radio. A client whose stream broke may come back with its work: the round goes on.

    Parameters
    ----------
    address : str
        Where to listen, ``host:port``; port 0 picks a free one (see :attr:`port`).
    run_config : dict, optional
        Flower's run configuration, for the clients' contexts.
    run_id : int
        Flower's run id.
    credentials : grpc.ServerCredentials, optional
        TLS; without it the streams are in the clear and names unproven.
    is_denied : callable, optional
        Tells whether a client of this name must stay out; asked whenever one says hello, and every
        two seconds of those that are connected.
    status : callable, optional
        Takes this grid, returns what the ``Status`` method answers, ready for JSON; called in a
        thread. With TLS only whoever has a server's certificate is answered: it tells of every
        client.
    max_clients : int
        Names that are let in; whoever comes later under another one is refused. Each stays an arm
        for the rest of the run, and without TLS a name costs nothing.
    max_message_bytes : int
        Largest frame [bytes].
    keepalive_s : float
        Pause between two signs of life [s]; a dead peer is noticed within three times as long.
    lost_after_s : float
        A client without a stream for so long has lost its work [s].
    clock : callable
        Returns monotonic time [s].

    Attributes
    ----------
    num_late_replies : int
        Replies that came after their deadline.
    num_ignored_replies : int
        Replies to messages that were unknown, another client's, or answered before.
    num_refused : int
        Connections that were refused.

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
        run_id: int = 1,
        credentials: grpc.ServerCredentials | None = None,
        is_denied: Callable[[str], bool] = lambda name: False,
        status: Callable[[StreamGrid], Mapping[str, Any]] = lambda grid: {},
        max_clients: int = DEFAULT_MAX_CLIENTS,
        max_message_bytes: int = wire.DEFAULT_MAX_MESSAGE_BYTES,
        keepalive_s: float = DEFAULT_KEEPALIVE_S,
        lost_after_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(run_id)
        self._address = address
        self._run_config = dict(run_config or {})
        self._credentials = credentials
        self._is_denied = is_denied
        self._status = status
        self._max_clients = max_clients
        self._max_message_bytes = max_message_bytes
        self._keepalive_s = keepalive_s
        self._lost_after_s = lost_after_s
        self._clock = clock

        self._lock = threading.Lock()  # guards what follows
        self._connections: dict[int, Connection] = {}
        self._known: set[int] = set()  # whoever was ever connected
        self._lost: dict[int, asyncio.TimerHandle] = {}  # node -> when its work is given up
        self._open: dict[str, _Request] = {}  # message id -> request with a client
        self._mailbox: dict[str, _Request] = {}  # pushed messages, until their reply is pulled
        self._unacknowledged: dict[int, list[str]] = {}  # node -> ids whose reply is here
        self.num_late_replies = 0
        self.num_ignored_replies = 0
        self.num_refused = 0

        # Ids must not repeat over restarts: a client may bring the reply of an earlier server.
        self._message_ids = map(f"{secrets.token_hex(8)}-{{}}".format, itertools.count(1))
        self._somebody_came = threading.Event()
        self._port: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event
        self._stop_grace_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers = Strangers(self._warn_of_silence)
        self._attendance = AttendanceLog(clock)
        self._warnings = LimitedLog(clock)

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Listen and accept clients.

        Raises
        ------
        ConfigError
            If the address cannot be had, with key ``address``.
        """
        self._take_identity()
        started: Future[int] = Future()
        self._thread = threading.Thread(
            target=self._run_loop, args=(started,), name="stream-grid", daemon=True
        )
        self._thread.start()
        try:
            self._port = started.result()
        except Exception:
            self._thread.join()
            self._thread = None
            raise

    def stop(self, grace_s: float = 1.0) -> None:
        """Tell the clients, end their streams, and free the port.

        An exchange that is under way in another thread returns at once.

        Parameters
        ----------
        grace_s : float
            Longest wait for streams to end [s].
        """
        if self._thread is None or self._loop is None:
            return
        self._stop_grace_s = grace_s
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._thread = None

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
        if self._port is None:
            raise RuntimeError("the grid has no port before start()")
        return self._port

    # -- timing protocol ------------------------------------------------------------------------

    def begin_round(self, server_round: int) -> None:
        """Do nothing: streams know no rounds."""

    def exchange(self, messages: Sequence[Message], timeout_s: float) -> list[Exchange]:
        """Send the messages; return when all are answered, or at the deadline [s]."""
        arrivals: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        requests = self._prepare(messages, arrivals)
        exchanges: dict[str, Exchange] = {}
        try:
            deadline_s = self._send(requests) + timeout_s
            while len(exchanges) < len(requests):
                # An endless wait is cut up: it must not exceed the platform's longest.
                left_s = min(max(0.0, deadline_s - self._clock()), _LONGEST_WAIT_S)
                try:
                    request = arrivals.get(timeout=left_s)
                except queue.Empty:
                    if self._clock() >= deadline_s:
                        break
                    continue
                # Read now, while others compute; its arrival is stamped already.
                exchanges[request.message_id] = self._exchange_of(request, deadline_s)
        finally:  # also when interrupted: whatever comes now is late
            self._abandon(request for request, _ in requests)
        return [
            exchanges.get(request.message_id) or self._exchange_of(request, deadline_s)
            for request, _ in requests
        ]

    def busy(self) -> set[int]:
        """Return the nodes that still work on an earlier message."""
        with self._lock:
            self._expire()
            return {request.node_id for request in self._open.values()}

    def opted_out(self) -> set[int]:
        """Return the connected nodes that do not take work at present."""
        with self._lock:
            return {node for node, c in self._connections.items() if not c.available}

    def on_leave(self) -> set[int]:
        """Return those that opted out: what they miss by their own will is not owed to them."""
        return self.opted_out()

    def now(self) -> float:
        """Return the server's monotonic time [s]."""
        return self._clock()

    def wait(self, seconds: float) -> None:
        """Wait until a client joins or becomes free, or it is time to say that nobody has."""
        self._somebody_came.wait(min(seconds, _LOOK_S))
        self._somebody_came.clear()

    # -- Flower's grid --------------------------------------------------------------------------

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the connected clients."""
        with self._lock:
            return list(self._connections)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the connected clients; the bytes of a client's name stand for its public key."""
        with self._lock:
            connections = list(self._connections.values())
        return [
            NodeInfo(node_id=c.node_id, name=c.name, public_key=c.name.encode())
            for c in connections
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; what cannot be delivered is answered by an error when it is pulled."""
        requests = self._prepare(messages, None)
        with self._lock:
            self._mailbox.update({request.message_id: request for request, _ in requests})
        self._send(requests)
        return [request.message_id for request, _ in requests]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there, errors for messages that failed or expired included.

        A reply is returned once.
        """
        with self._lock:
            self._expire()
            asked = [self._mailbox[i] for i in set(message_ids) if i in self._mailbox]
            settled = [request for request in asked if request.settled]
            for request in settled:
                del self._mailbox[request.message_id]
        return [_reply_or_error(request.message, *_read(request)) for request in settled]

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
            _reply_or_error(message, exchange.reply, exchange.failure)
            for message, exchange in zip(messages, exchanges, strict=True)
            if exchange.failure != TIMEOUT or message.metadata.ttl <= timeout_s
        ]

    # -- requests -------------------------------------------------------------------------------

    def _prepare(
        self, messages: Iterable[Message], arrivals: queue.SimpleQueue[_Request] | None
    ) -> list[tuple[_Request, _Payload]]:
        """Give messages an id and serialise them; the same content is serialised once."""
        contents: dict[int, bytes] = {}
        requests = []
        for message in messages:
            message_id = next(self._message_ids)
            message.metadata.__dict__["_message_id"] = message_id
            if message.has_content():
                content = contents.get(id(message.content))
                if content is None:
                    proto = ProtoMessage(content=recorddict_to_proto(message.content))
                    contents[id(message.content)] = content = proto.SerializeToString()
                head = ProtoMessage(metadata=metadata_to_proto(message.metadata))
                parts = (head.SerializeToString(), content)
            else:
                parts = (message_to_proto(message).SerializeToString(), b"")
            expires_s = self._clock() + message.metadata.ttl
            node_id = message.metadata.dst_node_id
            requests.append((_Request(message_id, node_id, expires_s, message, arrivals), parts))
        return requests

    def _send(self, requests: Sequence[tuple[_Request, _Payload]]) -> float:
        """Hand messages to the event loop; return the time of that [s]."""
        accepted = []
        begin_s = self._clock()
        with self._lock:
            for request, payload in requests:
                connection = self._connections.get(request.node_id)
                if connection is None:
                    self._settle(request, failure=UNDELIVERABLE)
                elif (size := sum(map(len, payload))) > connection.max_payload_bytes:
                    self._warnings.say(
                        "message too large",
                        connection.name,
                        f"{connection.name} takes messages of {connection.max_payload_bytes} "
                        f"bytes at most, one has {size}",
                    )
                    self._settle(request, failure=UNDELIVERABLE)
                else:
                    self._open[request.message_id] = request
                    acks = self._unacknowledged.pop(request.node_id, [])
                    accepted.append((connection, request, acks, payload))
        writes = [
            (connection, request, wire.encode(wire.Work(request.message_id, acks), *payload))
            for connection, request, acks, payload in accepted
        ]
        with self._lock:
            if self._loop is not None:  # else it was stopped meanwhile
                self._loop.call_soon_threadsafe(self._write_all, writes)
        return begin_s

    def _write_all(self, writes: Sequence[tuple[Connection, _Request, bytes]]) -> None:
        for connection, request, frame in writes:
            self._spawn(self._write(connection, request, frame))

    async def _write(self, connection: Connection, request: _Request, frame: bytes) -> None:
        def stamp() -> bool:
            if request.settled:  # its client came back without it while it waited for its turn
                return False
            request.sent_s = self._clock()
            return True

        await connection.send(frame, stamp)

    def _settle(
        self,
        request: _Request,
        *,
        reply: bytes | memoryview | None = None,
        failure: str | None = None,
        arrived_s: float = math.nan,
    ) -> None:
        """Note how a request ended; the lock is held."""
        self._open.pop(request.message_id, None)
        if request.abandoned:
            self._somebody_came.set()  # it is free again
            return
        request.reply, request.failure, request.arrived_s = reply, failure, arrived_s
        if request.arrivals is not None:
            request.arrivals.put(request)

    def _abandon(self, requests: Iterable[_Request]) -> None:
        """Stop waiting; the clients that have not answered stay busy."""
        with self._lock:
            for request in requests:
                request.abandoned = not request.settled

    def _expire(self) -> None:
        """Forget messages whose time to live is over; the lock is held."""
        now_s = self._clock()
        for request in [r for r in self._open.values() if r.expires_s <= now_s]:
            self._settle(request, failure=TIMEOUT)
        dropped = [i for i, r in self._mailbox.items() if r.expires_s + _KEEP_S <= now_s]
        for message_id in dropped:
            del self._mailbox[message_id]

    def _exchange_of(self, request: _Request, deadline_s: float) -> Exchange:
        node_id = request.node_id
        late = request.arrived_s > deadline_s
        if late:
            with self._lock:
                self.num_late_replies += 1
        if late or not request.settled:
            return Exchange(node_id, None, None, TIMEOUT)
        reply, failure = _read(request)
        rtt_s = None if reply is None else request.arrived_s - request.sent_s
        return Exchange(node_id, reply, rtt_s, failure)

    # -- the event loop's side --------------------------------------------------------------------

    def _run_loop(self, started: Future[int]) -> None:
        try:
            asyncio.run(self._main(started))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    async def _main(self, started: Future[int]) -> None:
        """Serve until told to stop."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(_note_fault)
        self._stop = asyncio.Event()
        server = grpc.aio.server(options=server_options(self._keepalive_s))
        # No serialisers: what is exchanged are bytes, and no generated code is needed.
        methods = {
            wire.CONNECT: grpc.stream_stream_rpc_method_handler(self._serve_client),
            wire.STATUS: grpc.unary_unary_rpc_method_handler(self._serve_status),
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(wire.SERVICE, methods),)
        )
        health_service = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
        try:
            if self._credentials is None:
                port = server.add_insecure_port(self._address)
            else:
                port = server.add_secure_port(self._address, self._credentials)
            await server.start()
        except RuntimeError:
            await server.stop(None)
            raise ConfigError(
                "address", self._address, f"must be host:port of this machine, {FREE_PORT}"
            ) from None
        started.set_result(port)
        review = asyncio.create_task(self._review())
        await self._stop.wait()
        review.cancel()

        self._attendance.tell()
        await health_service.enter_graceful_shutdown()
        with self._lock:
            self._warnings.tell_withheld(all_of_them=True)
            connections = list(self._connections.values())
        await asyncio.gather(*(c.close(wire.Goodbye()) for c in connections))
        await server.stop(self._stop_grace_s)
        with self._lock:
            self._loop = None
            for timer in self._lost.values():
                timer.cancel()
            self._lost.clear()
            self._connections.clear()
            for request in list(self._open.values()):
                self._settle(request, failure=LOST)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _review(self) -> None:
        """Close the streams of clients that were denied since they came."""
        while True:
            await asyncio.sleep(_REVIEW_S)
            with self._lock:
                self._warnings.tell_withheld()
                connections = list(self._connections.values())
            for connection in connections:
                if not connection.closing and self._is_denied(connection.name):
                    LOGGER.warning("%s is on the deny list now: closed", connection.name)
                    connection.left = True  # its work is not waited for
                    self._spawn(connection.close(wire.Refused(wire.Refusal.DENIED, _DENIED)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that writes to a client; a stream that breaks is its reader's concern."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._finish_task)

    def _finish_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOGGER.debug("write failed: %r", error)

    async def _serve_status(self, _: bytes, context: grpc.aio.ServicerContext) -> bytes:
        if self._credentials is not None and not is_server(context):
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, "only the server's certificate may ask"
            )
        # In a thread: a table of a thousand arms must not delay the stamping of arrivals.
        status = await asyncio.to_thread(self._status, self)
        return json.dumps(status, allow_nan=False).encode()

    async def _serve_client(self, _: object, context: grpc.aio.ServicerContext) -> None:
        """Handle one stream from hello to end."""
        hello = await self._read_hello(context)
        if hello is None:
            return
        connection = Connection(context, hello)
        with self._lock:
            acks = self._unacknowledged.pop(connection.node_id, [])
        welcome = wire.Welcome(
            node_id=connection.node_id,
            run_id=self._run.run_id,
            run_config=self._run_config,
            acks=acks,
            max_message_bytes=self._max_message_bytes,
        )

        def join() -> bool:  # work may be sent from now on, and waits until the welcome is out
            self._join(connection, hello, set(hello.work).difference(acks))
            return True

        try:
            await connection.send(wire.encode(welcome), join)
            if connection.closing or connection.stuck:  # the former if it is replaced already
                return
            connection.reader = asyncio.ensure_future(self._read_frames(connection, context))
            await connection.reader
        except WireError as error:
            text = f"{connection.name}: {error}; its connection is closed"
            self._warn("bad frames", connection.name, text)
            await connection.close(wire.Refused(wire.Refusal.BAD_FRAME, str(error)))
        except asyncio.CancelledError:
            if connection.stuck:
                text = f"{connection.name} takes nothing any more: its connection is closed"
                self._warn("stuck connections", connection.name, text)
            elif not connection.closing:  # gRPC's way to say that the client is gone
                raise
        finally:
            self._part(connection)

    async def _read_hello(self, context: grpc.aio.ServicerContext) -> wire.Hello | None:
        """Return the hello of a client that may come in; refuse any other."""
        try:
            frame = self._read_frame(context, wire.MAX_HELLO_BYTES)
            data = await self._strangers.first_frame(host_of(context), frame)
            if data is None:
                return None
            hello = wire.decode(data)
            if not isinstance(hello, wire.Hello):
                raise WireError("the first frame is no hello")
        except WireError as error:
            await self._refuse(context, host_of(context), wire.Refusal.BAD_FRAME, str(error))
            return None
        objection = self._objection(hello, certified_names(context))
        if objection is not None:
            await self._refuse(context, hello.name, *objection)
            return None
        return hello

    def _objection(self, hello: wire.Hello, names: set[str]) -> tuple[str, str] | None:
        """Return code and reason if this client must not come in."""
        if hello.protocol != wire.PROTOCOL_VERSION:
            return wire.Refusal.VERSION, (
                f"it speaks protocol {hello.protocol} (version {hello.package}), the server "
                f"{wire.PROTOCOL_VERSION} (version {wire.package_version()}): "
                "install the same version on both"
            )
        if names and hello.name not in names:
            listed = ", ".join(sorted(names))
            return wire.Refusal.NOT_YOUR_NAME, f"its certificate is for {listed}"
        if self._is_denied(hello.name):
            return wire.Refusal.DENIED, _DENIED
        node_id = node_id_of(hello.name)
        if node_id not in self._known and len(self._known) >= self._max_clients:
            return wire.Refusal.FULL, (
                f"the server has met {self._max_clients} clients already, and takes no more of "
                "other names (--max-clients)"
            )
        living = self._connections.get(node_id)
        if living is not None and hello.session != living.session and hello.name not in names:
            return wire.Refusal.NAME_IN_USE, (
                "another client of this name is connected, and without a certificate of that "
                "name nothing tells which is the right one"
            )
        return None

    async def _refuse(
        self, context: grpc.aio.ServicerContext, who: str, code: str, reason: str
    ) -> None:
        with self._lock:
            self.num_refused += 1
        self._warn(f"refused clients ({code})", who, f"refused client {who}: {reason}")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await context.write(wire.encode(wire.Refused(code, reason)))

    def _warn_of_silence(self, host: str) -> None:
        self._warn("silent connections", host, f"no hello from {host}: its connection is closed")

    def _warn(self, kind: str, who: str, text: str) -> None:
        with self._lock:
            self._warnings.say(kind, who, text)

    def _join(self, connection: Connection, hello: wire.Hello, in_hand: set[str]) -> None:
        """Enter a client into the table; what it no longer has in hand has failed."""
        node_id = connection.node_id
        with self._lock:
            old = self._connections.get(node_id)
            self._connections[node_id] = connection
            self._known.add(node_id)
            if (timer := self._lost.pop(node_id, None)) is not None:
                timer.cancel()
            for message_id, request in list(self._open.items()):
                if request.node_id == node_id and message_id not in in_hand:
                    self._settle(request, failure=LOST)
            now_s = self._clock()
            for message_id in sorted(in_hand - self._open.keys())[:_MAX_UNKNOWN_WORK]:
                # From before a restart of this server, or given up since: it is busy with it.
                self._open[message_id] = _Request(
                    message_id, node_id, now_s + _UNKNOWN_WORK_S, abandoned=True, sent_s=now_s
                )
        if old is not None:
            self._attendance.note("back, the old connection is closed", connection.name)
            code, reason = wire.Refusal.REPLACED, "a newer connection has taken its place"
            self._spawn(old.close(wire.Refused(code, reason)))
        if hello.package != wire.package_version():
            self._warn(
                "clients of another version",
                connection.name,
                f"{connection.name} has version {hello.package}, the server "
                f"{wire.package_version()}: install the same on both",
            )
        if old is None:
            self._attendance.note("connected", connection.name)
        self._somebody_came.set()

    def _part(self, connection: Connection) -> None:
        """Take a client out of the table; its work may yet come back, unless it left."""
        node_id = connection.node_id
        with self._lock:
            if self._connections.get(node_id) is not connection:
                return  # replaced
            del self._connections[node_id]
            if connection.left:
                self._give_up(node_id)
            elif self._loop is not None and not self._stop.is_set():
                self._lost[node_id] = self._loop.call_later(
                    self._lost_after_s, self._stay_away, node_id
                )
        if connection.left:
            self._attendance.note("left", connection.name)
        elif not connection.closing:
            self._attendance.note("lost the connection", connection.name)

    def _stay_away(self, node_id: int) -> None:
        with self._lock:
            self._lost.pop(node_id, None)
            self._give_up(node_id)

    def _give_up(self, node_id: int) -> None:
        """Settle what a client has in hand as lost; the lock is held."""
        self._unacknowledged.pop(node_id, None)  # if it returns with a reply, it is told again
        for request in [r for r in self._open.values() if r.node_id == node_id]:
            self._settle(request, failure=LOST)

    async def _read_frames(self, connection: Connection, context: grpc.aio.ServicerContext) -> None:
        def is_wanted(message_id: str) -> bool:  # else a whole model is kept for nothing
            request = self._open.get(message_id)
            return (
                request is not None
                and request.node_id == connection.node_id
                and not request.abandoned
            )

        while True:
            data = await self._read_frame(context, self._max_message_bytes, is_wanted)
            now_s = self._clock()
            if data is None:
                return
            frame = wire.decode(data)
            useful = False
            if isinstance(frame, wire.Reply):
                useful = self._take_reply(connection, frame, now_s)
            elif isinstance(frame, wire.Availability):
                self._want(connection, frame.available, now_s)
            elif isinstance(frame, wire.Goodbye):
                connection.left = True
                return
            else:
                raise WireError(f"{type(frame).__name__} is no frame of a client")
            if not useful:
                connection.useless += 1
                if connection.useless > _FREE_FRAMES:  # it shares the loop with those who work
                    await asyncio.sleep(_PAUSE_S)

    def _want(self, connection: Connection, available: bool, now_s: float) -> None:
        """Note whether a client takes work, at once or when it may change its mind again."""
        due = connection.wanted is None
        connection.wanted = available
        if due and self._loop is not None:
            pause_s = max(0.0, connection.changed_s + _AVAILABILITY_S - now_s)
            self._loop.call_later(pause_s, self._change, connection)

    def _change(self, connection: Connection) -> None:
        available, connection.wanted = bool(connection.wanted), None
        connection.changed_s = self._clock()
        with self._lock:
            news = available and not connection.available
            connection.available = available
        if news:
            self._somebody_came.set()

    async def _read_frame(
        self,
        context: grpc.aio.ServicerContext,
        max_message_bytes: int,
        is_wanted: Callable[[str], bool] = lambda message_id: True,
    ) -> bytes | None:
        async def read() -> bytes | None:
            data = await context.read()
            return None if data is grpc.aio.EOF else data

        return await chunks.read_frame(read, max_message_bytes, is_wanted)

    def _take_reply(self, connection: Connection, frame: wire.Reply, now_s: float) -> bool:
        """Settle what a reply answers; tell whether it answers anything."""
        node_id = connection.node_id
        with self._lock:
            unacknowledged = self._unacknowledged.setdefault(node_id, [])
            if len(unacknowledged) < wire.MAX_IDS:
                unacknowledged.append(frame.message_id)
            if len(unacknowledged) == 1 and self._loop is not None:
                first = frame.message_id
                self._loop.call_later(_ACK_DELAY_S, self._acknowledge, node_id, first)
            request = self._open.get(frame.message_id)
            # Unsent: ids can be guessed, and an answer that precedes its question has no time.
            if request is None or request.node_id != node_id or math.isnan(request.sent_s):
                self.num_ignored_replies += 1
                LOGGER.debug("%s answered a message that waits for none", connection.name)
                return False
            if request.abandoned:
                self.num_late_replies += 1
            self._settle(request, reply=frame.payload, arrived_s=now_s)
            return True

    def _acknowledge(self, node_id: int, first: str) -> None:
        """Acknowledge replies to a client that was not sent work since the first of them."""
        with self._lock:
            if self._unacknowledged.get(node_id, [""])[0] != first:
                return  # its work brought the acknowledgement; others have timers of their own
            connection = self._connections.get(node_id)
            if connection is None:  # its next welcome will do it
                return
            if connection.writing and self._loop is not None:  # not behind one that is not taken
                self._loop.call_later(_ACK_DELAY_S, self._acknowledge, node_id, first)
                return
            acks = self._unacknowledged.pop(node_id, [])
        if acks:
            self._spawn(connection.send(wire.encode(wire.Ack(acks))))


def _note_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what nobody handles: gRPC leaves cancelled calls of its own behind when it stops."""
    error = context.get("exception")
    level = logging.DEBUG if isinstance(error, asyncio.CancelledError) else logging.ERROR
    LOGGER.log(level, "%s: %r", context.get("message"), error)


def _read(request: _Request) -> tuple[Message | None, str | None]:
    """Return the reply of a settled request, or why there is none."""
    if request.reply is None:
        return None, request.failure
    try:
        reply = read_message(request.reply)
    except Exception as error:  # whatever a client may send
        text = " ".join(str(error).split())[:_MAX_REASON_LENGTH]
        return None, f"{UNREADABLE}: {text}"
    metadata = reply.metadata.__dict__
    if metadata["_reply_to_message_id"] != request.message_id:
        return None, f"{UNREADABLE}: it answers another message"
    metadata["_message_id"] = f"reply-{request.message_id}"
    metadata["_src_node_id"] = request.node_id  # whatever it says
    return reply, None


def _reply_or_error(message: Message | None, reply: Message | None, failure: str | None) -> Message:
    """Return the reply, or Flower's error reply that says why there is none."""
    if reply is not None:
        return reply
    assert message is not None
    code = ErrorCode.NODE_UNAVAILABLE
    if failure == TIMEOUT:
        code = ErrorCode.REPLY_MESSAGE_UNAVAILABLE
    elif failure is not None and failure.startswith(UNREADABLE):
        code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    error = Message(Error(code, failure), reply_to=message)
    error.metadata.__dict__["_message_id"] = f"error-{message.metadata.message_id}"
    return error
