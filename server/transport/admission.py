"""The admission of clients: which of them get in, and under which connection each is reached."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import grpc

from flower_scheduling._flwr import NodeInfo
from flower_scheduling.client.wire import frames as wire
from flower_scheduling.client.wire.calls import WriteTasks
from flower_scheduling.client.wire.chunks import FrameStream
from flower_scheduling.errors import WireError
from flower_scheduling.names import folded
from flower_scheduling.strategies.flower import RateLimitedLog

from .connection import FAREWELL_S, Connection, certified_names, host_of, node_id_of
from .connection_log import ConnectionLog

DEFAULT_MAX_CLIENTS: Final = 10_000
"""Names that are admitted by default, at most."""

# A whole fleet may connect at once, and each client wait its turn. If those were closed that are
# next, they would come again, and a slow machine never got to an end.
_HELLO_TIMEOUT_S: Final = 10.0
_TURN_S: Final = 0.01  # further time, for each that waits already
_MAX_PENDING: Final = DEFAULT_MAX_CLIENTS  # handshakes
_DENIED: Final = "it is on the server's deny list"


class Admission:
    """The checks that a client passes before it is served, and the connections of those served.

    A client is known by its name. A second connection under the name of a connected client is
    refused, unless it proves to be the same client: by a certificate of that name or as the same
    process. Then it replaces the first, since half-open connections are normal on radio. Names
    that differ in case or Unicode form alone would be two clients under one name of the deny list:
    of these one at a time is admitted.

    Parameters
    ----------
    is_denied : callable
        Tells whether a client of this name is refused.
    refresh_denied : callable
        Called in another thread before the connected clients are checked against ``is_denied``.
    max_clients : int
        Names that are admitted.
    warnings : RateLimitedLog
        Takes the reasons of refusals.
    connection_log : ConnectionLog
        Takes what happens to connections.
    writes : WriteTasks
        Runs the farewells.

    Attributes
    ----------
    connections : dict
        By node id, of the clients that are admitted. The event loop alone changes it, under the
        server's lock.
    nodes : dict
        The same clients as Flower's nodes; the bytes of a name stand for its public key.
    opted_out : set of int
        Those of them that take no work at present.
    pending : PendingHandshakes
        Streams that have not said hello.
    num_refused : int
        Connections that were refused.
    """

    def __init__(
        self,
        *,
        is_denied: Callable[[str], bool],
        refresh_denied: Callable[[], object],
        max_clients: int,
        warnings: RateLimitedLog,
        connection_log: ConnectionLog,
        writes: WriteTasks,
    ) -> None:
        self._is_denied = is_denied
        self._refresh_denied = refresh_denied
        self._max_clients = max_clients
        self._warnings = warnings
        self._connection_log = connection_log
        self._writes = writes
        self._known: dict[int, str] = {}  # nodes that were ever admitted, and their names
        self._by_folded: dict[str, Connection] = {}  # of those admitted, by folded name
        self.connections: dict[int, Connection] = {}
        self.nodes: dict[int, NodeInfo] = {}
        self.opted_out: set[int] = set()
        self.pending = PendingHandshakes(self._log_timeout)
        self.num_refused = 0

    async def admit(
        self, context: grpc.aio.ServicerContext, frames: FrameStream
    ) -> wire.Hello | None:
        """Read a stream's first frame; return it if its client is admitted, else refuse it."""
        try:
            frame = frames.read(lambda: wire.MAX_HELLO_BYTES)
            hello = await self.pending.first_frame(host_of(context), frame)
            if hello is None:
                return None
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

    def register(self, connection: Connection, hello: wire.Hello) -> None:
        """Enter a connection, in place of the client's earlier one; called under the lock."""
        replaced = self.connections.get(connection.node_id)
        node_id, name = connection.node_id, connection.name
        self.connections[node_id] = connection
        self.nodes[node_id] = NodeInfo(node_id=node_id, name=name, public_key=name.encode())
        self.note_availability(connection)
        self._known[node_id] = name
        self._by_folded[folded(name)] = connection
        if replaced is None:
            self._connection_log.log("connected", connection.name)
        else:
            self._connection_log.log("back, the old connection is closed", connection.name)
            reason = "a newer connection has taken its place"
            self._writes.spawn(replaced.close(wire.Refused(wire.Refusal.REPLACED, reason)))
        if hello.package != wire.package_version():
            self._warnings.log(
                "clients of another version",
                connection.name,
                f"{connection.name} has version {hello.package}, the server "
                f"{wire.package_version()}: install the same on both",
            )

    def name_of(self, node_id: int) -> str:
        """Return the name of a client that was ever admitted; the id of another node."""
        return self._known.get(node_id, str(node_id))

    def note_availability(self, connection: Connection) -> None:
        """Take note whether a client takes work; called under the lock."""
        if connection.available:
            self.opted_out.discard(connection.node_id)
        elif self.connections.get(connection.node_id) is connection:
            self.opted_out.add(connection.node_id)

    def clear(self) -> None:
        """Forget the connections, after the last stream has ended; called under the lock."""
        self.connections.clear()
        self._by_folded.clear()
        self.nodes.clear()
        self.opted_out.clear()

    def unregister(self, connection: Connection) -> bool:
        """Remove a connection; False if a newer one has replaced it. Called under the lock."""
        if self.connections.get(connection.node_id) is not connection:
            return False
        del self.connections[connection.node_id], self.nodes[connection.node_id]
        self.opted_out.discard(connection.node_id)
        if self._by_folded.get(name := folded(connection.name)) is connection:
            del self._by_folded[name]
        if connection.left:
            self._connection_log.log("left", connection.name)
        elif not connection.closing:
            self._connection_log.log("lost the connection", connection.name)
        return True

    async def review(self) -> None:
        """Close the connections of clients that have been denied since they were admitted."""
        # It may read a file and looks at every client: not on the event loop.
        denied = await asyncio.to_thread(self._denied_of, list(self.connections.values()))
        for connection in denied:
            if not connection.closing:
                self._connection_log.log("on the deny list now, closed", connection.name)
                connection.left = True  # its work is not waited for
                self._writes.spawn(connection.close(wire.Refused(wire.Refusal.DENIED, _DENIED)))

    def _denied_of(self, connections: Sequence[Connection]) -> list[Connection]:
        self._refresh_denied()
        return [each for each in connections if self._is_denied(each.name)]

    def _objection(self, hello: wire.Hello, names: set[str]) -> tuple[str, str] | None:
        """Return code and reason if a client must be refused; ``names`` are its certificate's."""
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
        alike = self._by_folded.get(folded(hello.name))
        if alike is not None and alike.name != hello.name:
            return wire.Refusal.NAME_IN_USE, (
                f"{alike.name} is connected, and the names of two clients must differ in more than "
                "case or Unicode form"
            )
        living = self.connections.get(node_id)
        if living is not None and hello.session != living.session and hello.name not in names:
            return wire.Refusal.NAME_IN_USE, (
                "another client of this name is connected, and without a certificate of that "
                "name nothing tells which is the right one"
            )
        return None

    async def _refuse(
        self, context: grpc.aio.ServicerContext, client: str, code: str, reason: str
    ) -> None:
        self.num_refused += 1
        self._warnings.log(
            f"refused clients ({code})", client, f"refused client {client}: {reason}"
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await context.write(wire.encode(wire.Refused(code, reason)))

    def _log_timeout(self, host: str) -> None:
        text = f"no hello from {host}: its connection is closed"
        self._warnings.log("silent connections", host, text)


class PendingHandshakes:
    """Streams that have not said hello: boundedly many, each for a bounded time.

    If there are too many, one is closed: the eldest of the host that has the most. A client's
    hello comes at once.

    Parameters
    ----------
    on_timeout : callable
        Takes the host of a stream that is closed without a hello.
    """

    def __init__(self, on_timeout: Callable[[str], None]) -> None:
        self._on_timeout = on_timeout
        self._waiting: dict[
            str, dict[asyncio.Future[wire.Frame | None], None]
        ] = {}  # by host, in order
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def hosts(self) -> dict[str, int]:
        """Return the number of streams of each host."""
        return {host: len(readings) for host, readings in self._waiting.items()}

    async def first_frame(
        self, host: str, frame: Awaitable[wire.Frame | None]
    ) -> wire.Frame | None:
        """Return the first frame of a stream from ``host``; None if it does not come soon."""
        if len(self) >= _MAX_PENDING:
            self._close_one()
        reading = asyncio.ensure_future(frame)
        self._waiting.setdefault(host, {})[reading] = None
        self._count += 1
        try:
            done, _ = await asyncio.wait((reading,), timeout=_HELLO_TIMEOUT_S + _TURN_S * len(self))
        finally:
            reading.cancel()
            self._forget(host, reading)
        if not done:
            self._on_timeout(host)
        return reading.result() if done and not reading.cancelled() else None

    def _close_one(self) -> None:
        crowded = max(self._waiting, key=lambda host: len(self._waiting[host]))
        eldest = next(iter(self._waiting[crowded]))
        eldest.cancel()
        self._forget(crowded, eldest)
        self._on_timeout(crowded)

    def _forget(self, host: str, reading: asyncio.Future[wire.Frame | None]) -> None:
        readings = self._waiting.get(host, {})
        if reading in readings:
            del readings[reading]
            self._count -= 1
        if not readings:
            self._waiting.pop(host, None)
