"""A run in numbers: what summary, status and tables are made of, in memory that does not grow."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from flwr.app import ArrayRecord

from flower_scheduling.strategies.flower import TIMEOUT, Arm, RoundRecord, failure_kind

_SUGGESTED_QUANTILE: Final = 0.99
_SUGGESTED_FACTOR: Final = 1.5
_BIN: Final = math.log(1.01)
"""Round trips are counted in bins of one per cent."""


@dataclass(slots=True)
class ArmTally:
    """What became of one arm's rounds so far; times in seconds."""

    selections: int = 0
    completed: int = 0
    rtt_sum_s: float = 0.0
    last_rtt_s: float | None = None
    failures: Counter[str] = field(default_factory=Counter)
    """By :func:`.failure_kind`."""

    @property
    def mean_rtt_s(self) -> float | None:
        """Mean round trip of the completed rounds [s]; ``None``: there is none."""
        return self.rtt_sum_s / self.completed if self.completed else None


class Tallies:
    """Count rounds arm by arm.

    Attributes
    ----------
    rounds : int
        How many were counted.
    steps : int
        How many of them changed the model.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self.steps = 0
        self._arms: list[ArmTally] = []

    def __getitem__(self, arm: int) -> ArmTally:
        while arm >= len(self._arms):
            self._arms.append(ArmTally())
        return self._arms[arm]

    def __iter__(self) -> Iterator[ArmTally]:
        return iter(self._arms)

    def count(self, record: RoundRecord) -> None:
        """Count a round."""
        self.rounds += 1
        self.steps += record.stepped
        for result in record.results:
            tally = self[result.arm]
            tally.selections += 1
            if result.reason is not None:
                tally.failures[failure_kind(result.reason)] += 1
            elif result.rtt_s is not None:
                tally.completed += 1
                tally.rtt_sum_s += result.rtt_s
                tally.last_rtt_s = result.rtt_s


class RunHistory:
    """Count the rounds of a run; :meth:`record` is a round hook.

    Parameters
    ----------
    arrays : ArrayRecord
        The initial model, or that after ``records``.
    records : iterable of RoundRecord
        Rounds of an earlier part of the run.
    target_accuracy : float
        When it is reached is noted; 0: there is none.

    Attributes
    ----------
    arrays : ArrayRecord
        The model after the last round.
    """

    def __init__(
        self,
        arrays: ArrayRecord,
        records: Iterable[RoundRecord] = (),
        *,
        target_accuracy: float = 0.0,
    ) -> None:
        self.arrays = arrays
        self._target_accuracy = target_accuracy
        self._tallies = Tallies()
        self._rtt_bins: Counter[int] = Counter()
        self._counted: RoundRecord | None = None  # the last round that was
        self._evaluated: RoundRecord | None = None  # the last round that was
        self._best_accuracy: float | None = None
        self._target: RoundRecord | None = None  # the first round that reached it
        self._last: RoundRecord | None = None  # not yet counted: it may have to be taken back
        for record in records:
            self.record(record, arrays)

    def record(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Take note of a round."""
        self._count_last()
        self._last = record
        self.arrays = arrays

    def keep(self, num_rounds: int) -> None:
        """Forget the last round if it is not among the first ``num_rounds``."""
        if self._last is not None and self._tallies.rounds >= num_rounds:
            self._last = None

    @property
    def tallies(self) -> Tallies:
        """The rounds so far, arm by arm."""
        self._count_last()
        return self._tallies

    @property
    def last(self) -> RoundRecord | None:
        """The last round."""
        self._count_last()
        return self._counted

    @property
    def evaluated(self) -> RoundRecord | None:
        """The last round whose model was evaluated."""
        self._count_last()
        return self._evaluated

    @property
    def target_reached(self) -> bool:
        """Whether the target accuracy has been reached."""
        self._count_last()
        return self._target is not None

    def summary(
        self, arms: Sequence[Arm], floors: Sequence[float] | None, *, tau_max_s: float
    ) -> dict[str, Any]:
        """Return the run in numbers, ready for JSON; times in seconds."""
        self._count_last()
        tallies, evaluated, target = self._tallies, self._evaluated, self._target
        reasons: Counter[str] = sum((tally.failures for tally in tallies), Counter())
        return {
            "rounds": tallies.rounds,
            "time_s": self._counted.time_s if self._counted else 0.0,
            "accuracy": evaluated.accuracy if evaluated else None,
            "loss": evaluated.loss if evaluated else None,
            "best_accuracy": self._best_accuracy,
            "target_accuracy": self._target_accuracy or None,
            "target_round": target.round if target else None,
            "target_time_s": target.time_s if target else None,
            "rounds_without_step": tallies.rounds - tallies.steps,
            "failures": reasons.total(),
            "failure_reasons": dict(reasons),
            "tau_max_s": tau_max_s,
            "suggested_tau_max_s": self._suggest_tau_max(reasons[TIMEOUT], tau_max_s),
            "arms": [
                {
                    "index": arm.index,
                    "name": arm.name,
                    "num_examples": arm.num_examples,
                    "floor": None if floors is None else floors[arm.index],
                    "share": tallies[arm.index].selections / max(tallies.rounds, 1),
                    "mean_rtt_s": tallies[arm.index].mean_rtt_s,
                    "failures": tallies[arm.index].failures.total(),
                }
                for arm in arms
            ],
        }

    def _count_last(self) -> None:
        record, self._last = self._last, None
        if record is None:
            return
        self._tallies.count(record)
        self._counted = record
        for result in record.results:
            if result.completed and result.rtt_s:
                self._rtt_bins[math.ceil(math.log(result.rtt_s) / _BIN)] += 1
        if record.accuracy is None:
            return
        self._evaluated = record
        self._best_accuracy = max(self._best_accuracy or 0.0, record.accuracy)
        if self._target is None and 0.0 < self._target_accuracy <= record.accuracy:
            self._target = record

    def _suggest_tau_max(self, num_timeouts: int, tau_max_s: float) -> float | None:
        """Suggest a deadline: half as much again as 99 of 100 answers take, or twice this one.

        With more than 1 in 100 answers too late the deadline itself hides that quantile.
        """
        answers = self._rtt_bins.total()
        if not answers:
            return None
        if num_timeouts > (1 - _SUGGESTED_QUANTILE) * (answers + num_timeouts):
            return 2 * tau_max_s
        bins = sorted(self._rtt_bins)
        below = accumulate(self._rtt_bins[number] for number in bins)
        quantile = next(
            number
            for number, count in zip(bins, below, strict=True)
            if count >= _SUGGESTED_QUANTILE * answers
        )
        return round(_SUGGESTED_FACTOR * math.exp(quantile * _BIN), 3)
