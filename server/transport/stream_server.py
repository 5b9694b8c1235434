"""The server of the streams: a thread with an event loop, and gRPC on it."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from flower_scheduling.client.wire import frames as wire
from flower_scheduling.client.wire.addresses import parse_address
from flower_scheduling.client.wire.calls import server_options

from .open_files import max_connections
from .servicer import FleetServicer
from .sockets import listen, unavailable

_REVIEW_S: Final = 2.0  # between two reviews of the connected clients


class StreamServer:
    """A gRPC server in a thread of its own.

    Parameters
    ----------
    address : str
        Where to listen, ``host:port``; port 0 picks a free one.
    servicer : FleetServicer
        Serves the streams.
    credentials : grpc.ServerCredentials, optional
        TLS.
    keepalive_s : float
        Pause between two keepalive pings [s].

    Attributes
    ----------
    port : int or None
        The port that clients connect to; None before the start.
    """

    def __init__(
        self,
        address: str,
        servicer: FleetServicer,
        credentials: grpc.ServerCredentials | None,
        keepalive_s: float,
    ) -> None:
        self._address = str(parse_address("address", address, any_port=True))
        self._servicer = servicer
        self._credentials = credentials
        self._keepalive_s = keepalive_s
        self.port: int | None = None
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event
        self._stop_grace_s = 0.0

    def start(self) -> None:
        """Listen and accept clients.

        Raises
        ------
        ConfigError
            If the address cannot be had, with key ``address``.
        """
        started: Future[int] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="stream-server", daemon=True
        )
        self._thread.start()
        try:
            self.port = started.result()
        except Exception:
            self._thread.join()
            self._thread = None
            raise

    def stop(self, grace_s: float) -> None:
        """Send goodbyes, end the streams within ``grace_s`` [s], and free the port."""
        if self._thread is None:
            return
        self._stop_grace_s = grace_s
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._thread = None

    def _run(self, started: Future[int]) -> None:
        self._servicer.logger.start()
        try:
            asyncio.run(self._main(started))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)
        finally:
            self._servicer.logger.stop()

    async def _main(self, started: Future[int]) -> None:
        """Serve until :meth:`stop` is called."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._log_fault)
        self._stop = asyncio.Event()
        server = grpc.aio.server(options=server_options(self._keepalive_s, max_connections()))
        # No serialisers: what is exchanged are bytes, and no generated code is needed.
        methods = {
            wire.CONNECT: grpc.stream_stream_rpc_method_handler(self._servicer.serve_client),
            wire.STATUS: grpc.unary_unary_rpc_method_handler(self._servicer.serve_status),
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
        except RuntimeError as error:
            await server.stop(None)
            listen("address", self._address).close()  # gRPC does not say what is wrong, this does
            raise unavailable("address", self._address, error) from None
        self._servicer.begin()
        started.set_result(port)
        review = asyncio.create_task(self._review())
        await self._stop.wait()
        review.cancel()
        await health_service.enter_graceful_shutdown()
        await self._servicer.say_goodbye()
        await server.stop(self._stop_grace_s)
        await self._servicer.end()

    async def _review(self) -> None:
        while True:
            await asyncio.sleep(_REVIEW_S)
            await self._servicer.review()

    def _log_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log what no code handles: gRPC leaves cancelled calls of its own behind at its end."""
        error = context.get("exception")
        level = logging.DEBUG if isinstance(error, asyncio.CancelledError) else logging.ERROR
        self._servicer.logger.log(level, "%s: %r", context.get("message"), error)
