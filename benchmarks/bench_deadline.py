"""The deadline that nobody sets, on links from 0.1 to 20 s per round trip.

    python benchmarks/bench_deadline.py            # the table of docs/how-to/own-app.md
    python benchmarks/bench_deadline.py --write    # and put it there
    python benchmarks/bench_deadline.py --quick    # without the fleet

A fleet, flower-server and eight flower-clients as processes of their own over emulated fading
links, trains for 24 rounds and for as many buffered steps, some eight minutes; all clients are
unknown at first. Then 20 such fleets in virtual time, 1000 rounds each, where policy and deadline
alone are at work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from bench_modes import ROOT, Course, fleet_of, kept_folder, parse, read_course, write

from flower_scheduling.client.link.model import LinkModel
from flower_scheduling.strategies import RoundContext, RoundOutcome, build_policy
from flower_scheduling.strategies.base import FloatArray
from flower_scheduling.strategies.deadline import AutoDeadline

PAGE: Final = ROOT / "docs" / "how-to" / "own-app.md"
MARK: Final = "<!-- bench_deadline.py -->\n"
NUM_CLIENTS, NUM_SELECTED = 8, 4
FASTEST_S, SLOWEST_S = 0.1, 20.0
DISTANCE_M: Final = 200.0
REAL_ROUNDS, NUM_FLEETS, ROUNDS = 24, 20, 1000
POLICIES: Final = ("random", "cs-ucb-q-adaptive")


def links() -> list[LinkModel]:
    """Return a link for each client, of bandwidths that spread their median round trips."""
    base = LinkModel()
    drawn_s = base.draw_link_s(np.random.default_rng(0), np.full(10_000, DISTANCE_M))
    scale = base.bandwidth_hz * float(np.median(drawn_s))
    times_s = np.geomspace(FASTEST_S, SLOWEST_S, NUM_CLIENTS)
    return [LinkModel(bandwidth_hz=round(scale / each_s, 1)) for each_s in times_s]


@dataclass
class Lost:
    """What deadlines have cost some rounds.

    Attributes
    ----------
    rounds, sent : int
        Rounds, and messages in them.
    late : int
        Messages whose deadline passed.
    without_step : int
        Rounds in which the model did not change.
    slowest_s, deadline_s : float
        The longest round trip, and the last deadline [s].
    """

    rounds: int = 0
    sent: int = 0
    late: int = 0
    without_step: int = 0
    slowest_s: float = 0.0
    deadline_s: float = 0.0

    def row(self, what: str) -> str:
        """Return a row of the table."""
        return (
            f"| {what} | {self.rounds:,} | {self.without_step} | {self.late} of {self.sent:,} | "
            f"{self.slowest_s:.0f} | {self.deadline_s:.0f} |"
        )


def of_course(course: Course) -> Lost:
    """Return what deadlines have cost a run of a fleet."""
    return Lost(
        rounds=len(course.deadlines_s),
        sent=course.used + course.lost,
        late=course.failures["timeout"],
        without_step=course.without_step,
        slowest_s=max(course.times_s),
        deadline_s=course.deadlines_s[-1],
    )


def real(keep: Path | None) -> Iterator[tuple[str, Lost]]:
    """Run the fleet."""
    clients = [
        f"--link rayleigh --distance-m {DISTANCE_M:.0f} --bandwidth-hz {link.bandwidth_hz}"
        for link in links()
    ]
    common = (
        f"--strategy random --tau-max-s auto --num-selected {NUM_SELECTED} --wait-s 600 "
        f"--min-clients {NUM_CLIENTS} --rounds {REAL_ROUNDS} --eval-every {REAL_ROUNDS}"
    )
    with kept_folder(keep, "deadline") as folder, fleet_of(folder, clients) as serve:
        yield "a fleet, rounds", of_course(read_course(serve("rounds", common)))
        buffered = serve("buffered", f"{common} --mode buffered")
        yield "a fleet, buffered", of_course(read_course(buffered))


def simulated(name: str, num_fleets: int) -> Lost:
    """Play many fleets, as the server does: the deadline is that of the super arm."""
    lost, times = Lost(), links()
    for seed in range(num_fleets):
        rng, deadline = np.random.default_rng(seed), AutoDeadline()
        policy = build_policy(
            name,
            num_arms=NUM_CLIENTS,
            num_selected=NUM_SELECTED,
            tau_max_s=deadline.longest_s,
            rng=np.random.default_rng(seed),
        )
        floors = np.full(NUM_CLIENTS, 0.5 * NUM_SELECTED / NUM_CLIENTS)
        if hasattr(policy, "min_participation"):
            policy.min_participation = floors
        everyone = np.ones(NUM_CLIENTS, dtype=np.bool_)
        for number in range(1, ROUNDS + 1):
            selection = policy.ask(RoundContext(number, everyone))
            arms = np.flatnonzero(selection.mask)
            limit_s = deadline.deadline_s(arms)
            taken_s: FloatArray = np.array(
                [float(link.draw_link_s(rng, DISTANCE_M)) for link in times]
            )
            done = taken_s < limit_s
            deadline.tell(arms, taken_s[arms], done[arms])
            policy.tau_max_s = limit_s
            policy.tell(selection, RoundOutcome(taken_s, selection.mask & done))
            lost.late += int(np.count_nonzero(~done[arms]))
            lost.without_step += not done[arms].any()
            lost.slowest_s = max(lost.slowest_s, float(taken_s[arms].max()))
            lost.sent += arms.size
        lost.rounds += ROUNDS
        lost.deadline_s = deadline.level_s
    return lost


def main() -> None:
    arguments = parse(str(__doc__))
    lines = [
        "| | rounds or steps | without an update | updates past a deadline | "
        "longest round trip [s] | last deadline [s] |",
        "|---" * 6 + "|",
    ]
    print("\n".join(lines), flush=True)

    def add(what: str, lost: Lost) -> None:
        lines.append(lost.row(what))
        print(lines[-1], flush=True)

    if not arguments.quick:
        for what, lost in real(arguments.keep):
            add(what, lost)
    for name in POLICIES:
        fleets = NUM_FLEETS // 5 if arguments.quick else NUM_FLEETS
        add(f"{fleets} simulated fleets, `{name}`", simulated(name, fleets))
    if arguments.write:
        write(PAGE, MARK, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
