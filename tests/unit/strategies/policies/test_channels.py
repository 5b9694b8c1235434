"""Channels under floors: none stays free without need, whatever the floors, and they are kept."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
import pytest

from flower_scheduling.client.link.model import LinkModel
from flower_scheduling.strategies import RoundContext, RoundOutcome, build_policy
from flower_scheduling.strategies.base import FloatArray, Selection

TAU_MAX_S = 5.0
NUM_ENDS, WARM_UP = 3000, 500
POLICIES = ("cs-ucb-q-adaptive", "proportional-fair")


def radio(rng: np.random.Generator) -> FloatArray:
    """Draw times of eight clients behind the paper's links, computing for up to 0.6 s."""
    link_s = LinkModel().draw_link_s(rng, np.linspace(100.0, 500.0, 8))
    return np.asarray(link_s + np.geomspace(0.08, 0.64, 8) / rng.uniform(0.8, 1.25, 8))


def steady(rng: np.random.Generator) -> FloatArray:
    """Draw times of twenty clients, the slowest ten times as slow as the fastest."""
    return np.asarray(np.geomspace(0.1, 1.0, 20) * rng.uniform(0.8, 1.2, 20))


def play(
    name: str,
    draw: Callable[[np.random.Generator], FloatArray],
    num_channels: int,
    floors: FloatArray,
    found_deadline: bool = False,
) -> tuple[float, float, FloatArray]:
    """Return the updates a second, the share of time that channels were free, and all shares."""
    rng, num_arms = np.random.default_rng(1), floors.size
    policy = build_policy(
        name,
        num_arms=num_arms,
        num_selected=num_channels,
        tau_max_s=TAU_MAX_S,
        rng=np.random.default_rng(2),
        channels=True,
        min_participation=floors,
    )
    under_way: list[tuple[float, int, float, Selection]] = []
    at_work = np.zeros(num_arms, dtype=np.bool_)
    ended = np.zeros(num_arms)
    there = np.ones(num_arms, dtype=np.bool_)
    now_s = begin_s = free_s = 0.0
    for end in range(1, NUM_ENDS + 1):
        while len(under_way) < num_channels:
            selection = policy.ask(RoundContext(end, ~at_work, there))
            chosen = np.flatnonzero(selection.mask).tolist()
            if not chosen:
                break
            at_work[chosen] = True
            time_s = float(draw(rng)[chosen[0]])
            time_s = time_s if found_deadline else min(time_s, TAU_MAX_S)
            heapq.heappush(under_way, (now_s + time_s, chosen[0], time_s, selection))
        end_s, arm, time_s, selection = heapq.heappop(under_way)
        if end > WARM_UP:
            free_s += (num_channels - 1 - len(under_way)) * (end_s - now_s)
        else:
            begin_s = end_s
        now_s = end_s
        at_work[arm] = False
        ended[arm] += 1
        times = np.full(num_arms, np.nan)
        times[arm] = time_s
        now = Selection(RoundContext(end, ~at_work, there), selection.mask, selection.drawn)
        if found_deadline:  # three times what the arm takes, as AutoDeadline about allows
            policy.tau_max_s = max(3.0 * time_s, 0.3)
        policy.tell(
            now, RoundOutcome(times, selection.mask & (found_deadline or time_s < TAU_MAX_S))
        )
    took_s = now_s - begin_s
    rate = (NUM_ENDS - WARM_UP) / took_s
    return rate, free_s / took_s / num_channels, ended / NUM_ENDS


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("draw", "num_channels"), [(radio, 4), (steady, 5)])
def test_channels_are_busy_where_the_floors_let_them(
    name: str, draw: Callable[[np.random.Generator], FloatArray], num_channels: int
) -> None:
    """With the floors of a fleet that sets none, half of an equal share."""
    num_arms = draw(np.random.default_rng(0)).size
    floors = np.full(num_arms, 0.5 / num_arms)
    _, free, shares = play(name, draw, num_channels, floors)
    assert free < 0.05
    assert (shares > floors - 12 / NUM_ENDS).all()


def test_what_floors_leave_over_goes_to_the_fastest_at_nearly_their_pace() -> None:
    floors = np.full(20, 0.5 / 20)
    rate, _, _ = play("cs-ucb-q-adaptive", steady, 5, floors)
    # Half of all updates take the mean time of all clients, the other half that of the fastest.
    mean_s = np.geomspace(0.1, 1.0, 20)
    most = 5 / (0.5 * mean_s.mean() + 0.5 * mean_s[0])
    assert 0.8 * most < rate < most


@pytest.mark.parametrize("name", POLICIES)
def test_channels_stay_free_where_a_floor_needs_it(name: str) -> None:
    """A client of 20 s that is owed a tenth of all updates: one comes every 2 s, not more."""
    mean_s = np.array([2.0, 0.1, 0.1, 0.1, 0.1, 0.1])
    floors = np.array([0.1, 0.0, 0.0, 0.0, 0.0, 0.0])
    rate, free, shares = play(name, lambda rng: mean_s * rng.uniform(0.9, 1.1, 6), 3, floors)
    assert rate == pytest.approx(1.0 / (floors[0] * mean_s[0]), rel=0.1)
    assert free > 0.3
    assert shares[0] > 0.1 - 12 / NUM_ENDS


def test_proportional_fair_gives_all_the_same_time_where_the_deadline_is_found() -> None:
    """Times of three hundred to one: the deadline of the fast says nothing about the slow."""
    mean_s = np.array([0.1, 0.2, 1.0, 2.0, 1.0, 10.0, 30.0])
    draw = lambda rng: mean_s * rng.uniform(0.9, 1.1, 7)  # noqa: E731
    _, _, shares = play("proportional-fair", draw, 3, np.zeros(7), found_deadline=True)
    time_s = shares * NUM_ENDS * mean_s
    assert time_s == pytest.approx(np.full(7, time_s.mean()), rel=0.3)
