"""Data sets that torchvision fetches and reads, as labelled images of one size.

A data set is fetched into a folder of its own, from which only files that are absent are taken:
what is in a data folder already is never changed.
"""

from __future__ import annotations

import gzip
import hashlib
import inspect
import math
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import filelock
import numpy as np
import torch
from numpy.typing import NDArray

from flower_scheduling.errors import ConfigError, DataUnavailableError, nearest, one_line
from flower_scheduling.files import replace_file, write_whole

from . import mnist
from .datasets import Report, Source
from .images import ImageData, ImageSpec
from .mirrors import download_dataset

__all__ = ["check_source", "load_source"]

_LOCK_TIMEOUT_S: Final = 3600.0  # longer than a download that still makes progress takes
# Arguments of constructors that are ours to give, or mean nothing for stored images.
_OURS: Final = frozenset(
    ["root", "train", "transform", "target_transform", "transforms", "download", "loader"]
)
# Where Debian's packages of data sets have their folders.
_PACKAGED: Final = Path("/usr/share/datasets")
# In these folders an ImageFolder has its halves; data sets with a split call it likewise.
_HALVES: Final = (("train",), ("test", "val"))


def _datasets() -> Any:
    try:
        import torchvision.datasets
    except Exception as error:  # of many kinds where torchvision does not fit torch
        raise DataUnavailableError(one_line(f"torchvision cannot be imported: {error}")) from None
    return torchvision.datasets


def check_source(source: Source) -> None:
    """Refuse a class that torchvision does not have, or has without a training and a test set.

    Raises
    ------
    ConfigError
        If so, or an argument is none of the class.
    DataUnavailableError
        If torchvision cannot be imported.
    """
    known = [name for name in _datasets().__all__ if inspect.isclass(getattr(_datasets(), name))]
    if source.class_name not in known:
        message = f"torchvision.datasets has no {source.class_name or 'class without a name'}"
        by_lower = {name.lower(): name for name in known}
        close = by_lower.get(source.class_name.lower())
        hint = f"did you mean {close}?" if close else nearest(source.class_name, known)
        raise ConfigError("dataset", source.name, message, hint)
    cls = _class(source)
    if not _halves(cls):
        message = (
            f"torchvision's {source.class_name} has no training and test set of labelled images"
        )
        raise ConfigError("dataset", source.name, message)
    allowed = [*_parameters(cls), "resize"]
    for key in source.arguments:
        if key not in allowed:
            message = f"{source.class_name} takes {', '.join(allowed)}, not {key}"
            raise ConfigError("dataset", source.name, message, nearest(key, allowed))
    for key, parameter in _parameters(cls).items():
        if parameter.default is parameter.empty and key not in source.arguments:
            message = f"{source.class_name} needs :{key}=VALUE"
            raise ConfigError("dataset", source.name, message)


def _class(source: Source) -> Any:
    return getattr(_datasets(), source.class_name)


