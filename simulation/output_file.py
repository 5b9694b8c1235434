"""Guard of the files that commands write: never over a file of a run, or one of another kind."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from flower_scheduling.errors import ConfigError
from flower_scheduling.server.runs.directory import ROUNDS

# Bytes in which the mark of a page is found.
_HEAD: Final = 4096
_BEGINNING: Final = b"<!doctype html>"


def ensure_overwritable(key: str, target: Path, *, mark: str, what: str, force: bool) -> None:
    """Refuse to write a page over anything but an earlier one of its kind.

    Files of a run are never overwritten, others only with `force`.

    Parameters
    ----------
    key : str
        Name of the option.
    target : Path
        File to write.
    mark : str
        Text in the heads of pages of this kind.
    what : str
        Name of this kind.
    force : bool
        Whether the user gave ``--force``.

    Raises
    ------
    ConfigError
        If it may not be written.
    OSError
        If it cannot be looked at.
    """
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        if not target.is_symlink():
            return
        mode = stat.S_IFREG
    if not stat.S_ISREG(mode):
        raise ConfigError(
            key, str(target), "must be the name of a file, not of a folder, pipe or device"
        )
    if _is_page(target, mark):
        return
    if run := _run_of(target):
        message = f"must be a new file or an earlier {what}: the run {run} is never overwritten"
        raise ConfigError(key, str(target), message)
    if not force:
        raise ConfigError(
            key, str(target), f"must be a new file or an earlier {what} (--force overwrites)"
        )


def _is_page(file: Path, mark: str) -> bool:
    try:
        with file.open("rb") as opened:
            head = opened.read(_HEAD)
    except FileNotFoundError:  # a link to nothing
        return False
    return head.startswith(_BEGINNING) and mark.encode() in head


def _run_of(target: Path) -> Path | None:
    """Return the run directory that a file is in."""
    folder = target.parent.resolve()
    for each in (folder, *folder.parents):
        if (each / "config.toml").exists() and (each / ROUNDS).exists():
            return each
    return None
