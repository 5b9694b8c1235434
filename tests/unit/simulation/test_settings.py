"""Settings of a simulation, and the environment that they make."""

from __future__ import annotations

import numpy as np

from flower_scheduling.simulation.settings import SimulationConfig


def test_lognormal_computing_times_spread_about_the_same_mean() -> None:
    uniform, lognormal = (
        SimulationConfig.from_mapping({**law, "seed": 1})
        for law in ({}, {"compute-law": "lognormal", "compute-shape": 0.5})
    )
    times_s = [
        np.array([env.round(t).compute_s for t in range(1, 2001)])
        for env in (uniform.environment(0), lognormal.environment(0))
    ]
    means = [each.mean(axis=0) for each in times_s]
    # Standard error of a mean: 0.53 / sqrt(2000) of it; 6 of them.
    np.testing.assert_allclose(means[1], means[0], rtol=0.08)
    spread = np.log(times_s[1] / times_s[0]).std(axis=0)
    np.testing.assert_allclose(spread, 0.5, rtol=0.1)  # 6 standard errors, 1 / sqrt(4000) each
