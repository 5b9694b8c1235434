"""A client's stream, as the server holds it, and what gRPC knows of its other end."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import grpc
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from flower_scheduling.client.wire import frames as wire
from flower_scheduling.client.wire.chunks import FrameStream, Turn

from .send_turns import SendTurns

FAREWELL_S: Final = 1.0
"""Longest wait for a last frame to be written [s]."""

_AVAILABILITY_S: Final = 1.0  # between two changes of a client's mind: each wakes the scheduler
_RESERVED_NODE_IDS: Final = 2  # to Flower 0 is no node, and 1 the SuperLink


def node_id_of(name: str) -> int:
    """Return the node id of a client: 63 bits of a hash of its name, the same for ever."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    return _RESERVED_NODE_IDS + number % (2**63 - _RESERVED_NODE_IDS)


class Connection:
    """A stream whose client has said hello, in use by the event loop alone.

    Parameters
    ----------
    frames : FrameStream
        The stream.
    hello : Hello
        The client's first frame.
    turns : SendTurns
        Those of the server.
    logger : Logger
        Takes the lines about it.

    Attributes
    ----------
    max_message_bytes : int
        Largest message that the client takes [bytes].
    codecs : frozenset of str
        Kinds of compression that the client can do.
    closing : bool
        The server ends it.
    left : bool
        The client has said goodbye, or is shut out: its work is not waited for.
    stuck : bool
        The client does not read any more.
    num_useless : int
        Frames that no caller waited for.
    """

    def __init__(
        self,
        frames: FrameStream,
        hello: wire.Hello,
        turns: SendTurns,
        logger: logging.Logger,
    ) -> None:
        self.name = hello.name
        self.node_id = node_id_of(hello.name)
        self.session = hello.session
        self.available = hello.available
        self.max_message_bytes = hello.max_message_bytes
        self.codecs = frozenset(hello.codecs)
        self.closing = False
        self.left = False
        self.stuck = False
        self.num_useless = 0
        self.reader: asyncio.Future[None] | None = None
        self._frames = frames
        self._turns = turns
        self._logger = logger
        self._requested: bool | None = None  # availability, until it is applied
        self._applied_s = -math.inf

    @property
    def writing(self) -> bool:
        """Whether a frame is on its way."""
        return self._frames.writing

    async def send(
        self,
        frame: wire.Frame,
        before: Callable[[], bool] = lambda: True,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        """Send a frame, if ``before``, called when its turn has come, returns true.

        ``on_wait`` is called before a large one waits for those of other clients. The stream ends
        if the client takes nothing for a minute: frames would pile up.
        """

        def large() -> AbstractAsyncContextManager[Turn]:
            on_wait()
            return self._turns.message()

        try:
            await self._frames.write(frame, lambda: not self.stuck and before(), large)
        except TimeoutError:
            self.stuck = True
            if self.reader is not None:
                self.reader.cancel()

    async def read(
        self, max_bytes: Callable[[], int], is_wanted: Callable[[str], bool]
    ) -> wire.Frame | None:
        """Return the client's next frame, or nothing at the end: :meth:`.FrameStream.read`."""
        return await self._frames.read(max_bytes, is_wanted)

    async def close(self, farewell: wire.Frame) -> None:
        """Send a last frame that says why, and end the stream."""
        self.closing = True
        try:
            await asyncio.wait_for(self.send(farewell), FAREWELL_S)
        except Exception as error:  # it is half-open, or gone already
            self._logger.debug("no farewell to %s: %r", self.name, error)
        if self.reader is not None:
            self.reader.cancel()

    def request_availability(self, available: bool, now_s: float) -> float | None:
        """Note whether the client takes work; return after which pause to apply that [s].

        None if an earlier request waits to be applied: it will be with the newest value.
        """
        waits = self._requested is not None
        self._requested = available
        return None if waits else max(0.0, self._applied_s + _AVAILABILITY_S - now_s)

    def apply_availability(self, now_s: float) -> bool:
        """Apply what was requested last; tell whether the client has become available."""
        was_available, self.available = self.available, bool(self._requested)
        self._requested, self._applied_s = None, now_s
        return self.available and not was_available


def host_of(context: grpc.aio.ServicerContext) -> str:
    """Return the other end's address, without the port: that is new each time."""
    peer: str = context.peer()
    return peer.rpartition(":")[0] if peer.startswith("ipv") else peer


def certified_names(context: grpc.aio.ServicerContext) -> set[str]:
    """Return the names in the client's certificate; without TLS there are none."""
    properties = context.auth_context()
    fields = ("x509_common_name", "x509_subject_alternative_name")
    return {name.decode() for key in fields for name in properties.get(key, ())}


def is_server(context: grpc.aio.ServicerContext) -> bool:
    """Tell whether the caller's certificate is a server's."""
    for pem in context.auth_context().get("x509_pem_cert", ()):
        try:
            certificate = x509.load_pem_x509_certificate(pem)
            usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        except (ValueError, x509.ExtensionNotFound):
            continue
        if ExtendedKeyUsageOID.SERVER_AUTH in usage:
            return True
    return False