def _parameters(cls: Any) -> dict[str, inspect.Parameter]:
    """Return what users may set of a class."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    halving = () if issubclass(cls, _datasets().MNIST) else ("split",)
    return {
        key: parameter
        for key, parameter in inspect.signature(cls).parameters.items()
        if parameter.kind in named and key not in {*_OURS, *halving}
    }


def _halves(cls: Any) -> tuple[list[tuple[str, Mapping[str, Any]]], ...]:
    """Return for each half the folder below the root, and the arguments, that may mean it."""
    parameters = inspect.signature(cls).parameters
    if issubclass(cls, _datasets().MNIST) or "train" in parameters:
        return [("", {"train": True})], [("", {"train": False})]
    if "split" in parameters:
        return tuple([("", {"split": word}) for word in words] for words in _HALVES)
    if cls is _datasets().ImageFolder:
        return tuple([(word, {}) for word in words] for words in _HALVES)
    return ()


def load_source(source: Source, root: Path, report: Report) -> ImageData:
    """Load a data set from a folder, fetching what of it is not there.

    Parameters
    ----------
    source : Source
        The data set.
    root : Path
        The data folder, torchvision's ``root``.
    report : callable
        Gets one line per attempt to fetch it.

    Raises
    ------
    ConfigError
        If it has no labelled images of one size.
    DataUnavailableError
        If the files are not there and cannot be fetched, or are not what they should be.
    """
    check_source(source)
    try:
        _unpack(source, root)
        _take_packaged(source, root, report)
        if fault := _first_fault(source, root):
            if not _is_fetched(_class(source)):
                raise DataUnavailableError(
                    _where_to_put(source, root, fault, "torchvision fetches none of it")
                )
            with _locked(source, root, report):
                if _first_fault(source, root):  # no other process has fetched it meanwhile
                    _fetch(source, root, report)
    except OSError as error:
        raise DataUnavailableError(
            f"cannot write {source.name} to {root} ({error.strerror or error}): choose a writable"
            " folder"
        ) from error
    return _read(source, root)


def _first_fault(source: Source, root: Path) -> str:
    """Return why a data set cannot be opened; nothing if it can."""
    if source.files:
        missing = [name for name in source.files if not (root / name).exists()]
        if missing:
            return f"{', '.join(missing)} missing"
        _refuse_other_files(source, root)
        return ""
    try:
        for half in _halves(_class(source)):
            _open(source, root, half)
    except Exception as error:  # torchvision raises many kinds
        return one_line(str(error) or type(error).__name__).partition(" You can use download=")[0]
    return ""


def _unpack(source: Source, root: Path) -> None:
    """Unpack archives of single files, where these are missing, as torchvision would."""
    known = {name.rpartition("/")[2]: md5 for name, md5 in getattr(_class(source), "resources", ())}
    for name in source.files:
        path, archive = root / name, root / f"{name}.gz"
        if path.exists() or not archive.is_file():
            continue
        content = archive.read_bytes()
        if hashlib.md5(content, usedforsecurity=False).hexdigest() != known.get(archive.name):
            raise _other_file(source, archive)
        write_whole(path, gzip.decompress(content))


def _take_packaged(source: Source, root: Path, report: Report) -> None:
    """Unpack what is missing from a package of the system, if one that has it is installed.

    It has archives of its own making, which no published sum fits.
    """
    folder = _PACKAGED / source.name
    if not source.package or not folder.is_dir():
        return
    for name in source.files:
        path, archive = root / name, folder / f"{Path(name).name}.gz"
        if path.exists() or not archive.is_file():
            continue
        try:
            content = gzip.decompress(archive.read_bytes())
        except (OSError, EOFError, zlib.error) as error:
            raise DataUnavailableError(
                one_line(f"{archive} cannot be read ({error}): install {source.package} again")
            ) from None
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
        report(f"{source.name}: {path.name} is that of {archive}")


def _refuse_other_files(source: Source, root: Path) -> None:
    """Refuse files that are another data set's, or are damaged, as far as that is known."""
    cls = _class(source)
    if issubclass(cls, _datasets().MNIST):
        for name in source.files:
            path = root / name
            if not _is_idx(path):
                raise _other_file(source, path)
            if "labels" in name and _sha256(path) in mnist.DIGESTS:
                raise _other_file(source, path, "it is MNIST's")
        return
    known = dict(getattr(cls, "train_list", []) + getattr(cls, "test_list", []))
    for name in source.files:
        path = root / name
        if path.name in known and _md5(path) != known[path.name]:
            raise _other_file(source, path)


def _other_file(source: Source, path: Path, what: str = "its content is unknown") -> Exception:
    return DataUnavailableError(
        f"{path}: not a file of {source.name} as published ({what}), left as it is; move it away to"
        f" have {source.name} fetched"
    )


