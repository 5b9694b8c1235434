"""Sockets that listen, and which hosts are this machine alone."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

from flower_scheduling.errors import ConfigError

FREE_PORT: Final = "the port not in use, nor below 1024 without the right to that"
"""What both an address that is taken and one that is not allowed lack."""


def listen(key: str, address: str) -> socket.socket:
    """Return a socket that listens: whoever asks before there is an answer waits for it.

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


def is_loopback(host: str) -> bool:
    """Tell whether a host, in brackets or not, is this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
