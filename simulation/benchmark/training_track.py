"""Training track of the benchmark: seconds to an accuracy, not only seconds per round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich.markup import escape
from rich.table import Table

from flower_scheduling.strategies.base import IntArray
from flower_scheduling.strategies.deadline import AUTO

from ..jobs import Arrays, Job
from ..settings import SCENARIOS, SimulationConfig
from ..theory.estimate import Estimate, estimate, ratio_of_means
from .tasks import policy_code

if TYPE_CHECKING:
    from ..engine.batched import TrainingCurve

# No policy of the registry but the optimum of the paper's linear program, which knows the law of
# every time.
LINEAR_PROGRAM: Final = "linear-program"
_SHORT_S: Final = 10.0  # below, two decimals


@dataclass(frozen=True, slots=True)
class Contestant:
    """A row: a policy, and how its clients are waited for.

    Attributes
    ----------
    policy : str
        Name of the policy.
    mode : str
        ``rounds`` or ``buffered``.
    settings : mapping
        What else of the simulation's settings it needs, by flag.
    label : str
        Name of the row; by default the policy's, with the mode.
    """

    policy: str
    mode: str = "rounds"
    settings: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    @property
    def name(self) -> str:
        """Name of the row."""
        return self.label or (self.policy if self.mode == "rounds" else f"{self.policy} buffered")


BY_N: Final = "buffered by N"
"""Buffered steps of as many updates as rounds have, so that each counts for as much."""

BY_SPEED: Final = "by speed"
"""Clients are asked for as much work as fits into the same time."""
_BY_SPEED: Final = {"local-work": "equal-time"}
# Stand for numbers that depend on that of the clients of a round, N.
_ALL: Final = -1  # N
_THREE_TENTHS: Final = -2  # 0.3 N, rounded down

# The leading policies, those to beat, and the shortest rounds that the floors allow; in buffered
# mode with steps of half as many updates.
CONTESTANTS: Final = (
    *map(Contestant, ("cs-ucb-q-loss", "cs-ucb-q-adaptive", "cs-ucb-adaptive", "cs-ucb-q")),
    *map(Contestant, ("local-accuracy", "oort", "tifl", "pyramidfl", "delay-het")),
    *map(Contestant, ("random", "round-robin", LINEAR_PROGRAM)),
    Contestant("cs-ucb-q-loss", "buffered"),
    Contestant("proportional-fair", "buffered"),
    Contestant("cs-ucb-q-adaptive", "buffered"),
    Contestant("cs-ucb-adaptive", "buffered"),
    Contestant("random", "buffered"),
    # Nguyen et al., "Federated learning with buffered asynchronous aggregation", 2022: clients at
    # random, updates discounted by the root of their staleness.
    Contestant(
        "random", "buffered", {"staleness-discount": 0.5, "even-weights": "false"}, "fedbuff"
    ),
    # Jiang et al., 2022, which discounts by staleness too.
    Contestant(
        "pisces", "buffered", {"staleness-discount": 0.5, "even-weights": "false"}, "pisces"
    ),
    Contestant("cs-ucb-q-loss", "buffered", {"buffer-size": _ALL}, f"cs-ucb-q-loss {BY_N}"),
    Contestant("proportional-fair", "buffered", {"buffer-size": _ALL}, f"proportional-fair {BY_N}"),
    Contestant("cs-ucb-adaptive", "buffered", {"buffer-size": _ALL}, f"cs-ucb-adaptive {BY_N}"),
    # Bonawitz et al., "Towards federated learning at scale: system design", 2019: 1.3 N clients at
    # random are asked, and the first N to answer count.
    Contestant("random", "rounds", {"num-spare": _THREE_TENTHS}, "over-asking"),
    *(
        Contestant(policy, "rounds", _BY_SPEED, f"{policy} {BY_SPEED}")
        for policy in ("cs-ucb-q-loss", "cs-ucb-q-adaptive", "random")
    ),
    *(
        Contestant(policy, "buffered", _BY_SPEED, f"{policy} buffered {BY_SPEED}")
        for policy in ("cs-ucb-q-loss", "proportional-fair", "cs-ucb-q-adaptive", "random")
    ),
)


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
    cost_s : float
        Estimate of the time that a run takes [s].
    """

    name: str
    target: float
    settings: Mapping[str, Any]
    cost_s: float = 12.0

    @property
    def dataset(self) -> str:
        """Name of its data set."""
        return str(self.settings.get("dataset", "mnist"))


