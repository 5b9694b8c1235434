"""First round trips that are longer than those that follow: what that costs the rounds after it.

    python benchmarks/bench_first_times.py            # the table of docs/policies/which-policy.md
    python benchmarks/bench_first_times.py --write    # and put it there
    python benchmarks/bench_first_times.py --quick    # 4 drops of the clients instead of 40

Once in its life an app loads libraries and data, or compiles its model. Lengths of rounds are means
by the laws of all times, in units of a round of the best clients, from the round on in which all
clients could have been tried twice. Half a minute.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

import numpy as np
from bench_bound import SEED, Drops
from bench_modes import write

from flower_scheduling.simulation.benchmark.scenario import Scenario
from flower_scheduling.simulation.theory.estimate import estimate
from flower_scheduling.strategies import RoundContext, RoundOutcome
from flower_scheduling.strategies.base import FloatArray, IntArray
from flower_scheduling.strategies.policies.cs_ucb_adaptive import CsUcbAdaptive

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "policies" / "which-policy.md"
MARK: Final = "<!-- bench_first_times.py -->\n"
NUM_DROPS: Final = 40
FLEETS: Final = ((8, 2, 300), (12, 4, 300), (20, 5, 500), (100, 10, 1000))
FIRST: Final = (
    ("as others", 1.0, 0.0),
    ("twice", 2.0, 0.0),
    ("4 times", 4.0, 0.0),
    ("10 times", 10.0, 0.0),
    ("50 times", 50.0, 0.0),
    ("3 s more", 1.0, 3.0),
)
TAU_MAX_S: Final = 100.0


class TakesThemAsTheyAre(CsUcbAdaptive):
    """The same policy without what it does about first times."""

    def _compare_first(self, arms: IntArray, rows: IntArray, log_time: FloatArray) -> None:
        pass


def lengths(drops: Drops, policy: Any, times: float, more_s: float) -> FloatArray:
    """Return the mean length of a round of each drop after the first [ideal rounds]."""
    scenario = drops.scenario
    begin = 2 * scenario.num_clients // scenario.num_selected
    shape = drops.environment.shape
    untried, everyone = np.ones(shape, dtype=np.bool_), np.ones(shape, dtype=np.bool_)
    total = np.zeros(shape[0])
    for number in range(1, scenario.rounds + 1):
        selection = policy.ask(RoundContext(number, everyone))
        time_s = drops.environment.round(number).round_trip_time_s
        time_s = np.where(untried, time_s * times + more_s, time_s)
        untried &= ~selection.mask
        policy.tell(selection, RoundOutcome(time_s, time_s < TAU_MAX_S))
        if number > begin:
            total += drops.length_s(selection.mask) / drops.ideal_s
    return total / (scenario.rounds - begin)


def table(num_drops: int) -> str:
    """Return the table for documentation."""
    heads = [f"first: {name}" for name, _, _ in FIRST]
    lines = [f"| clients | | {' | '.join(heads)} |", "|---" * (len(heads) + 2) + "|"]
    print("\n".join(lines), flush=True)
    for num_arms, num_selected, rounds in FLEETS:
        settings = {"num-clients": num_arms, "num-selected": num_selected, "rounds": rounds}
        drops = Drops(Scenario.from_mapping({"name": "x", "summary": "x", **settings}), num_drops)
        for kind in (CsUcbAdaptive, TakesThemAsTheyAre):
            cells = []
            for _, times, more_s in FIRST:
                policy = kind(
                    num_arms=num_arms,
                    num_selected=num_selected,
                    tau_max_s=TAU_MAX_S,
                    rng=np.random.default_rng(SEED),
                    batch_shape=(num_drops,),
                )
                found = estimate(lengths(drops, policy, times, more_s))
                cells.append(f"{found.mean:.3f} (±{found.high - found.mean:.3f})")
            ours = kind is CsUcbAdaptive
            row = [f"{num_arms}, {num_selected} a round" if ours else ""]
            row.append("`cs-ucb-adaptive`" if ours else "taken as they are")
            lines.append(f"| {' | '.join([*row, *cells])} |")
            print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="4 drops")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    arguments = parser.parse_args()
    found = table(4 if arguments.quick else NUM_DROPS)
    if arguments.write:
        write(PAGE, MARK, found)


if __name__ == "__main__":
    main()
