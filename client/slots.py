"""Numbers for clients that start alike on one host, such as the replicas of a container."""

from __future__ import annotations

from pathlib import Path

import filelock

from flower_scheduling.errors import ClientConfigError

__all__ = ["take_slot"]


def take_slot(
    folder: Path, count: int, first: int | None = None
) -> tuple[int, filelock.BaseFileLock]:
    """Take the lowest number that no other process holds.

    Parameters
    ----------
    folder : Path
        A local folder that the processes share.
    count : int, >= 1
        Numbers that there are.
    first : int, optional
        Number to try before the others.

    Returns
    -------
    int, in [0, count)
        The number.
    filelock.BaseFileLock
        Holds the number: it is free again when the lock is released, or the process ends in any
        way.

    Raises
    ------
    ClientConfigError
        If every number is taken, or the folder cannot be written.
    """
    for number in sorted(range(count), key=lambda number: number != first):
        file = folder / f"{number}.lock"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file.touch()  # a lock takes a file that cannot be made for one that is taken
        except OSError as error:
            raise ClientConfigError(
                f"slots = {str(folder)!r}: must be a folder that can be written: {error.strerror}"
            ) from None
        lock = filelock.FileLock(file)
        try:
            lock.acquire(blocking=False)
        except filelock.Timeout:
            continue
        return number, lock
    raise ClientConfigError(f"all {count} shares in {folder} are taken: raise --num-partitions")
