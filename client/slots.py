"""Number the clients that start alike on one host, such as the replicas of a container."""

from __future__ import annotations

from pathlib import Path

import filelock

from client.errors import ClientConfigError

__all__ = ["take_slot"]


def take_slot(folder: Path, count: int) -> tuple[int, filelock.BaseFileLock]:
    """Take the lowest number that no other process has.

    Parameters
    ----------
    folder : Path
        A local folder that the processes share.
    count : int, >= 1
        How many numbers there are.

    Returns
    -------
    int, in [0, count)
        The number.
    filelock.BaseFileLock
        Holds the number; it is free again when this is released or the process ends, however.

    Raises
    ------
    ClientConfigError
        If every number is taken.
    OSError
        If the folder cannot be written.
    """
    for number in range(count):
        lock = filelock.FileLock(folder / f"{number}.lock")
        try:
            lock.acquire(blocking=False)
        except filelock.Timeout:
            continue
        return number, lock
    raise ClientConfigError(f"all {count} shares in {folder} are taken: raise --num-partitions")
