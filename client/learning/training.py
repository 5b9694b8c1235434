"""Local training and evaluation of a model.

A round of the paper is one SGD step on two images. Around so little work every convenience of
torch shows (an optimiser object costs more than the step), hence a gradient written out by hand
for logistic regression.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from flower_scheduling.errors import TrainingDivergedError

from .models import LogisticRegression, Model

__all__ = ["draw_minibatches", "evaluate", "minibatch_rng", "train", "train_logistic"]

_EVALUATION_BATCH: Final = 500  # images: bounds memory on small devices, and costs no time


def minibatch_rng(
    seed: int, client: int, server_round: int, repeat: int = 0
) -> np.random.Generator:
    """Return the random stream of a client's minibatches in a round.

    It depends on nothing else, so that a simulation in any order draws what the device draws.
    ``repeat`` tells apart several local updates of a client in one step.
    """
    key: Sequence[int] | NDArray[np.uint32] = [seed, client, server_round]
    if repeat:
        key = [*key, repeat]
    if max(key) < 2**32:  # the same stream, without numpy's way from each number to its words
        key = np.array(key, dtype=np.uint32)
    return np.random.default_rng(key)


def draw_minibatches(
    rng: np.random.Generator, num_examples: int, *, local_steps: int, batch_size: int
) -> NDArray[np.int64]:
    """Draw the minibatches of a local update, with replacement.

    Parameters
    ----------
    rng : numpy.random.Generator
        See :func:`minibatch_rng`.
    num_examples : int, >= 1
        Size of the local data.
    local_steps, batch_size : int, >= 1
        Number of minibatches and their size.

    Returns
    -------
    (local_steps, batch_size) int64, in [0, num_examples)
        Indices into the local data.
    """
    return rng.integers(num_examples, size=local_steps * batch_size).reshape(
        local_steps, batch_size
    )


def train(
    model: Model,
    images: NDArray[np.uint8] | torch.Tensor,
    labels: NDArray[np.int64] | torch.Tensor,
    *,
    batch_size: int,
    learning_rate: float,
    local_steps: int,
    rng: np.random.Generator,
    proximal_mu: float = 0.0,
) -> float:
    """Train a model in place by local SGD: the local update of a round.

    Each step draws its minibatch independently and with replacement from the local data, so that
    every gradient is an unbiased estimate of the local loss's (Assumption 1 of the paper).

    Parameters
    ----------
    model : Model
        Changed in place; its weights on entry are the global model.
    images : (num_examples, *model.spec.shape) uint8 array or tensor
        Local images; a tensor takes as long to become an array as a small step.
    labels : (num_examples,) int64 array or tensor, in [0, num_classes)
        Their labels.
    batch_size : int, >= 1
        Minibatch size, varrho in the paper.
    learning_rate : float, > 0
        Step size for the minibatch's mean gradient.
    local_steps : int, >= 1
        Number of steps.
    rng : numpy.random.Generator
        Source of the minibatches, and of dropout where the model has some.
    proximal_mu : float, >= 0
        Weight mu of FedProx's term mu/2 |w - w_global|^2 (Li et al., MLSys 2020, Eq. 2).

    Returns
    -------
    float
        Mean minibatch loss (cross-entropy, without the proximal term), each before its step.

    Raises
    ------
    TrainingDivergedError
        If the loss is not finite.
    """
    batches = draw_minibatches(rng, len(labels), local_steps=local_steps, batch_size=batch_size)
    step = _train_logistic if isinstance(model.module, LogisticRegression) else _train_module
    images, labels = np.asarray(images), np.asarray(labels)
    if model.has_modes:
        with torch.random.fork_rng(devices=[]):  # a layer draws from the global generator
            torch.manual_seed(int(rng.integers(2**63)))
            model.module.train()
            try:
                loss = step(model, images, labels, batches, learning_rate, proximal_mu)
            finally:
                model.module.eval()
    else:
        loss = step(model, images, labels, batches, learning_rate, proximal_mu)
    if not math.isfinite(loss):
        raise TrainingDivergedError(
            f"the local loss is {loss}: the weights have diverged, use a smaller learning-rate"
        )
    return loss


def evaluate(model: Model, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Compute a model's loss and accuracy on labelled images.

    Parameters
    ----------
    model : Model
        Left unchanged.
    images : (num_examples, *model.spec.shape) uint8, or float32 tensor
        Images; those evaluated every round are best scaled once, by ``model.spec.scale``.
    labels : (num_examples,) int64 tensor, in [0, num_classes)
        Their labels.

    Returns
    -------
    loss : float
        Mean cross-entropy.
    accuracy : float, in [0, 1]
        Fraction of images whose largest logit is that of the label.
    """
    loss, correct = 0.0, 0
    with torch.inference_mode():
        for start in range(0, len(labels), _EVALUATION_BATCH):
            batch = slice(start, start + _EVALUATION_BATCH)
            logits = model.module(model.spec.scale(images[batch]))
            loss += float(functional.cross_entropy(logits, labels[batch], reduction="sum"))
            correct += int((logits.argmax(1) == labels[batch]).sum())
    return loss / len(labels), correct / len(labels)


