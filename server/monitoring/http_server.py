"""A small web server beside the streams, in a thread of its own."""

from __future__ import annotations

import socket
import threading
from typing import Any, Self

import uvicorn

from ..transport.sockets import listen

_STOP_S = 2
_MAX_HEADERS_BYTES = 32 << 10
_MAX_CONNECTIONS = 500


class HttpServer:
    """An ASGI application on an address, from entering to leaving the context.

    Parameters
    ----------
    key : str
        The setting that the address comes from, for errors.
    address : str
        Where to listen, ``host:port``; port 0 picks a free one.
    app : ASGI application
        What answers.
    listener : socket, optional
        One that listens at the address already.
    """

    def __init__(
        self, key: str, address: str, app: Any, *, listener: socket.socket | None = None
    ) -> None:
        self._key = key
        self._address = address
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="critical",  # garbage from a client must not fill the log
            access_log=False,
            lifespan="off",
            ws="none",
            http="h11",  # the one that bounds headers
            h11_max_incomplete_event_size=_MAX_HEADERS_BYTES,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_graceful_shutdown=_STOP_S,
        )
        config.load()  # here, so that a fault is the caller's and not its thread's
        self._server = uvicorn.Server(config)
        self._socket = listener
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Listen.

        Raises
        ------
        ConfigError
            If the address cannot be had.
        """
        self._socket = self._socket or listen(self._key, self._address)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name=self._key, daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop answering and free the port."""
        if self._thread is not None and self._socket is not None:
            self._server.should_exit = True
            self._thread.join()
            self._socket.close()
            self._thread = self._socket = None

    @property
    def port(self) -> int:
        """The port; exists while the server runs."""
        if self._socket is None:
            raise RuntimeError("the server does not run")
        return int(self._socket.getsockname()[1])
