"""The servicer of the streams: what the server does with a client's frames, from hello to goodbye.

The event loop moves frames and stamps them; the callers' threads turn messages into bytes and
back, so that nothing but the network and the client lies between the two stamps of a round trip.
What both need to know is kept under one lock, and nothing is waited for under it.

Clients are not trusted, and a stream that has not said hello less than a client. Whatever one of
them can make this process keep, do or log is bounded, by a constant here or in a module that this
one uses.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import grpc

from flower_scheduling.client.wire import frames as wire
from flower_scheduling.client.wire.calls import WriteTasks, chunk_reader
from flower_scheduling.client.wire.chunks import FrameStream
from flower_scheduling.client.wire.compression import SMALL_BYTES, Compression
from flower_scheduling.client.wire.frames import Packed, megabytes
from flower_scheduling.errors import WireError
from flower_scheduling.strategies.flower import UNDELIVERABLE, RateLimitedLog

from .admission import Admission
from .connection import Connection, is_server
from .connection_log import ConnectionLog
from .loop_logger import LoopLogger
from .message_limit import MessageLimit
from .requests import Request, RequestTable
from .send_turns import SendTurns

_FREE_FRAMES: Final = 100  # without use, before a client's next ones are read slowly
_PAUSE_S: Final = 0.02  # after each of those: the client shares the loop with others
_ACK_DELAY_S: Final = 2.0  # the client's next work mostly comes first, with the acknowledgement
_ACK_PAUSE_S: Final = 0.01  # between two looks at what is due
_ACKS_AT_ONCE: Final = 32  # then others have their turn: arrivals are stamped on this loop


class FleetServicer:
    """The gRPC methods of the server, and the state behind them.

    Parameters are those of :class:`.StreamGrid`, except these.

    Parameters
    ----------
    run_id : callable
        Returns Flower's run id.
    secure : bool
        Whether the server has credentials.
    status : callable
        Returns what the ``Status`` method answers, ready for JSON.
    compression : Compression
        What is wanted of clients that can.

    Attributes
    ----------
    logger : LoopLogger
        The event loop's log.
    lock : Lock
        Guards ``requests`` and ``admission.connections``.
    limit : MessageLimit
        How large messages may be.
    requests : RequestTable
        Messages that are with clients.
    admission : Admission
        The clients that are connected.
    changed : Event
        Set when a client may have become available; the caller that waits for it clears it.
    """

    def __init__(
        self,
        *,
        run_id: Callable[[], int],
        run_config: Mapping[str, int | float | bool | str],
        secure: bool,
        status: Callable[[], Mapping[str, Any]],
        is_denied: Callable[[str], bool],
        refresh_denied: Callable[[], object],
        max_clients: int,
        max_message_bytes: int | None,
        compression: Compression,
        lost_after_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._run_id = run_id
        self._run_config = run_config
        self._secure = secure
        self._status = status
        self._compression = compression
        self._lost_after_s = lost_after_s
        self._clock = clock

        self.logger = LoopLogger()
        self._warnings = RateLimitedLog(clock, self.logger)
        self._connection_log = ConnectionLog(clock, self.logger)
        self._writes = WriteTasks(self.logger)
        self._turns = SendTurns()
        self.limit = MessageLimit(max_message_bytes)
        self.lock = threading.Lock()
        self.changed = threading.Event()
        self.requests = RequestTable(clock, on_free=self.changed.set)
        self.admission = Admission(
            is_denied=is_denied,
            refresh_denied=refresh_denied,
            max_clients=max_clients,
            warnings=self._warnings,
            connection_log=self._connection_log,
            writes=self._writes,
        )
        self._leases: dict[int, asyncio.TimerHandle] = {}  # node -> when its work counts as lost
        self._loop: asyncio.AbstractEventLoop | None = None  # while streams are served
        self._leaving = False
        # Replies that are to be acknowledged: when [s], the client, and the reply's id.
        self._due_acks: deque[tuple[float, int, str]] = deque()
        self._acks_timed = False  # whether a timer runs for them

    # -- from any thread ------------------------------------------------------------------------

    def send(self, requests: Sequence[tuple[Request, Packed]]) -> None:
        """Hand messages to the event loop; those that cannot be delivered are settled at once.

        Raises
        ------
        ConfigError
            If one is larger than the server's own bound.
        """
        sizes = (len(payload) + payload.saved for _, payload in requests)
        self.limit.note_sent(max(sizes, default=0))
        writes = []
        with self.lock:
            for request, payload in requests:
                connection = self.admission.connections.get(request.node_id)
                if connection is None:
                    self.requests.settle(request, failure=UNDELIVERABLE)
                elif (size := len(payload) + payload.saved) > connection.max_message_bytes:
                    why = (
                        f"a message of {megabytes(size)} MB, the client takes "
                        f"{megabytes(connection.max_message_bytes)} MB (its --max-message-mb)"
                    )
                    self.requests.settle(request, failure=f"{UNDELIVERABLE}: {why}")
                else:
                    self._log_idle(connection, payload)
                    acks = self.requests.open(request)
                    limit = request.max_reply_bytes = self.limit.reply_bytes
                    request.work = wire.Work(request.message_id, acks, limit, payload)
                    request.session = connection.session
                    writes.append((connection, request, request.work))
            if self._loop is not None:  # else it was stopped meanwhile
                self._loop.call_soon_threadsafe(self._write_all, writes)

    def can_compress(self, node_id: int, kind: str) -> bool:
        """Tell whether a client that is connected can do a kind of compression."""
        with self.lock:
            connection = self.admission.connections.get(node_id)
        return connection is not None and kind in connection.codecs

    # -- on the event loop: begin and end -------------------------------------------------------

    def begin(self) -> None:
        """Serve streams on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._leaving = False
        self._due_acks.clear()
        self._acks_timed = False

    async def review(self) -> None:
        """Do what is due from time to time."""
        self._warnings.flush_suppressed()
        await self.admission.review()

    async def say_goodbye(self) -> None:
        """Send every client a goodbye, and end its stream."""
        self._leaving = True
        connections = list(self.admission.connections.values())
        await asyncio.gather(*(c.close(wire.Goodbye()) for c in connections))

    async def end(self) -> None:
        """Settle what is still open, after the last stream has ended."""
        with self.lock:
            self._loop = None
            for lease in self._leases.values():
                lease.cancel()
            self._leases.clear()
            self.admission.clear()
            self.requests.fail_all()
        await self._writes.cancel()
        self._connection_log.flush()
        self._warnings.flush_suppressed(all_kinds=True)

    # -- on the event loop: gRPC's methods ------------------------------------------------------

    async def serve_status(self, _: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """Answer an operator."""
        if self._secure and not is_server(context):
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, "only the server's certificate may ask"
            )
        # In a thread: a table of a thousand arms must not delay the stamping of arrivals.
        return await asyncio.to_thread(self._status_json)

    def _status_json(self) -> bytes:
        status = dict(self._status())
        # One call of the encoder for each arm: it lets no other thread run meanwhile.
        arms = [json.dumps(arm, allow_nan=False) for arm in status.pop("arms", ())]
        head = json.dumps(status, allow_nan=False).removesuffix("}")
        return f'{head}{", " if status else ""}"arms": [{", ".join(arms)}]}}'.encode()

    async def serve_client(self, _: object, context: grpc.aio.ServicerContext) -> None:
        """Serve one stream from hello to end."""
        frames = FrameStream(chunk_reader(context), context.write, self._writes.spawn, self._clock)
        hello = await self.admission.admit(context, frames)
        if hello is None:
            return
        connection = Connection(frames, hello, self._turns, self.logger)
        with self.lock:
            acks = self.requests.take_acknowledgements(connection.node_id)
        welcome = wire.Welcome(
            node_id=connection.node_id,
            run_id=self._run_id(),
            run_config=self._run_config,
            acks=acks,
            max_message_bytes=self.limit.reply_bytes,
            compress=self._compression.up if self._compression.up in connection.codecs else "",
        )

        self._log_plain(connection)

        def register() -> bool:  # work may be sent from now on, and waits until the welcome is out
            self._register(connection, hello, set(hello.work).difference(acks))
            return True

        try:
            await connection.send(welcome, register)
            if connection.closing or connection.stuck:  # closing: it is replaced already
                return
            connection.reader = asyncio.ensure_future(self._read_frames(connection))
            await connection.reader
        except WireError as error:
            text = f"{connection.name}: {error}; its connection is closed"
            self._warnings.log("bad frames", connection.name, text)
            await connection.close(wire.Refused(wire.Refusal.BAD_FRAME, str(error)))
        except asyncio.CancelledError:
            if connection.stuck:
                text = f"{connection.name} takes nothing any more: its connection is closed"
                self._warnings.log("stuck connections", connection.name, text)
            elif not connection.closing:  # gRPC cancels it when the client is gone
                raise
        finally:
            self._unregister(connection)

    def _log_plain(self, connection: Connection) -> None:
        """Log that a client cannot do what is wanted."""
        wanted = filter(None, {self._compression.down, self._compression.up})
        if lacking := sorted(set(wanted) - connection.codecs):
            text = f"{connection.name} cannot {' and '.join(lacking)}: its arrays go as they are"
            self._warnings.log("clients that cannot compress", connection.name, text)

    def _log_idle(self, connection: Connection, payload: Packed) -> None:
        """Log that compression does nothing for a message; called under the lock."""
        kind = self._compression.down
        large = len(payload) > len(payload.outline) + SMALL_BYTES
        if large and not payload.codes and kind in connection.codecs:
            text = f"down={kind} saves nothing of this app's messages: they go as they are"
            self._warnings.log("messages that cannot be compressed", "", text)

    def _register(self, connection: Connection, hello: wire.Hello, in_hand: set[str]) -> None:
        """Enter a client that is welcome, with the work that it has in hand."""
        with self.lock:
            self.admission.register(connection, hello)
            if (lease := self._leases.pop(connection.node_id, None)) is not None:
                lease.cancel()
            cut_off = self.requests.reconcile(connection.node_id, in_hand, connection.session)
            if cut_off:
                self._connection_log.log("sent again what was cut off", connection.name)
            for request in cut_off:  # after the welcome, which is about to be sent
                assert request.work is not None
                self._writes.spawn(self._write(connection, request, request.work))
        self.changed.set()

    def _unregister(self, connection: Connection) -> None:
        """Remove a client whose stream has ended; its work may yet come back, unless it left."""
        node_id = connection.node_id
        with self.lock:
            if not self.admission.unregister(connection):
                return
            if connection.left:
                self.requests.fail_pending(node_id)
            elif not self._leaving:
                self._leases[node_id] = asyncio.get_running_loop().call_later(
                    self._lost_after_s, self._lease_expired, node_id
                )

    def _lease_expired(self, node_id: int) -> None:
        with self.lock:
            del self._leases[node_id]
            self.requests.fail_pending(node_id)

    async def _read_frames(self, connection: Connection) -> None:
        def is_wanted(message_id: str) -> bool:  # else a whole model is kept for nothing
            return self.requests.is_awaited(connection.node_id, message_id)

        while True:
            frame = await connection.read(lambda: self.limit.reply_bytes, is_wanted)
            now_s = self._clock()
            if frame is None:
                return
            useful = False
            if isinstance(frame, wire.Reply):
                useful = self._take_reply(connection, frame, now_s)
            elif isinstance(frame, wire.Availability):
                pause_s = connection.request_availability(frame.available, now_s)
                if pause_s is not None:
                    loop = asyncio.get_running_loop()
                    loop.call_later(pause_s, self._apply_availability, connection)
            elif isinstance(frame, wire.Goodbye):
                connection.left = True
                return
            elif not isinstance(frame, wire.Progress):  # of a chunk that waits for none
                raise WireError(f"{type(frame).__name__} is no frame of a client")
            del frame  # a model would stay until the next one comes
            if not useful:
                connection.num_useless += 1
                if connection.num_useless > _FREE_FRAMES:
                    await asyncio.sleep(_PAUSE_S)

    def _apply_availability(self, connection: Connection) -> None:
        with self.lock:
            became_available = connection.apply_availability(self._clock())
            self.admission.note_availability(connection)
        if became_available:
            self.changed.set()

    def _take_reply(self, connection: Connection, frame: wire.Reply, now_s: float) -> bool:
        """Settle the request that a reply answers; tell whether there is one."""
        node_id = connection.node_id
        with self.lock:
            first = self.requests.add_acknowledgement(node_id, frame.message_id)
            useful = self.requests.settle_reply(node_id, frame.message_id, frame.payload, now_s)
        if first:
            self._acknowledge_later(node_id, frame.message_id)
        if not useful:
            self.logger.debug("%s answered a message that waits for none", connection.name)
        return useful

    def _acknowledge_later(self, node_id: int, first: str) -> None:
        loop = asyncio.get_running_loop()
        self._due_acks.append((loop.time() + _ACK_DELAY_S, node_id, first))
        if not self._acks_timed:  # one timer for all: its heap of thousands would be slow
            self._acks_timed = True
            loop.call_later(_ACK_DELAY_S, self._acknowledge_due)

    def _acknowledge_due(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for _ in range(min(len(self._due_acks), _ACKS_AT_ONCE)):
            if self._due_acks[0][0] > now_s:
                break
            _, node_id, first = self._due_acks.popleft()
            self._acknowledge(node_id, first)
        self._acks_timed = bool(self._due_acks)
        if self._due_acks:
            pause_s = max(self._due_acks[0][0] - now_s, _ACK_PAUSE_S)
            loop.call_later(pause_s, self._acknowledge_due)

    def _acknowledge(self, node_id: int, first: str) -> None:
        """Acknowledge replies to a client that was not sent work since the first of them."""
        with self.lock:
            if not self.requests.is_unacknowledged_since(node_id, first):
                return  # its work brought the acknowledgement; others have timers of their own
            connection = self.admission.connections.get(node_id)
            if connection is None:
                return  # its next welcome brings the acknowledgement
            if connection.writing:  # perhaps for long, to a client that does not read
                self._acknowledge_later(node_id, first)
                return
            acks = self.requests.take_acknowledgements(node_id)
        self._writes.spawn(connection.send(wire.Ack(acks)))

    def _write_all(self, writes: Sequence[tuple[Connection, Request, wire.Work]]) -> None:
        for connection, request, work in writes:
            self._writes.spawn(self._write(connection, request, work))

    async def _write(self, connection: Connection, request: Request, work: wire.Work) -> None:
        def begin() -> bool:  # a client that comes back is sent it over its newer connection
            current = self.admission.connections.get(request.node_id)
            return current is connection and request.stamp(self._clock())

        await connection.send(work, begin, lambda: request.wait(self._clock()))