_MIXED: Final[Mapping[str, Any]] = {
    **SCENARIOS["ideal"],
    **{"scenario": "ideal", "rounds": 1500, "eval-every": 10, "fairness": "equal:0.1"},
    **{"batch-size": 16, "local-steps": 10, "learning-rate": 0.02},
}
_SLOWDOWNS: Final = ",".join(f"{client}:{50 * (21 - client)}:10" for client in range(20, 14, -1))

TASKS: Final = {
    "paper": TrainingTask(
        "the paper's: five digits each at two of ten, one at the others",
        0.8,
        {**SCENARIOS["non-ideal"], "scenario": "non-ideal", "rounds": 6000},
    ),
    "dirichlet": TrainingTask(
        "Dirichlet, 0.1: a mixture of its own at each of twenty",
        0.86,
        {**_MIXED, "partitioner": "dirichlet:0.1"},
    ),
    "alike": TrainingTask(
        "the same at each of twenty",
        0.78,
        {**SCENARIOS["ideal"], "scenario": "ideal", "rounds": 3000, "fairness": "none"},
    ),
    # Computing speed grows with a client's number: the first fifth are the stragglers.
    "stragglers": TrainingTask(
        "two digits at the slowest fifth alone",
        0.88,
        {**_MIXED, "partitioner": "own-labels:4,2", "tau-max-s": 20.0},
    ),
    "drifting": TrainingTask(
        "Dirichlet, 0.3, and the fastest become ten times slower",
        0.88,
        {**_MIXED, "partitioner": "dirichlet:0.3", "slowdowns": _SLOWDOWNS, "tau-max-s": 20.0},
    ),
    "failing": TrainingTask(
        "Dirichlet, 0.3, and every other client fails three times in ten",
        0.86,
        {
            **_MIXED,
            "partitioner": "dirichlet:0.3",
            "failure-probability": ",".join(["0.3", "0"] * 10),
            "tau-max-s": 20.0,
        },
    ),
    # Floors of two fifths of an equal share, as above.
    "fashion": TrainingTask(
        "a convolutional model on Fashion-MNIST, Dirichlet, 0.3, lognormal computing times",
        0.84,
        {
            **SCENARIOS["ideal"],
            **{"scenario": "ideal", "rounds": 800, "eval-every": 10, "fairness": "equal:0.04"},
            **{"num-clients": 100, "num-selected": 10, "tau-max-s": 20.0},
            **{"batch-size": 16, "local-steps": 5, "learning-rate": 0.1},
            **{"dataset": "fashion-mnist", "model": "cnn", "partitioner": "dirichlet:0.3"},
            **{"compute-law": "lognormal", "compute-shape": 1.0},
        },
        40.0,
    ),
}


def contestants_of(policies: Sequence[str], mode: str | None) -> list[Contestant]:
    """Return the rows of these policies, by default those shown, of one mode or of both.

    A policy that is not among those shown has a row in each mode.
    """
    shown = [each for each in CONTESTANTS if not policies or each.policy in policies]
    known = {each.policy for each in shown}
    others = [
        Contestant(policy, each)
        for policy in dict.fromkeys(policies)
        if policy not in known
        for each in ("rounds", "buffered")
    ]
    return [each for each in [*shown, *others] if mode in (None, each.mode)]


def jobs_of(
    tasks: Sequence[str], contestants: Sequence[Contestant], seeds: Sequence[int]
) -> list[Job]:
    """Return the jobs: one run per task, contestant and seed."""
    return [
        Job(
            _stem(task, each, seed),
            partial(_train, task, each, seed),
            TASKS[task].cost_s,
            "" if each.policy == LINEAR_PROGRAM else policy_code(each.policy),
        )
        for task in tasks
        for each in contestants
        if _eligible(task, each)
        for seed in seeds
    ]


