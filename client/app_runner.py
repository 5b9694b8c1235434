"""The work of a client: its ClientApp, kept in memory, and the thread that it runs in."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import queue
import re
import struct
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from typing import Final, NoReturn

import numpy as np
from flwr.app import (
    ArrayRecord,
    Context,
    Error,
    Message,
    MessageType,
    RecordDict,
    UserConfig,
)

from flower_scheduling._flwr import (
    ClientAppCallable,
    ErrorCode,
    ProtoRecordDict,
    recorddict_from_proto,
    recorddict_to_proto,
)
from flower_scheduling.errors import DataUnavailableError, SchedulingError

from .wire import frames as wire
from .wire.compression import (
    SMALL_BYTES,
    WIRE_SHARE,
    Encoder,
    SentModel,
    UpdateEncoder,
    expected_share,
    known_kinds,
)
from .wire.packing import pack, unpack
from .wire.protocol import OVERSIZED_CODE

__all__ = [
    "LOGGER",
    "AppRunner",
    "Worker",
    "checked_reply",
    "describe",
    "encodable",
    "end_child",
    "unregistered_kind",
]

LOGGER = logging.getLogger("flwr.scheduling.client")  # Flower's handlers and level serve

_MAX_REASON_LENGTH: Final = 1000  # of an error reply
_RUN_ID: Final = struct.Struct(">Q")  # before a state that is kept
_UNREGISTERED: Final = re.compile(r"No (\w+) function registered")  # as flwr 1.42 says it
_SEND_FLOAT32: Final = ", which numpy does not have: send float32, e.g. model.float().state_dict()"


class AppRunner:
    """A ClientApp with its context: answers one message after the other.

    As on a stock SuperNode, ``context.state`` is kept as long as the run lasts, and the next run
    begins without one.

    Parameters
    ----------
    client_app : ClientApp
        Answers the messages.
    node_config : dict
        Flower's node configuration.
    max_message_bytes : int
        Largest message that this client may send [bytes].
    kept_state : bytes
        What :meth:`kept_state` returned before a restart.

    Attributes
    ----------
    answered : int
        Messages that the app was called for, queries apart: servers ask anew after a restart.
    last_message_bytes : int
        Size of the last message.
    fault : DataUnavailableError or None
        Why no message can be answered: the client has no data.
    """

    def __init__(
        self,
        client_app: ClientAppCallable,
        node_config: UserConfig,
        max_message_bytes: int,
        kept_state: bytes = b"",
    ) -> None:
        self._client_app = client_app
        self._node_config = node_config
        self._max_message_bytes = max_message_bytes
        self._kept_state = kept_state
        self._context: Context | None = None
        self._updates = UpdateEncoder()
        self._logged_idle = False
        self._last_error = ""
        self.answered = 0
        self.last_message_bytes = 0
        self.fault: DataUnavailableError | None = None

    def answer(self, work: wire.Work, welcome: wire.Welcome) -> wire.Packed | None:
        """Return the reply to a message.

        It is an error if the app raised. Nothing is returned if the message cannot be read.
        """
        self.last_message_bytes = len(work.payload)
        try:
            message = unpack(work.payload, max_bytes=self._max_message_bytes)
            model = None  # of what the reply may be an update
            if welcome.compress or work.payload.codes:
                model = SentModel(message.content, work.payload.codes)
        except Exception as error:  # protobuf and Flower raise many kinds
            LOGGER.error("unreadable message from the server: %s", encodable(str(error)))
            return None
        self.answered += not message.metadata.message_type.startswith(MessageType.QUERY)
        process = os.getpid()
        try:
            kind = welcome.compress if welcome.compress in known_kinds() else ""
            shares = WIRE_SHARE.set((1.0, 1.0) if model is None else _shares(work, message, kind))
            try:
                reply = self._client_app(message, self._context_for(welcome))
            finally:
                WIRE_SHARE.reset(shares)
            if os.getpid() != process:
                raise SystemExit
            encoder = None if model is None else self._updates.encoder(kind, model)
            packed = _pack_reply(reply, encoder)
            self._log_idle(kind, packed)
        except BaseException as error:  # whatever it is, the message fails and not the client
            if os.getpid() != process:
                end_child(error)
            return self._failure(work, error)
        if (size := len(packed) + packed.saved) > min(
            work.max_reply_bytes, self._max_message_bytes
        ):
            whose, limit = "flower-server", work.max_reply_bytes
            if self._max_message_bytes < limit:
                whose, limit = "flower-client", self._max_message_bytes
            reason = (
                f"reply of {wire.megabytes(size)} MB, {wire.megabytes(limit)} MB at most "
                f"({whose} --max-message-mb)"
            )
            LOGGER.error("%s", reason)
            return _error_reply(work, reason, OVERSIZED_CODE)
        return packed

    def _context_for(self, welcome: wire.Welcome) -> Context:
        """Return the app's context, its state kept from earlier messages of the run."""
        if self._context is None or self._context.run_id != welcome.run_id:
            self._context = Context(
                run_id=welcome.run_id,
                node_id=welcome.node_id,
                node_config=dict(self._node_config),
                state=self._take_kept_state(welcome.run_id),
                run_config={},
            )
            self._updates = UpdateEncoder()
        self._context.run_config = dict(welcome.run_config)
        return self._context

    def kept_state(self) -> bytes:
        """Return what another process needs to go on with the run's state."""
        if self._context is None:
            return self._kept_state
        try:
            state: bytes = recorddict_to_proto(self._context.state).SerializeToString()
        except Exception as error:  # protobuf raises many kinds, for one beyond 2 GiB
            LOGGER.error("context.state is lost: %s", describe(error))
            return b""
        return _RUN_ID.pack(self._context.run_id) + state

    def _take_kept_state(self, run_id: int) -> RecordDict:
        kept, self._kept_state = self._kept_state, b""
        if not kept or _RUN_ID.unpack_from(kept) != (run_id,):
            return RecordDict()
        return recorddict_from_proto(ProtoRecordDict.FromString(kept[_RUN_ID.size :]))

    def _log_idle(self, kind: str, packed: wire.Packed) -> None:
        """Log once that the compression that is asked for does nothing."""
        large = any(len(array) >= SMALL_BYTES for array in packed.arrays)
        if kind and large and packed.saved <= 0 and not self._logged_idle:
            self._logged_idle = True
            LOGGER.warning("up=%s saves nothing of this app's replies: they go as they are", kind)

    def _failure(self, work: wire.Work, error: BaseException) -> wire.Packed:
        """Log what the app raised, and return the reply that says so."""
        text = describe(error)
        if isinstance(error, DataUnavailableError):
            self.fault = error
        else:
            self._log_error(error, text)
        return _error_reply(work, text)

    def _log_error(self, error: BaseException, text: str) -> None:
        if (kind := unregistered_kind(error)) is not None:
            LOGGER.info("this app answers no %s messages", kind)
            return
        trace = ""
        # A traceback each round would fill the disk; a SchedulingError's text says it all.
        if text != self._last_error and not isinstance(error, SchedulingError):
            trace = "\n" + encodable("".join(traceback.format_exception(error)).rstrip())
        self._last_error = text
        LOGGER.error("the ClientApp raised %s%s", text, trace)


