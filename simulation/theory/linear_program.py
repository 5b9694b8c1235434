"""Optimum of the paper's linear program as a policy, with the laws of all times known."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from flower_scheduling.client.learning.datasets import load_data
from flower_scheduling.client.learning.partitions import build_partition
from flower_scheduling.strategies import parse_floors
from flower_scheduling.strategies.base import (
    BoolArray,
    Explanation,
    RoundContext,
    SchedulingPolicy,
    Selection,
)
from flower_scheduling.strategies.deadline import AUTO

from ..settings import SimulationConfig
from .optimum import StationaryPolicy, best_stationary_policy, mean_slowest_of_law


class StationaryPolicyPlayer(SchedulingPolicy):
    """Policy that draws each super arm as a stationary policy says for the available arms.

    Parameters
    ----------
    plan : StationaryPolicy
        From :func:`.best_stationary_policy`, for every availability set.
    **parameters
        Those of :class:`.SchedulingPolicy`, without a batch.
    """

    name: ClassVar[str] = "linear-program"

    def __init__(self, *, plan: StationaryPolicy, **parameters: Any) -> None:
        super().__init__(**parameters)
        self._plan = plan

    def _select(self, context: RoundContext) -> BoolArray:
        plays = np.flatnonzero((self._plan.available == context.available).all(axis=1))
        chance = self._plan.probability[plays]
        play = self._rng.choice(plays, p=chance / chance.sum())
        return np.asarray(self._plan.super_arm[play].copy())

    def _explain(self, selection: Selection) -> Explanation:
        return Explanation("drawn", "", {"chance": self._plan.fraction.copy()})


def linear_program(config: SimulationConfig) -> StationaryPolicyPlayer:
    """Return the optimum under a simulation's floors, with the laws of all times known.

    Parameters
    ----------
    config : SimulationConfig
        Settings: few clients, since every availability set is looked at, and payloads in bits.
    """
    labels = load_data(config.dataset, config.data_dir).train_labels.numpy()
    partition = build_partition(config.partitioner, labels, config.num_clients, config.seed)
    sizes = [len(indices) for indices in partition]
    config.require("tau_max_s", config.tau_max_s != AUTO, "a number for the optimum")
    assert config.tau_max_s != AUTO
    survival, weight_s = config.environment(0).time_law(config.tau_max_s)
    plan = best_stationary_policy(
        mean_slowest_of_law(survival, weight_s),
        min_participation=parse_floors(config.fairness).floors(sizes, config.num_selected),
        num_selected=config.num_selected,
        availability=config.per_client("availability"),
    )
    return StationaryPolicyPlayer(
        plan=plan,
        num_arms=config.num_clients,
        num_selected=config.num_selected,
        tau_max_s=config.tau_max_s,
        rng=np.random.default_rng(config.seed),
    )
