"""Small data sets in the formats of the published ones, drawn by a seed."""

from __future__ import annotations

import bz2
import hashlib
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray


def idx(values: NDArray[Any]) -> bytes:
    """Encode an array as the files of MNIST and its relatives are."""
    head = struct.pack(f">{values.ndim + 1}I", 0x0800 | values.ndim, *values.shape)
    return head + values.astype(np.uint8).tobytes()


def draw(
    rng: np.random.Generator, count: int, shape: tuple[int, ...], num_classes: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Draw images that a linear model can tell apart, and their labels."""
    labels = np.arange(count) % num_classes
    images = rng.integers(80, size=(count, *shape), dtype=np.uint8)
    flat = images.reshape(count, -1)
    width = flat.shape[1] // num_classes
    for row, label in zip(flat, labels, strict=True):
        row[label * width : (label + 1) * width] += 150
    return images, labels


def write_idx_dataset(
    root: Path,
    folder: str = "FashionMNIST",
    prefixes: tuple[str, str] = ("train", "t10k"),
    *,
    num_train: int = 400,
    num_classes: int = 10,
    seed: int = 0,
) -> Path:
    """Write a data set as torchvision expects FashionMNIST, KMNIST or EMNIST; return its folder."""
    rng = np.random.default_rng(seed)
    raw = root / folder / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for prefix, count in zip(prefixes, (num_train, 100), strict=True):
        images, labels = draw(rng, count, (28, 28), num_classes)
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(idx(images))
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(labels))
    return raw


def write_cifar10(root: Path, monkeypatch: pytest.MonkeyPatch | None = None) -> Path:
    """Write small files of CIFAR10; torchvision is made to know their checksums, if wanted."""
    rng = np.random.default_rng(0)
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True, exist_ok=True)
    sums: dict[str, str] = {}

    def write(name: str, content: dict[str, Any]) -> None:
        packed = pickle.dumps(content, protocol=2)
        (folder / name).write_bytes(packed)
        sums[name] = hashlib.md5(packed).hexdigest()

    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        images, labels = draw(rng, 60, (3, 32, 32), 10)
        write(name, {"data": images.reshape(60, -1), "labels": labels.tolist()})
    write("batches.meta", {"label_names": [f"class {number}" for number in range(10)]})
    if monkeypatch is not None:
        from torchvision.datasets import CIFAR10

        for listed in ("train_list", "test_list"):
            names = [[name, sums[name]] for name, _ in getattr(CIFAR10, listed)]
            monkeypatch.setattr(CIFAR10, listed, names)
        meta = {**CIFAR10.meta, "md5": sums["batches.meta"]}
        monkeypatch.setattr(CIFAR10, "meta", meta)
    return folder


def write_usps(root: Path) -> None:
    """Write small files of USPS, 16 x 16 pixels, which torchvision reads without a checksum."""
    rng = np.random.default_rng(0)
    for name, count in (("usps.bz2", 120), ("usps.t.bz2", 40)):
        images, labels = draw(rng, count, (16, 16), 10)
        lines = []
        for image, label in zip(images, labels, strict=True):
            values = image.ravel() / 127.5 - 1
            row = " ".join(f"{place}:{value:.6f}" for place, value in enumerate(values, 1))
            lines.append(f"{label + 1} {row}")
        (root / name).write_bytes(bz2.compress(("\n".join(lines) + "\n").encode()))


def write_folder(root: Path, sizes: tuple[int, ...] = (24,)) -> None:
    """Write PNG files of three classes, in the sizes given, one after the other."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for half, count in (("train", 12), ("test", 6)):
        for number in range(count):
            folder = root / half / f"class-{number % 3}"
            folder.mkdir(parents=True, exist_ok=True)
            size = sizes[number % len(sizes)]
            pixels = rng.integers(256, size=(size, size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
