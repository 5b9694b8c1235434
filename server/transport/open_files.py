"""The limit of open files: how many clients it lets connect at once."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from flower_scheduling.strategies.flower import LOGGER

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_MOST_RESERVED: Final = 128  # files of the run, of libraries, and of the page's process
_LEAST_RESERVED: Final = 32


def max_connections() -> int | None:
    """Return how many connections the limit of open files allows, besides the server's own files.

    Without a bound a flood of connections takes the files that checkpoints need. ``None``: there is
    no limit, or the platform does not tell.
    """
    limit = _limit()
    return None if limit is None else max(1, limit - _reserved(limit))


def raise_limit(max_clients: int) -> None:
    """Raise the limit of open files as far as so many clients need it; warn where that is not far.

    Parameters
    ----------
    max_clients : int
        How many clients may connect.
    """
    needed = max_clients + _MOST_RESERVED
    # Clients whose link has gone are back before their old connections are given up.
    wanted = needed + max_clients // 2
    limit = _limit()
    if limit is not None and limit < wanted:
        with suppress(ValueError, OSError):
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    connections = max_connections()
    if connections is not None and connections < max_clients:
        LOGGER.warning(
            "the limit of %d open files (ulimit -n) is enough for %d clients at once: "
            "--max-clients %d needs %d",
            _limit(),
            connections,
            max_clients,
            needed,
        )


def _reserved(limit: int) -> int:
    return min(_MOST_RESERVED, max(_LEAST_RESERVED, limit // 4))


def _limit() -> int | None:
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
