"""The work of a client: its ClientApp, kept in memory, and the thread that it runs in."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import traceback
from collections import deque
from collections.abc import Callable
from typing import Final

from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp

from flower_scheduling._flwr import ErrorCode, message_to_proto
from flower_scheduling.errors import SchedulingError

from .wire import frames as wire
from .wire.arrays import read_message

__all__ = ["LOGGER", "AppRunner", "Worker", "encodable"]

LOGGER = logging.getLogger("flwr.scheduling.client")  # Flower's handlers and level serve

_MAX_REASON_LENGTH: Final = 1000  # of an error reply


class AppRunner:
    """A ClientApp with its context: answers one message after the other.

    Parameters
    ----------
    client_app : ClientApp
        Answers the messages.
    node_config : dict
        Flower's node configuration.
    max_message_bytes : int
        Largest frame that this client may send [bytes].
    """

    def __init__(
        self, client_app: ClientApp, node_config: UserConfig, max_message_bytes: int
    ) -> None:
        self._client_app = client_app
        self._node_config = node_config
        self._max_message_bytes = max_message_bytes
        self._context: Context | None = None
        self._last_error = ""

    def answer(self, work: wire.Work, welcome: wire.Welcome) -> bytes | None:
        """Return the frame of the reply to a message.

        It carries an error if the app raised. Nothing is returned if the message cannot be read.
        """
        try:
            message = read_message(work.payload)
        except Exception as error:  # protobuf and Flower raise many kinds
            LOGGER.error("unreadable message from the server: %s", encodable(str(error)))
            return None
        try:
            reply = self._client_app(message, self._context_for(welcome))
            frame = _reply_frame(work.message_id, reply)
        except (Exception, SystemExit) as error:  # the message fails, not the client
            text = encodable(f"{type(error).__name__}: {error}"[:_MAX_REASON_LENGTH])
            self._log_error(message, error, text)
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

    def _log_error(self, message: Message, error: BaseException, text: str) -> None:
        if _is_unregistered(message, error):
            LOGGER.info("this app answers no %s messages", message.metadata.message_type)
            return
        trace = ""
        # A traceback each round would fill the disk; a SchedulingError's text says it all.
        if text != self._last_error and not isinstance(error, SchedulingError):
            trace = "\n" + encodable("".join(traceback.format_exception(error)).rstrip())
        self._last_error = text
        LOGGER.error("the ClientApp raised %s%s", text, trace)


class Worker:
    """A thread that does one job after another for the clients of one event loop.

    It starts with the first job. It is a daemon: an app that computes for an hour must not hold up
    the end of the process.

    Parameters
    ----------
    name : str
        Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], Callable[[], None]] | None]
        self._jobs = queue.SimpleQueue()
        self._done: deque[Callable[[], None]] = deque()  # what jobs returned
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], Callable[[], None]]) -> None:
        """Do a job after the earlier ones, then call what it returns on the running event loop."""
        self._jobs.put(job)
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(
                target=self._run, args=(loop,), name=self._name, daemon=True
            )
            self._thread.start()

    def end(self) -> None:
        """End the thread after the jobs that are queued."""
        self._jobs.put(None)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while (job := self._jobs.get()) is not None:
            self._done.append(job())
            # Waking the loop is a system call, at which the two threads trade places. It is not
            # needed if the loop has yet to take an earlier result.
            if len(self._done) == 1:
                with contextlib.suppress(RuntimeError):  # closed: the client was stopped
                    loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        while self._done:
            self._done.popleft()()


def encodable(text: str) -> str:
    """Return a text without lone surrogates: neither protobuf nor a log file takes them."""
    return text.encode(errors="replace").decode()


def _reply_frame(message_id: str, reply: Message) -> bytes:
    if not isinstance(reply, Message):
        raise TypeError(f"the ClientApp returned {type(reply).__name__}, not a Message")
    payload = message_to_proto(reply).SerializeToString()
    return wire.encode(wire.Reply(message_id), payload)


def _error_frame(message: Message, reason: str) -> bytes:
    error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
    return _reply_frame(message.metadata.message_id, Message(error, reply_to=message))


def _is_unregistered(message: Message, error: BaseException) -> bool:
    """Tell whether an app has no function for a kind of message, as is usual for queries."""
    kind = message.metadata.message_type.partition(".")[0]
    return isinstance(error, ValueError) and str(error).startswith(f"No {kind} function registered")
