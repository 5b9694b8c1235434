"""Labelled images: their shape, their scaling to model input, and a training and a test set."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["MNIST_SPEC", "ImageData", "ImageSpec", "scale_pixels"]


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """What a model must know of a data set: shape, classes and normalisation of its images.

    Attributes
    ----------
    channels, height, width : int, >= 1
        Shape of an image [pixels].
    num_classes : int, >= 1
        Labels are in [0, num_classes).
    mean, std : tuple of float, one per channel
        Model input is (pixel / 255 - mean) / std; the defaults leave pixel / 255.
    """

    channels: int
    height: int
    width: int
    num_classes: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a stored image: (height, width) if grey, else (channels, height, width)."""
        size = (self.height, self.width)
        return size if self.channels == 1 else (self.channels, *size)

    @property
    def num_features(self) -> int:
        """Number of values of an image."""
        return self.channels * self.height * self.width

    @property
    def is_normalised(self) -> bool:
        """Whether model input is anything but pixel / 255."""
        return any(self.mean) or any(value != 1.0 for value in self.std)

    def scale(self, images: torch.Tensor) -> torch.Tensor:
        """Turn stored pixels into model input.

        Parameters
        ----------
        images : (n, *shape) uint8 tensor, in [0, 255]
            Stored pixels. Floating-point images count as scaled already and pass unchanged.

        Returns
        -------
        (n, *shape) float32 tensor
            Model input.
        """
        scaled = scale_pixels(images)
        if scaled is images or not self.is_normalised:
            return scaled
        per_channel = (-1, 1, 1) if self.channels > 1 else (1,)
        mean, std = (torch.tensor(values).reshape(per_channel) for values in (self.mean, self.std))
        return scaled.sub_(mean).div_(std)

    def flat_normalisation(self) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        """Return mean and deviation of each feature, (num_features,); ``None`` if there is none."""
        if not self.is_normalised:
            return None
        num_pixels = self.height * self.width
        mean, std = (
            np.repeat(np.asarray(values, dtype=np.float32), num_pixels)
            for values in (self.mean, self.std)
        )
        return mean, std

    def describe_size(self) -> str:
        """Return the size of an image in words, ``"32 x 32 pixels in 3 channels"``."""
        channels = f" in {self.channels} channels" if self.channels > 1 else ""
        return f"{self.height} x {self.width} pixels{channels}"


MNIST_SPEC: Final = ImageSpec(1, 28, 28, 10)
"""MNIST as in the paper: pixels in [0, 1]."""


@dataclass(frozen=True, slots=True)
class ImageData:
    """Training and test set; shared within a process, so treat them as read-only.

    Attributes
    ----------
    train_images : (num_train, *spec.shape) uint8 tensor, in [0, 255]
    train_labels : (num_train,) int64 tensor, in [0, spec.num_classes)
    test_images : (num_test, *spec.shape) uint8 tensor, in [0, 255]
    test_labels : (num_test,) int64 tensor, in [0, spec.num_classes)
    spec : ImageSpec
        Shape, classes and normalisation.
    """

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor
    spec: ImageSpec = MNIST_SPEC

    def digest(self) -> str:
        """Return the first 16 hexadecimal digits of the SHA-256 of all images and labels."""
        found = hashlib.sha256()
        for tensor in (self.train_images, self.train_labels, self.test_images, self.test_labels):
            found.update(str(tuple(tensor.shape)).encode())
            found.update(np.ascontiguousarray(tensor.numpy()).data)
        return found.hexdigest()[:16]


def scale_pixels(images: torch.Tensor) -> torch.Tensor:
    """Turn stored pixels into numbers in [0, 1], pixel / 255.

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
