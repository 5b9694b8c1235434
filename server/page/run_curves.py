"""The curves of a page: some tens of bytes a round."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flower_scheduling.strategies.flower import RoundRecord

from ..runs.round_lines import MAX_LISTED_ARMS
from ..runs.totals import ArmTotals
from .numbers import numbers

_MAX_POINTS: Final = 600  # of a curve; more rounds share one
_HEAT_COLUMNS: Final = 100
_HEAT_ROWS: Final = 100

FloatArray = NDArray[np.float64]


class RunCurves:
    """Curves of a run over its rounds: lengths, accuracy, regret, and shares of the clients.

    Attributes
    ----------
    time_s, round_s : array of float
        End and length of each round [s].
    num_selected, num_completed : array of int
        Clients of each round, and how many of them delivered.
    evaluated : list of tuple
        Round, time [s], accuracy and loss of each evaluation.
    """

    def __init__(self) -> None:
        self.time_s, self.round_s = array("d"), array("d")
        self.num_selected, self.num_completed = array("i"), array("i")
        self.evaluated: list[tuple[int, float, float, float | None]] = []
        self._slowest = array("q")
        self._regret = array("d")
        self._expected: tuple[tuple[int, int], FloatArray] = (0, 0), np.zeros(0)
        self._heat_width = 1
        self._heat_counts: NDArray[np.int64] = np.zeros((0, _HEAT_COLUMNS), dtype=np.int64)

    @property
    def num_rounds(self) -> int:
        """How many rounds there are."""
        return len(self.round_s)

    def add(
        self, record: RoundRecord, truth: Sequence[Mapping[str, Any]], names: Sequence[str]
    ) -> None:
        """Add a round.

        Parameters
        ----------
        record : RoundRecord
            The next round.
        truth : sequence of mapping
            Since which round which expected times of clients [s], by name; empty: unknown.
        names : sequence of str
            What the arms are called.
        """
        waited_s = [(r.rtt_s or 0.0) if r.completed else np.inf for r in record.results]
        slowest = record.selected[waited_s.index(max(waited_s))] if waited_s else -1
        self._slowest.append(slowest)
        self.time_s.append(record.time_s)
        self.round_s.append(record.round_s)
        self.num_selected.append(len(record.results))
        self.num_completed.append(record.completed.count(True))
        if record.accuracy is not None:
            point = (record.round, record.time_s, record.accuracy, record.loss)
            self.evaluated.append(point)
        self._add_heat(record)
        self._add_regret(record, truth, names)

    def _add_heat(self, record: RoundRecord) -> None:
        """Count by arm what shares are of, in columns of ever more rounds."""
        self._grow_heat(record.num_arms)
        if (record.round - 1) // self._heat_width >= _HEAT_COLUMNS:
            self._heat_width *= 2
            pairs = self._heat_counts.reshape(-1, _HEAT_COLUMNS // 2, 2).sum(axis=-1)
            self._heat_counts = np.concatenate([pairs, np.zeros_like(pairs)], axis=1)
        column = (record.round - 1) // self._heat_width
        np.add.at(self._heat_counts[:, column], record.served, 1)

    def _grow_heat(self, num_arms: int) -> None:
        if (missing := num_arms - self._heat_counts.shape[0]) > 0:
            self._heat_counts = np.pad(self._heat_counts, ((0, missing), (0, 0)))

    def _add_regret(
        self, record: RoundRecord, truth: Sequence[Mapping[str, Any]], names: Sequence[str]
    ) -> None:
        """Add by how much the slowest selected is slower, on average, than it had to be.

        In buffered mode no client is waited for, and there is no such thing.
        """
        if record.buffered:
            return
        since = [part for part in truth if part["since_round"] <= record.round]
        listed = record.num_arms <= MAX_LISTED_ARMS or len(record.available) == record.num_arms
        if not since or not listed:
            return
        key = since[-1]["since_round"], len(names)
        if self._expected[0] != key:
            by_name = since[-1]["expected_time_s"]
            try:
                self._expected = key, np.array([by_name[name] for name in names])
            except (KeyError, TypeError):  # other names than the run's
                return
        expected_s = self._expected[1]
        places = min(len(record.selected), len(record.available))
        lost_s = 0.0
        if places:
            least = np.partition(expected_s[record.available], places - 1)[places - 1]
            lost_s = float(expected_s[record.selected].max() - least)
        self._regret.append((self._regret[-1] if self._regret else 0.0) + lost_s)

    def round_series(self, first: int = 1, last: int | None = None) -> dict[str, Any]:
        """Return the lengths of rounds; where several share a point, their mean and longest.

        Parameters
        ----------
        first, last : int
            Which rounds; all of them by default.
        """
        end = len(self.round_s) if last is None else min(last, len(self.round_s))
        count = end - first + 1
        if count < 1:
            empty: dict[str, Any] = {"width": 1, "round": [], "longest_round": [], "time_s": []}
            return empty | {"mean_s": [], "longest_s": [], "longest_time_s": [], "slowest": []}
        lengths, times_s = np.frombuffer(self.round_s), np.frombuffer(self.time_s)
        width = -(-count // _MAX_POINTS)
        begins = np.arange(first - 1, end, width)
        ends = np.minimum(begins + width, end)
        spans = zip(begins.tolist(), ends.tolist(), strict=True)
        longest = [begin + int(lengths[begin:end].argmax()) for begin, end in spans]
        sums = np.add.reduceat(lengths[:end], begins)
        return {
            "width": width,
            "round": ends.tolist(),
            "longest_round": [at + 1 for at in longest],
            "time_s": numbers(times_s[ends - 1]),
            "mean_s": numbers(sums / (ends - begins)),
            "longest_s": numbers(lengths[longest]),
            "longest_time_s": numbers(times_s[longest]),
            "slowest": [self._slowest[at] for at in longest],
        }

    def accuracy_series(self, first: int = 1, last: int | None = None) -> dict[str, Any]:
        """Return the evaluations of rounds, some of them if there are many."""
        found = [p for p in self.evaluated if first <= p[0] and (last is None or p[0] <= last)]
        points = found[:: -(-len(found) // _MAX_POINTS) or 1]
        if found and points[-1] != found[-1]:
            points = [*points, found[-1]]
        return {
            "round": [point[0] for point in points],
            "time_s": [point[1] for point in points],
            "accuracy": [point[2] for point in points],
            "loss": [point[3] for point in points],
        }

    def regret_series(self, first: int = 1, last: int | None = None) -> dict[str, Any] | None:
        """Return the regret so far at some rounds; ``None`` where it is not known."""
        if not self._regret or len(self._regret) != self.num_rounds:
            return None
        end = len(self._regret) if last is None else min(last, len(self._regret))
        if first > end:
            return None
        at = np.unique(np.linspace(first - 1, end - 1, _MAX_POINTS).astype(int))
        return {
            "round": (at + 1).tolist(),
            "time_s": numbers(np.frombuffer(self.time_s)[at]),
            "regret_s": numbers(np.frombuffer(self._regret)[at]),
        }

    def table(self, names: Sequence[str]) -> Iterator[tuple[object, ...]]:
        """Yield a heading and a row for each round.

        Parameters
        ----------
        names : sequence of str
            What the arms are called.
        """
        yield "round", "time_s", "round_s", "selected", "completed", "slowest", "accuracy", "loss"
        evaluated = {point[0]: point[2:] for point in self.evaluated}
        columns = self.time_s, self.round_s, self.num_selected, self.num_completed, self._slowest
        for number, row in enumerate(zip(*columns, strict=True), start=1):
            *values, slowest = row
            name = names[slowest] if 0 <= slowest < len(names) else None
            yield number, *values, name, *evaluated.get(number, (None, None))

    def heat(self, arms: Sequence[ArmTotals]) -> dict[str, Any]:
        """Return the share of rounds that each client, or group of alike ones, was selected in.

        Parameters
        ----------
        arms : sequence of ArmTotals
            The totals of all arms: rows are ordered by their mean times.
        """
        self._grow_heat(len(arms))
        num_arms, width = len(arms), self._heat_width
        columns = -(-self.num_rounds // width)
        if not num_arms or not columns:
            return {"round": [], "rows": [], "percent": []}
        length = np.full(columns, width)
        length[-1] = self.num_rounds - (columns - 1) * width
        counts = self._heat_counts[:, :columns] / length
        mean_s = [np.inf if (m := arm.mean_rtt_s) is None else m for arm in arms]
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
