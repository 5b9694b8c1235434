"""Models of labelled images, and their weights on the way to and from messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from torch import nn

from flower_scheduling._flwr import new_record
from flower_scheduling.errors import ClientConfigError, ConfigError, nearest, one_line

from ..wire.arrays import decode_array, encode_array
from .images import MNIST_SPEC, ImageSpec

__all__ = [
    "MODELS",
    "LogisticRegression",
    "Model",
    "ModelSpec",
    "Perceptron",
    "SmallCnn",
    "check_trainable",
    "create_model",
    "initial_arrays",
]

_LARGEST_SMALL: Final = (
    64  # largest side of an image that a residual network is adapted to [pixels]
)


class LogisticRegression(nn.Linear):
    """Multinomial logistic regression on pixels, starting from zero weights as in the paper."""

    def __init__(self, spec: ImageSpec = MNIST_SPEC) -> None:
        super().__init__(spec.num_features, spec.num_classes)

    def reset_parameters(self) -> None:
        """Set weights and biases to zero."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map scaled images (batch, *shape), float32, to logits (batch, num_classes)."""
        return super().forward(images.flatten(1))


class Perceptron(nn.Sequential):
    """Two hidden layers of 200 units with ReLU, the "2NN" of McMahan et al. (AISTATS 2017)."""

    def __init__(self, spec: ImageSpec = MNIST_SPEC) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(spec.num_features, 200),
            nn.ReLU(),
            nn.Linear(200, 200),
            nn.ReLU(),
            nn.Linear(200, spec.num_classes),
        )


class SmallCnn(nn.Sequential):
    """Convolutional network of two strided convolutions and one linear layer.

    18,378 parameters for MNIST. Strides in place of pooling evaluate ten times faster on a CPU for
    a point of accuracy.
    """

    def __init__(self, spec: ImageSpec = MNIST_SPEC) -> None:
        height, width = (_strided(_strided(side)) for side in (spec.height, spec.width))
        if min(height, width) < 1:
            raise ValueError("it takes 13 x 13 pixels or more")
        super().__init__(
            # (batch, height, width) to (batch, 1, height, width)
            nn.Unflatten(1, (1, spec.height)) if spec.channels == 1 else nn.Identity(),
            nn.Conv2d(spec.channels, 16, kernel_size=5, stride=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=5, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * height * width, spec.num_classes),
        )


def _strided(side: int) -> int:
    """Return what a convolution of 5 x 5 with stride 2 leaves of a side [pixels]."""
    return (side - 5) // 2 + 1


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Entry of the registry of models.

    Attributes
    ----------
    name : str
        Name in command lines and TOML.
    build : callable
        Makes the module for images of a spec; random weights come from torch's global generator.
        Raises ``ValueError`` if it does not take such images.
    summary : str
        One line for help texts.
    """

    name: str
    build: Callable[[ImageSpec], nn.Module]
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
        ModelSpec("mlp", Perceptron, "two hidden layers of 200 units"),
        ModelSpec("cnn", SmallCnn, "small convolutional network"),
    )
}


class Model:
    """Torch module with numpy views of its weights; made once and kept, since making one is slow.

    Attributes
    ----------
    name : str
        Name in :data:`MODELS`, or in ``torchvision.models``.
    module : torch.nn.Module
        Maps scaled images (batch, *spec.shape), float32, to logits (batch, spec.num_classes).
    spec : ImageSpec
        The images that it takes, and how they are scaled.
    has_modes : bool
        Whether training differs from evaluation, by dropout or batch normalisation.
    views : dict of str to float32 array
        The weights by their ``state_dict`` key; share memory with the module. Counters of batches,
        which no result depends on, are left out.
    num_bytes : int
        Their size.
    """

    __slots__ = ("has_modes", "module", "name", "num_bytes", "spec", "views")

    def __init__(self, name: str, module: nn.Module, spec: ImageSpec = MNIST_SPEC) -> None:
        self.name = name
        self.module = module
        self.spec = spec
        self.has_modes = name not in MODELS
        self.views: dict[str, NDArray[Any]] = {
            key: tensor.numpy()
            for key, tensor in module.state_dict().items()
            if not key.endswith("num_batches_tracked")
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


def create_model(name: str, seed: int = 0, spec: ImageSpec = MNIST_SPEC) -> Model:
    """Build a model with its initial weights.

    Parameters
    ----------
    name : str
        Name in :data:`MODELS`, or of a classifier in ``torchvision.models``: its first convolution
        gets as many channels as the images have and its last layer as many outputs as there are
        classes. Residual networks take images of up to 64 x 64 pixels as those for CIFAR do: a
        first convolution of 3 x 3 without stride, no pooling after it (He et al., CVPR 2016, 4.2).
    seed : int, >= 0
        Seed of random weights; torch's global generator is left as it was.
    spec : ImageSpec
        The images.

    Returns
    -------
    Model
        Fresh model.

    Raises
    ------
    ConfigError
        If there is no such model, or it does not take such images.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module = MODELS[name].build(spec) if name in MODELS else _build_foreign(name, spec)
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError("model", name, _unfit(spec, error)) from None
        model = Model(name, module, spec)
        if model.has_modes:
            _check_fits(model)
    return model