def _is_idx(path: Path) -> bool:
    """Return whether a file has MNIST's format: type and rank, the shape, the bytes."""
    rank = 3 if "images" in path.name else 1
    with path.open("rb") as stream:
        head = stream.read(4 + 4 * rank)
    if len(head) < 4 + 4 * rank or head[:4] != bytes([0, 0, 8, rank]):
        return False
    shape = np.frombuffer(head[4:], dtype=">u4").tolist()
    return bool(path.stat().st_size == len(head) + math.prod(shape))


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _md5(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@contextmanager
def _locked(source: Source, root: Path, report: Report) -> Iterator[None]:
    """Hold the lock between processes that fetch a data set, reporting if it must be waited for."""
    root.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(root / f".{source.class_name}.lock", timeout=_LOCK_TIMEOUT_S)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        report(f"{source.name}: waiting for another process that fetches it into {root}")
        try:
            lock.acquire()
        except filelock.Timeout:
            raise DataUnavailableError(
                f"another process has been fetching {source.name} into {root} for"
                f" {_LOCK_TIMEOUT_S:g} s: end it, or choose another folder"
            ) from None
    try:
        yield
    finally:
        lock.release()


def _is_fetched(cls: Any) -> bool:
    """Return whether torchvision fetches a data set by itself."""
    known = inspect.signature(cls).parameters
    return "download" in known or issubclass(cls, _datasets().MNIST)


def _fetch(source: Source, root: Path, report: Report) -> None:
    """Bring in the files that are missing; the caller holds the lock."""
    cls, reason = _class(source), ""
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=root) as folder:
        for half in _halves(cls):
            words = {**source.arguments, **half[0][1]}
            reason = reason or download_dataset(Path(folder), source.class_name, words, report)
        _take_missing(source, Path(folder), root)
    if left := _first_fault(source, root):
        raise DataUnavailableError(_where_to_put(source, root, left, reason or "it is incomplete"))
    report(f"{source.name}: complete in {root}")


def _where_to_put(source: Source, root: Path, fault: str, reason: str) -> str:
    """Return the sentence for a data set that is not there and cannot be fetched."""
    if source.files:
        missing = [name for name in source.files if not (root / name).exists()]
        folder = root / Path(missing[0]).parent
        names = ", ".join(Path(name).name for name in missing)
        package = f"install Debian's package {source.package}, or " if source.package else ""
        return one_line(
            f"{source.name} cannot be fetched ({reason}): {package}put {names} into {folder}"
        )
    if source.class_name == "ImageFolder":
        return one_line(
            f"{source.name}: no images ({fault}): put them into {root / 'train'} and"
            f" {root / 'test'}, a folder for each class"
        )
    return one_line(
        f"{source.name} is not in {root} ({fault}) and cannot be fetched ({reason}): put its files"
        f" there as torchvision.datasets.{source.class_name} expects them"
    )


def _take_missing(source: Source, fetched: Path, root: Path) -> None:
    """Move files that were fetched to where there are none."""
    for path in sorted(fetched.rglob("*")):
        target = root / path.relative_to(fetched)
        if path.is_dir():
            target.mkdir(exist_ok=True)
        elif not target.exists():
            replace_file(path, target)
        elif _sha256(path) != _sha256(target):
            raise _other_file(source, target)


def _open(source: Source, root: Path, half: list[tuple[str, Mapping[str, Any]]]) -> Any:
    """Open a half of a data set, by the first of its names that the class knows."""
    cls = _class(source)
    *others, last = half
    for folder, words in others:
        try:
            return cls(root / folder, **words, **source.arguments)
        except (ValueError, FileNotFoundError):
            continue
    folder, words = last
    return cls(root / folder, **words, **source.arguments)


def _read(source: Source, root: Path) -> ImageData:
    """Read both halves, and check that they are labelled images that fit each other."""
    try:
        halves = [_open(source, root, half) for half in _halves(_class(source))]
        of_train, of_test = (getattr(half, "classes", None) for half in halves)
        if of_train != of_test:
            message = f"its halves have other classes: {of_train} and {of_test}"
            raise ConfigError("dataset", source.name, message)
        read = [(_images(source, half), _labels(source, half)) for half in halves]
    except (ConfigError, DataUnavailableError):
        raise
    except Exception as error:  # damaged files fail in any way
        reason = str(error) or type(error).__name__
        raise DataUnavailableError(
            one_line(f"{source.name} in {root} cannot be read: {reason}")
        ) from None
    spec = source.spec or _spec_of(halves[0], *read[0], read[1][1])
    for images, labels in read:
        fault = ""
        if not len(labels) or len(images) != len(labels):
            fault = f"{len(images)} images and {len(labels)} labels"
        elif images.shape[1:] != spec.shape:
            found = " x ".join(map(str, images.shape[1:]))
            fault = f"images of {found} pixels instead of {' x '.join(map(str, spec.shape))}"
        elif labels.min() < 0 or labels.max() >= spec.num_classes:
            fault = f"labels from {labels.min()} to {labels.max()}, for {spec.num_classes} classes"
        if fault:
            raise DataUnavailableError(f"{source.name} in {root} cannot be used: it has {fault}")
    train, test = ([torch.from_numpy(array) for array in half] for half in read)
    return ImageData(train[0], train[1], test[0], test[1], spec)


