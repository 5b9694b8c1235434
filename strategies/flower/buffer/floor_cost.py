"""What floors cost buffered mode: the updates a second that they leave possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...base import FloatArray, IntArray

_TIMES: Final = 3
"""Answers of each client with a floor before its mean time is known."""
_LEAST: Final = 2.0
"""Factor that floors must cost to be worth a line."""


class FloorCost:
    """Watch what floors cost in speed, and say so once in a line.

    With shares c_k of all updates and mean times m_k, a fleet makes in a second at most

        R = min(N / sum over k of c_k m_k, min over k of 1 / (c_k m_k))

    updates: N channels have no more time, and no client is at work more than all the time. Without
    floors the N fastest clients make sum over them of 1 / m_k.

    Parameters
    ----------
    num_channels : int
        N.
    """

    def __init__(self, num_channels: int) -> None:
        self._num_channels = num_channels
        self._count: IntArray = np.zeros(0, dtype=np.int64)
        self._sum_s: FloatArray = np.zeros(0)
        self._said = False

    def note(self, arm: int, time_s: float) -> bool:
        """Take note of an answer; tell whether it is worth asking for :meth:`line`.

        Parameters
        ----------
        arm : int
            Who has answered.
        time_s : float
            Round-trip time [s].
        """
        if self._said:
            return False
        missing = max(arm + 1 - self._count.size, 0)
        self._count = np.pad(self._count, (0, missing))
        self._sum_s = np.pad(self._sum_s, (0, missing))
        self._count[arm] += 1
        self._sum_s[arm] += time_s
        return bool(self._count[arm] == _TIMES)

    def line(self, floors: FloatArray, names: Sequence[str]) -> str | None:
        """Return the line, the first time that the times of all clients with floors are known.

        Parameters
        ----------
        floors : (num_arms,) float64
            Least shares c of all updates of those that are there; 0 for the others.
        names : sequence of str
            Of all arms.

        Returns
        -------
        str or None
            ``None``: there is nothing to say yet, or floors cost little.
        """
        missing = floors.size - self._count.size
        self._count = np.pad(self._count, (0, missing))
        self._sum_s = np.pad(self._sum_s, (0, missing))
        with_floor = floors > 0
        if not with_floor.any() or (self._count[with_floor] < _TIMES).any():
            return None
        self._said = True
        mean_s = np.maximum(self._sum_s, 1e-9) / np.maximum(self._count, 1)
        free = float((1.0 / np.sort(mean_s[self._count > 0])[: self._num_channels]).sum())
        owed_s = floors * mean_s
        slowest = int(owed_s.argmax())
        by_channels, by_slowest = self._num_channels / owed_s.sum(), 1.0 / owed_s[slowest]
        most = min(by_channels, by_slowest)
        if free < _LEAST * most:
            return None
        text = f"floors leave at most {most:.3g} updates/s, without them {free:.3g}: "
        if by_slowest < by_channels:
            return text + (
                f"{names[slowest]} takes {mean_s[slowest]:.3g} s and is guaranteed "
                f"{floors[slowest]:.1%} of all updates, so channels stay free while it works"
            )
        return text + f"guaranteed updates take {owed_s.sum():.3g} s of a channel per update"
