"""The client's side of a fleet: a stream to the server, kept up, and answered by a ClientApp."""

from __future__ import annotations

import asyncio
import functools
import random
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import grpc
from flwr.app import UserConfig

from flower_scheduling._flwr import ClientAppCallable
from flower_scheduling.errors import ConnectionRefused, VersionMismatch, WireError

from .app_runner import LOGGER, AppRunner, Worker, encodable
from .wire import frames as wire
from .wire.addresses import parse_address
from .wire.calls import DEFAULT_KEEPALIVE_S, WriteTasks, channel_options, chunk_reader
from .wire.chunks import FrameStream
from .wire.compression import known_kinds
from .wire.health import OwnFault, tls_hint
from .wire.proxies import proxy_options, through_proxy

__all__ = ["LOGGER", "ConnectionRefused", "StreamClient", "VersionMismatch", "Worker"]

_FIRST_BACKOFF_S: Final = 0.1
_LOG_AGAIN_S: Final = 60.0  # between two lines about the same connection that is lost
_FAREWELL_S: Final = 5.0  # longest wait for a goodbye to be taken: links may be slow
# What gRPC raises when a stream has ended.
_BROKEN: Final = (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError, OSError)


class _ServerLeft(Exception):
    """The server said goodbye."""


class StreamClient:
    """Connect to a fleet server and answer its messages with a ClientApp, until stopped.

    The app stays in memory, its ``context.state`` as long as the run lasts. It runs in a thread of
    its own, one message at a time. A finished reply is kept until the server acknowledges it, and
    offered again after a reconnect; a broken connection does not interrupt the work.

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
        With TLS: returns what is wrong with the certificates of both ends by now.
    available : bool
        Whether the client takes work at first.
    stay : bool
        Whether to wait for the next server after a goodbye.
    max_message_bytes : int
        Largest message [bytes].
    keepalive_s : float
        Pause between two keepalive pings [s]; a dead server is noticed within three times as long.
    max_backoff_s : float
        Longest pause between two attempts to connect [s].
    name_in_use_s : float
        How long to retry when another client of this name is connected [s]: the server may take
        so long to notice that a device went away and came back.
    worker : Worker, optional
        Thread that runs the app; one of the client's own by default. Many clients of one process
        had better share one, which their owner ends.
    restart_after : int, optional
        Retire after so many messages, queries apart: take no more work, wait until every reply is
        acknowledged, and stop (:attr:`retired`).
    kept_state : bytes
        What :meth:`kept_state` returned before a restart.
    options : sequence of (str, int or str)
        Further gRPC channel options.

    Raises
    ------
    WireError
        If the name cannot be one.
    ConfigError
        If the address cannot be one.
    """

    def __init__(
        self,
        address: str,
        name: str,
        client_app: ClientAppCallable,
        node_config: UserConfig | None = None,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        own_fault: OwnFault | None = None,
        available: bool = True,
        stay: bool = True,
        max_message_bytes: int = wire.NO_LIMIT,
        keepalive_s: float = DEFAULT_KEEPALIVE_S,
        max_backoff_s: float = 5.0,
        name_in_use_s: float = 20.0,
        worker: Worker | None = None,
        restart_after: int | None = None,
        kept_state: bytes = b"",
        options: Sequence[tuple[str, int | str]] = (),
    ) -> None:
        wire.check_name(name)
        self.name = name
        self._address = str(parse_address("server", address))
        self._credentials = credentials
        self._own_fault = own_fault
        self._stay = stay
        self._max_message_bytes = max_message_bytes
        self._max_backoff_s = max_backoff_s
        self._name_in_use_s = name_in_use_s
        self._options = [*channel_options(keepalive_s), *proxy_options(self._address), *options]
        self._session = secrets.token_hex(16)

        self._app = AppRunner(client_app, dict(node_config or {}), max_message_bytes, kept_state)
        self._worker = worker or Worker(f"client-{name}")
        self._owns_worker = worker is None

        # For the event loop alone.
        self._in_hand: dict[str, wire.Packed | None] = {}  # message id -> its reply, once done
        self._stream: _Stream | None = None
        self._writes = WriteTasks(LOGGER)
        self._was_connected = False
        self._has_just_worked = False
        self._logged_s = -_LOG_AGAIN_S  # time of the last line about a lost connection
        self._refused_since_s: float | None = None
        self._restart_after = restart_after
        self._retiring = self._retired = False

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
        DataUnavailableError
            If the app's data set is not to be had; the server gets to know.
        KeyboardInterrupt
            If interrupted; the server gets a goodbye.
        """
        asyncio.run(self.serve())

    def stop(self) -> None:
        """Say goodbye and let :meth:`run` return; unfinished work is given up."""
        with self._lock:
            self._stopped = True
            if self._loop is not None and self._stopping is not None:
                self._loop.call_soon_threadsafe(self._stopping.set)

    def set_available(self, available: bool) -> None:
        """Set whether the client takes work; what was begun is finished in any case."""
        with self._lock:
            self._available = available
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._send_availability)

    @property
    def available(self) -> bool:
        """Whether the client takes work."""
        return self._available

    @property
    def retired(self) -> bool:
        """Whether the client has stopped because of ``restart_after``."""
        return self._retired and not self._stopped

    @property
    def last_message_bytes(self) -> int:
        """Size of the last message that was answered."""
        return self._app.last_message_bytes

    def kept_state(self) -> bytes:
        """Return the app's ``context.state`` for the client that takes this one's place."""
        return self._app.kept_state()

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
                serving.cancel()
                stopping.cancel()
                await asyncio.gather(
                    serving, stopping, self._writes.cancel(), return_exceptions=True
                )
                if self._owns_worker:
                    self._worker.end()
        if self._app.fault is not None:
            raise self._app.fault

    # -- connection, on the event loop ----------------------------------------------------------

    async def _connect_for_ever(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while not _is_cancelled():  # gRPC may turn the one CancelledError into an error of its own
            begin_s = time.monotonic()
            try:
                await self._run_session()
                self._log_disconnect("the stream ended")
            except _ServerLeft:
                LOGGER.info("the server at %s said goodbye", self._address)
                if not self._stay:
                    return
            except ConnectionRefused as error:
                if not self._should_retry(error):
                    raise
            except (WireError, *_BROKEN) as error:
                self._log_disconnect(_describe(error))
            if time.monotonic() - begin_s > self._max_backoff_s:
                backoff_s = _FIRST_BACKOFF_S  # the session had gone well
            # Jitter: a thousand clients must not connect together when their server is back.
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            backoff_s = min(2 * backoff_s, self._max_backoff_s)

    async def _run_session(self) -> None:
        """Hold one stream from hello to end."""
        async with self._channel() as channel:
            call = channel.stream_stream(wire.METHOD)()
            stream = _Stream(call, self._max_message_bytes, self._writes)
            available = self._takes_work
            hello = wire.Hello(
                name=self.name,
                session=self._session,
                work=list(self._in_hand)[: wire.MAX_IDS],  # those that it finishes first
                available=available,
                max_message_bytes=self._max_message_bytes,
                codecs=known_kinds(),
            )
            try:
                await stream.write(hello)
                welcome = await self._read_welcome(stream)
                if welcome is None:
                    return
                self._stream = stream
                self._log_connected(welcome)
                self._forget(welcome.acks)
                self._shrink(welcome.max_message_bytes)
                for message_id, reply in self._in_hand.items():
                    if reply is not None:
                        self._writes.spawn(stream.write(wire.Reply(message_id, reply)))
                if self._takes_work != available:
                    self._send_availability()
                await self._read_frames(stream, welcome)
            finally:
                self._stream = None
                stream.cancel()

    def _channel(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._address, options=self._options)
        return grpc.aio.secure_channel(self._address, self._credentials, options=self._options)

    async def _read_welcome(self, stream: _Stream) -> wire.Welcome | None:
        frame = await stream.read()
        if frame is None:
            return None
        if isinstance(frame, wire.Refused):
            self._raise_refused(frame)
        if not isinstance(frame, wire.Welcome):
            raise WireError("its first frame is no welcome")
        return frame

    async def _read_frames(self, stream: _Stream, welcome: wire.Welcome) -> None:
        while (frame := await stream.read()) is not None:
            if isinstance(frame, wire.Work):
                self._in_hand[frame.message_id] = None  # first: a client retires with empty hands
                self._forget(frame.acks)
                self._worker.submit(functools.partial(self._work, frame, welcome))
            elif isinstance(frame, wire.Ack):
                self._forget(frame.acks)
            elif isinstance(frame, wire.Goodbye):
                raise _ServerLeft
            elif isinstance(frame, wire.Refused):
                self._raise_refused(frame)
            elif not isinstance(frame, wire.Progress):
                raise WireError(f"{type(frame).__name__} is no frame of a server")
            del frame  # a model would stay until the next one comes

    def _work(self, work: wire.Work, welcome: wire.Welcome) -> Callable[[], None]:
        """Answer a message, in the worker's thread; return what is then due on the event loop."""
        reply = self._app.answer(work, welcome)
        return functools.partial(self._finish, work.message_id, reply)

    def _finish(self, message_id: str, reply: wire.Packed | None) -> None:
        """Keep the reply until it is acknowledged, and send it."""
        if reply is None:
            self._in_hand.pop(message_id, None)
            return
        self._in_hand[message_id] = reply
        if self._stream is not None:
            self._writes.spawn(self._stream.write(wire.Reply(message_id, reply)))
        if self._app.fault is not None and self._stopping is not None:
            self._stopping.set()
        if self._restart_after is not None and self._app.answered >= self._restart_after:
            self._retiring = True
            self._send_availability()

    def _shrink(self, max_message_bytes: int) -> None:
        """Empty finished replies that a server, started anew with a lower limit, would not take.

        It would end the stream over each of them; an empty one lets it know that the work is over.
        """
        for message_id, reply in self._in_hand.items():
            if reply is not None and len(reply) > max_message_bytes:
                LOGGER.error(
                    "finished reply of %s MB is dropped: the server was started anew, and takes %s "
                    "MB at most at present (flower-server --max-message-mb)",
                    wire.megabytes(len(reply)),
                    wire.megabytes(max_message_bytes),
                )
                self._in_hand[message_id] = wire.Packed()

    def _forget(self, message_ids: Sequence[str]) -> None:
        for message_id in message_ids:
            self._in_hand.pop(message_id, None)
        if self._retiring and not self._in_hand and self._stopping is not None:
            self._retired = True
            self._stopping.set()

    @property
    def _takes_work(self) -> bool:
        return self._available and not self._retiring

    def _send_availability(self) -> None:
        if self._stream is not None:
            frame = wire.Availability(self._takes_work)
            self._writes.spawn(self._stream.write(frame))

    def _raise_refused(self, frame: wire.Refused) -> NoReturn:
        kind = VersionMismatch if frame.code == wire.Refusal.VERSION else ConnectionRefused
        text = f"the server at {self._address} refuses {self.name!r}: {encodable(frame.reason)}"
        raise kind(frame.code, text)

    def _should_retry(self, error: ConnectionRefused) -> bool:
        """Tell whether a refusal may pass by itself."""
        if error.code != wire.Refusal.NAME_IN_USE:
            return False
        now_s = time.monotonic()
        if self._refused_since_s is None:
            self._refused_since_s = now_s
            LOGGER.warning("%s; trying for %.0f s", error, self._name_in_use_s)
        return now_s - self._refused_since_s < self._name_in_use_s

    def _log_connected(self, welcome: wire.Welcome) -> None:
        self._was_connected = self._has_just_worked = True
        self._refused_since_s = None
        self._logged_s = -_LOG_AGAIN_S
        LOGGER.info("%s is connected to %s", self.name, self._address)
        if welcome.package != wire.package_version():
            LOGGER.warning(
                "this client has version %s, the server %s: install the same on both",
                wire.package_version(),
                encodable(welcome.package),
            )

    def _log_disconnect(self, why: str) -> None:
        now_s = time.monotonic()
        if self._loop is None or now_s - self._logged_s < _LOG_AGAIN_S:  # None: it said goodbye
            return
        self._logged_s = now_s
        what = "lost the connection to" if self._was_connected else "cannot reach"
        # Not where it has just worked: then the settings of both ends fit.
        hint = "" if self._has_just_worked else tls_hint(why, self._address, self._own_fault)
        self._has_just_worked = False
        why = f"({why}){hint}{through_proxy(self._address)}"
        LOGGER.warning("%s the server at %s %s; still trying", what, self._address, why)


