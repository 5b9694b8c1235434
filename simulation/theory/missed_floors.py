"""Missed floors: when a share falls short of its floor by more than a policy may lag."""

from __future__ import annotations

from typing import Final

from flower_scheduling.strategies.floors import LAG

# By how much a share may fall short of its floor and still count as kept: the smaller of the two.
_SHORTFALL: Final = 0.01
_PART_OF_FLOOR: Final = 0.1


def missed_floor(share: float | None, floor: float | None, turns: int, lag: int = LAG) -> bool:
    """Return whether a client missed its floor, by more than what is tolerated.

    Parameters
    ----------
    share : float or None
        Its share of the rounds, or of the updates in buffered mode; ``None``: it was never there.
    floor : float or None
        The share that it is guaranteed; ``None``: there is none.
    turns : int
        Rounds or updates while it was there.
    lag : int
        How many of them it may be behind.
    """
    if floor is None or share is None:
        return False
    short = floor - share
    return short > min(_SHORTFALL, _PART_OF_FLOOR * floor) and short * turns > lag
