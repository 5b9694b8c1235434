"""Models for images of 28 x 28 pixels, and their weights on the way to and from messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from torch import nn

from flower_scheduling._flwr import new_record
from flower_scheduling.errors import ClientConfigError, ConfigError, nearest

from ..wire.arrays import decode_array, encode_array

__all__ = [
    "MODELS",
    "NUM_CLASSES",
    "NUM_PIXELS",
    "LogisticRegression",
    "Model",
    "ModelSpec",
    "SmallCnn",
    "create_model",
    "initial_arrays",
]

NUM_PIXELS: Final = 28 * 28
NUM_CLASSES: Final = 10


class LogisticRegression(nn.Linear):
    """Multinomial logistic regression on pixels, starting from zero weights as in the paper."""

    def __init__(self) -> None:
        super().__init__(NUM_PIXELS, NUM_CLASSES)

    def reset_parameters(self) -> None:
        """Set weights and biases to zero."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images (batch, 28, 28), float32 in [0, 1], to logits (batch, 10)."""
        return super().forward(images.flatten(1))


class SmallCnn(nn.Sequential):
    """Convolutional network of two strided convolutions and one linear layer, 18,378 parameters.

    Strides in place of pooling evaluate ten times faster on a CPU for a point of accuracy.
    """

    def __init__(self) -> None:
        super().__init__(
            nn.Unflatten(1, (1, 28)),  # (batch, 28, 28) to (batch, 1, 28, 28)
            nn.Conv2d(1, 16, kernel_size=5, stride=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=5, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, NUM_CLASSES),
        )


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Entry of the registry of models.

    Attributes
    ----------
    name : str
        Name in command lines and TOML.
    build : callable
        Makes the module; random weights come from torch's global generator.
    summary : str
        One line for help texts.
    """

    name: str
    build: Callable[[], nn.Module]
    summary: str


# By the name that command line and TOML use.
MODELS: Final[Mapping[str, ModelSpec]] = {
    spec.name: spec
    for spec in (
        ModelSpec(
            "logistic",
            LogisticRegression,
            "multinomial logistic regression from zero weights, the paper's model",
        ),
        ModelSpec("cnn", SmallCnn, "small convolutional network"),
    )
}


class Model:
    """Torch module with numpy views of its weights; made once and kept, since making one is slow.

    Attributes
    ----------
    name : str
        Name in :data:`MODELS`.
    module : torch.nn.Module
        Maps images (batch, 28, 28), float32 in [0, 1], to logits (batch, 10).
    views : dict of str to float32 array
        The weights by their ``state_dict`` key; share memory with the module.
    num_bytes : int
        Their size.
    """

    __slots__ = ("module", "name", "num_bytes", "views")

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self.module = module
        self.views: dict[str, NDArray[Any]] = {
            key: tensor.numpy() for key, tensor in module.state_dict().items()
        }
        self.num_bytes = sum(view.nbytes for view in self.views.values())

    def load(self, arrays: ArrayRecord) -> None:
        """Set the weights to those of a message.

        Parameters
        ----------
        arrays : ArrayRecord
            Arrays by ``state_dict`` key.

        Raises
        ------
        ClientConfigError
            If keys or shapes are not this model's: server and client train different models.
        """
        if arrays.keys() != self.views.keys():
            raise ClientConfigError(
                f"received arrays {sorted(arrays)}: model {self.name!r} has {sorted(self.views)}"
            )
        for key, view in self.views.items():
            values = decode_array(arrays[key])
            if values.shape != view.shape:
                raise ClientConfigError(
                    f"received {key!r} of shape {values.shape}:"
                    f" model {self.name!r} has {view.shape}"
                )
            view[...] = values

    def arrays(self) -> ArrayRecord:
        """Return a copy of the weights for a message, by ``state_dict`` key."""
        arrays = {key: encode_array(view) for key, view in self.views.items()}
        return new_record(ArrayRecord, arrays)


def create_model(name: str, seed: int = 0) -> Model:
    """Build a model with its initial weights.

    Parameters
    ----------
    name : str
        Name in :data:`MODELS`.
    seed : int, >= 0
        Seed of random weights; torch's global generator is left as it was.

    Returns
    -------
    Model
        Fresh model.

    Raises
    ------
    ConfigError
        If there is no such model.
    """
    if name not in MODELS:
        listed = ", ".join(MODELS)
        raise ConfigError("model", name, f"must be one of {listed}", nearest(name, MODELS))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(name, MODELS[name].build())


def initial_arrays(name: str, seed: int = 0) -> ArrayRecord:
    """Return a model's initial weights, as :func:`create_model` makes them, for a message."""
    return create_model(name, seed).arrays()
