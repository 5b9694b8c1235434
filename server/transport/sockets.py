"""Sockets that listen."""

from __future__ import annotations

import socket
from typing import Final

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
    host, _, port = address.rpartition(":")
    bare = ":" in host and not host.startswith("[")
    host = host.strip("[]")
    if not host or bare:  # without a host it would listen everywhere
        raise ConfigError(key, address, "must be HOST:PORT, e.g. 127.0.0.1:8501 or [::1]:8501")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, int(port)))
        listener.listen()
    except (OSError, ValueError, OverflowError):
        listener.close()
        raise ConfigError(key, address, f"must be HOST:PORT of this machine, {FREE_PORT}") from None
    return listener
