"""Jobs of the benchmark: one per scenario and policy, all policies on the same draws."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from flower_scheduling.strategies import (
    POLICIES,
    Explanation,
    RoundContext,
    RoundOutcome,
    SchedulingPolicy,
    Selection,
    build_policy,
)
from flower_scheduling.strategies.base import BoolArray, FloatArray
from flower_scheduling.strategies.registry import runnable_policies
from flower_scheduling.strategies.selection import top_arms

from ..engine.study import SEEDS_PER_CHUNK, Contender, drop, run_chunk
from ..environments.paper import Environment
from ..jobs import Arrays, Job, digest_files
from ..theory.optimum import best_stationary_policy, mean_slowest_of_law
from .scenario import Scenario

SEED: Final = 20
# Label of the time that policies are compared with: the clairvoyant oracle's, or under floors the
# linear program's.
REFERENCE: Final = "reference"
# Round from which on floors are to be met; the last one of shorter runs.
FIRST_CHECK: Final = 1000
_CHECK_EVERY: Final = 250
_TIMED_ROUNDS: Final = 200


class ClairvoyantOracle(SchedulingPolicy):
    """Clairvoyant oracle: the available arms with the smallest true means of the coming round.

    In a stationary environment with all arms available it is the paper's best super arm.

    Parameters
    ----------
    environment : Environment
        Where the true means come from.
    **parameters
        Those of :class:`.SchedulingPolicy`.
    """

    name: ClassVar[str] = REFERENCE

    def __init__(self, *, environment: Environment, **parameters: Any) -> None:
        super().__init__(**parameters)
        self._environment = environment

    def _select(self, context: RoundContext) -> BoolArray:
        key = -self._means_s(context)
        return top_arms((key,), context.available, self.num_selected, self._rng)

    def _explain(self, selection: Selection) -> Explanation:
        return Explanation("smallest", "s", {"mean": self._means_s(selection.context).copy()})

    def _means_s(self, context: RoundContext) -> FloatArray:
        return self._environment.expected_time_s(self.tau_max_s, context.round)


def eligible_policies(scenario: Scenario, more: Iterable[str] = ()) -> list[str]:
    """Return the policies that a scenario can have: those that learn from times alone.

    In a scenario with floors only those that keep floors, and random for comparison.

    Parameters
    ----------
    scenario : Scenario
        The scenario.
    more : iterable of str
        Policies besides the registered ones, as ``module:Class``.
    """
    floors = scenario.min_participation
    return [
        name
        for name in (*runnable_policies(), *more)
        if POLICIES[name].by_times_alone
        and (not floors or name == "random" or POLICIES[name].keeps_floors)
    ]


def policy_code(name: str) -> str:
    """Return a digest of the code of a policy of others: its package, or its one file."""
    module = inspect.getmodule(POLICIES[name].build)
    if module is None or module.__name__.startswith("flower_scheduling."):
        return ""
    package = sys.modules.get(module.__name__.partition(".")[0], module)
    file = Path(getattr(package, "__file__", None) or str(module.__file__))
    files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
    return digest_files((each.relative_to(file.parent).as_posix(), each) for each in files)


def jobs_of(scenario: Scenario, policies: list[str]) -> list[Job]:
    """Return the jobs of a scenario, the reference's first."""
    rows = min(scenario.seeds, SEEDS_PER_CHUNK)
    each_s = scenario.rounds * (1e-4 + 3e-8 * rows * scenario.num_clients)
    reference = partial(_floors_reference if scenario.min_participation else _reference, scenario)
    return [
        Job(f"{scenario.name}-{REFERENCE}", reference, each_s),
        *(
            Job(
                f"{scenario.name}-{name}",
                partial(_play, scenario, name),
                2 * each_s,
                policy_code(name),
            )
            for name in policies
        ),
    ]


def _contender(scenario: Scenario, name: str) -> Contender:
    floors = scenario.min_participation
    params = {"min_participation": floors} if floors and POLICIES[name].keeps_floors else {}
    return Contender(name, params)


