"""Data sets by name: MNIST, those that torchvision reads, and their files in a data folder."""

from __future__ import annotations

import functools
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from flower_scheduling.errors import ConfigError, DataUnavailableError, nearest

from .images import MNIST_SPEC, ImageData, ImageSpec
from .mnist import default_cache_dir, load_mnist

__all__ = [
    "DATASETS",
    "DEFAULT_DATASET",
    "Source",
    "check_folder",
    "data_digest",
    "load_data",
    "load_spec",
    "source_of",
]

Report: TypeAlias = Callable[[str], None]

_log = logging.getLogger(__name__)

DEFAULT_DATASET: Final = "mnist"
_PREFIX: Final = "torchvision:"


@dataclass(frozen=True)
class Source:
    """Where torchvision finds a data set.

    Attributes
    ----------
    name : str
        What users call the data set.
    class_name : str
        Name of the class in ``torchvision.datasets``.
    arguments : mapping
        What its constructor gets beside the folder and the half.
    resize : int
        Height and width to which images are brought [pixels]; 0: they stay as they are.
    spec : ImageSpec or None
        Shape, classes and normalisation; ``None``: they follow from the files.
    files : tuple of str
        The files that are read, below the data folder; empty: torchvision knows.
    package : str
        Debian's package that has them, in ``/usr/share/datasets`` in a folder of the set's name.
    """

    name: str
    class_name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    resize: int = 0
    spec: ImageSpec | None = None
    files: tuple[str, ...] = ()
    package: str = ""


def _idx_files(folder: str, prefixes: tuple[str, str] = ("train", "t10k")) -> tuple[str, ...]:
    kinds = ("images-idx3", "labels-idx1")
    return tuple(f"{folder}/raw/{half}-{kind}-ubyte" for half in prefixes for kind in kinds)


def _cifar10_files() -> tuple[str, ...]:
    batches = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"]
    return tuple(f"cifar-10-batches-py/{name}" for name in batches)


# Mean and deviation of the pixels of the training set, as they are usually given.
_SOURCES: Final = (
    Source(
        "fashion-mnist",
        "FashionMNIST",
        spec=ImageSpec(1, 28, 28, 10, (0.2860,), (0.3530,)),
        files=_idx_files("FashionMNIST"),
        package="dataset-fashion-mnist",
    ),
    Source(
        "kmnist",
        "KMNIST",
        spec=ImageSpec(1, 28, 28, 10, (0.1918,), (0.3483,)),
        files=_idx_files("KMNIST"),
    ),
    Source(
        "emnist",
        "EMNIST",
        {"split": "balanced"},
        spec=ImageSpec(1, 28, 28, 47, (0.1751,), (0.3332,)),
        files=_idx_files("EMNIST", ("emnist-balanced-train", "emnist-balanced-test")),
    ),
    Source(
        "cifar10",
        "CIFAR10",
        spec=ImageSpec(3, 32, 32, 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        files=_cifar10_files(),
    ),
)

DATASETS: Final[Mapping[str, Source | None]] = {
    DEFAULT_DATASET: None,
    **{source.name: source for source in _SOURCES},
}
"""Data sets that have a name here; any other image-classification data set of torchvision is
``torchvision:CLASS``. MNIST is read without torchvision."""


def source_of(dataset: str) -> Source | None:
    """Return where a data set comes from; ``None`` for MNIST.

    Parameters
    ----------
    dataset : str
        Name in :data:`DATASETS`, or ``torchvision:CLASS[:KEY=VALUE,...]``: ``torchvision:SVHN``,
        ``torchvision:EMNIST:split=letters``, ``torchvision:GTSRB:resize=32``.

    Raises
    ------
    ConfigError, DataUnavailableError
        If there is no such data set, or torchvision cannot be imported.
    """
    if dataset in DATASETS:
        return DATASETS[dataset]
    if not dataset.startswith(_PREFIX):
        listed = ", ".join(DATASETS)
        message = f"must be one of {listed}, or {_PREFIX}CLASS, e.g. {_PREFIX}SVHN"
        raise ConfigError("dataset", dataset, message, nearest(dataset, DATASETS))
    from .torchvision_data import check_source

    class_name, _, options = dataset.removeprefix(_PREFIX).partition(":")
    arguments: dict[str, Any] = {}
    for pair in filter(None, options.split(",")):
        key, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or key in arguments:
            message = f"must be {_PREFIX}{class_name}:KEY=VALUE,..., each key once"
            raise ConfigError("dataset", dataset, message)
        arguments[key.replace("-", "_")] = _value(text)
    resize = arguments.pop("resize", 0)
    if type(resize) is not int or resize < 0:
        raise ConfigError("dataset", dataset, "resize must be a number of pixels")
    source = Source(dataset, class_name.strip(), arguments, resize)
    check_source(source)
    return source


def _value(text: str) -> int | float | bool | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def check_folder(data_dir: str) -> None:
    """Check that a data folder has a folder in it, or can be written: the data set is not known.

    Raises
    ------
    DataUnavailableError
        If neither.
    """
    folder = Path(data_dir).expanduser().resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not any(each.is_dir() for each in folder.iterdir()):
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        raise DataUnavailableError(
            f"cannot write data to {folder} ({error.strerror or error}): choose a writable folder,"
            " or one that holds the data set"
        ) from error


def load_data(
    dataset: str = DEFAULT_DATASET, data_dir: str | os.PathLike[str] | None = None
) -> ImageData:
    """Load a data set, fetching it first if need be; once per process and folder.

    Parameters
    ----------
    dataset : str
        Its name, see :func:`source_of`.
    data_dir : path, optional
        Folder that holds, or will hold, a folder for it as torchvision lays it out; by default
        :func:`.default_cache_dir`. No file that is there is changed.

    Returns
    -------
    ImageData
        Training and test set.

    Raises
    ------
    ConfigError
        If there is no such data set, or torchvision reads no labelled images from it.
    DataUnavailableError
        If the files are not there and cannot be fetched, or are not what they should be.
    """
    if dataset == DEFAULT_DATASET:
        return load_mnist(data_dir)
    return _load(dataset, Path(data_dir or default_cache_dir()).expanduser().resolve())


@functools.cache
def _load(dataset: str, root: Path) -> ImageData:
    from .torchvision_data import load_source

    source = source_of(dataset)
    assert source is not None
    return load_source(source, root, _log.info)


def load_spec(
    dataset: str = DEFAULT_DATASET, data_dir: str | os.PathLike[str] | None = None
) -> ImageSpec:
    """Return shape, classes and normalisation of a data set; read from its files if need be."""
    source = source_of(dataset)
    if source is None:
        return MNIST_SPEC
    return source.spec or load_data(dataset, data_dir).spec


def data_digest(dataset: str, data_dir: str | os.PathLike[str] | None = None) -> str:
    """Return a digest by which two machines know that they have the same data.

    Empty for MNIST, whose files are checked when they are read.
    """
    if dataset == DEFAULT_DATASET:
        return ""
    return _digest(dataset, Path(data_dir or default_cache_dir()).expanduser().resolve())


@functools.cache
def _digest(dataset: str, root: Path) -> str:
    return _load(dataset, root).digest()
