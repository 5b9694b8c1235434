"""Sockets that listen."""

from __future__ import annotations

import errno
import os
import socket
from typing import Final

from flower_scheduling.client.wire.addresses import parse_address
from flower_scheduling.errors import ConfigError

_FAULTS: Final = {
    errno.EADDRINUSE: "the port is in use: stop the program that listens there, or take another",
    errno.EACCES: "ports below 1024 need a right that this user has not got: take a higher one",
    errno.EADDRNOTAVAIL: "this machine does not have that address",
}


def unavailable(key: str, address: str, error: Exception) -> ConfigError:
    """Return what is wrong with an address at which nothing can listen."""
    number = error.errno if isinstance(error, OSError) else None
    text = _FAULTS.get(number or 0, f"must be HOST:PORT of this machine ({error})")
    return ConfigError(key, address, text)


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
    except (OSError, UnicodeError) as error:
        if listener is not None:
            listener.close()
        raise unavailable(key, address, error) from None
    return listener
