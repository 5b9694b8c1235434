"""The proxies that gRPC reaches addresses through, as the environment names them."""

from __future__ import annotations

import ipaddress
import os
from typing import Final
from urllib.parse import urlsplit

from .addresses import is_loopback

__all__ = ["proxy_options", "through_proxy"]

# What gRPC reads, in its order; it knows no other spelling (grpcio 1.85).
_PROXY: Final = ("grpc_proxy", "https_proxy", "http_proxy")
_NO_PROXY: Final = ("no_grpc_proxy", "no_proxy")


def proxy_options(address: str) -> list[tuple[str, int | str]]:
    """Return gRPC's channel options that keep a connection within this machine off any proxy.

    Parameters
    ----------
    address : str
        The server's ``host:port``.
    """
    return [("grpc.enable_http_proxy", 0)] if is_loopback(_host(address)) else []


def through_proxy(address: str) -> str:
    """Return which proxy gRPC reaches an address through, to be put behind a sentence, or nothing.

    Parameters
    ----------
    address : str
        The server's ``host:port``.
    """
    host = _host(address)
    variable = next((name for name in _PROXY if os.environ.get(name)), None)
    if variable is None or is_loopback(host):
        return ""
    excepted = next((os.environ[name] for name in _NO_PROXY if os.environ.get(name)), "")
    if any(_matches(host, each.strip()) for each in excepted.split(",")):
        return ""
    proxy = urlsplit(os.environ[variable])
    if proxy.scheme != "http":  # gRPC passes it over
        return ""
    where = proxy.netloc.rpartition("@")[2]  # without its password
    return f" through the proxy of {variable}, {where}"


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _matches(host: str, pattern: str) -> bool:
    """Tell whether an entry of ``no_proxy`` is meant by a host: a suffix, or a network."""
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(pattern, strict=False)
    except ValueError:
        return bool(pattern) and host.endswith(pattern)
