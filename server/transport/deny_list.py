"""The deny list: names of clients that are refused."""

from __future__ import annotations

from pathlib import Path

from flower_scheduling.errors import ConfigError
from flower_scheduling.strategies.flower import LOGGER


class DenyList:
    """Names that are refused, from a file that may change while the server runs.

    A call looks a name up in memory; :meth:`refresh` alone reads the file.

    Parameters
    ----------
    path : str
        File with one name a line; without a path no name is refused.

    Raises
    ------
    ConfigError
        If the file cannot be read at the start.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._names: frozenset[str] = frozenset()
        self._logged = ""  # the last reason why the file could not be read
        self._version: tuple[int, int, int] | None = None
        if path and (reason := self._read()):
            raise ConfigError("deny-list", path, f"must be a readable file ({reason})")

    def __call__(self, name: str) -> bool:
        """Tell whether a client of this name is refused."""
        return name in self._names

    def refresh(self) -> None:
        """Read the file again if it has changed; if it cannot be read, keep the names."""
        if not self._path:
            return
        reason = self._read()
        if reason and reason != self._logged:
            # A path that is no UTF-8 has lone surrogates, which a log in a file cannot hold.
            path = self._path.encode(errors="backslashreplace").decode()
            LOGGER.warning("deny-list %s: %s", path, reason)
        self._logged = reason

    def _read(self) -> str:
        """Return why the file cannot be read; nothing if it can."""
        try:
            found = Path(self._path).stat()
            version = (found.st_mtime_ns, found.st_size, found.st_ino)
            if version != self._version:
                lines = Path(self._path).read_text(encoding="utf-8").splitlines()
                self._names = frozenset(line.strip() for line in lines if line.strip())
                self._version = version
        except (OSError, UnicodeDecodeError) as error:
            return getattr(error, "strerror", None) or str(error)
        return ""