class Worker:
    """One job after another for the clients of one event loop, in another thread than the loop's.

    Parameters
    ----------
    name : str
        Name of the thread.
    own_thread : bool
        Whether to start a thread with the first job. It is a daemon: an app that computes for an
        hour must not hold up the end of the process. Otherwise the jobs are done where
        :meth:`work` is called.
    """

    def __init__(self, name: str, *, own_thread: bool = True) -> None:
        self._name = name
        self._own_thread = own_thread
        self._jobs: queue.SimpleQueue[Callable[[], Callable[[], None]] | None]
        self._jobs = queue.SimpleQueue()
        self._done: deque[Callable[[], None]] = deque()  # what jobs returned
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, job: Callable[[], Callable[[], None]]) -> None:
        """Do a job after the earlier ones, then call what it returns on the running event loop."""
        first, self._loop = self._loop is None, asyncio.get_running_loop()
        self._jobs.put(job)
        if first and self._own_thread:
            threading.Thread(target=self.work, name=self._name, daemon=True).start()

    def end(self) -> None:
        """End :meth:`work` after the jobs that are queued."""
        self._jobs.put(None)

    def work(self, after_each: Callable[[], None] = lambda: None) -> None:
        """Do the jobs in this thread until :meth:`end`; call a function after each."""
        while (job := self._next()) is not None:
            assert self._loop is not None
            self._done.append(job())
            del job  # it holds a message until the next one comes
            # Waking the loop is a system call, at which the two threads trade places. It is not
            # needed if the loop has yet to take an earlier result.
            if len(self._done) == 1:
                with contextlib.suppress(RuntimeError):  # closed: the client was stopped
                    self._loop.call_soon_threadsafe(self._deliver)
            after_each()

    def _next(self) -> Callable[[], Callable[[], None]] | None:
        while True:
            try:
                return self._jobs.get()
            except BaseException as error:  # in the main thread: a signal handler of the app's
                LOGGER.warning("between two messages the app raised %s", describe(error))

    def _deliver(self) -> None:
        while self._done:
            self._done.popleft()()