def rows(
    tasks: Sequence[str],
    contestants: Sequence[Contestant],
    seeds: Sequence[int],
    results: Mapping[str, Arrays],
) -> list[dict[str, Any]]:
    """Return one row per task and contestant; ``reached`` counts the runs that reached the target.

    Of a policy that did not reach it in some run, seconds and rounds are ``None``: a mean over the
    others would flatter it. ``slowest_quarter`` is the accuracy of the model with which a run
    ended on the data of the slowest quarter of the clients, the mean of theirs. ``by_seed`` has the
    seconds of each run, from ``first_seed`` on.
    """
    return [
        row_of(
            task,
            each.name,
            TASKS[task].target,
            [results[_stem(task, each, seed)] for seed in seeds],
            seeds[0],
        )
        for task in tasks
        for each in contestants
        if _eligible(task, each)
    ]


def row_of(
    task: str, policy: str, target: float, runs: Sequence[Arrays], first_seed: int
) -> dict[str, Any]:
    """Return the row of a task and policy, from the results of its runs, one per seed."""
    seconds = np.array([float(run["seconds"]) for run in runs])
    rounds = np.array([float(run["rounds"]) for run in runs])
    reached = int(np.isfinite(seconds).sum())
    whole = estimate(seconds) if reached == len(runs) else None
    digits = 1 if whole and whole.mean >= _SHORT_S else 3
    found = {
        "course": task,  # the key of files written before
        "policy": policy,
        "target": target,
        "reached": reached,
        "runs": len(runs),
        "seconds": whole and round(whole.mean, digits),
        "low": whole and round(whole.low, digits),
        "high": whole and round(whole.high, digits),
        "rounds": whole and round(float(rounds.mean()), 1),
        "best_accuracy": round(float(np.mean([run["best"] for run in runs])), 4),
        "first_seed": first_seed,
        "by_seed": [round(each, 2) if each < np.inf else None for each in seconds.tolist()],
    }
    if all("slowest" in run for run in runs):
        slowest = float(np.mean([run["slowest"] for run in runs]))
        found["slowest_quarter"] = round(slowest, 4)
    return found


