"""Run statistics: the rounds of a recorded run counted client by client, in one pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from flower_scheduling.server.runs.totals import RunTotals
from flower_scheduling.strategies.base import BoolArray, FloatArray, IntArray
from flower_scheduling.strategies.deadline import GivenDeadline
from flower_scheduling.strategies.floors import LAG, buffered_lag
from flower_scheduling.strategies.flower import Arm, RoundRecord, failure_kind

from ..environments.recorded import RecordedRun, RunRecord
from ..theory.missed_floors import missed_floor

# Parts of a round trip: two that clients report, and the network, which remains.
PARTS: Final = ("compute", "link", "network")
_COLUMNS: Final = 100
# Rounds in a column of the heat map, at least.
_COLUMN_ROUNDS: Final = 10
# Share by which a round may last longer than its slowest answer without another cause.
_EXPLAINED: Final = 0.01


@dataclass
class ClientStatistics:
    """Statistics of one client; times in seconds.

    Attributes
    ----------
    name : str
        The name that it gave itself.
    num_examples : int or None
        Size of its data set.
    floor : float or None
        Its participation floor.
    joined : int or None
        The first round in which it belonged to the fleet.
    turns : int
        Rounds, or pieces of work of buffered steps, while it belonged to the fleet.
    selections : int
        How often it was selected, and its work ended in that round.
    requests : int
        The same with work that ended later, if it is recorded how.
    served : int
        The same, and how often an update that came after its round was used in a later step.
    failures : Counter of str
        Requests that brought nothing, by the kind of failure.
    lag : int
        Of how many turns it may be behind its floor.
    times_s : (num_completed,) float64
        Its round trips that brought an update.
    parts_s : list of float
        Sums of the :data:`PARTS` of those round trips of which it reported them.
    slowest : int
        Rounds in which it was the slowest.
    lost_s : float
        How much shorter its rounds would have been without it.
    """

    name: str
    num_examples: int | None
    floor: float | None
    joined: int | None
    times_s: FloatArray
    lag: int
    turns: int = 0
    selections: int = 0
    requests: int = 0
    served: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    parts_s: list[float] = field(default_factory=lambda: [0.0] * len(PARTS))
    slowest: int = 0
    lost_s: float = 0.0

    @property
    def share(self) -> float | None:
        """What its floor counts, by the turns in which it belonged to the fleet."""
        return self.served / self.turns if self.turns else None

    @property
    def missed(self) -> bool:
        """Whether its floor was missed, by more than what is tolerated."""
        return missed_floor(self.share, self.floor, self.turns, self.lag)

    def quantile_s(self, level: float) -> float | None:
        """Return a quantile of its round trips."""
        return float(np.quantile(self.times_s, level)) if self.times_s.size else None

    @property
    def median_s(self) -> float | None:
        """Median round trip."""
        return self.quantile_s(0.5)

    @property
    def split(self) -> list[float] | None:
        """Shares of the :data:`PARTS`; ``None``: it reported none."""
        total_s = sum(self.parts_s)
        return [part_s / total_s for part_s in self.parts_s] if total_s > 0 else None


@dataclass(frozen=True)
class RunStatistics:
    """Statistics of a recorded run, and of each of its clients.

    Attributes
    ----------
    clients : list of ClientStatistics
        By arm.
    summary : dict
        The run in numbers, as ``summary.json`` has them, counted again.
    round_s : (num_rounds,) float64
        Lengths of the rounds [s].
    failed : (num_rounds,) int64
        Requests of each round that brought nothing.
    evaluations : list of (int, float, float)
        Round, time since the start [s] and test accuracy, where the model was evaluated.
    on_clients : list of (int, mapping of str to float)
        Round and metrics of the first evaluation on clients and the last, where there are any.
    no_step : Counter of str
        Rounds that did not change the model, by reason.
    best : (int, float) or None
        Round and value of the best accuracy.
    heat : (num_clients, num_columns) float64
        Share of the turns of each of equal stretches of the run in which each client was served;
        NaN before it joined.
    edges : (num_columns + 1,) int64
        Where the stretches begin and end [rounds].
    requests : (num_columns,) int64
        Requests in each stretch.
    failures : dict of str to (num_columns,) int64
        Those that brought nothing, by the kind of failure.
    num_asked : int
        The most clients that a round has asked, spare ones among them.
    num_late : int
        How often a client was asked and its round did not wait for it.
    buffered : bool
        Whether its rounds are buffered steps, in which clients wait for none of the others.
    """

    clients: list[ClientStatistics]
    summary: dict[str, Any]
    round_s: FloatArray
    failed: IntArray
    evaluations: list[tuple[int, float, float]]
    on_clients: list[tuple[int, Mapping[str, float]]]
    no_step: Counter[str]
    heat: FloatArray
    edges: IntArray
    requests: IntArray
    failures: dict[str, IntArray]
    num_asked: int
    num_late: int
    buffered: bool

    @property
    def unit(self) -> str:
        """What a line of the record is."""
        return "step" if self.buffered else "round"

    @property
    def share_of(self) -> str:
        """What shares and floors are of."""
        return "updates" if self.buffered else "rounds"

    @property
    def best(self) -> tuple[int, float] | None:
        """Round and value of the best accuracy."""
        if not self.evaluations:
            return None
        number, _, accuracy = max(self.evaluations, key=lambda each: each[2])
        return number, accuracy

    @property
    def num_requests(self) -> int:
        """Number of pieces of work of all clients that have ended."""
        return sum(client.requests for client in self.clients)

    @property
    def compared(self) -> bool:
        """Whether any round waited for the slowest of two clients or more."""
        return any(client.slowest for client in self.clients)

    @property
    def not_compared(self) -> str:
        """Why none did."""
        return "waited for its slowest client" if self.num_late else "had two clients to compare"

    @property
    def lost_s(self) -> float:
        """Time that the run would have saved, had the slowest been absent in each round [s]."""
        return sum(client.lost_s for client in self.clients)


def held_up(record: RoundRecord, num_selected: int) -> tuple[BoolArray, float]:
    """Return the slowest clients of a round, and the time that their round would save without them.

    A client without a measured time counts with the length of the round if no answer explains that
    length: its failure came at some time that is not recorded otherwise. Where several share the
    last place the round would be no shorter without one of them. A round with one client alone
    would not be without it: it has no slowest. Neither has one that ended with the N-th answer of
    more that were asked: without that client it would have waited for the next.

    Parameters
    ----------
    record : RoundRecord
        The round.
    num_selected : int
        N.

    Returns
    -------
    slowest : (num_selected,) bool
        Per selected client.
    lost_s : float
        Time that the slowest cost the others [s]; 0 unless there is exactly one.
    """
    count = len(record.results)
    if count < 2 or (record.late and record.completed.count(True) <= num_selected):
        return np.zeros(count, dtype=np.bool_), 0.0
    known = [rtt_s is not None for rtt_s in record.rtt_s]
    times_s = np.array(
        [0.0 if rtt_s is None else min(rtt_s, record.round_s) for rtt_s in record.rtt_s]
    )
    if record.round_s * (1 - _EXPLAINED) > times_s.max():
        times_s[~np.array(known)] = record.round_s
    last_s = times_s.max()
    slowest: BoolArray = (times_s == last_s) & (last_s > 0)
    if np.count_nonzero(slowest) != 1:
        return slowest, 0.0
    return slowest, float(last_s - times_s[~slowest].max())


def gather_statistics(run: RecordedRun, record: RunRecord) -> RunStatistics:
    """Return the statistics of a recorded run.

    Parameters
    ----------
    run : RecordedRun
        The run.
    record : RunRecord
        From :func:`.record_of`.
    """
    lag = LAG
    if record.buffered:
        lag = buffered_lag(sum(floor > 0.0 for floor in run.floors), run.num_selected)
    clients = [
        ClientStatistics(
            arm.name,
            arm.num_examples,
            arm.floor,
            None,
            record.samples_s[index][np.isfinite(record.samples_s[index])],
            lag,
        )
        for index, arm in enumerate(run.arms)
    ]
    target = run.config.get("target-accuracy")
    totals = RunTotals(target_accuracy=float(target) if isinstance(target, int | float) else 0.0)
    columns = max(1, min(_COLUMNS, run.num_rounds // _COLUMN_ROUNDS))
    edges = np.linspace(0, run.num_rounds, columns + 1).round().astype(np.int64)
    column = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    heat = np.zeros((len(clients), len(edges) - 1))
    turns = np.zeros(len(edges) - 1)
    joined = np.zeros(len(clients), dtype=np.int64)
    round_s = np.empty(run.num_rounds)
    failed = np.zeros(run.num_rounds, dtype=np.int64)
    requests = np.zeros(len(edges) - 1, dtype=np.int64)
    failures: dict[str, IntArray] = {}
    evaluations = []
    on_clients: list[tuple[int, Mapping[str, float]]] = []
    no_step: Counter[str] = Counter()
    num_late = 0
    for row, each in enumerate(run.rounds()):
        totals.count(each)
        round_s[row] = each.round_s
        num_late += len(each.late)
        np.add.at(heat[:, column[row]], each.served, 1)
        turns[column[row]] += each.turns
        there = joined[: each.num_arms] == 0
        there[each.absent] = False
        joined[: each.num_arms][there] = row + 1
        ended = [*each.results, *each.late_updates]
        requests[column[row]] += len(ended)
        for result in ended:
            if result.reason is not None:
                failed[row] += 1
                kind = failure_kind(result.reason)
                failures.setdefault(kind, np.zeros_like(requests))[column[row]] += 1
        if each.accuracy is not None:
            evaluations.append((each.round, each.time_s, float(each.accuracy)))
        if each.client_metrics:
            on_clients[1:] = [(each.round, each.client_metrics)]
        if not each.stepped:
            no_step[each.no_step or "unknown"] += 1
        _count(each, clients, run.num_selected)
    heat /= np.maximum(turns, 1.0)
    for index, (client, counts) in enumerate(zip(clients, totals.grow(len(clients)), strict=True)):
        client.joined = int(joined[index]) or None
        client.turns = totals.member_turns(counts)
        client.selections, client.served = counts.selected, counts.served
        client.requests = counts.requests
        client.failures = counts.failures
        heat[index, edges[1:] < (client.joined or run.num_rounds + 1)] = np.nan
    arms = [Arm(index, "", 0, arm.name, arm.num_examples) for index, arm in enumerate(run.arms)]
    tau_max_s: GivenDeadline = "auto" if run.finds_deadline else run.tau_max_s
    summary = totals.summary(arms, run.floors or None, tau_max_s=tau_max_s)
    return RunStatistics(
        clients,
        summary,
        round_s,
        failed,
        evaluations,
        on_clients,
        no_step,
        heat,
        edges,
        requests,
        failures,
        record.num_asked,
        num_late,
        record.buffered,
    )


def _count(record: RoundRecord, clients: Sequence[ClientStatistics], num_selected: int) -> None:
    slowest, lost_s = held_up(record, num_selected)
    for place, result in enumerate(record.results):
        client = clients[result.arm]
        if slowest[place]:
            client.slowest += 1
            client.lost_s += lost_s
        parts = (result.compute_s, result.link_s)
        if result.completed and result.rtt_s is not None and parts != (None, None):
            parts_s = [part or 0.0 for part in parts]
            for number, part_s in enumerate((*parts_s, max(0.0, result.rtt_s - sum(parts_s)))):
                client.parts_s[number] += part_s
