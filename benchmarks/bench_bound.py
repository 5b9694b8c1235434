"""What trying clients costs any policy: the lower bound beside what ours takes.

    python benchmarks/bench_bound.py            # the table of docs/policies/which-policy.md
    python benchmarks/bench_bound.py --write    # and put it there
    python benchmarks/bench_bound.py --quick    # one drop of the clients instead of forty

In drops of the league's scenario ``thousand``, and of one with 800 clients that no constant was
chosen on. Lengths of rounds are means by the laws of all times, not draws, in units of a round of
the clairvoyant oracle. Some three minutes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

import numpy as np
from bench_modes import write

from flower_scheduling.simulation.benchmark.scenario import Scenario
from flower_scheduling.simulation.benchmark.tasks import SEED
from flower_scheduling.simulation.theory.estimate import estimate
from flower_scheduling.simulation.theory.exploration_bound import best_exploration, trial_costs_s
from flower_scheduling.strategies import RoundContext, RoundOutcome, build_policy
from flower_scheduling.strategies.base import BoolArray, FloatArray

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "policies" / "which-policy.md"
MARK: Final = "<!-- bench_bound.py -->\n"
POLICY: Final = "cs-ucb-adaptive"
NUM_DROPS: Final = 40
SCENARIOS: Final = (
    Scenario.load("thousand"),
    Scenario.from_mapping(
        {
            "name": "eight hundred",
            "summary": "800 clients, 40 a round, 2000 rounds",
            **{"num-clients": 800, "num-selected": 40, "rounds": 2000},
        }
    ),
)


class Drops:
    """Some drops of a scenario's clients, and the laws of their times."""

    def __init__(self, scenario: Scenario, count: int) -> None:
        self.scenario = scenario
        self.environment = scenario.environment()(batch_shape=(count,), seed=SEED)
        self.survival, self.weight_s = self.environment.time_law(scenario.tau_max_s)
        means_s = self.environment.expected_time_s(scenario.tau_max_s)
        best: BoolArray = np.zeros(means_s.shape, dtype=np.bool_)
        order = np.argsort(means_s, axis=1)[:, : scenario.num_selected]
        np.put_along_axis(best, order, True, axis=1)
        self.ideal_s = self.length_s(best)

    def length_s(self, mask: BoolArray) -> FloatArray:
        """Return the mean length of a round of these clients, in each drop [s]."""
        pairs = enumerate(mask)
        slowest = [1.0 - np.prod(1.0 - self.survival[:, row, arms], axis=1) for row, arms in pairs]
        return np.array([self.weight_s @ each for each in slowest])

    def bounds(self) -> FloatArray:
        """Return the bound of each drop, its clients in an order that is drawn [ideal rounds]."""
        rng = np.random.default_rng(SEED)
        rounds, found = self.scenario.rounds, []
        for row, ideal_s in enumerate(self.ideal_s):
            shuffled = self.survival[:, row, rng.permutation(self.scenario.num_clients)]
            costs_s = trial_costs_s(shuffled, self.weight_s, self.scenario.num_selected)
            found.append(best_exploration(costs_s, rounds).time_s / (rounds * ideal_s))
        return np.array(found)

    def played(self, name: str) -> tuple[FloatArray, FloatArray]:
        """Return what a policy takes, in ideal rounds, and what of it trials take beyond those.

        A round that mainly has clients that were never tried counts as a trial.
        """
        scenario = self.scenario
        shape = self.environment.shape
        policy: Any = build_policy(
            name,
            num_arms=scenario.num_clients,
            num_selected=scenario.num_selected,
            tau_max_s=scenario.tau_max_s,
            rng=np.random.default_rng(SEED),
            batch_shape=shape[:-1],
        )
        everyone = np.ones(shape, dtype=np.bool_)
        total, trials = np.zeros(shape[0]), np.zeros(shape[0])
        for number in range(1, scenario.rounds + 1):
            selection = policy.ask(RoundContext(number, everyone))
            length = self.length_s(selection.mask) / self.ideal_s
            untried = (selection.mask & (policy.play_count == 0)).sum(axis=1)
            total += length
            trials += np.where(2 * untried >= scenario.num_selected, length - 1.0, 0.0)
            time_s = self.environment.round(number).round_trip_time_s
            policy.tell(selection, RoundOutcome(time_s, time_s < scenario.tau_max_s))
        return total / scenario.rounds, trials / scenario.rounds


def table(num_drops: int) -> str:
    """Return the table for documentation."""
    lines = [f"| scenario | any policy, at least | `{POLICY}` | of that trials |", "|---" * 4 + "|"]
    print("\n".join(lines), flush=True)
    for scenario in SCENARIOS:
        drops = Drops(scenario, num_drops)
        bound, (total, trials) = drops.bounds(), drops.played(POLICY)
        cells = [_cell(bound), _cell(total), f"{trials.mean():.3f}"]
        lines.append(f"| {scenario.summary} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def _cell(samples: FloatArray) -> str:
    if samples.size == 1:
        return f"{samples[0]:.3f}"
    found = estimate(samples)
    return f"{found.mean:.3f} ({found.low:.3f} to {found.high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one drop")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    arguments = parser.parse_args()
    found = table(1 if arguments.quick else NUM_DROPS)
    if arguments.write:
        write(PAGE, MARK, found)


if __name__ == "__main__":
    main()
