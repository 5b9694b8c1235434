"""What replays say of random selection holds what random selection really takes."""

from __future__ import annotations

import numpy as np
import pytest

from flower_scheduling.simulation.engine.replayer import replay
from flower_scheduling.simulation.environments.paper import Environment
from flower_scheduling.simulation.environments.recorded import RunRecord
from flower_scheduling.strategies import RoundContext, RoundOutcome, build_policy
from flower_scheduling.strategies.base import FloatArray

pytestmark = [pytest.mark.statistical, pytest.mark.slow]

TAU_MAX_S = 5.0
NUM_ROUNDS = 300


def recorded(
    policy: str, num_arms: int, num_selected: int, failure: float, num_runs: int
) -> tuple[list[RunRecord], FloatArray]:
    """Return the records of runs in as many worlds, and what random selection takes there [s]."""
    env = Environment(
        num_arms=num_arms,
        batch_shape=(num_runs,),
        seed=3,
        availability=0.9,
        failure_probability=failure,
    )
    players = [
        build_policy(
            name,
            num_arms=num_arms,
            num_selected=num_selected,
            tau_max_s=TAU_MAX_S,
            batch_shape=(num_runs,),
            rng=np.random.default_rng(10),
        )
        for name in (policy, "random")
    ]
    samples: list[list[list[float]]] = [[[] for _ in range(num_arms)] for _ in range(num_runs)]
    available = np.empty((num_runs, NUM_ROUNDS, num_arms), dtype=np.bool_)
    took_s = np.zeros((2, num_runs))
    for t in range(1, NUM_ROUNDS + 1):
        draw = env.round(t)
        available[:, t - 1] = draw.available
        time_s = draw.round_trip_time_s
        for number, player in enumerate(players):
            selection = player.ask(RoundContext(t, draw.available, draw.member))
            player.tell(selection, RoundOutcome(time_s, time_s <= TAU_MAX_S))
            chosen_s = np.where(selection.mask, np.minimum(time_s, TAU_MAX_S), 0.0)
            took_s[number] += chosen_s.max(axis=1)
            if number == 0:
                for run, arm in np.argwhere(selection.mask):
                    value = float(time_s[run, arm])
                    samples[run][arm].append(value if value <= TAU_MAX_S else np.inf)
    records = [
        RunRecord(
            names=tuple(f"c{arm}" for arm in range(num_arms)),
            policy=policy,
            num_selected=num_selected,
            num_rounds=NUM_ROUNDS,
            tau_max_s=TAU_MAX_S,
            samples_s=tuple(np.array(values) for values in samples[run]),
            available=available[run],
            member=np.ones((NUM_ROUNDS, num_arms), dtype=np.bool_),
            floors=(),
            params={},
            time_s=float(took_s[0, run]),
            measured_s=float(took_s[0, run]),
        )
        for run in range(num_runs)
    ]
    return records, took_s[1]


@pytest.mark.parametrize(("num_arms", "num_selected"), [(10, 4), (20, 5)])
@pytest.mark.parametrize("failure", [0.0, 0.03, 0.1])
@pytest.mark.parametrize("policy", ["cs-ucb-adaptive", "cs-ucb"])
def test_intervals_hold_what_random_selection_takes(
    policy: str, num_arms: int, num_selected: int, failure: float
) -> None:
    """At least 12 of 16: with a true coverage of 95 %, less in one of a thousand."""
    records, random_s = recorded(policy, num_arms, num_selected, failure, 16)
    found = [replay(record, ["random"], num_seeds=60) for record in records]
    told = [other.time_s for _, other in found]
    held = [each.low <= true_s <= each.high for each, true_s in zip(told, random_s, strict=True)]
    assert sum(held) >= 12
    ratio = [
        again.time_s.mean / record.time_s for (again, _), record in zip(found, records, strict=True)
    ]
    assert np.median(ratio) == pytest.approx(1.0, abs=0.15)
