"""What the comparators share: clipped times, reported losses, draws, flat views."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ..base import BoolArray, FloatArray, IntArray, RoundOutcome, SchedulingPolicy, Selection
from ..selection import top_arms

_LARGEST_LOSS: Final = 1e100


def flat(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a view of a contiguous array with one axis."""
    return array.reshape(-1)


def times_s(policy: SchedulingPolicy, selection: Selection, outcome: RoundOutcome) -> FloatArray:
    """Return the time of each selected arm, in the order of ``selection.positions``.

    Parameters
    ----------
    policy : SchedulingPolicy
        Whose ``tau_max_s`` limits the times.
    selection, outcome
        A round that was checked.

    Returns
    -------
    (number selected,) float64, in [0, tau_max]
        min(tau_k, tau_max), and tau_max for an arm that did not complete [s].
    """
    arms = selection.positions
    completed = outcome.completed.take(arms)
    time_s = np.where(completed, outcome.round_trip_time_s.take(arms), policy.tau_max_s)
    return np.minimum(time_s, policy.tau_max_s)


def rewards(policy: SchedulingPolicy, selection: Selection, outcome: RoundOutcome) -> FloatArray:
    """Return the reward of each selected arm, 1 - tau / tau_max; else like :func:`times_s`."""
    return 1.0 - times_s(policy, selection, outcome) / policy.tau_max_s


def learn_losses(last_loss: FloatArray, selection: Selection, outcome: RoundOutcome) -> None:
    """Note the losses that selected arms report, by their absolute values.

    Parameters
    ----------
    last_loss : (*batch, num_arms) float64
        Changed where a selected arm reports a finite loss.
    selection, outcome
        A round that was checked.
    """
    reported = outcome.reported.get("loss")
    if reported is not None:
        known = selection.mask & np.isfinite(reported)
        last_loss[known] = np.minimum(np.abs(reported[known]), _LARGEST_LOSS)


def known_or_mean(last_loss: FloatArray) -> FloatArray:
    """Return losses, with the mean of the row's known ones where an arm's is not known.

    Parameters
    ----------
    last_loss : (*batch, num_arms) float64
        ``-inf`` where nothing is known.

    Returns
    -------
    (*batch, num_arms) float64
        1 in a row without any known loss.
    """
    known = np.isfinite(last_loss)
    count = np.count_nonzero(known, axis=-1)[..., np.newaxis]
    total = np.where(known, last_loss, 0.0).sum(axis=-1, keepdims=True)
    mean = np.where(count > 0, total / np.maximum(count, 1), 1.0)
    return np.where(known, last_loss, mean)


def largest(key: FloatArray, count: IntArray) -> BoolArray:
    """Return the mask of the largest in each row, ``count`` of them."""
    mask = np.zeros(key.shape, dtype=np.bool_)
    among = np.arange(key.shape[-1]) < count[..., np.newaxis]
    np.put_along_axis(mask, np.argsort(-key, axis=-1), among, axis=-1)
    return mask


def draw(
    probability: FloatArray, available: BoolArray, num_selected: int, rng: np.random.Generator
) -> BoolArray:
    """Draw super arms in which each arm is with its probability.

    By systematic sampling in random order (Madow, 1949).

    Parameters
    ----------
    probability : (*batch, num_arms) float64, in [0, 1]
        0 where an arm is not available; each row sums to min(N, number of available arms).
    available : (*batch, num_arms) bool
        Arms that may be selected.
    num_selected : int, >= 1
        N.
    rng : numpy.random.Generator
        What draws.

    Returns
    -------
    (*batch, num_arms) bool
        In each row ``min(num_selected, number of available arms)`` arms are true.
    """
    rows = probability.reshape(-1, probability.shape[-1])
    order = np.argsort(rng.random(rows.shape), axis=1)
    sums = np.cumsum(np.take_along_axis(rows, order, axis=1), axis=1)
    start = rng.random((len(sums), 1))
    hit = np.diff(np.floor(sums + start), axis=1, prepend=0.0) > 0.0
    chosen = np.zeros(rows.shape)
    np.put_along_axis(chosen, order, hit.astype(np.float64), axis=1)
    # The sums end at a whole number but for rounding, which this makes harmless.
    return top_arms((chosen.reshape(available.shape),), available, num_selected, rng)
