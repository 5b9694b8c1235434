"""Clients that join and slow down do so at the round that the settings name, in every mode."""

from __future__ import annotations

from typing import Any

import pytest

from flower_scheduling.simulation.engine.runner import Simulation
from flower_scheduling.simulation.settings import SCENARIOS, SimulationConfig

SMALL = {
    **SCENARIOS["ideal"],
    **{"scenario": "ideal", "strategy": "random", "partitioner": "iid:50", "num-clients": 8},
    **{"num-selected": 4, "rounds": 12, "target-accuracy": 0.0, "tau-max-s": 50.0},
}


@pytest.mark.parametrize(
    "mode", [{}, *({"mode": "buffered", "buffer-size": size} for size in (1, 2, 4))]
)
@pytest.mark.usefixtures("mnist")
def test_a_client_joins_at_its_round(mode: dict[str, Any]) -> None:
    config = SimulationConfig.from_mapping({**SMALL, **mode, "joins": "8:10"})
    records = Simulation(config).run().records
    assert [record.num_arms for record in records] == [7] * 9 + [8] * 3
