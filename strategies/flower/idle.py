"""Arguments of a ScheduledStrategy that have no effect beside the others."""

from __future__ import annotations

from typing import Final

from ..fairness import FloorRule

FAIRNESS: Final = "heuristic:0.5"
MAX_STALENESS: Final = 100
LEAST_WORK: Final = 0.25
MOST_WORK: Final = 4.0


def idle_arguments(
    *,
    in_steps: bool,
    buffered: bool,
    by_speed: bool,
    keeps_floors: bool,
    fairness: str | FloorRule,
    max_staleness: int,
    staleness_discount: float,
    even_weights: bool | None,
    least_work: float,
    most_work: float,
) -> list[str]:
    """Return a line for each argument that is not the default and has no effect.

    Parameters
    ----------
    in_steps, buffered, by_speed, keeps_floors : bool
        Whether updates may be stale, whether the mode is buffered, whether work is by speed, and
        whether the policy keeps floors.
    fairness, max_staleness, staleness_discount, even_weights, least_work, most_work
        As they were given.
    """
    stale = 'mode="buffered", or for spare clients with late_updates="use"'
    idle = {
        "fairness": (
            fairness not in (FAIRNESS, "none") and not keeps_floors,
            "policies that keep floors, as cs-ucb-q-adaptive does",
        ),
        "max_staleness": (max_staleness != MAX_STALENESS and not in_steps, stale),
        "staleness_discount": (staleness_discount != 0.0 and not in_steps, stale),
        "even_weights": (even_weights is not None and not buffered, 'mode="buffered"'),
        "least_work": (least_work != LEAST_WORK and not by_speed, 'local_work="equal-time"'),
        "most_work": (most_work != MOST_WORK and not by_speed, 'local_work="equal-time"'),
    }
    return [
        f"{name} has no effect: it is for {what}"
        for name, (is_idle, what) in idle.items()
        if is_idle
    ]
