"""The deny list: names of clients that are refused."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from pathlib import Path

from flower_scheduling.errors import ConfigError
from flower_scheduling.names import folded, unknown_names
from flower_scheduling.strategies.flower import LOGGER


class DenyList:
    """Names that are refused, from a file that may change while the server runs.

    A name denies every client that is called so, in whatever case and Unicode form; two clients
    that differ in nothing else are never admitted together. What follows a ``#`` is a comment,
    except that a client is refused as well whose name is the whole line: names may hold the sign.

    A call looks a name up in memory; :meth:`refresh` alone reads the file.

    Parameters
    ----------
    path : str
        File with one name a line, in UTF-8, or in UTF-16 with a byte order mark; without a path no
        name is refused.
    known : callable
        Returns the names of the clients that are connected or belong to the run, for the log.

    Raises
    ------
    ConfigError
        If the file cannot be read at the start.
    """

    def __init__(self, path: str, known: Callable[[], Iterable[str]] = tuple) -> None:
        self._path = path
        self._known = known
        self._names: dict[str, str] = {}  # folded name -> as it is written
        self._refused: frozenset[str] = frozenset()  # all that is refused, folded
        self._met: set[str] = set()  # of these, whose client was refused
        self._logged = ""  # the last reason why the file could not be read
        self._in_use = False  # a round has begun
        self._version: tuple[int, int, int] | None = None
        if path:
            if reason := self._read():
                raise ConfigError("deny-list", path, f"must be a readable file ({reason})")
            self._log_size()

    def __call__(self, name: str) -> bool:
        """Tell whether a client of this name is refused."""
        if not self._refused:
            return False
        name = folded(name)
        if name not in self._refused:
            return False
        self._met.add(name)
        return True

    def begin(self) -> None:
        """Log which of the names no client has; called when the first round begins."""
        self._in_use = True
        if self._path:
            self._log_unknown()

    def refresh(self) -> None:
        """Read the file again if it has changed; if it cannot be read, keep the names."""
        if not self._path:
            return
        before = self._refused
        reason = self._read()
        if reason and reason != self._logged:
            # A path that is no UTF-8 has lone surrogates, which a log in a file cannot hold.
            path = self._path.encode(errors="backslashreplace").decode()
            LOGGER.warning("deny-list %s: %s", path, reason)
        self._logged = reason
        if self._refused != before:
            self._log_size()
            if self._in_use:
                self._log_unknown()

    def _read(self) -> str:
        """Return why the file cannot be read; nothing if it can."""
        try:
            found = Path(self._path).stat()
            version = (found.st_mtime_ns, found.st_size, found.st_ino)
            if version != self._version:
                lines = _decoded(Path(self._path).read_bytes()).splitlines()
                names = [line.partition("#")[0].strip() for line in lines]
                self._names = {folded(name): name for name in names if name}
                self._refused = frozenset(filter(None, map(folded, (*names, *lines))))
                self._met &= self._refused
                self._version = version
        except (OSError, UnicodeError) as error:
            return getattr(error, "strerror", None) or str(error)
        return ""

    def _log_size(self) -> None:
        count = len(self._names)
        LOGGER.info("deny list: %d name%s", count, "" if count == 1 else "s")

    def _log_unknown(self) -> None:
        """Log the names that no client has had so far."""
        clients = set(self._known())
        met = self._met.union(map(folded, clients))
        unknown = [name for each, name in self._names.items() if each not in met]
        if unknown:
            LOGGER.info("deny list: %s", unknown_names(unknown, clients))


def _decoded(data: bytes) -> str:
    """Return a text that an editor has written, without its byte order mark."""
    marks = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    text = data.decode("utf-16" if data.startswith(marks) else "utf-8-sig")
    if "\0" in text:
        raise UnicodeError("it has null bytes: save it as UTF-8")
    return text
