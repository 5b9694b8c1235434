"""The linear program, played as a policy."""

from __future__ import annotations

import numpy as np
import pytest

from flower_scheduling.simulation.settings import SCENARIOS, SimulationConfig
from flower_scheduling.simulation.theory.linear_program import linear_program
from flower_scheduling.strategies import RoundContext, RoundOutcome


@pytest.mark.usefixtures("mnist")
def test_linear_program_as_a_policy_keeps_its_floors_with_the_shortest_rounds() -> None:
    config = SimulationConfig.from_mapping(
        {**SCENARIOS["non-ideal"], "num-clients": 6, "num-selected": 2, "fairness": "equal:0.2"}
    )
    policy = linear_program(config)
    environment = config.environment(0)
    rng = np.random.default_rng(3)
    for t in range(1, 2001):
        selection = policy.ask(RoundContext(t, rng.random(6) < 0.9))
        assert selection.mask.sum() == min(2, selection.context.available.sum())
        policy.tell(selection, RoundOutcome(np.ones(6), np.ones(6, dtype=np.bool_)))
    share = policy.play_count / 2000
    assert share.min() > 0.18
    fastest = np.argsort(environment.expected_time_s(config.tau_max_s))
    assert share[fastest[0]] > 0.5, "what the floors leave over goes to the fastest"
    assert share[fastest[-1]] < 0.22
