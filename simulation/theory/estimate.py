"""Means with confidence intervals, from independent repetitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from flower_scheduling.strategies.base import FloatArray

# Level of all intervals.
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over repetitions and its confidence interval.

    Attributes
    ----------
    mean, low, high : float
        The estimate and the ends of its interval; equal where there is nothing random.
    count : int
        Repetitions.
    """

    mean: float
    low: float
    high: float
    count: int


def estimate(samples: ArrayLike) -> Estimate:
    """Estimate a mean with Student's t; give it differences of pairs to compare two policies.

    Parameters
    ----------
    samples : (num_repetitions,) array-like of float
        Independent repetitions, two at least.
    """
    mean, half = mean_and_half_width(np.asarray(samples, dtype=np.float64))
    return Estimate(float(mean), float(mean - half), float(mean + half), int(np.shape(samples)[0]))


def mean_and_half_width(samples: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return means over the first axis and half of their intervals' lengths.

    Parameters
    ----------
    samples : (num_repetitions, ...) float64
        Independent repetitions, two at least.
    """
    from scipy.stats import t

    count = samples.shape[0]
    factor = float(t.ppf(0.5 + CONFIDENCE / 2, count - 1)) / np.sqrt(count)
    return samples.mean(axis=0), factor * samples.std(axis=0, ddof=1)


def ratio_of_means(numerator: ArrayLike, denominator: ArrayLike) -> Estimate:
    """Estimate a ratio of two means of the same repetitions, by linearisation.

    Parameters
    ----------
    numerator, denominator : (num_repetitions,) array-like of float
        Pairs; the mean of the second must not be near 0.
    """
    over = np.asarray(numerator, dtype=np.float64)
    under = np.asarray(denominator, dtype=np.float64)
    ratio = float(over.mean() / under.mean())
    error = estimate((over - ratio * under) / under.mean())
    return Estimate(error.mean + ratio, error.low + ratio, error.high + ratio, error.count)