def _run(scenario: Scenario, contender: Contender) -> Arrays:
    first = min(FIRST_CHECK, scenario.rounds)
    checkpoints = list(range(first, scenario.rounds + 1, _CHECK_EVERY))
    parts = [
        run_chunk(
            {"": contender},
            scenario.environment(),
            chunk,
            num_selected=scenario.num_selected,
            tau_max_s=scenario.tau_max_s,
            num_rounds=scenario.rounds,
            num_seeds=scenario.seeds,
            seed=SEED,
            checkpoints=checkpoints,
            true_means=False,
        )[""]
        for chunk in _chunks(scenario)
    ]
    found = {
        "time_s": np.concatenate([part.total_time_s for part in parts]),
        "failures": np.concatenate([part.failures for part in parts]),
    }
    if floors := scenario.min_participation:
        played = np.concatenate([part.play_count_at for part in parts])
        share = played / np.array(checkpoints)[:, np.newaxis]
        found["shortfall"] = (np.array(floors) - share).max(axis=(1, 2), initial=0.0)
    return found


def _play(scenario: Scenario, name: str) -> Arrays:
    found = _run(scenario, _contender(scenario, name))
    return {**found, "decision_s": np.array(_decision_s(scenario, name))}


def _reference(scenario: Scenario) -> Arrays:
    return _run(
        scenario, Contender(ClairvoyantOracle, from_environment=lambda env: {"environment": env})
    )


def _floors_reference(scenario: Scenario) -> Arrays:
    """Return the optimum of the linear program with the laws of all times, for each seed."""
    costs = []
    for chunk in _chunks(scenario):
        env = drop(scenario.environment(), chunk, scenario.seeds, SEED)
        survival, weight_s = env.time_law(scenario.tau_max_s)
        for row in range(survival.shape[1]):
            cost = mean_slowest_of_law(survival[:, row], weight_s)
            best = best_stationary_policy(
                cost,
                min_participation=scenario.min_participation,
                num_selected=scenario.num_selected,
                availability=scenario.availability,
                num_samples=1 if (scenario.availability == 1.0).all() else None,
            )
            costs.append(best.cost_s)
    return {"time_s": scenario.rounds * np.array(costs)}


def _chunks(scenario: Scenario) -> range:
    return range(-(-scenario.seeds // SEEDS_PER_CHUNK))


def _decision_s(scenario: Scenario, name: str) -> float:
    """Measure what one decision takes in a deployment, without a batch [s]."""
    policy = build_policy(
        name,
        num_arms=scenario.num_clients,
        num_selected=scenario.num_selected,
        tau_max_s=scenario.tau_max_s,
        rng=np.random.default_rng(SEED),
        **_contender(scenario, name).params,
    )
    env = scenario.environment()(seed=SEED)
    begin_s, drawing_s = time.perf_counter(), 0.0
    for t in range(1, _TIMED_ROUNDS + 1):
        draw_s = time.perf_counter()
        draw = env.round(t)
        time_s = draw.round_trip_time_s
        context = RoundContext(t, draw.available, draw.member)
        outcome = RoundOutcome(time_s, time_s <= scenario.tau_max_s)
        drawing_s += time.perf_counter() - draw_s
        policy.tell(policy.ask(context), outcome)
    return (time.perf_counter() - begin_s - drawing_s) / _TIMED_ROUNDS


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one policy in one scenario.

    Attributes
    ----------
    scenario : Scenario
        The scenario.
    policy : str
        The policy's name.
    time_s, reference_s : (num_seeds,) float64
        Total time, its own and the reference's [s].
    shortfall : (num_seeds,) float64 or None
        By how much the share of some client fell short of its floor at worst, from round 1000 on;
        ``None`` without floors.
    decision_s : float
        Time of a decision [s].
    """

    scenario: Scenario
    policy: str
    time_s: Any
    reference_s: Any
    shortfall: Any
    decision_s: float


def results_of(
    scenarios: list[Scenario], policies: Mapping[str, list[str]], computed: Mapping[str, Arrays]
) -> list[Result]:
    """Return the results in the order of scenarios and policies, from those of the jobs."""
    return [
        Result(
            scenario,
            name,
            computed[f"{scenario.name}-{name}"]["time_s"],
            computed[f"{scenario.name}-{REFERENCE}"]["time_s"],
            computed[f"{scenario.name}-{name}"].get("shortfall"),
            float(computed[f"{scenario.name}-{name}"]["decision_s"]),
        )
        for scenario in scenarios
        for name in policies[scenario.name]
    ]
