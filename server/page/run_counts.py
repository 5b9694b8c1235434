"""What a page counts of a run, round by round: some tens of bytes a round, and its clients."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flower_scheduling.strategies.flower import RoundRecord, failure_kind

from ..runs.round_lines import MAX_LISTED_ARMS
from .numbers import numbers

_MAX_POINTS: Final = 600
"""Points of a curve; more rounds share one."""
_HEAT_COLUMNS: Final = 100
_HEAT_ROWS: Final = 100

FloatArray = NDArray[np.float64]


class RunCounts:
    """Count the rounds of a run, and return them as curves.

    Attributes
    ----------
    time_s, round_s : array of float
        End and length of each round [s].
    evaluated : list of tuple
        Round, time [s], accuracy and loss of each evaluation.
    steps : int
        Rounds that changed the model.
    clients : mapping of str to (num_arms,) float64
        By arm: rounds ``selected``, ``present`` and ``done``, ``last_round`` done, ``sum`` and
        ``square`` of round trips, ``compute`` and ``link`` times of those ``parts`` that told.
    failures : mapping of int to Counter
        By arm, of kinds.
    """

    def __init__(self) -> None:
        self.time_s, self.round_s = array("d"), array("d")
        self.evaluated: list[tuple[int, float, float, float | None]] = []
        self.steps = 0
        self.failures: dict[int, Counter[str]] = {}
        names = ("selected", "present", "done", "last_round", "sum", "square")
        self.clients: dict[str, FloatArray] = {
            name: np.zeros(0) for name in (*names, "compute", "link", "parts")
        }
        self._slowest = array("q")
        self._regret = array("d")
        self._expected: tuple[tuple[int, int], FloatArray] = (0, 0), np.zeros(0)
        self._heat_width = 1
        self._heat_counts: NDArray[np.int64] = np.zeros((0, _HEAT_COLUMNS), dtype=np.int64)

    @property
    def num_rounds(self) -> int:
        """How many were counted."""
        return len(self.round_s)

    def count(
        self, record: RoundRecord, truth: Sequence[Mapping[str, Any]], names: Sequence[str]
    ) -> None:
        """Take a round in.

        Parameters
        ----------
        record : RoundRecord
            The next round.
        truth : sequence of mapping
            Since which round which expected times of clients [s], by name; empty: unknown.
        names : sequence of str
            What the arms are called.
        """
        counts = self.grown(record.num_arms)
        arms = np.array(record.selected, dtype=np.int64)
        rtt_s = np.array(record.rtt_s, dtype=np.float64)
        done = np.array(record.completed, dtype=np.bool_) & np.isfinite(rtt_s)
        member = np.ones(record.num_arms, dtype=np.bool_)
        member[record.absent] = False
        counts["selected"][arms] += 1
        counts["present"][: record.num_arms] += member
        counts["done"][arms[done]] += 1
        counts["sum"][arms[done]] += rtt_s[done]
        counts["square"][arms[done]] += rtt_s[done] ** 2
        counts["last_round"][arms[done]] = record.round
        parts_s = (
            np.array(
                [[result.compute_s, result.link_s] for result in record.results], dtype=np.float64
            )
            .reshape(-1, 2)
            .T
        )
        known = done & np.isfinite(parts_s).all(axis=0) if arms.size else done
        for name, values in zip(("compute", "link"), parts_s, strict=True):
            counts[name][arms[known]] += values[known]
        counts["parts"][arms[known]] += 1
        for result in record.results:
            if result.reason is not None:
                self.failures.setdefault(result.arm, Counter())[failure_kind(result.reason)] += 1
        taken = np.where(np.array(record.completed, dtype=np.bool_), rtt_s, np.inf)
        self._slowest.append(int(arms[np.argmax(taken)]) if arms.size else -1)
        self.time_s.append(record.time_s)
        self.round_s.append(record.round_s)
        self.steps += record.stepped
        if record.accuracy is not None:
            point = (record.round, record.time_s, record.accuracy, record.loss)
            self.evaluated.append(point)
        column = (record.round - 1) // self._heat_width
        if column >= _HEAT_COLUMNS:
            self._heat_width *= 2
            pairs = self._heat_counts.reshape(-1, _HEAT_COLUMNS // 2, 2).sum(axis=-1)
            self._heat_counts = np.concatenate([pairs, np.zeros_like(pairs)], axis=1)
            column = (record.round - 1) // self._heat_width
        self._heat_counts[arms, column] += 1
        self._count_regret(record, truth, names)

    def _count_regret(
        self, record: RoundRecord, truth: Sequence[Mapping[str, Any]], names: Sequence[str]
    ) -> None:
        """Add by how much the slowest selected is slower, on average, than it had to be."""
        since = [part for part in truth if part["since_round"] <= record.round]
        listed = record.num_arms <= MAX_LISTED_ARMS or len(record.available) == record.num_arms
        if not since or not listed:
            return
        key = since[-1]["since_round"], len(names)
        if self._expected[0] != key:
            by_name = since[-1]["expected_time_s"]
            try:
                self._expected = key, np.array([by_name[name] for name in names])
            except (KeyError, TypeError):  # somebody else's names
                return
        expected_s = self._expected[1]
        places = min(len(record.selected), len(record.available))
        lost_s = 0.0
        if places:
            least = np.partition(expected_s[record.available], places - 1)[places - 1]
            lost_s = float(expected_s[record.selected].max() - least)
        self._regret.append((self._regret[-1] if self._regret else 0.0) + lost_s)

    def grown(self, num_arms: int) -> dict[str, FloatArray]:
        """Return the counts of at least so many arms."""
        missing = num_arms - self.clients["selected"].size
        if missing > 0:
            for name, values in self.clients.items():
                self.clients[name] = np.concatenate([values, np.zeros(missing)])
            more = np.zeros((missing, _HEAT_COLUMNS), dtype=np.int64)
            self._heat_counts = np.concatenate([self._heat_counts, more])
        return self.clients

    def round_series(self) -> dict[str, Any]:
        """Return the lengths of rounds; where several share a point, their mean and longest."""
        count = len(self.round_s)
        if not count:
            return {"round": [], "time_s": [], "mean_s": [], "longest_s": [], "slowest": []}
        lengths = np.frombuffer(self.round_s)
        width = -(-count // _MAX_POINTS)
        begins = np.arange(0, count, width)
        ends = np.minimum(begins + width, count)
        spans = zip(begins.tolist(), ends.tolist(), strict=True)
        longest = [begin + int(lengths[begin:end].argmax()) for begin, end in spans]
        return {
            "round": ends.tolist(),
            "longest_round": [at + 1 for at in longest],
            "time_s": numbers(np.frombuffer(self.time_s)[ends - 1]),
            "mean_s": numbers(np.add.reduceat(lengths, begins) / (ends - begins)),
            "longest_s": numbers(lengths[longest]),
            "slowest": [self._slowest[at] for at in longest],
        }

    def accuracy_series(self) -> dict[str, Any]:
        """Return the evaluations, some of them if there are many."""
        points = self.evaluated[:: -(-len(self.evaluated) // _MAX_POINTS) or 1]
        if self.evaluated and points[-1] != self.evaluated[-1]:
            points = [*points, self.evaluated[-1]]
        return {
            "round": [point[0] for point in points],
            "time_s": [point[1] for point in points],
            "accuracy": [point[2] for point in points],
            "loss": [point[3] for point in points],
        }

    def regret_series(self) -> dict[str, Any] | None:
        """Return the regret so far at some rounds; ``None`` where it is not known."""
        if not self._regret or len(self._regret) != self.num_rounds:
            return None
        at = np.unique(np.linspace(0, len(self._regret) - 1, _MAX_POINTS).astype(int))
        return {
            "round": (at + 1).tolist(),
            "regret_s": numbers(np.frombuffer(self._regret)[at]),
        }

    def heat(self) -> dict[str, Any]:
        """Return the share of rounds that each client, or group of alike ones, was selected in."""
        num_arms, width = self._heat_counts.shape[0], self._heat_width
        columns = -(-self.num_rounds // width)
        if not num_arms or not columns:
            return {"round": [], "rows": [], "percent": []}
        length = np.full(columns, width)
        length[-1] = self.num_rounds - (columns - 1) * width
        counts = self._heat_counts[:, :columns] / length
        done = self.clients["done"]
        mean_s = np.where(done > 0, self.clients["sum"] / np.maximum(done, 1), np.inf)
        order = np.argsort(mean_s, kind="stable")
        groups = np.array_split(order, min(num_arms, _HEAT_ROWS))
        return {
            "round": (np.arange(columns) * width + 1).tolist(),
            "width": width,
            "rows": [group.tolist() for group in groups],
            "percent": [
                np.round(100 * counts[group].mean(axis=0)).astype(int).tolist() for group in groups
            ],
        }