def _spec_of(
    dataset: Any,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    test_labels: NDArray[np.int64],
) -> ImageSpec:
    """Return the spec of a data set of which nothing is known, from its training images."""
    *channels, height, width = images.shape[1:]
    num_channels = channels[0] if channels else 1
    by_channel = images.reshape(len(images), num_channels, -1)
    mean, std = [], []
    for channel in range(num_channels):
        count = np.bincount(by_channel[:, channel].ravel(), minlength=256) / (
            len(images) * height * width
        )
        values = np.arange(256) / 255.0
        mean.append(float(count @ values))
        std.append(math.sqrt(max(float(count @ values**2) - mean[-1] ** 2, 0.0)))
    largest = max(int(part.max(initial=0)) for part in (labels, test_labels))
    return ImageSpec(
        num_channels,
        height,
        width,
        max(largest + 1, len(getattr(dataset, "classes", ()))),
        tuple(round(value, 4) for value in mean),
        tuple(max(round(value, 4), 0.001) for value in std),
    )


def _images(source: Source, dataset: Any) -> NDArray[np.uint8]:
    """Return all images, (n, height, width) if grey or (n, 3, height, width)."""
    if not source.resize and (stored := _stored_images(dataset)) is not None:
        return stored
    first = _pixels(source, dataset[0][0])
    images = np.empty((len(dataset), *first.shape), dtype=np.uint8)
    for index in range(len(dataset)):
        pixels = _pixels(source, dataset[index][0], grey=first.ndim == 2)
        if pixels.shape != first.shape:
            sizes = (" x ".join(map(str, each.shape[-2:])) for each in (first, pixels))
            message = f"its images differ in size ({' and '.join(sizes)} pixels): append resize=32"
            raise ConfigError("dataset", source.name, message)
        images[index] = pixels
    return images


def _stored_images(dataset: Any) -> NDArray[np.uint8] | None:
    """Return the images that torchvision holds as one array, if it does."""
    stored = np.asarray(getattr(dataset, "data", None))
    if stored.dtype != np.uint8 or stored.ndim not in (3, 4) or len(stored) != len(dataset):
        return None
    if stored.ndim == 4:
        if stored.shape[3] == 3:
            stored = stored.transpose(0, 3, 1, 2)
        elif stored.shape[1] != 3:
            return None
    shown = np.asarray(dataset[0][0])
    if not np.array_equal(shown, stored[0] if stored.ndim == 3 else stored[0].transpose(1, 2, 0)):
        return None
    return np.array(stored, order="C")  # a copy that may be written, as torch wants it


def _pixels(source: Source, image: Any, *, grey: bool | None = None) -> NDArray[np.uint8]:
    """Return the pixels of an image of PIL's, (height, width) if grey or (3, height, width)."""
    if not hasattr(image, "convert"):
        message = f"torchvision's {source.class_name} has no images, but {type(image).__name__}"
        raise ConfigError("dataset", source.name, message)
    grey = image.mode in ("1", "L") if grey is None else grey
    image = image.convert("L" if grey else "RGB")
    if source.resize:
        image = image.resize((source.resize, source.resize))
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels if grey else pixels.transpose(2, 0, 1)


def _labels(source: Source, dataset: Any) -> NDArray[np.int64]:
    """Return all labels, (n,)."""
    for name in ("targets", "labels", "_labels"):
        stored = np.asarray(getattr(dataset, name, None))
        if stored.dtype.kind in "iu" and stored.shape == (len(dataset),):
            return stored.astype(np.int64)
    labels = [dataset[index][1] for index in range(len(dataset))]
    if not all(isinstance(label, int | np.integer) for label in labels):
        message = f"the labels of torchvision's {source.class_name} are no whole numbers"
        raise ConfigError("dataset", source.name, message)
    return np.asarray(labels, dtype=np.int64)
