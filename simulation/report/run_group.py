"""Runs to compare: those of one folder, and the run at random beside another run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from flower_scheduling.errors import ConfigError
from flower_scheduling.strategies.base import FloatArray

from ..environments.recorded import RecordedRun, open_run
from ..theory.time_to_target import TimeToTarget, first_reached_s
from .savings import RANDOM

# Settings that say how clients are selected, or what is written: runs that differ in nothing else
# are of the same clients, data and model.
_OF_SCHEDULING: Final = frozenset(
    {
        "beta",
        "buffer-size",
        "checkpoint-every",
        "checkpoint-required",
        "even-weights",
        "explain",
        "fairness",
        "late-updates",
        "max-share",
        "max-staleness",
        "mode",
        "num-spare",
        "overridden",
        "rounds",
        "run-dir",
        "staleness-discount",
        "strategy",
        "strategy-option",
        "target-accuracy",
        "tracker",
        "truncate",
    }
)


@dataclass(frozen=True)
class ComparedRun:
    """A run and its curves.

    Attributes
    ----------
    run : RecordedRun
        The run.
    time_s, round_s : (num_rounds,) float64
        Time since the start at the end of each round, and its length [s].
    evaluations : list of (int, float, float)
        Round, time since the start [s] and test accuracy, where the model was evaluated.
    requests, failures : int
        How often clients were asked, and how many of these requests brought nothing.
    buffered : bool
        Whether it is of buffered steps instead of rounds.
    """

    run: RecordedRun
    time_s: FloatArray
    round_s: FloatArray
    evaluations: list[tuple[int, float, float]]
    requests: int
    failures: int
    buffered: bool

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.run.path.resolve().name

    @property
    def at_random(self) -> bool:
        """Whether it is a run to compare others with: rounds of clients selected at random."""
        return self.run.strategy == RANDOM and not self.buffered

    @cached_property
    def best(self) -> float | None:
        """Its best accuracy; ``None``: it was not evaluated."""
        return max((accuracy for _, _, accuracy in self.evaluations), default=None)

    def to_target(self, target: float) -> TimeToTarget:
        """Return the time that it took to an accuracy."""
        reached_s = first_reached_s(self.evaluations, target)
        unit, last_s = "step" if self.buffered else "round", float(self.time_s[-1])
        return TimeToTarget(self.name, self.run.num_rounds, last_s, reached_s, unit)

    def saved_in_as_many_rounds(self, base: ComparedRun) -> tuple[float, int] | None:
        """Return the share of time saved in as many rounds as both have, and their number.

        ``None`` where one of the two has buffered steps, of which a round's worth is another one.
        """
        if self.buffered or base.buffered:
            return None
        count = min(len(self.round_s), len(base.round_s))
        base_s = float(base.round_s[:count].sum())
        return (1.0 - float(self.round_s[:count].sum()) / base_s, count) if base_s > 0 else None


def read_compared(run: RecordedRun) -> ComparedRun:
    """Read the curves of a run.

    Raises
    ------
    ConfigError
        If a round is damaged.
    """
    time_s, round_s, evaluations = [], [], []
    requests = failures = 0
    buffered = False
    for record in run.rounds():
        time_s.append(record.time_s)
        round_s.append(record.round_s)
        if record.accuracy is not None and math.isfinite(record.accuracy):
            evaluations.append((record.round, record.time_s, record.accuracy))
        ended = [*record.results, *record.late_updates]
        requests += len(ended)
        failures += sum(not result.completed for result in ended)
        buffered |= record.buffered
    return ComparedRun(
        run, np.array(time_s), np.array(round_s), evaluations, requests, failures, buffered
    )


def read_group(folder: Path) -> tuple[list[ComparedRun], list[str]]:
    """Read the runs of a folder, by name; return them, and why others cannot be read.

    Raises
    ------
    ConfigError
        If there is none that can.
    """
    found, left_out = [], []
    for config in sorted(folder.glob("*/config.toml")):
        try:
            found.append(read_compared(open_run(config.parent)))
        except ConfigError as error:
            left_out.append(f"{config.parent.name}: {error.message}")
    if not found:
        why = f" ({'; '.join(left_out)})" if left_out else ""
        raise ConfigError("run", str(folder), f"must be a run, or a folder of runs{why}")
    return found, left_out


def base_of(runs: Sequence[ComparedRun]) -> ComparedRun | None:
    """Return the run that others are compared with, one at random; ``None``: there is none."""
    return next((each for each in runs if each.at_random), None)


def common_target(runs: Sequence[ComparedRun]) -> float | None:
    """Return the accuracy to which runs are compared.

    It is the target that all of them had, or else the accuracy in whole percent that half of them
    have reached; ``None`` where fewer than two were evaluated.
    """
    given = {float(each.run.config.get("target-accuracy") or 0.0) for each in runs}
    if len(given) == 1 and (target := given.pop()) > 0:
        return target
    bests = sorted(each.best for each in runs if each.best is not None)
    if len(bests) < 2:
        return None
    target = math.floor(100 * bests[(len(bests) - 1) // 2]) / 100
    return target if target > 0 else None


def run_at_random_beside(run: RecordedRun) -> ComparedRun | None:
    """Return a run at random in the same folder that differs in its scheduling alone."""
    if run.strategy == RANDOM:
        return None
    path = run.path.resolve()
    for config in sorted(path.parent.glob("*/config.toml")):
        if config.parent == path:
            continue
        try:
            other = open_run(config.parent)
            if other.strategy != RANDOM or differences([run.config, other.config]):
                continue
            found = read_compared(other)
        except ConfigError:
            continue
        if found.at_random:
            return found
    return None


def differences(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings beside those of scheduling that are not the same in all runs."""
    keys = sorted({key for config in configs for key in config} - _OF_SCHEDULING)
    return [key for key in keys if any(c.get(key) != configs[0].get(key) for c in configs)]


def scheduling_differences(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings of scheduling that are not the same in all runs."""
    keys = sorted({key for config in configs for key in config} & _OF_SCHEDULING - {"run-dir"})
    return [key for key in keys if any(c.get(key) != configs[0].get(key) for c in configs)]
