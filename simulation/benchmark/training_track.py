"""Training track of the benchmark: seconds to an accuracy, not only seconds per round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from rich.table import Table

from ..jobs import Arrays, Job
from ..settings import SCENARIOS, SimulationConfig
from ..theory.estimate import estimate
from .tasks import policy_code

# No policy of the registry but the optimum of the paper's linear program, which knows the law of
# every time.
LINEAR_PROGRAM: Final = "linear-program"
# The leading policies, those to beat, and the shortest rounds that the floors allow.
POLICIES_SHOWN: Final = (
    *("cs-ucb-q-loss", "cs-ucb-q-adaptive", "cs-ucb-adaptive", "cs-ucb-q"),
    *("local-accuracy", "oort", "random", "round-robin", LINEAR_PROGRAM),
)
_JOB_S: Final = 12.0


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """Training task: a simulation's settings and the accuracy to be reached.

    Attributes
    ----------
    name : str
        Column title.
    target : float
        Accuracy to be reached.
    settings : mapping
        The simulation's, by flag.
    """

    name: str
    target: float
    settings: Mapping[str, Any]


TASKS: Final = {
    "paper": TrainingTask(
        "the paper's: five digits each at two of ten, one at the others",
        0.8,
        {**SCENARIOS["non-ideal"], "scenario": "non-ideal", "rounds": 6000},
    ),
    "dirichlet": TrainingTask(
        "Dirichlet, 0.1: a mixture of its own at each of twenty",
        0.86,
        {
            **SCENARIOS["ideal"],
            **{"scenario": "ideal", "rounds": 1500, "eval-every": 10, "fairness": "equal:0.1"},
            **{"partitioner": "dirichlet:0.1", "batch-size": 16, "local-steps": 10},
            "learning-rate": 0.02,
        },
    ),
    "alike": TrainingTask(
        "the same at each of twenty",
        0.78,
        {**SCENARIOS["ideal"], "scenario": "ideal", "rounds": 3000, "fairness": "none"},
    ),
}


def jobs_of(policies: Sequence[str], num_seeds: int) -> list[Job]:
    """Return the jobs: one run per task, policy and seed."""
    return [
        Job(
            _stem(task, name, seed),
            partial(_train, task, name, seed),
            _JOB_S,
            "" if name == LINEAR_PROGRAM else policy_code(name),
        )
        for task in TASKS
        for name in policies
        if _eligible(task, name)
        for seed in range(num_seeds)
    ]


def rows(
    policies: Sequence[str], num_seeds: int, results: Mapping[str, Arrays]
) -> list[dict[str, Any]]:
    """Return one row per task and policy; ``reached`` counts the runs that reached the target.

    Of a policy that did not reach it in some run, seconds and rounds are ``None``: a mean over the
    others would flatter it.
    """
    found = []
    for task, name in ((t, n) for t in TASKS for n in policies if _eligible(t, n)):
        runs = [results[_stem(task, name, seed)] for seed in range(num_seeds)]
        seconds = np.array([float(run["seconds"]) for run in runs])
        rounds = np.array([float(run["rounds"]) for run in runs])
        reached = int(np.isfinite(seconds).sum())
        whole = estimate(seconds) if reached == num_seeds else None
        found.append(
            {
                "course": task,  # the key of files written before
                "policy": name,
                "target": TASKS[task].target,
                "reached": reached,
                "runs": num_seeds,
                "seconds": whole and round(whole.mean, 1),
                "low": whole and round(whole.low, 1),
                "high": whole and round(whole.high, 1),
                "rounds": whole and round(float(rounds.mean()), 1),
                "best_accuracy": round(float(np.mean([run["best"] for run in runs])), 4),
            }
        )
    return found


def table(found: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows as a table for the terminal."""
    shown = Table(title="Seconds to an accuracy")
    shown.add_column("policy")
    for name, task in TASKS.items():
        shown.add_column(f"{name}, {task.target:.0%}", justify="right")
    for name, cells in _cells(found):
        shown.add_row(name, *cells)
    return shown


def markdown(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a table for documentation."""
    titles = [f"{task.name}; to {task.target:.0%}" for task in TASKS.values()]
    lines = [
        f"| policy | {' | '.join(titles)} |",
        "|---" * (len(titles) + 1) + "|",
        *(f"| `{name}` | {' | '.join(cells)} |" for name, cells in _cells(found)),
    ]
    return "\n".join(lines) + "\n"


def _cells(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return the cells of each policy, one per task."""
    by_place = {(row["course"], row["policy"]): row for row in found}
    names = list(dict.fromkeys(row["policy"] for row in found))
    return [(name, [_cell(by_place.get((task, name))) for task in TASKS]) for name in names]


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    if row["seconds"] is None:
        return f"{row['reached']} of {row['runs']} runs"
    return f"{row['seconds']:.0f} ({row['low']:.0f} to {row['high']:.0f})"


def _stem(task: str, name: str, seed: int) -> str:
    return f"training-{task}-{name}-{seed:02}"


def _eligible(task: str, name: str) -> bool:
    """Whether a task can have a policy: the linear program is for few clients."""
    return name != LINEAR_PROGRAM or task == "paper"


def _train(task: str, name: str, seed: int) -> Arrays:
    from ..engine.batched import run_batched
    from ..theory.linear_program import linear_program

    settings, target = TASKS[task].settings, TASKS[task].target
    known = name == LINEAR_PROGRAM
    config = SimulationConfig.from_mapping(
        {
            **settings,
            "strategy": settings["strategy"] if known else name,
            "seed": seed,
            "target-accuracy": target,
        }
    )
    curve = run_batched(config, policy=linear_program(config) if known else None)
    reached = curve.accuracy >= target
    first = int(reached.argmax())
    return {
        "seconds": np.array(curve.time_s[first] if reached.any() else np.inf),
        "rounds": np.array(curve.rounds[first] if reached.any() else np.inf),
        "best": np.array(curve.accuracy.max()),
    }
