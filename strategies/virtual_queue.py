"""The virtual queue: how much participation an arm is owed."""

from __future__ import annotations

import numpy as np

from .base import BoolArray, FloatArray


def advance_virtual_queue(
    queue: FloatArray,
    selected: BoolArray,
    min_participation: FloatArray,
    member: BoolArray | None = None,
    *,
    out: FloatArray | None = None,
) -> FloatArray:
    """Advance the participation debt of every arm by one round.

    D_k(t+1) = max(D_k(t) + c_k - b_k(t), 0), the virtual-queue recursion of CS-UCB-Q (Xia et al.,
    "Multi-Armed Bandit Based Client Scheduling for Federated Learning", section V). The debt
    grows for every arm, available or not; an arm that has left the fleet (beyond the paper) owes
    and is owed nothing new.

    Parameters
    ----------
    queue : (*batch, num_arms) float64, >= 0
        Debt at the beginning of this round, D(t) [rounds].
    selected : (*batch, num_arms) bool
        The super arm, b(t): selection counts, whether or not the arm delivered.
    min_participation : (num_arms,) float64, in [0, 1)
        Least fraction of rounds in which each arm is to be selected, c.
    member : (*batch, num_arms) bool, optional
        Arms that belong to the fleet; ``None``: all.
    out : (*batch, num_arms) float64, optional
        Where to put the result; it may be `queue` itself.

    Returns
    -------
    (*batch, num_arms) float64
        Debt at the beginning of the next round; the inputs are left unchanged unless `out`
        is one of them.

    Raises
    ------
    ValueError
        If the shapes differ.
    """
    if selected.shape != queue.shape:
        raise ValueError(f"selected has shape {selected.shape}, queue has {queue.shape}")
    due = min_participation if member is None else min_participation * member
    owed: FloatArray = np.add(queue, due, out=out)
    owed -= selected
    return np.maximum(owed, 0.0, out=owed)
