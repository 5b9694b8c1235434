"""Models other than logistic regression in batched training: one client after the other.

Small convolutions of several models in one pass take as long on a CPU as one after the other, so
that what is saved here are the messages alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flower_scheduling.client.learning.images import ImageData
from flower_scheduling.client.learning.models import Model, create_model
from flower_scheduling.client.learning.training import evaluate, minibatch_rng, train
from flower_scheduling.errors import TrainingDivergedError
from flower_scheduling.strategies.base import FloatArray, IntArray

from ..settings import SimulationConfig

__all__ = ["ModuleTrainer", "flat_weights", "load_weights", "split_weights"]


class ModuleTrainer:
    """Trainer and evaluator of any model of :data:`.MODELS`, with the client app's own arithmetic.

    Parameters
    ----------
    config : SimulationConfig
        Settings of the simulation.
    data : ImageData
        Training and test set.
    parts : sequence of (s_k,) int64
        Training images of each client.
    """

    def __init__(
        self, config: SimulationConfig, data: ImageData, parts: Sequence[IntArray]
    ) -> None:
        self._config = config
        self._parts = parts
        self._model = create_model(config.model, config.seed, data.spec)
        self._images = data.train_images.numpy()
        self._labels = data.train_labels.numpy()
        self._test_images = data.spec.scale(data.test_images)
        self._test_labels = data.test_labels

    def train(
        self, models: NDArray[np.float32], t: int, arms: IntArray, steps: int, repeat: int = 0
    ) -> FloatArray:
        """Train models in place on the data of clients.

        Parameters
        ----------
        models : (n, num_weights) float32
            A row for each client.
        t : int, >= 1
            Round or step in which the clients were asked.
        arms : (n,) int64
            The clients.
        steps : int, >= 1
            Local steps of each.
        repeat : int, >= 0
            How often they were asked before in this step.

        Returns
        -------
        (n,) float64
            Mean minibatch loss; infinite where the model has diverged.
        """
        config = self._config
        losses: FloatArray = np.full(arms.size, np.inf)
        for place, arm in enumerate(arms.tolist()):
            load_weights(self._model, models[place])
            part = self._parts[arm]
            try:
                losses[place] = train(
                    self._model,
                    self._images[part],
                    self._labels[part],
                    batch_size=config.batch_size,
                    learning_rate=config.learning_rate,
                    local_steps=steps,
                    rng=minibatch_rng(config.seed, arm, t, repeat),
                )
            except TrainingDivergedError:
                continue
            models[place] = flat_weights(self._model)
        return losses

    def evaluate(self, weights: NDArray[np.float32]) -> tuple[float, float]:
        """Return loss and accuracy of a model, (num_weights,) float32, on the test images."""
        load_weights(self._model, weights)
        return evaluate(self._model, self._test_images, self._test_labels)


def flat_weights(model: Model) -> NDArray[np.float32]:
    """Return a model's weights as one row, (num_weights,), in the order of their keys."""
    return np.concatenate([view.ravel() for view in model.views.values()])


def split_weights(model: Model, weights: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """Return views of a row, (num_weights,), by ``state_dict`` key; the model tells the shapes."""
    ends = np.cumsum([view.size for view in model.views.values()])
    return {
        key: part.reshape(view.shape)
        for (key, view), part in zip(model.views.items(), np.split(weights, ends[:-1]), strict=True)
    }


def load_weights(model: Model, weights: NDArray[np.float32]) -> None:
    """Set a model's weights to a row, (num_weights,)."""
    for key, values in split_weights(model, weights).items():
        model.views[key][...] = values
