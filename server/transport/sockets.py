"""Sockets that listen."""

from __future__ import annotations

import os
import socket
from typing import Final

from flower_scheduling.client.wire.addresses import parse_address
from flower_scheduling.errors import ConfigError

# What is wrong with an address that cannot be had, taken or not allowed.
FREE_PORT: Final = "the port not in use, nor below 1024 without the right to that"


def listen(key: str, address: str) -> socket.socket:
    """Return a socket that listens: a request that comes before the service is up waits for it.

    Parameters
    ----------
    key : str
        The setting that the address comes from, for errors.
    address : str
        ``HOST:PORT``; port 0 picks a free one.

    Raises
    ------
    ConfigError
        If the address cannot be had.
    """
    host, port = parse_address(key, address, any_port=True)
    listener: socket.socket | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, *_, where = min(found, key=lambda one: one[0] != socket.AF_INET)
        listener = socket.socket(family, kind)
        if os.name != "nt":  # there it would share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen()
    except (OSError, UnicodeError):
        if listener is not None:
            listener.close()
        raise ConfigError(key, address, f"must be HOST:PORT of this machine, {FREE_PORT}") from None
    return listener
