"""Files that are replaced as a whole: a reader finds the old content or the new, never a part."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_IS_WINDOWS: Final = os.name == "nt"
_PAUSES_S: Final = (0.01, 0.03, 0.1, 0.3, 0.6)  # between two attempts to replace a file


def write_whole(
    target: Path,
    data: bytes | str | Iterable[bytes | memoryview],
    *,
    mode: int = 0o666,
    durable: bool = True,
) -> None:
    """Replace a file as a whole; one writer at a time.

    Parameters
    ----------
    target : Path
        The file.
    data : bytes, str, or iterable of bytes
        Its new content, or the pieces of it; text is written as UTF-8.
    mode : int
        Permissions, reduced by the process's umask.
    durable : bool
        Whether the content is on the disk when this returns: a power cut then takes back neither
        it nor, half-way, the old one.

    Raises
    ------
    OSError
        If it cannot be written; it bears the file's name, and the old content stays.
    """
    temporary = target.with_name(f".{target.name}.tmp")
    if isinstance(data, str):
        data = data.encode()
    try:
        temporary.unlink(missing_ok=True)  # of a process that was killed, with its permissions
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            if durable:
                file.flush()
                os.fsync(descriptor)
        replace_file(temporary, target)
        if durable:
            sync_folder(target.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from None
    finally:  # interrupted, for one
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def replace_file(source: Path, target: Path) -> None:
    """Rename a file onto another one, which goes.

    Windows refuses that while a reader has the other one open: it is tried for a second.
    """
    for pause_s in _PAUSES_S if _IS_WINDOWS else ():
        try:
            os.replace(source, target)
            return
        except PermissionError:
            time.sleep(pause_s)
    os.replace(source, target)


def sync_folder(path: Path) -> None:
    """Bring a renaming in a folder to the disk."""
    if _IS_WINDOWS:  # which opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
