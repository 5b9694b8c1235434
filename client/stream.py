"""The client's side of a fleet: holds a stream to the server and answers with a warm ClientApp."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import queue
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NoReturn

import grpc
from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto

from flower_scheduling.errors import (
    ConnectionRefused,
    SchedulingError,
    VersionMismatch,
    WireError,
)

from .wire import frames as wire
from .wire.arrays import read_message
from .wire.health import OwnFault, tls_hint

__all__ = ["LOGGER", "ConnectionRefused", "StreamClient", "VersionMismatch", "Worker"]

LOGGER = logging.getLogger("flwr.scheduling.client")
"""Below Flower's logger: its handlers and level serve."""

_FIRST_BACKOFF_S = 0.1
_SAY_AGAIN_S = 60.0
_FAREWELL_S = 1.0
_MAX_REASON_LENGTH = 1000
_BROKEN = (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError, OSError)
"""What gRPC raises when a stream is no more."""


class _ServerLeft(Exception):
    """The server said goodbye."""


class StreamClient:
    """Connect to a fleet server and answer its messages with a ClientApp, until stopped.

    The app stays in memory, and so does its ``context.state``. It runs in a thread of its own,
    one message at a time. A finished reply is kept until the server acknowledges it, and offered
    again after a reconnect; a broken connection does not interrupt the work.

    Parameters
    ----------
    address : str
        The server's ``host:port``.
    name : str
        This client's name: 1 to 64 printable characters. With TLS, that of its certificate.
    client_app : ClientApp
        Answers the messages.
    node_config : dict, optional
        Flower's node configuration.
    credentials : grpc.ChannelCredentials, optional
        TLS; without it the connection is in the clear.
    own_fault : callable, optional
        With TLS: tells what is wrong with this client's certificate by now.
    available : bool
        Whether the client takes work at first.
    stay : bool
        Whether to wait for the next server when one says goodbye.
    max_message_bytes : int
        Largest frame [bytes].
    keepalive_s : float
        Pause between two signs of life [s]; a dead server is noticed within three times as long.
    max_backoff_s : float
        Longest pause between two attempts to connect [s].
    name_in_use_s : float
        How long to insist when another client of this name is connected [s]: the server may take
        so long to notice that a device went away and came back.
    worker : Worker, optional
        Thread that runs the app; one of its own by default. Many clients of one process had
        better share one; whoever made it ends it.
    options : sequence of (str, int or str)
        Further gRPC channel options.

    Raises
    ------
    flower_scheduling.client.wire.frames.WireError
        If the name cannot be one.
    """

    def __init__(
        self,
        address: str,
        name: str,
        client_app: ClientApp,
        node_config: UserConfig | None = None,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        own_fault: OwnFault | None = None,
        available: bool = True,
        stay: bool = True,
        max_message_bytes: int = wire.DEFAULT_MAX_MESSAGE_BYTES,
        keepalive_s: float = wire.DEFAULT_KEEPALIVE_S,
        max_backoff_s: float = 5.0,
        name_in_use_s: float = 20.0,
        worker: Worker | None = None,
        options: Sequence[tuple[str, int | str]] = (),
    ) -> None:
        wire.check_name(name)
        self.name = name
        self._address = address
        self._client_app = client_app
        self._node_config = dict(node_config or {})
        self._credentials = credentials
        self._own_fault = own_fault
        self._stay = stay
        self._max_message_bytes = max_message_bytes
        self._max_backoff_s = max_backoff_s
        self._name_in_use_s = name_in_use_s
        self._options = [*wire.channel_options(keepalive_s), *options]
        self._session = secrets.token_hex(16)

        self._worker = worker or Worker(f"client-{name}")
        self._own_worker = worker is None

        # For the worker alone.
        self._context: Context | None = None
        self._last_error = ""

        # For the event loop alone.
        self._in_hand: dict[str, bytes | None] = {}  # message id -> frame of its reply, once done
        self._stream: _Stream | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._connected_once = False
        self._said_s = -_SAY_AGAIN_S
        self._refused_since_s: float | None = None

        # Guards what other threads set; reentrant, since signal handlers may set it too.
        self._lock = threading.RLock()
        self._available = available
        self._stopped = False
        self._ran = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    # -- for the owner, from any thread ---------------------------------------------------------

    def run(self) -> None:
        """Serve until :meth:`stop` is called; connect again whenever the connection is lost.

        Raises
        ------
        VersionMismatch
            If the server speaks another version of the protocol.
        ConnectionRefused
            If the server does not take this client.
        KeyboardInterrupt
            If interrupted; the server is told.
        """
        asyncio.run(self.serve())

    def stop(self) -> None:
        """Say goodbye and let :meth:`run` return; unfinished work is given up."""
        with self._lock:
            self._stopped = True
            if self._loop is not None and self._stopping is not None:
                self._loop.call_soon_threadsafe(self._stopping.set)

    def set_available(self, available: bool) -> None:
        """Tell the server whether to send work; what was begun is finished in any case."""
        with self._lock:
            self._available = available
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._tell_availability)

    @property
    def available(self) -> bool:
        """Whether the client takes work."""
        return self._available

    async def serve(self) -> None:
        """Do what :meth:`run` does on a running event loop, for many clients in one process."""
        with self._lock:
            if self._stopped:
                return
            if self._ran:
                raise RuntimeError("a client runs once: make another")
            self._ran = True
            self._loop = asyncio.get_running_loop()
            self._stopping = asyncio.Event()
        serving = asyncio.ensure_future(self._connect_for_ever())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
        finally:
            with self._lock:
                self._loop = self._stopping = None
            try:
                if self._stream is not None:
                    await self._stream.say_goodbye()
            finally:
                for task in (serving, stopping, *self._tasks):
                    task.cancel()
                await asyncio.gather(serving, stopping, *self._tasks, return_exceptions=True)
                if self._own_worker:
                    self._worker.end()

    # -- connection, on the event loop ----------------------------------------------------------

    async def _connect_for_ever(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while not _is_cancelled():  # gRPC may turn the one CancelledError into an error of its own
            begin_s = time.monotonic()
            try:
                await self._converse()
                self._say_lost("the stream ended")
            except _ServerLeft:
                LOGGER.info("the server at %s said goodbye", self._address)
                if not self._stay:
                    return
            except ConnectionRefused as error:
                if not self._may_insist(error):
                    raise
            except (WireError, *_BROKEN) as error:
                self._say_lost(_describe(error))
            if time.monotonic() - begin_s > self._max_backoff_s:
                backoff_s = _FIRST_BACKOFF_S  # it had been well
            # Jitter: a thousand clients must not knock together when their server is back.
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            backoff_s = min(2 * backoff_s, self._max_backoff_s)

    async def _converse(self) -> None:
        """Hold one stream from hello to end."""
        async with self._channel() as channel:
            stream = _Stream(channel.stream_stream(wire.METHOD)(), self._max_message_bytes)
            available = self._available
            hello = wire.Hello(
                name=self.name,
                session=self._session,
                work=list(self._in_hand)[: wire.MAX_IDS],  # those that it finishes first
                available=available,
                max_message_bytes=self._max_message_bytes,
            )
            try:
                await stream.write(wire.encode(hello))
                welcome = await self._read_welcome(stream)
                if welcome is None:
                    return
                self._stream = stream
                self._say_connected(welcome)
                self._forget(welcome.acks)
                self._shrink(welcome.max_message_bytes)
                for frame in self._in_hand.values():
                    if frame is not None:
                        self._spawn(stream.write(frame))
                if self._available != available:
                    self._tell_availability()
                await self._read_frames(stream, welcome)
            finally:
                self._stream = None
                stream.cancel()

    def _channel(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._address, options=self._options)
        return grpc.aio.secure_channel(self._address, self._credentials, options=self._options)

    async def _read_welcome(self, stream: _Stream) -> wire.Welcome | None:
        data = await stream.read()
        if data is None:
            return None
        frame = wire.decode(data)
        if isinstance(frame, wire.Refused):
            self._raise_refused(frame)
        if not isinstance(frame, wire.Welcome):
            raise WireError("its first frame is no welcome")
        return frame

    async def _read_frames(self, stream: _Stream, welcome: wire.Welcome) -> None:
        while (data := await stream.read()) is not None:
            frame = wire.decode(data)
            if isinstance(frame, wire.Work):
                self._forget(frame.acks)
                self._in_hand[frame.message_id] = None
                self._worker.submit(functools.partial(self._work, frame, welcome))
            elif isinstance(frame, wire.Ack):
                self._forget(frame.acks)
            elif isinstance(frame, wire.Goodbye):
                raise _ServerLeft
            elif isinstance(frame, wire.Refused):
                self._raise_refused(frame)
            else:
                raise WireError(f"{type(frame).__name__} is no frame of a server")

    def _shrink(self, max_message_bytes: int) -> None:
        """Empty finished replies that a server, started anew with a lower limit, would not take.

        It would end the stream over each of them; an empty one tells it that the work is over.
        """
        for message_id, frame in self._in_hand.items():
            if frame is not None and len(frame) > max_message_bytes:
                LOGGER.error(
                    "finished reply of %d bytes is dropped: the server takes %d at most",
                    len(frame),
                    max_message_bytes,
                )
                self._in_hand[message_id] = wire.encode(wire.Reply(message_id))

    def _forget(self, message_ids: Sequence[str]) -> None:
        for message_id in message_ids:
            self._in_hand.pop(message_id, None)

    def _raise_refused(self, frame: wire.Refused) -> NoReturn:
        kind = VersionMismatch if frame.code == wire.Refusal.VERSION else ConnectionRefused
        text = f"the server at {self._address} refuses {self.name!r}: {frame.reason}"
        raise kind(frame.code, text)

    def _may_insist(self, error: ConnectionRefused) -> bool:
        """Tell whether a refusal may pass by itself."""
        if error.code != wire.Refusal.NAME_IN_USE:
            return False
        now_s = time.monotonic()
        if self._refused_since_s is None:
            self._refused_since_s = now_s
            LOGGER.warning("%s; trying for %.0f s", error, self._name_in_use_s)
        return now_s - self._refused_since_s < self._name_in_use_s

    def _say_connected(self, welcome: wire.Welcome) -> None:
        self._connected_once = True
        self._refused_since_s = None
        self._said_s = -_SAY_AGAIN_S
        LOGGER.info("%s is connected to %s", self.name, self._address)
        if welcome.package != wire.package_version():
            LOGGER.warning(
                "this client has version %s, the server %s: install the same on both",
                wire.package_version(),
                welcome.package,
            )

    def _say_lost(self, why: str) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s < _SAY_AGAIN_S:
            return
        self._said_s = now_s
        what = "lost the connection to" if self._connected_once else "cannot reach"
        why = f"({why}){tls_hint(why, self._own_fault)}"
        LOGGER.warning("%s the server at %s %s; still trying", what, self._address, why)

    def _tell_availability(self) -> None:
        if self._stream is not None:
            self._spawn(self._stream.write(wire.encode(wire.Availability(self._available))))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that writes; a stream that breaks is its reader's concern."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._finish_task)

    def _finish_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOGGER.debug("write failed: %r", error)

    # -- work, in a thread of its own -----------------------------------------------------------

    def _work(self, work: wire.Work, welcome: wire.Welcome) -> Callable[[], None]:
        frame = self._answer(work, welcome)
        return functools.partial(self._finish, work.message_id, frame)

    def _finish(self, message_id: str, frame: bytes | None) -> None:
        """Keep the reply until it is acknowledged, and send it."""
        if frame is None:
            self._in_hand.pop(message_id, None)
            return
        self._in_hand[message_id] = frame
        if self._stream is not None:
            self._spawn(self._stream.write(frame))

    def _answer(self, work: wire.Work, welcome: wire.Welcome) -> bytes | None:
        """Return the reply frame, with an error if the app raised; none to what is no message."""
        try:
            message = read_message(work.payload)
        except Exception as error:
            LOGGER.error("unreadable message from the server: %s", error)
            return None
        try:
            reply = self._client_app(message, self._context_for(welcome))
            frame = _reply_frame(work.message_id, reply)
        except (Exception, SystemExit) as error:  # the message fails, not the client
            text = _describe(error)
            if _is_expected(message, error):
                LOGGER.info("this app answers no %s messages", message.metadata.message_type)
                return _error_frame(message, text)
            news = text != self._last_error  # a traceback each round would fill the disk
            self._last_error = text
            trace = news and not isinstance(error, SchedulingError)  # whose text says it all
            LOGGER.error("the ClientApp raised %s", text, exc_info=error if trace else None)
            return _error_frame(message, text)
        limit = min(welcome.max_message_bytes, self._max_message_bytes)
        if len(frame) > limit:
            reason = f"reply of {len(frame)} bytes: {limit} can be sent at most"
            LOGGER.error("%s", reason)
            return _error_frame(message, reason)
        return frame

    def _context_for(self, welcome: wire.Welcome) -> Context:
        """Return the app's context, its state kept from earlier messages."""
        if self._context is None:
            self._context = Context(
                run_id=welcome.run_id,
                node_id=welcome.node_id,
                node_config=self._node_config,
                state=RecordDict(),
                run_config={},
            )
        self._context.run_id = welcome.run_id
        self._context.run_config = dict(welcome.run_config)
        return self._context


class Worker:
    """A thread that does one job after another for the clients of one event loop.

    It starts with the first job. A daemon: an app that computes for an hour must not hold up the
    end of the process.

    Parameters
    ----------
    name : str
        Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], Callable[[], None]] | None]
        self._jobs = queue.SimpleQueue()
        self._done: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], Callable[[], None]]) -> None:
        """Do a job after those before it, and what it returns on the running event loop."""
        self._jobs.put(job)
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(
                target=self._run, args=(loop,), name=self._name, daemon=True
            )
            self._thread.start()

    def end(self) -> None:
        """End the thread after the jobs that it has."""
        self._jobs.put(None)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while (job := self._jobs.get()) is not None:
            self._done.append(job())
            # Waking the loop is a system call, at which the two threads trade places: spare it
            # if the loop has not yet taken what was there.
            if len(self._done) == 1:
                with contextlib.suppress(RuntimeError):  # closed: the client was stopped
                    loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        while self._done:
            self._done.popleft()()


class _Stream:
    """A gRPC call that carries frames."""

    def __init__(self, call: Any, max_message_bytes: int) -> None:
        self._call = call
        self._max_message_bytes = max_message_bytes
        self._turn = asyncio.Lock()  # gRPC takes one frame at a time

    async def read(self) -> bytes | None:
        """Return the next frame, or nothing at the end."""
        return await wire.read_frame(self._read_piece, self._max_message_bytes)

    async def write(self, frame: bytes) -> None:
        async with self._turn:
            for piece in wire.pieces(frame):
                await self._call.write(piece)

    async def say_goodbye(self) -> None:
        """Tell the server that this is the end, and give it a moment to take note."""
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self.write(wire.encode(wire.Goodbye()))
                await self._call.code()  # the server ends the call
        except (TimeoutError, *_BROKEN) as error:
            LOGGER.debug("no farewell: %r", error)
        except asyncio.CancelledError:
            # gRPC says so too when the call was cancelled, here because the server left first.
            if _is_cancelled():
                raise

    def cancel(self) -> None:
        self._call.cancel()

    async def _read_piece(self) -> bytes | None:
        data = await self._call.read()
        return None if data is grpc.aio.EOF else data


def _reply_frame(message_id: str, reply: Message) -> bytes:
    if not isinstance(reply, Message):
        raise TypeError(f"the ClientApp returned {type(reply).__name__}, not a Message")
    payload = message_to_proto(reply).SerializeToString()
    return wire.encode(wire.Reply(message_id), payload)


def _error_frame(message: Message, reason: str) -> bytes:
    error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
    return _reply_frame(message.metadata.message_id, Message(error, reply_to=message))


def _is_expected(message: Message, error: BaseException) -> bool:
    """Tell whether an app has just no function for a kind of message, as for queries is usual."""
    kind = message.metadata.message_type.partition(".")[0]
    return isinstance(error, ValueError) and str(error).startswith(f"No {kind} function registered")


def _is_cancelled() -> bool:
    """Tell whether the running task was asked to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _describe(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name.lower().replace('_', ' ')}: {error.details()}"
    text = f"{type(error).__name__}: {error}"[:_MAX_REASON_LENGTH]
    return text.encode(errors="replace").decode()  # protobuf takes no lone surrogates
