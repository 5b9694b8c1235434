"""Network addresses ``HOST:PORT``, as every flag and setting of both ends takes them."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from typing import Final, NamedTuple

from flower_scheduling.errors import ConfigError

__all__ = ["Address", "is_loopback", "join_host_port", "parse_address"]

_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_.])?")
_SCHEME: Final = re.compile(r"unix:|[A-Za-z][A-Za-z0-9+.-]*:/{1,3}(?=[^/])")
_LAST_PORT: Final = 65535


class Address(NamedTuple):
    """A host, without brackets, and a port; its text is ``HOST:PORT``, IPv6 in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return join_host_port(self.host, self.port)


def join_host_port(host: str, port: int | str) -> str:
    """Return ``HOST:PORT``, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Tell whether a host, in brackets or not, is this machine and no other."""
    host = host.strip("[]")
    if (found := _ip_address(host)) is not None:
        mapped = getattr(found, "ipv4_mapped", None)  # ::ffff:127.0.0.1
        return (mapped or found).is_loopback
    return host.lower() == "localhost"


def parse_address(key: str, text: str, *, any_port: bool = False) -> Address:
    """Read an address as users write it.

    Parameters
    ----------
    key : str
        The setting that it comes from, for errors.
    text : str
        ``HOST:PORT``: a name, an IPv4 address, or an IPv6 address in brackets.
    any_port : bool
        Whether port 0 is allowed: to listen on any port that is free.

    Raises
    ------
    ConfigError
        If it is of another form; the message says what would be right.
    """
    if scheme := _SCHEME.match(text):
        if scheme[0] == "unix:":
            raise ConfigError(key, text, "must be HOST:PORT, a Unix socket is not supported")
        message = f"must be HOST:PORT, without {scheme[0]}"
        raise ConfigError(key, text, message, _suggested(text[scheme.end() :]))
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if (
        not colon
        or not (port.isascii() and port.isdigit())
        or not _is_host(host, bracketed=bracketed)
    ):
        raise ConfigError(key, text, "must be HOST:PORT", _suggested(text))
    first = 0 if any_port else 1
    if not first <= int(port[:6]) <= _LAST_PORT:
        message = f"must be HOST:PORT with a port from {first} to {_LAST_PORT}"
        raise ConfigError(key, text, message)
    # Resolvers differ in whether they know the name with the dot of the root.
    return Address("localhost" if host.lower() == "localhost." else host, int(port))


def _is_host(host: str, *, bracketed: bool) -> bool:
    found = _ip_address(host)
    if bracketed or ":" in host:
        return bracketed and found is not None and found.version == 6
    # Of digits and dots alone it must be an address: resolvers take 127.1 for 127.0.0.1.
    return bool(_NAME.fullmatch(host)) and (found is not None or not _is_number(host))


def _is_number(host: str) -> bool:
    return host.replace(".", "").isdigit()


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _suggested(text: str) -> str:
    """Return which address may be meant, as a hint; nothing if there is none."""
    text = unicodedata.normalize("NFKC", text).strip().rstrip("/")
    host, _, port = text.rpartition(":")
    if not port.isdecimal():
        host, port = text, "PORT"
    host = host.rpartition("@")[2]
    inner = host.strip("[]")
    whole = text.strip("[]")
    if not host and port != "PORT":
        return f"write 127.0.0.1:{port}, or 0.0.0.0:{port} to listen everywhere"
    if host == "*":
        return f"write 0.0.0.0:{port}, or [::]:{port}"
    if _is_number(text) and "." not in text:
        return f"write 127.0.0.1:{text}"
    for candidate, its_port in ((inner, port), (whole, "PORT")):
        if _is_host(candidate, bracketed=":" in candidate):
            return f"write {join_host_port(candidate, its_port)}"
    try:
        inner = inner.encode("idna").decode()
    except UnicodeError:
        return ""
    return f"write {inner}:{port}" if _NAME.fullmatch(inner) and not _is_number(inner) else ""
