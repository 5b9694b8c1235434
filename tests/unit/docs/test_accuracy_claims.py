"""Sentences of the guidance on seconds to an accuracy, made of the rows that its tables show."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import numpy as np
import pytest
from paths import ROOT

from flower_scheduling.simulation.benchmark.training_track import TASKS, gain

FOLDER = ROOT / "docs/policies"
COMPARATORS = (
    *("oort", "pyramidfl", "tifl", "delay-het", "fedbuff", "pisces", "over-asking"),
    *("local-accuracy", "round-robin", "random", "random buffered"),
)
OURS = ("cs-ucb-q-loss", "proportional-fair", "cs-ucb-q-adaptive", "cs-ucb-adaptive")
BUFFERED = ("cs-ucb-q-loss buffered", "proportional-fair buffered", "random buffered", "fedbuff")


Rows: TypeAlias = dict[tuple[str, str], dict[str, Any]]


def rows(name: str) -> Rows:
    found = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return {(row["course"], row["policy"]): row for row in found}


SEEN = rows("league-training.json")
HELD_OUT = rows("league-training-held-out.json")
SHOWN = [task for task in TASKS if (task, "random") in SEEN]
TEXT = " ".join((FOLDER / "which-policy.md").read_text(encoding="utf-8").split())


def times_as_long(policy: str, other: str, task: str) -> float:
    return float(SEEN[task, policy]["seconds"] / SEEN[task, other]["seconds"])


def reached(policy: str) -> list[str]:
    """Return the tasks on which all runs of a row got there."""
    return [task for task in SHOWN if SEEN.get((task, policy), {}).get("seconds")]


def span(policy: str, other: str) -> str:
    ratios = [times_as_long(policy, other, task) for task in reached(policy)]
    return f"{min(ratios):.1f} to {max(ratios):.1f}"


def below_random(policy: str, task: str, of: Rows = SEEN) -> float:
    """Return how much less accurate the model is on the slowest quarter's data."""
    own, base = (of[task, name]["slowest_quarter"] for name in (policy, "random"))
    return round(float(base - own), 3)


def seconds(policy: str, task: str) -> str:
    """Return the mean on the seeds of the table, and on those held out."""
    seen, held_out = (of[task, policy]["seconds"] for of in (SEEN, HELD_OUT))
    return f"{seen:.0f} and {held_out:.0f} s"