def train_logistic(
    weight: NDArray[np.float32],
    bias: NDArray[np.float32],
    pixels: NDArray[np.uint8],
    labels: NDArray[np.int64],
    batches: NDArray[np.int64],
    learning_rate: float,
    proximal_mu: float = 0.0,
    normalisation: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
) -> NDArray[np.float64]:
    """Train logistic regression in place by its gradient, (softmax - onehot) x^T, in numpy.

    A third of the time that autograd takes for a minibatch of two; a test shows them equal.
    Clients are independent and may be trained together, which changes no bit of the result: each
    still has matrix products of its own.

    Parameters
    ----------
    weight : (num_clients, num_classes, num_features) float32
        Changed in place.
    bias : (num_clients, num_classes) float32
        Changed in place.
    pixels : (num_images, num_features) uint8, in [0, 255]
        Images of all clients.
    labels : (num_images,) int64, in [0, num_classes)
        Their labels.
    batches : (local_steps, num_clients, batch_size) int64
        Image indices of each minibatch.
    learning_rate : float, > 0
        Step size for the minibatch's mean gradient.
    proximal_mu : float, >= 0
        Weight of FedProx's term, see :func:`train`.
    normalisation : pair of (num_features,) float32, optional
        Mean and deviation of each feature, :meth:`.ImageSpec.flat_normalisation`.

    Returns
    -------
    (num_clients,) float64
        Mean minibatch loss, each before its step; not finite if the weights have diverged.
    """
    _, num_clients, batch_size = batches.shape
    num_classes = bias.shape[-1]
    rows = np.arange(num_clients * batch_size)
    loss = np.zeros(num_clients)
    if proximal_mu:
        global_weight, global_bias = weight.copy(), bias.copy()
    # Diverging weights are reported by the caller, once, instead of by numpy's warnings.
    with np.errstate(all="ignore"):
        for batch in batches:
            inputs = np.divide(pixels.take(batch, axis=0), 255.0, dtype=np.float32)
            if normalisation is not None:
                inputs -= normalisation[0]
                inputs /= normalisation[1]
            target = labels.take(batch.ravel())  # inputs: (num_clients, batch, num_features)
            logits = inputs @ weight.transpose(0, 2, 1)  # (num_clients, batch, num_classes)
            logits += bias[:, np.newaxis]
            logits -= logits.max(axis=2, keepdims=True)  # keeps exp in range
            softmax = np.exp(logits)
            total = softmax.sum(axis=2, keepdims=True)
            cross_entropy = np.log(total.ravel()) - logits.reshape(-1, num_classes)[rows, target]
            loss += cross_entropy.reshape(num_clients, batch_size).sum(axis=1)
            softmax /= total
            softmax.reshape(-1, num_classes)[rows, target] -= 1.0
            softmax *= learning_rate / batch_size
            if proximal_mu:
                weight -= learning_rate * proximal_mu * (weight - global_weight)
                bias -= learning_rate * proximal_mu * (bias - global_bias)
            weight -= softmax.transpose(0, 2, 1) @ inputs
            bias -= softmax.sum(axis=1)
    loss /= batch_size * len(batches)
    return loss


def _train_logistic(
    model: Model,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    batches: NDArray[np.int64],
    learning_rate: float,
    proximal_mu: float,
) -> float:
    """Train logistic regression in numpy."""
    (loss,) = train_logistic(
        model.views["weight"][np.newaxis],
        model.views["bias"][np.newaxis],
        images.reshape(len(images), model.spec.num_features),
        labels,
        batches[:, np.newaxis],
        learning_rate,
        proximal_mu,
        model.spec.flat_normalisation(),
    )
    return float(loss)


def _train_module(
    model: Model,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    batches: NDArray[np.int64],
    learning_rate: float,
    proximal_mu: float,
) -> float:
    """Train any module by autograd."""
    parameters = list(model.module.parameters())
    start = [parameter.detach().clone() for parameter in parameters] if proximal_mu else []
    loss_sum = 0.0
    for batch in batches:
        logits = model.module(model.spec.scale(torch.as_tensor(images[batch])))
        loss = functional.cross_entropy(logits, torch.as_tensor(labels[batch]))
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            if proximal_mu:
                for parameter, origin in zip(parameters, start, strict=True):
                    parameter.sub_(parameter - origin, alpha=learning_rate * proximal_mu)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(gradient, alpha=learning_rate)
        loss_sum += float(loss.detach())
    return loss_sum / len(batches)
