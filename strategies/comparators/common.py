"""What the comparators share: clipped times and flat views."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base import FloatArray, RoundOutcome, SchedulingPolicy, Selection


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