def listed(names: list[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return " and ".join(filter(None, [", ".join(quoted[:-1]), *quoted[-1:]]))


def soonest(policy: str) -> str:
    """Return the tasks on which a policy is the first of all rows of equal work."""
    found = []
    for task in SHOWN:
        reached = {
            name: row["seconds"]
            for (of, name), row in SEEN.items()
            if of == task and not name.endswith("by speed")
        }
        least = min((each for each in reached.values() if each), default=None)
        if reached.get(policy) == least:
            found.append(task)
    return listed(found)


def gains() -> dict[tuple[str, str], tuple[Any, Any]]:
    """Return the gains over random rounds on the seeds of the table and on others."""
    found = {}
    for task, name in HELD_OUT:
        if name == "random" or not {(task, name), (task, "random")} <= SEEN.keys() & HELD_OUT:
            continue
        pair = [gain(of[task, name], of[task, "random"]) for of in (SEEN, HELD_OUT)]
        if all(pair):
            found[task, name] = (pair[0], pair[1])
    return found


def half_widths() -> list[float]:
    """Return half of each interval's length relative to its mean."""
    return [
        (row["high"] - row["low"]) / 2 / row["seconds"]
        for row in SEEN.values()
        if row["seconds"] and row["runs"] == 10
    ]


def by_speed(policy: str) -> str:
    """Return which part of its seconds a row takes by speed, on two tasks."""
    pairs = [
        SEEN[task, f"{policy} by speed"]["seconds"] / SEEN[task, policy]["seconds"]
        for task in ("dirichlet", "stragglers")
    ]
    return " to ".join(dict.fromkeys(f"{each:.1f}" for each in sorted(pairs)))


def slowest_by_speed(tasks: tuple[str, ...] = ("dirichlet", "stragglers")) -> list[float]:
    """Return how much more accurate rows by speed are on the slowest quarter's data."""
    return [
        round(
            row["slowest_quarter"] - SEEN[task, name.removesuffix(" by speed")]["slowest_quarter"],
            3,
        )
        for (task, name), row in SEEN.items()
        if name.endswith(" by speed") and task in tasks
    ]


def claims() -> list[str]:
    pairs = gains()
    within = {key: a.low <= b.mean <= a.high for key, (a, b) in pairs.items()}
    half, most = np.quantile(half_widths(), [0.5, 0.9])
    fair = [below_random(name, t) for name in BUFFERED[1:3] for t in SHOWN]
    fair_held_out = [
        below_random(name, t, HELD_OUT) for t, name in HELD_OUT if name in BUFFERED[1:3]
    ]
    loss = {task: below_random("cs-ucb-q-loss buffered", task) for task in ("paper", "stragglers")}
    longer = [
        times_as_long("proportional-fair buffered by N", "proportional-fair buffered", task)
        for task in SHOWN
        if (task, "proportional-fair buffered by N") in SEEN
    ]
    worst = times_as_long("cs-ucb-q-loss buffered by N", "cs-ucb-q-loss buffered", "stragglers")
    return [
        f"are {span('random', 'random buffered')} times sooner than random rounds on every task",
        *(f"`{name}` on {soonest(f'{name} buffered')}" for name in OURS[:3]),
        f"`cs-ucb-adaptive`, which keeps no floors, on {soonest('cs-ucb-adaptive buffered')}.",
        f"takes {SEEN['fashion', 'cs-ucb-q-loss buffered']['seconds']:.0f} s, `pisces`"
        f" {SEEN['fashion', 'pisces']['seconds']:.0f} s and `oort`"
        f" {SEEN['fashion', 'oort']['seconds']:.0f} s",
        f"random selection with our weights is {span('fedbuff', 'random buffered')} times as soon",
        f"`pisces` takes {span('pisces', 'random buffered')} times as long as random selection",
        f"at most {max(fair):.3f} against random rounds, on all tasks, and"
        f" {max(fair_held_out):.3f} on the seeds that were held out",
        f"`cs-ucb-q-loss` gives up {loss['paper']:.3f} on the paper's data and"
        f" {loss['stragglers']:.3f} where stragglers alone hold two digits, `fedbuff`"
        f" {below_random('fedbuff', 'stragglers'):.3f} there, and `cs-ucb-q-adaptive`, in rounds,"
        f" {below_random('cs-ucb-q-adaptive', 'stragglers'):.3f}",
        f"take up to {max(longer):.1f} times as long as of half of N, and `cs-ucb-q-loss`"
        f" {worst:.1f} times on `stragglers`",
        "`proportional-fair buffered by speed` takes"
        f" {SEEN['dirichlet', 'proportional-fair buffered by speed']['seconds']:.0f} s on"
        f" `dirichlet` and {SEEN['alike', 'proportional-fair buffered by speed']['seconds']:.0f} s"
        " on `alike`",
        f"they take {HELD_OUT['fashion', 'cs-ucb-q-loss buffered']['seconds']:.0f} and"
        f" {HELD_OUT['fashion', 'pisces']['seconds']:.0f} s",
        f"takes {times_as_long('cs-ucb-q-loss', 'cs-ucb-q-adaptive', 'alike'):.1f} times as long as"
        " the rule without losses",
        f"random rounds take {by_speed('random')} of their seconds to the accuracy, `cs-ucb-q-loss`"
        f" in rounds {by_speed('cs-ucb-q-loss')}, and `proportional-fair` in buffered mode"
        f" {by_speed('proportional-fair buffered')}.",
        f"Half of the intervals are within {half:.0%} of their mean, nine in ten within {most:.0%}",
        f"{sum(within.values())} of {len(pairs)} lie within the interval of seeds 0 to 9",
        f"`cs-ucb-q-loss buffered` takes {seconds('cs-ucb-q-loss buffered', 'paper')} on `paper`"
        f" and {seconds('cs-ucb-q-loss buffered', 'alike')} on `alike`,"
        f" `proportional-fair buffered` {seconds('proportional-fair buffered', 'dirichlet')} on"
        " `dirichlet`",
        *(
            f"`{name}` on `{task}`, {pairs[task, name][0].mean:.1f} and"
            f" {pairs[task, name][1].mean:.1f} times"
            for (task, name), inside in within.items()
            if not inside
        ),
    ]


@pytest.mark.parametrize("task", SHOWN)
def test_a_row_of_ours_is_sooner_than_every_comparator(task: str) -> None:
    rows = [f"{name} buffered" for name in OURS]
    ours = min(SEEN[task, name]["seconds"] for name in rows if task in reached(name))
    theirs = {name: SEEN[task, name]["seconds"] for name in COMPARATORS if task in reached(name)}
    assert len(theirs) >= 4
    assert ours < min(theirs.values()), theirs


@pytest.mark.parametrize("sentence", claims())
def test_sentences_are_made_of_the_results(sentence: str) -> None:
    assert sentence in TEXT


def test_what_work_by_speed_costs_the_slowest_quarter_is_as_the_page_says() -> None:
    text = " ".join((ROOT / "docs/how-to/work-by-speed.md").read_text(encoding="utf-8").split())
    found = slowest_by_speed()
    assert f"is between {-min(found):.3f} less and {max(found):.3f} more than" in text
