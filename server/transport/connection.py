"""One client's stream, as the server holds it, and what gRPC knows of the other end."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable
from typing import Final

import grpc
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from flower_scheduling.client.wire import chunks
from flower_scheduling.client.wire import frames as wire
from flower_scheduling.strategies.flower import LOGGER

FAREWELL_S: Final = 1.0
"""Longest wait for a last frame to go out [s]."""

_HEADER_BYTES: Final = 4096  # room for a frame's header


_RESERVED_NODE_IDS: Final = 2  # 0 means nobody to Flower, 1 is the SuperLink


def node_id_of(name: str) -> int:
    """Return the node id of a client: 63 bits of a hash of its name, the same for ever."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    return _RESERVED_NODE_IDS + number % (2**63 - _RESERVED_NODE_IDS)


class Connection:
    """A stream whose client has said hello. It lives in the event loop."""

    def __init__(self, context: grpc.aio.ServicerContext, hello: wire.Hello) -> None:
        self.name = hello.name
        self.node_id = node_id_of(hello.name)
        self.session = hello.session
        self.available = hello.available
        self.max_payload_bytes = hello.max_message_bytes - _HEADER_BYTES
        self.closing = False
        self.left = False
        self.stuck = False  # takes nothing any more
        self.reader: asyncio.Future[None] | None = None
        self.wanted: bool | None = None  # availability, until the next change is due
        self.changed_s = -math.inf  # time of the last one
        self.useless = 0  # frames that nobody waited for
        self._context = context
        self._turn = asyncio.Lock()  # gRPC takes one frame at a time

    @property
    def writing(self) -> bool:
        """Whether a frame is on its way."""
        return self._turn.locked()

    async def send(self, frame: bytes, before: Callable[[], bool] = lambda: True) -> None:
        """Send a frame, if ``before``, called when its turn has come, returns true.

        A client that takes nothing for a minute is closed: else what is to be sent would pile up.
        """
        async with self._turn:
            if self.stuck or not before():
                return
            try:
                for chunk in chunks.split(frame):
                    async with asyncio.timeout(chunks.CHUNK_TIMEOUT_S):
                        await self._context.write(chunk)
            except TimeoutError:
                self.stuck = True
                if self.reader is not None:
                    self.reader.cancel()

    async def close(self, farewell: wire.Frame) -> None:
        """Tell the client why, and end the stream."""
        self.closing = True
        try:
            await asyncio.wait_for(self.send(wire.encode(farewell)), FAREWELL_S)
        except Exception as error:  # it is half-open, or gone already
            LOGGER.debug("no farewell to %s: %r", self.name, error)
        if self.reader is not None:
            self.reader.cancel()


def host_of(context: grpc.aio.ServicerContext) -> str:
    """Return where a stream comes from, without the port: that is new each time."""
    peer: str = context.peer()
    return peer.rpartition(":")[0] if peer.startswith("ipv") else peer


def certified_names(context: grpc.aio.ServicerContext) -> set[str]:
    """Return the names in the client's certificate; none without TLS."""
    properties = context.auth_context()
    fields = ("x509_common_name", "x509_subject_alternative_name")
    return {name.decode() for key in fields for name in properties.get(key, ())}


def is_server(context: grpc.aio.ServicerContext) -> bool:
    """Tell whether the caller's certificate is one that servers have."""
    for pem in context.auth_context().get("x509_pem_cert", ()):
        try:
            certificate = x509.load_pem_x509_certificate(pem)
            usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        except (ValueError, x509.ExtensionNotFound):
            continue
        if ExtendedKeyUsageOID.SERVER_AUTH in usage:
            return True
    return False
