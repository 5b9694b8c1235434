"""What one round leaves behind: the record that hooks, run directory and progress read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from flwr.app import ArrayRecord

from ..base import Explanation, FloatArray


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round as it was run and measured.

    Lists named "per selected" are parallel to :attr:`selected`; ``None`` where unknown.

    Attributes
    ----------
    round : int
        Flower's round number, from 1.
    time_s : float
        End of the round since the start of the run [s], on the grid's clock (real or virtual).
    round_s : float
        Length of the round [s], from the first message out to the last reply or the deadline.
    num_arms : int
        Arms known so far.
    available : list of int
        Arms that could have been selected.
    selected : list of int
        The super arm, in the order of arms.
    names : list of str
        Their names, per selected.
    rtt_s : list of float or None
        Round-trip time [s] per selected; ``None`` where no reply came in time.
    completed : list of bool
        Whether a usable update came in time, per selected.
    reason : list of str or None
        Why not, per selected: ``kind`` or ``kind: details`` (see :func:`failure_kind`).
    compute_s, link_s : list of float or None
        Local update and emulated link time [s] as the client reports them, per selected.
    stepped : bool
        Whether the model changed.
    no_step : str or None
        Why it did not: ``nobody-available``, ``no-replies``, ``quorum``, ``aggregation``.
    accuracy, loss : float or None
        Of the new model on the server, where evaluated.
    absent : list of int
        Arms that were owed nothing in this round, having left or being on leave.
    explanation : Explanation or None
        Why these were selected, over all arms; ``None`` where the strategy was not to explain.
    queue : (num_arms,) float64 or None
        Virtual queues after the round [rounds], with the explanation; ``None`` for a policy
        without.
    """

    round: int
    time_s: float
    round_s: float
    num_arms: int
    available: list[int]
    selected: list[int]
    names: list[str]
    rtt_s: list[float | None]
    completed: list[bool]
    reason: list[str | None]
    compute_s: list[float | None]
    link_s: list[float | None]
    stepped: bool
    no_step: str | None = None
    accuracy: float | None = None
    loss: float | None = None
    absent: list[int] = field(default_factory=list)
    explanation: Explanation | None = field(default=None, compare=False)
    queue: FloatArray | None = field(default=None, compare=False)


RoundHook = Callable[[RoundRecord, ArrayRecord], None]
"""Called after each round with its record and the current model."""


def failure_kind(reason: str) -> str:
    """Return what failures of this reason are counted by: ``kind`` of ``kind: details``."""
    return reason.partition(":")[0]