class _Stream:
    """A gRPC call that carries frames."""

    def __init__(self, call: Any, max_message_bytes: int, writes: WriteTasks) -> None:
        self._call = call
        self._frames = FrameStream(chunk_reader(call), call.write, writes.spawn)
        self._max_message_bytes = max_message_bytes

    async def read(self) -> wire.Frame | None:
        """Return the next frame, or nothing at the end."""
        return await self._frames.read(lambda: self._max_message_bytes)

    async def write(self, frame: wire.Frame) -> None:
        """Write a frame; a server that takes nothing for a minute is left."""
        try:
            await self._frames.write(frame)
        except TimeoutError:
            self._call.cancel()
            raise

    async def say_goodbye(self) -> None:
        """Send a goodbye, and wait a moment for the server to end the call."""
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self.write(wire.Goodbye())
                await self._call.code()
        except (TimeoutError, *_BROKEN) as error:
            LOGGER.debug("no farewell: %r", error)
        except asyncio.CancelledError:
            # gRPC raises it too when the call was cancelled, here because the server left first.
            if _is_cancelled():
                raise

    def cancel(self) -> None:
        self._call.cancel()


def _is_cancelled() -> bool:
    """Tell whether the running task was asked to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _describe(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name.lower().replace('_', ' ')}: {error.details()}"
    return encodable(f"{type(error).__name__}: {error}")
