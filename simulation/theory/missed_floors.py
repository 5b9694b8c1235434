"""Missed floors: when a share of rounds falls short of its floor by more than chance explains."""

from __future__ import annotations

from typing import Final

# By how much a share may fall short of its floor and still count as kept: the smaller of the two.
_SHORTFALL: Final = 0.01
_PART_OF_FLOOR: Final = 0.1
# Rounds that even a policy which keeps its floors may lag for a while.
_LAG: Final = 6.0


def missed_floor(share: float | None, floor: float | None, rounds: int) -> bool:
    """Return whether a client missed its floor, by more than what is tolerated.

    Parameters
    ----------
    share : float or None
        Its share of the rounds; ``None``: it was never there.
    floor : float or None
        The share that it is guaranteed; ``None``: there is none.
    rounds : int
        Rounds in which it was there.
    """
    if floor is None or share is None:
        return False
    short = floor - share
    return short > min(_SHORTFALL, _PART_OF_FLOOR * floor) and short * rounds > _LAG