def _unfit(spec: ImageSpec, error: object) -> str:
    return f"takes no images of {spec.describe_size()} ({one_line(str(error))})"


def _build_foreign(name: str, spec: ImageSpec) -> nn.Module:
    """Build a classifier of torchvision for images of a spec."""
    try:
        from torchvision import models
    except Exception as error:  # of many kinds where torchvision does not fit torch
        message = f"must be one of {', '.join(MODELS)}, and torchvision cannot be imported"
        raise ConfigError("model", name, message, one_line(str(error))) from None
    known = models.list_models(module=models)
    if name not in known:
        listed = ", ".join(MODELS)
        message = f"must be one of {listed}, or a classifier of torchvision.models, e.g. resnet18"
        raise ConfigError("model", name, message, nearest(name, [*MODELS, *known]))
    extra = {"aux_logits": False, "init_weights": True} if name in _WITH_AUXILIARIES else {}
    module: nn.Module = models.get_model(name, weights=None, num_classes=spec.num_classes, **extra)
    if isinstance(module, models.ResNet) and max(spec.height, spec.width) <= _LARGEST_SMALL:
        module.conv1 = nn.Conv2d(spec.channels, 64, kernel_size=3, padding=1, bias=False)
        nn.init.kaiming_normal_(module.conv1.weight, mode="fan_out", nonlinearity="relu")
        module.maxpool = nn.Identity()
    elif spec.channels != 3:
        _change_channels(module, spec.channels)
    if spec.channels == 1:
        module.register_forward_pre_hook(_add_channel)
    module.eval()
    return module


_WITH_AUXILIARIES: Final = ("googlenet", "inception_v3")
"""Networks that by default return more than logits in training."""


def _add_channel(module: nn.Module, images: tuple[torch.Tensor]) -> torch.Tensor:
    return images[0].unsqueeze(1)


def _change_channels(module: nn.Module, channels: int) -> None:
    """Replace the first convolution by one that takes so many channels."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Conv2d):
            changed = nn.Conv2d(
                channels,
                layer.out_channels,
                layer.kernel_size,  # type: ignore[arg-type]
                layer.stride,  # type: ignore[arg-type]
                layer.padding,  # type: ignore[arg-type]
                bias=layer.bias is not None,
            )
            parent, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(parent), attribute, changed)
            return


def _check_fits(model: Model, batch_size: int = 2) -> None:
    """Refuse a model that makes no logits of its images, as it is set: training or evaluation."""
    try:
        with torch.no_grad():
            logits = model.module(torch.zeros(batch_size, *model.spec.shape))
    except Exception as error:  # torch raises many kinds
        raise ConfigError("model", model.name, _unfit(model.spec, error)) from None
    if getattr(logits, "shape", None) != (batch_size, model.spec.num_classes):
        raise ConfigError("model", model.name, "must return logits and nothing else")


def check_trainable(model: Model, batch_size: int) -> None:
    """Refuse a model that cannot be trained on minibatches of a size; it stays as it was.

    Raises
    ------
    ConfigError
        If so: batch normalisation of one value has no deviation.
    """
    if not model.has_modes:
        return
    before = {key: tensor.clone() for key, tensor in model.module.state_dict().items()}
    model.module.train()
    try:
        with torch.random.fork_rng(devices=[]):
            _check_fits(model, batch_size)
    except ConfigError as error:
        message = f"{error.message} in minibatches of {batch_size}"
        raise ConfigError("model", model.name, message) from None
    finally:
        model.module.eval()
        for key, tensor in model.module.state_dict().items():
            tensor.copy_(before[key])


def initial_arrays(name: str, seed: int = 0, spec: ImageSpec = MNIST_SPEC) -> ArrayRecord:
    """Return a model's initial weights, as :func:`create_model` makes them, for a message."""
    return create_model(name, seed, spec).arrays()
