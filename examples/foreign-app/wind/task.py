"""Model and data: a turbine's power over wind speed, as a cubic polynomial."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_TRUE_CURVE = np.array([0.4, 1.2, 0.3, -0.5])


def measurements(site: int, count: int = 200) -> tuple[Floats, Floats]:
    """Return a site's features (count, 4) and power (count,); each site has winds of its own."""
    rng = np.random.default_rng([2024, site])
    speed = np.clip(rng.normal(rng.uniform(-0.5, 0.5), 0.5, count), -1, 1)
    features = np.vander(speed, len(_TRUE_CURVE), increasing=True)
    return features, features @ _TRUE_CURVE + rng.normal(0, 0.05, count)


def loss(weights: Floats, features: Floats, power: Floats) -> float:
    """Return the mean squared error."""
    return float(np.mean((features @ weights - power) ** 2))


def fit(
    weights: Floats,
    features: Floats,
    power: Floats,
    *,
    epochs: int,
    learning_rate: float,
    proximal_mu: float,
) -> Floats:
    """Return the weights after gradient descent that stays near where it began (FedProx)."""
    begin = weights
    for _ in range(epochs):
        gradient = 2 * features.T @ (features @ weights - power) / len(power)
        weights = weights - learning_rate * (gradient + proximal_mu * (weights - begin))
    return weights
