"""The totals of a run: its rounds counted once, for the run and for each arm.

Summary, status, alarms, trackers, page and report read these counts; none keeps its own.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flower_scheduling.strategies.deadline import AUTO, GivenDeadline
from flower_scheduling.strategies.flower import TIMEOUT, Arm, ArmResult, RoundRecord, failure_kind

LOOSE: Final = 10.0
"""A deadline so many times the slowest answers is far from them: what has never answered is off."""
_SUGGESTED_QUANTILE: Final = 0.99
_SUGGESTED_FACTOR: Final = 1.5
_BIN: Final = math.log(1.01)  # round-trip times are counted in bins of one per cent


@dataclass(slots=True)
class ArmTotals:
    """Counts of one arm's rounds so far; times in seconds.

    Attributes
    ----------
    index : int
        The arm.
    first_round : int
        The first round in which the arm was known; 0: not yet.
    first_turn : int
        Turns of the run before that round.
    selected : int
        Turns in which it was selected.
    completed, last_completed : int
        Rounds that it completed, with a measured time, in time or late, and the last round with
        such an update; 0: none.
    late_updates : int
        How often an update of it that came after its round was used in a later step.
    late_ended : int
        How often its work ended after its round, by an update that was used or by a failure.
    rtt_s, rtt_square : float
        Sums of the round-trip times of these rounds, and of their squares.
    last_rtt_s : float or None
        The last of these times.
    compute_s, link_s : float
        Sums of what the client reported, in the rounds in which it reported both.
    num_reports : int
        How many rounds these two sums are made of.
    failures : Counter
        Failures by kind (:func:`.failure_kind`).
    """

    index: int
    first_round: int = 0
    first_turn: int = 0
    selected: int = 0
    late_updates: int = 0
    late_ended: int = 0
    completed: int = 0
    last_completed: int = 0
    rtt_s: float = 0.0
    rtt_square: float = 0.0
    last_rtt_s: float | None = None
    compute_s: float = 0.0
    link_s: float = 0.0
    num_reports: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def served(self) -> int:
        """What its share counts: selections, and late updates that were used."""
        return self.selected + self.late_updates

    @property
    def requests(self) -> int:
        """Pieces of work that have ended, in their round or after it."""
        return self.selected + self.late_ended

    @property
    def mean_rtt_s(self) -> float | None:
        """Mean round-trip time of the completed rounds [s]; ``None``: there is none."""
        return self.rtt_s / self.completed if self.completed else None


class RunTotals:
    """Counts of a run's rounds so far, in memory that grows with the arms alone.

    Parameters
    ----------
    target_accuracy : float
        Accuracy whose first round is kept; 0: there is none.

    Attributes
    ----------
    lock : RLock
        Held while a round is counted; a reader in another thread holds it too.
    target_accuracy : float
        As it was given.
    rounds, steps : int
        Rounds counted, and how many of them changed the model.
    turns : int
        What shares are of: rounds, or in buffered mode pieces of work (:attr:`.RoundRecord.turns`).
    without_step : int
        Rounds since the model last changed.
    arms : list of ArmTotals
        Counts by arm.
    failures : Counter
        Failures of all arms by kind.
    failing : dict of int to (int, str)
        Arms whose last selection failed: how many in a row did, and the last one's kind.
    last, evaluated, on_server, on_clients, best, target : RoundRecord or None
        The last round, the last with an accuracy, the last that was evaluated on the server by any
        metric, the last with metrics of clients, the one with the best accuracy, and the first
        that reached the target.
    """

    def __init__(self, *, target_accuracy: float = 0.0) -> None:
        self.target_accuracy = target_accuracy
        self.lock = threading.RLock()
        self.rounds = self.steps = self.without_step = self.turns = 0
        self.arms: list[ArmTotals] = []
        self.failures: Counter[str] = Counter()
        self.failing: dict[int, tuple[int, str]] = {}
        self.last: RoundRecord | None = None
        self.evaluated: RoundRecord | None = None
        self.on_server: RoundRecord | None = None
        self.on_clients: RoundRecord | None = None
        self.best: RoundRecord | None = None
        self.target: RoundRecord | None = None
        self._num_known = 0  # arms in the last round
        # By arm, turns in which it did not belong to the fleet: thousands may be away.
        self._absent: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._rtt_bins: Counter[int] = Counter()

    def count(self, record: RoundRecord) -> None:
        """Count a round."""
        with self.lock:
            self.rounds += 1
            self.turns += record.turns
            self.steps += record.stepped
            self.without_step = 0 if record.stepped else self.without_step + 1
            self.last = record
            self._count_arms(record)
            if record.client_metrics:
                self.on_clients = record
            measured = (record.accuracy, record.loss, record.server_metrics)
            if record.diverged or any(each is not None for each in measured):
                self.on_server = record
            if record.accuracy is None:
                return
            self.evaluated = record
            if self.best is None or record.accuracy > (self.best.accuracy or 0.0):
                self.best = record
            if self.target is None and 0.0 < self.target_accuracy <= record.accuracy:
                self.target = record

    def grow(self, num_arms: int) -> list[ArmTotals]:
        """Return the counts of at least so many arms."""
        self.arms += map(ArmTotals, range(len(self.arms), num_arms))
        if (missing := len(self.arms) - self._absent.size) > 0:
            self._absent = np.pad(self._absent, (0, missing))
        return self.arms

    def member_turns(self, arm: ArmTotals) -> int:
        """Return in how many turns an arm belonged to the fleet."""
        if not arm.first_round:
            return 0
        return self.turns - arm.first_turn - int(self._absent[arm.index])

    def share(self, arm: ArmTotals) -> float:
        """Return in which share of the turns in which it belonged to the fleet it was served.

        Only in these are rounds owed to it, so this is what compares with its floor.
        """
        return arm.served / max(self.member_turns(arm), 1)

    @property
    def loss(self) -> float | None:
        """Loss of the last evaluation on the server; ``None``: there was none."""
        return None if self.on_server is None else self.on_server.loss

    @property
    def server_metrics(self) -> dict[str, float] | None:
        """Other metrics of the last evaluation on the server; ``None``: there was none."""
        return None if self.on_server is None else dict(self.on_server.server_metrics or {}) or None

    @property
    def client_metrics(self) -> dict[str, float] | None:
        """Metrics of the last evaluation on clients; ``None``: there was none."""
        return None if self.on_clients is None else dict(self.on_clients.client_metrics or {})

    @property
    def deadline_s(self) -> float | None:
        """Deadline of the last round [s], if it was found; ``None``: it is that of the settings."""
        return None if self.last is None else self.last.deadline_s

    @property
    def target_reached(self) -> bool:
        """Whether the target accuracy has been reached."""
        return self.target is not None

    def summary(
        self, arms: Sequence[Arm], floors: Sequence[float] | None, *, tau_max_s: GivenDeadline
    ) -> dict[str, Any]:
        """Return the run in numbers, ready for JSON; times in seconds.

        Of a deadline that is found ``deadline_s`` is the last, and none is suggested.
        """
        evaluated, target, failures = self.evaluated, self.target, self.failures
        counts = self.grow(len(arms))
        return {
            "rounds": self.rounds,
            "time_s": self.last.time_s if self.last else 0.0,
            "accuracy": evaluated.accuracy if evaluated else None,
            "loss": self.loss,
            "server_metrics": self.server_metrics,
            "client_metrics": self.client_metrics,
            "best_accuracy": self.best.accuracy if self.best else None,
            "target_accuracy": self.target_accuracy or None,
            "target_round": target.round if target else None,
            "target_time_s": target.time_s if target else None,
            "rounds_without_step": self.rounds - self.steps,
            "failures": failures.total(),
            "failure_reasons": dict(failures),
            "tau_max_s": tau_max_s,
            **({"deadline_s": self.deadline_s} if tau_max_s == AUTO else {}),
            "suggested_tau_max_s": None if tau_max_s == AUTO else self._suggest_tau_max(tau_max_s),
            "arms": [
                {
                    "index": arm.index,
                    "name": arm.name,
                    "num_examples": arm.num_examples,
                    "floor": None if floors is None else floors[arm.index],
                    "share": self.share(counts[arm.index]),
                    "mean_rtt_s": counts[arm.index].mean_rtt_s,
                    "failures": counts[arm.index].failures.total(),
                }
                for arm in arms
            ],
        }

    def _count_arms(self, record: RoundRecord) -> None:
        arms = self.grow(record.num_arms)
        for arm in arms[self._num_known : record.num_arms]:
            arm.first_round, arm.first_turn = self.rounds, self.turns - record.turns
        self._num_known = max(self._num_known, record.num_arms)
        self._absent[record.absent] += record.turns
        for result in record.late_updates:
            arms[result.arm].late_ended += 1
            arms[result.arm].late_updates += result.completed
            self._count_result(arms[result.arm], result, record.round)
        for result in record.results:
            arms[result.arm].selected += 1
            self._count_result(arms[result.arm], result, record.round)

    def _count_result(self, arm: ArmTotals, result: ArmResult, round: int) -> None:
        if result.reason is not None:
            kind = failure_kind(result.reason)
            arm.failures[kind] += 1
            self.failures[kind] += 1
            self.failing[result.arm] = self.failing.get(result.arm, (0, ""))[0] + 1, kind
            return
        self.failing.pop(result.arm, None)
        if result.rtt_s is None:
            return
        arm.completed += 1
        arm.last_completed = round
        arm.rtt_s += result.rtt_s
        arm.rtt_square += result.rtt_s**2
        arm.last_rtt_s = result.rtt_s
        if result.rtt_s:
            self._rtt_bins[math.ceil(math.log(result.rtt_s) / _BIN)] += 1
        if result.compute_s is not None and result.link_s is not None:
            arm.compute_s += result.compute_s
            arm.link_s += result.link_s
            arm.num_reports += 1

    def _suggest_tau_max(self, tau_max_s: float) -> float | None:
        """Suggest a deadline: half as much again as 99 of 100 answers take, or twice this one.

        With more than 1 in 100 answers too late the deadline itself hides that quantile. But where
        the others are far from it, a client that never answers, or does so more often than not,
        is none that needs more time.
        """
        answers = self._rtt_bins.total()
        if not answers:
            return None
        bins = sorted(self._rtt_bins)
        below = accumulate(self._rtt_bins[number] for number in bins)
        quantile = next(
            number
            for number, count in zip(bins, below, strict=True)
            if count >= _SUGGESTED_QUANTILE * answers
        )
        answer_s = math.exp(quantile * _BIN)
        late = self.failures[TIMEOUT]
        if LOOSE * answer_s < tau_max_s:
            too_late = ((arm.completed, arm.failures[TIMEOUT]) for arm in self.arms)
            late = sum(late for completed, late in too_late if 0 < completed < late)
        if late > (1 - _SUGGESTED_QUANTILE) * (answers + late):
            return 2 * tau_max_s
        return round(_SUGGESTED_FACTOR * answer_s, 3)
