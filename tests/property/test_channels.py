"""Channels of any fleet: floors are kept within the bound that the docstring proves."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_scheduling.strategies import RoundContext, RoundOutcome, build_policy
from flower_scheduling.strategies.base import Selection

PATIENCE = 6.0
TAU_MAX_S = 50.0


@dataclass(frozen=True)
class Fleet:
    seed: int
    num_arms: int
    num_channels: int
    floors: list[float]  # of a sum of at most 1
    times_s: list[float]
    availability: float
    failing: float


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    num_arms = draw(st.integers(2, 12))
    parts = draw(st.lists(st.integers(0, 9), min_size=num_arms, max_size=num_arms))
    load = draw(st.sampled_from([0.2, 0.6, 0.95, 0.999]))
    floors = [load * part / max(sum(parts), 1) for part in parts]
    times = draw(st.lists(st.floats(0.01, 40.0), min_size=num_arms, max_size=num_arms))
    return Fleet(
        draw(st.integers(0, 2**32)),
        num_arms,
        draw(st.integers(1, num_arms)),
        floors,
        times,
        draw(st.sampled_from([1.0, 1.0, 0.8])),
        draw(st.sampled_from([0.0, 0.2])),
    )


@pytest.mark.parametrize("name", ["cs-ucb-q-adaptive", "cs-ucb-q-loss", "proportional-fair"])
@given(fleet=fleets())
def test_debts_stay_below_their_bound_however_slow_the_arms(name: str, fleet: Fleet) -> None:
    rng = np.random.default_rng(fleet.seed)
    policy = build_policy(
        name,
        num_arms=fleet.num_arms,
        num_selected=fleet.num_channels,
        tau_max_s=TAU_MAX_S,
        rng=np.random.default_rng(fleet.seed),
        channels=True,
        min_participation=fleet.floors,
    )
    bound = PATIENCE + np.count_nonzero(fleet.floors) + fleet.num_channels
    under_way: list[tuple[float, int, int, Selection]] = []
    at_work = np.zeros(fleet.num_arms, dtype=np.bool_)
    there = np.ones(fleet.num_arms, dtype=np.bool_)
    now_s, asked = 0.0, 0
    for end in range(1, 400):
        while len(under_way) < fleet.num_channels:
            idle = ~at_work & (rng.random(fleet.num_arms) < fleet.availability)
            there = idle | at_work
            selection = policy.ask(RoundContext(end, idle, there))
            chosen = np.flatnonzero(selection.mask)
            if not chosen.size:
                # A channel is free for want of idle arms, or for an arm at work that is owed more
                # than the update that it works on.
                behind = policy.virtual_queue - 1.0 >= PATIENCE
                assert not idle.any() or (behind & at_work).any()
                break
            (arm,) = chosen.tolist()
            asked += 1
            at_work[arm] = True
            time_s = fleet.times_s[arm] * rng.uniform(0.5, 1.2)
            heapq.heappush(under_way, (now_s + time_s, asked, arm, selection))
        if not under_way:
            continue
        end_s, _, arm, selection = heapq.heappop(under_way)
        times = np.full(fleet.num_arms, np.nan)
        times[arm] = min(end_s - now_s, TAU_MAX_S) if end_s > now_s else 0.01
        now_s = max(now_s, end_s)
        completed = selection.mask & (rng.random() >= fleet.failing)
        context = RoundContext(policy.last_round + 1, selection.context.available, there)
        outcome = RoundOutcome(
            times, completed, {"loss": np.where(completed, rng.random(), np.nan)}
        )
        policy.tell(Selection(context, selection.mask, selection.drawn), outcome)
        at_work[arm] = False
        if fleet.availability == 1.0:  # the bound is for arms that are there all the time
            assert policy.virtual_queue.max() < bound
