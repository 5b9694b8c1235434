"""Files that are replaced as a whole: a reader finds the old content or the new, never a part."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_whole(
    target: Path, data: bytes | str, *, mode: int = 0o666, durable: bool = True
) -> None:
    """Replace a file as a whole; one writer at a time.

    Parameters
    ----------
    target : Path
        The file.
    data : bytes or str
        Its new content; text is written as UTF-8.
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
    try:
        temporary.unlink(missing_ok=True)  # of a process that was killed, with its permissions
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            if durable:
                file.flush()
                os.fsync(descriptor)
        os.replace(temporary, target)
        if durable:
            _sync_folder(target.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from None
    finally:  # interrupted, for one
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _sync_folder(path: Path) -> None:
    """Bring a renaming in a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