def encodable(text: str) -> str:
    """Return a text without lone surrogates: neither protobuf nor a log file takes them."""
    return text.encode(errors="replace").decode()


def _pack_reply(reply: Message, encoder: Encoder | None) -> wire.Packed:
    return pack(checked_reply(reply), encoder=encoder)


def checked_reply(reply: object) -> Message:
    """Return what a ClientApp has answered, if it can be sent.

    Raises
    ------
    TypeError
        If it is no message, or has an array of a type that numpy does not know.
    """
    if not isinstance(reply, Message):
        raise TypeError(f"the ClientApp returned {type(reply).__name__}, not a Message")
    if reply.has_content():
        _check_dtypes(reply.content)
    return reply


def _shares(work: wire.Work, message: Message, kind: str) -> tuple[float, float]:
    """Return the shares of a message's bytes, and of its reply's if alike, that cross."""
    arrays = ArrayRecord()
    for name, record in message.content.array_records.items():
        arrays.update({f"{name}.{key}": array for key, array in record.items()})
    size = sum(len(array.data) for array in arrays.values())
    if not size:
        return 1.0, 1.0
    return sum(map(len, work.payload.arrays)) / size, expected_share(kind, arrays)


def _error_reply(
    work: wire.Work, reason: str, code: int = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
) -> wire.Packed:
    # Anew, without the arrays: the app may have changed its own.
    message = unpack(wire.Packed(work.payload.outline))
    error = Error(code, reason)
    return pack(Message(error, reply_to=message))


def end_child(error: BaseException) -> NoReturn:
    """End a process that the app has forked: it must not go on as a second client."""
    code = error.code if isinstance(error, SystemExit) else 1
    if not isinstance(error, SystemExit) or isinstance(code, str):
        print("".join(traceback.format_exception(error)), file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else code is not None)


def _check_dtypes(content: RecordDict) -> None:
    """Refuse arrays that would arrive as bytes of no type: ``.npy`` knows numpy's own types."""
    for record in content.values():
        if isinstance(record, ArrayRecord):
            for key, array in record.items():
                if not _is_readable(array.dtype):
                    raise TypeError(f"array {key!r} is {array.dtype}{_SEND_FLOAT32}")


@functools.lru_cache(maxsize=1024)
def _is_readable(dtype: str) -> bool:
    if not dtype.isidentifier():  # "<U3", "[('x', '<f4')]": numpy's way to write others
        return True
    try:
        return np.dtype(dtype).kind != "V"  # as ml_dtypes' are
    except TypeError:
        return False


def describe(error: BaseException) -> str:
    """Return kind and text of any exception as a reason that a message takes."""
    try:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
    except BaseException:  # its own text fails
        text = type(error).__name__
    hint = ""
    if isinstance(error, TypeError) and "BFloat16" in text:  # torch's, of ArrayRecord(state_dict)
        hint = _SEND_FLOAT32
    return encodable(text[: _MAX_REASON_LENGTH - len(hint)] + hint)


def unregistered_kind(error: BaseException) -> str | None:
    """Return the kind of message that an app has no function for, as is usual for queries."""
    found = _UNREGISTERED.match(str(error)) if isinstance(error, ValueError) else None
    return found and found[1]