def table(found: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows as a table for the terminal, a section per task."""
    slowest = any("slowest_quarter" in row for row in found)
    caption = "slowest: accuracy then on the data of the slowest quarter of the clients"
    shown = Table(title="Seconds to an accuracy", caption=caption if slowest else None)
    shown.add_column("policy", no_wrap=True)
    shown.add_column("seconds (95 %)", justify="right")
    if slowest:
        shown.add_column("slowest", justify="right")
    last = None
    for row in found:
        if row["course"] != last:
            last = row["course"]
            shown.add_section()
            shown.add_row(f"[bold]{last}[/], to {row['target']:.0%}")
        cells = [_cell(row), *([_slowest(row)] if slowest else [])]
        shown.add_row(f"  {escape(row['policy'])}", *cells)
    return shown


def markdown(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as two tables for documentation: seconds, and the slowest quarter."""
    tasks = {name: task for name, task in TASKS.items() if any(r["course"] == name for r in found)}
    by_place = {(row["course"], row["policy"]): row for row in found}
    titles = [f"`{name}`, {task.target:.0%}" for name, task in tasks.items()]
    lines = []
    for cell in (_cell, _slowest):
        lines += ["", f"| policy | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
        for name in _names(found):
            cells = [cell(by_place.get((task, name))) for task in tasks]
            lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines[1:]) + "\n"


def gain(row: Mapping[str, Any], base: Mapping[str, Any]) -> Estimate | None:
    """Return how many times sooner a row is than another, over pairs of runs of one seed each.

    ``None`` where a run of either did not reach the target, or their seeds differ.
    """
    pairs = [each.get("by_seed") or [None] for each in (base, row)]
    if None in pairs[0] + pairs[1] or len(pairs[0]) != len(pairs[1]):
        return None
    if base["first_seed"] != row["first_seed"]:
        return None
    return ratio_of_means(*pairs)


def gains_markdown(
    found: Mapping[str, Sequence[Mapping[str, Any]]], *, base: str = "random"
) -> str:
    """Return how many times sooner than another row all are, as a table for documentation.

    Parameters
    ----------
    found : mapping of str to sequence of mapping
        Rows of :func:`rows` by what is said of their seeds; the last ones tell which tasks and
        policies the table has.
    base : str
        Name of the row that all are compared with.
    """
    last = list(found.values())[-1]
    tasks = [name for name in TASKS if any(row["course"] == name for row in last)]
    lines = [f"| policy | seeds | {' | '.join(f'`{name}`' for name in tasks)} |"]
    lines.append("|---" * (len(tasks) + 2) + "|")
    for name in _names(last, without=base):
        for seeds, own in found.items():
            by_place = {(row["course"], row["policy"]): row for row in own}
            cells = [_gain_cell(by_place, task, name, base) for task in tasks]
            if any(cells):
                lines.append(f"| `{name}` | {seeds} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def by_speed_markdown(found: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> str:
    """Return the seconds of equal work beside those of work by speed, as a table.

    It has the policies that have rows of both on all of some tasks.
    """
    by_place = {(row["course"], row["policy"]): row for row in found}
    heads = [f"`{task}`, equal | by speed" for task in tasks]
    lines = [f"| policy | {' | '.join(heads)} |", "|---" * (2 * len(tasks) + 1) + "|"]
    for name in _names(found):
        places = [(task, each) for task in tasks for each in (name, f"{name} {BY_SPEED}")]
        if all(place in by_place for place in places):
            cells = [_cell(by_place[place]) for place in places]
            lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _names(found: Sequence[Mapping[str, Any]], without: str = "") -> list[str]:
    """Return the policies of rows: the suite's in its order, then others as they come."""
    own = dict.fromkeys(row["policy"] for row in found if row["policy"] != without)
    suite = [each.name for each in CONTESTANTS if each.name in own]
    return list(dict.fromkeys([*suite, *own]))


def _gain_cell(
    by_place: Mapping[tuple[str, str], Mapping[str, Any]], task: str, name: str, base: str
) -> str:
    own, other = by_place.get((task, name)), by_place.get((task, base))
    found = gain(own, other) if own and other else None
    return f"{found.mean:.1f} ({found.low:.1f} to {found.high:.1f})" if found else ""


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    if row["seconds"] is None:
        return f"{row['reached']} of {row['runs']} runs"
    spec = ".0f" if row["seconds"] >= _SHORT_S else ".2f"
    return f"{row['seconds']:{spec}} ({row['low']:{spec}} to {row['high']:{spec}})"


def _slowest(row: Mapping[str, Any] | None) -> str:
    found = None if row is None else row.get("slowest_quarter")  # not in files written before
    return "" if found is None else f"{found:.3f}"


def _stem(task: str, each: Contestant, seed: int) -> str:
    return f"training-{task}-{each.name.replace(' ', '-')}-{seed:02}"


def _eligible(task: str, each: Contestant) -> bool:
    """Whether a task can have a policy: the linear program is for few clients."""
    return each.policy != LINEAR_PROGRAM or task == "paper"


def _train(task: str, each: Contestant, seed: int) -> Arrays:
    from ..engine.batched import client_accuracies, run_batched
    from ..theory.linear_program import linear_program

    settings, target = TASKS[task].settings, TASKS[task].target
    known = each.policy == LINEAR_PROGRAM
    chosen = {
        **settings,
        "strategy": settings["strategy"] if known else each.policy,
        "seed": seed,
        "target-accuracy": target,
        "mode": each.mode,
        **each.settings,
    }
    numbers = {_ALL: chosen["num-selected"], _THREE_TENTHS: 3 * chosen["num-selected"] // 10}
    for key in ("buffer-size", "num-spare"):
        if key in chosen:
            chosen[key] = numbers.get(chosen[key], chosen[key])
    if each.mode == "buffered":  # with half as many updates there are twice as many steps
        chosen["rounds"] *= 2
    config = SimulationConfig.from_mapping(chosen)
    curve = run_batched(config, policy=linear_program(config) if known else None)
    reached = curve.accuracy >= target
    first = int(reached.argmax())
    return {
        "seconds": np.array(curve.time_s[first] if reached.any() else np.inf),
        "rounds": np.array(curve.rounds[first] if reached.any() else np.inf),
        "best": np.array(curve.accuracy.max()),
        "slowest": np.array(client_accuracies(curve, _slowest_quarter(curve)).mean()),
    }


def _slowest_quarter(curve: TrainingCurve) -> IntArray:
    """Return the quarter of the clients whose expected time is longest when the run ends."""
    config = curve.config
    assert config.tau_max_s != AUTO
    draw = config.draw_of(int(curve.rounds[-1]))
    expected = config.environment(model_bits=1).expected_time_s(config.tau_max_s, draw)
    slowest_first: IntArray = np.argsort(-expected, kind="stable")
    return slowest_first[: -(-config.num_clients // 4)]
