"""Scenarios that no constant of the adaptive policies was chosen on, and their targets.

    python benchmarks/bench_held_out.py            # the table of docs/policies/which-policy.md
    python benchmarks/bench_held_out.py --write    # and put it there
    python benchmarks/bench_held_out.py --quick    # 4 repetitions

Other numbers of clients, deadlines, tails, failure rates and times of change than in the league's
own scenarios, with the same kinds of targets: 1.05 where nothing changes, 1.15 where clients fail,
change or are many, 1.40 where a failure costs 45 s. Some three minutes.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench_modes import write

from flower_scheduling.simulation.benchmark.results import ratio
from flower_scheduling.simulation.benchmark.scenario import Scenario
from flower_scheduling.simulation.benchmark.tasks import Result, jobs_of, results_of
from flower_scheduling.simulation.terminal.job_progress import run_shown

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "policies" / "which-policy.md"
MARK: Final = "<!-- bench_held_out.py -->\n"
POLICIES: Final = ["cs-ucb-adaptive", "cs-ucb-q-adaptive"]
STATIONARY, HARDER, COSTLY = 1.05, 1.15, 1.4


def _scenario(
    summary: str, target: float, world: Mapping[str, Any] | None = None, **more: Any
) -> Scenario:
    """Return a scenario of 50 repetitions, unless ``more`` has other settings."""
    settings = {"name": summary, "summary": summary, "target": target, "seeds": 50, **more}
    settings = {key.replace("_", "-"): value for key, value in settings.items()}
    return Scenario.from_mapping({**settings, "world": dict(world or {})})


SCENARIOS: Final = (
    _scenario("10 clients, 2 a round", STATIONARY, num_clients=10, num_selected=2),
    _scenario("16 clients, 10 a round", STATIONARY, num_clients=16, num_selected=10),
    _scenario("40 clients, 1 a round", STATIONARY, num_clients=40, num_selected=1),
    _scenario("70 clients, 15 a round", STATIONARY, num_clients=70, num_selected=15),
    _scenario("deadline 30 s", STATIONARY, tau_max_s=30.0),
    _scenario("deadline 1.5 s", STATIONARY, tau_max_s=1.5),
    _scenario("30 clients, 400 m away", STATIONARY, {"distance_m": 400.0}, num_clients=30),
    _scenario(
        "lognormal computing times, 1.5",
        STATIONARY,
        {"compute_law": "lognormal", "compute_shape": 1.5},
    ),
    _scenario(
        "each there in half of the rounds", STATIONARY, {"availability": 0.5}, num_clients=40
    ),
    _scenario(
        "all fail one time in eight",
        HARDER,
        {"failure_probability": 0.125},
        num_clients=30,
        num_selected=6,
    ),
    _scenario(
        "a fifth fails one time in three",
        HARDER,
        {"failing_share": 0.2, "failure_probability": 0.33},
    ),
    _scenario(
        "a quarter fails, 45 s each",
        COSTLY,
        {"failing_share": 0.25, "failure_probability": 0.08},
        tau_max_s=45.0,
    ),
    _scenario("ranks reversed after a third", HARDER, {"reversed_from_round": 1701}),
    _scenario(
        "ranks reversed, 50 clients",
        HARDER,
        {"reversed_from_round": 3001},
        num_clients=50,
        rounds=6000,
    ),
    _scenario(
        "800 clients, 40 a round, 2000 rounds",
        HARDER,
        num_clients=800,
        num_selected=40,
        rounds=2000,
        seeds=20,
    ),
)


def table(repetitions: int = 0) -> str:
    """Return the table for documentation; 0 repetitions: those of the scenarios."""
    scenarios = [each.changed(seeds=repetitions) if repetitions else each for each in SCENARIOS]
    policies = {each.name: POLICIES for each in scenarios}
    jobs = [job for each in scenarios for job in jobs_of(each, POLICIES)]
    with tempfile.TemporaryDirectory() as folder:
        found = results_of(scenarios, policies, run_shown(jobs, Path(folder), os.cpu_count() or 1))
    heads = ["scenario", "target", *(f"`{name}`" for name in POLICIES)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for scenario in scenarios:
        cells = [_cell(each) for each in found if each.scenario.name == scenario.name]
        lines.append(f"| {scenario.summary} | {scenario.target:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(result: Result) -> str:
    found = ratio(result)
    return f"{found.mean:.3f} ({found.low:.3f} to {found.high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="4 repetitions")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    arguments = parser.parse_args()
    found = table(4 if arguments.quick else 0)
    print(found, end="")
    if arguments.write:
        write(PAGE, MARK, found)


if __name__ == "__main__":
    main()
