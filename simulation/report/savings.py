"""Savings estimate: the time of a run against random selection on the same recorded times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from flower_scheduling.server.settings.run import ServerConfig

from ..engine.replayer import RECORDED, Replayed, caveats, replay, reproduced, spread
from ..environments.recorded import RunRecord
from ..theory.estimate import Estimate
from ..wording import percent, plain, seconds

RANDOM: Final = "random"
# Repetitions of a replay, where that does not take long.
SEEDS: Final = 100
_FEWEST_SEEDS: Final = 20
# Rounds times arms up to which a policy that learns is replayed over all rounds, and of a replay
# that is cut short.
_LEARNING: Final = 10**6
_SHORTENED: Final = 5 * 10**5
# Rounds times arms times repetitions that take some ten seconds, learning and at random.
_WORK: Final = 2 * 10**7
_RANDOM_WORK: Final = 10**8
_TINY_S: Final = 1e-12
# Differences of sums and of shares that are worth a sentence.
_LUCK: Final = 0.02
_NOTABLE: Final = 0.01
_BETWEEN: Final = 0.05
# From this share of selections on, clients hardly known decide what a replay takes.
_VAGUE: Final = 0.1


@dataclass(frozen=True)
class SavingsEstimate:
    """Estimate of the time that scheduling saved in a run, with its intervals.

    Attributes
    ----------
    policy : str
        The policy of the run.
    other : str
        The policy compared with: ``random``; for a run at random, the default policy.
    recorded_s : float
        Time of the rounds as recorded [s].
    again_s : Estimate or None
        Their time when the policy of the run is replayed, if that is part of the comparison [s].
    other_s : Estimate
        Their time with the other policy [s].
    saved_s, saved_share : Estimate
        Time saved against random selection [s], and as a share of random selection's time;
        negative: scheduling costs more. The share is one of the means, its interval that of pairs.
    paired : bool
        Whether both are replayed and compared in pairs; else a replay stands against the record.
    num_rounds : int
        Rounds that were replayed.
    of_rounds : int
        Rounds of the run.
    caveats : tuple of str
        What the record cannot say, in sentences.
    little_known : float
        Share of the other policy's selections in the replay that fell on clients hardly known.
    delivered : bool
        Whether any client ever delivered in time.
    buffered : bool
        Whether as many updates are compared, those of buffered steps, instead of as many rounds.
    spares : bool
        Whether the run had spare clients, which no replay has.
    """

    policy: str
    other: str
    recorded_s: float
    again_s: Estimate | None
    other_s: Estimate
    saved_s: Estimate
    saved_share: Estimate
    paired: bool
    num_rounds: int
    of_rounds: int
    caveats: tuple[str, ...]
    little_known: float = 0.0
    delivered: bool = True
    buffered: bool = False
    spares: bool = False

    @property
    def _unit(self) -> str:
        """What is as many in both."""
        return "updates" if self.buffered else "rounds"

    @property
    def resolved(self) -> bool:
        """Whether the interval of what is saved excludes zero."""
        return self.saved_s.low > 0.0 or self.saved_s.high < 0.0

    @property
    def vague(self) -> bool:
        """Whether the run hardly tried the clients on which the estimate depends."""
        return self.little_known >= _VAGUE

    @property
    def sentence(self) -> str:
        """The estimate in a few sentences."""
        if not self.delivered:
            took, says = seconds(self.recorded_s), "Such a run does not say what scheduling saves."
            if self.buffered:
                return f"No client delivered anything in time, in {took}. {says}"
            rounds = f"{self.of_rounds:,} rounds" if self.of_rounds > 1 else "one round"
            return (
                f"No client delivered anything in time: {rounds} with {plain(self.policy)} took "
                f"{took}. {says}"
            )
        where = " in buffered mode" if self.buffered else ""
        took = f"Scheduling with {plain(self.policy)}{where} took {seconds(self.recorded_s)}."
        other = "Rounds of randomly selected clients" if self.buffered else "Random selection"
        if self.policy == RANDOM:
            took = f"Random selection{where} took {seconds(self.recorded_s)}."
            other = f"{'Rounds' if self.buffered else 'Scheduling'} with {self.other}"
        if {percent(self.saved_share.low), percent(self.saved_share.high)} == {percent(0.0)}:
            return f"{took} {other} would have taken just as long for as many {self._unit}."
        low, high = self.other_s.low, self.other_s.high
        if self.again_s and self._differs(self.again_s):
            without = " without spare clients" if self.spares else ""
            again = f"{seconds(self.again_s.mean)} on average when replayed{without}"
            took = f"{took[:-1]}, and {again}."
        part = f" for as many {self._unit}"
        if self.num_rounds < self.of_rounds:
            part = f" for the first {self.num_rounds:,} of {self.of_rounds:,} rounds"
        if self.vague:
            return (
                f"{took} What {other[0].lower()}{other[1:]} would have taken{part} cannot be told "
                f"well: {percent(self.little_known)} of what it selects are clients that this run "
                f"hardly tried. It is somewhere between {seconds(low)} and {seconds(high)}: "
                f"{self._vague_verdict}."
            )
        would = (
            f"{other} on the same latencies would have taken {seconds(self.other_s.mean)}{part} "
            f"(95 %: {seconds(low, like=self.other_s.mean, unit=False)} to "
            f"{seconds(high, like=self.other_s.mean, unit=False)}):"
        )
        return f"{took} {would} {self.verdict}."

    def _differs(self, again_s: Estimate) -> bool:
        """Whether the run would not explain what is saved: it had good or bad luck."""
        whole = self.num_rounds == self.of_rounds
        return whole and abs(again_s.mean - self.recorded_s) > _LUCK * self.recorded_s

    @property
    def verdict(self) -> str:
        """The saving with its interval, or that the run does not resolve it."""
        share = self.saved_share
        interval = f"95 %: {percent(share.low)} to {percent(share.high)}"
        they = "they" if self.buffered else "it"
        would = f"{they} would have " if self.policy == RANDOM else ""
        if not self.resolved:
            return (
                f"no difference that this run can tell, {percent(share.mean)} saved, and the "
                f"interval includes zero ({interval})"
            )
        if share.mean >= 0:
            return f"{would}{self._together}saved {percent(share.mean)} ({interval})"
        interval = f"95 %: {percent(-share.high)} to {percent(-share.low)}"
        return f"{would}cost {percent(-share.mean)} more ({interval})"

    @property
    def _together(self) -> str:
        """What saves, where it is not the policy alone."""
        if self.policy == RANDOM:
            return ""
        if self.buffered:
            return "buffered mode and the policy together "
        return "spare clients and the policy together " if self.spares and not self.paired else ""

    @property
    def _vague_verdict(self) -> str:
        low, high = self.saved_share.low, self.saved_share.high
        would = "would have " if self.policy == RANDOM else ""
        if not self.resolved:
            return (
                f"whether scheduling {would}saved time is open ({percent(low)} to {percent(high)})"
            )
        if self.saved_s.low > 0.0:
            return f"scheduling {would}saved between {percent(low)} and {percent(high)}"
        return f"scheduling {would}cost between {percent(-high)} and {percent(-low)} more"

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, ready for JSON."""
        derived = {"resolved": self.resolved, "vague": self.vague, "sentence": self.sentence}
        return asdict(self) | derived


def estimate_savings(
    record: RunRecord,
    num_seeds: int | None = None,
    *,
    on_round: Callable[[int, int], None] | None = None,
) -> SavingsEstimate:
    """Replay a record, and estimate what scheduling saved.

    Parameters
    ----------
    record : RunRecord
        From :func:`.record_of`.
    num_seeds : int, >= 2, optional
        Repetitions. Left out, :data:`SEEDS`, and in large runs as few and as little of the run as
        take half a minute; the caveats say so.
    on_round : callable, optional
        Called in each replayed round with how many have begun, and how many there are.
    """
    work = record.num_rounds * len(record.names)
    at_random = record.policy == RANDOM
    small = work <= _LEARNING or num_seeds is not None
    notes = []
    replayed = record
    if at_random and not small:
        replayed = _shortened(record, max(1, _SHORTENED // len(record.names)))
        work = replayed.num_rounds * len(record.names)
    if num_seeds is None:
        budget = _WORK if small or at_random else _RANDOM_WORK
        num_seeds = int(np.clip(budget // max(work, 1), _FEWEST_SEEDS, SEEDS))
    other = ServerConfig().strategy if at_random else RANDOM
    found = replay(
        replayed, [other], num_seeds=num_seeds, again=small or at_random, on_round=on_round
    )
    *mine, others = found
    whole = replayed.num_rounds == record.num_rounds
    if not mine and not record.buffered:
        why = "cannot be replayed" if small else "takes long to replay in a run of this size"
        name = plain(record.policy)
        notes.append(f"{name} {why}: a replay of {other} stands against the record.")
    if not whole:
        notes.append("A policy that learns saves less in few rounds than in many.")
    paired = bool(mine) and (not whole or reproduced(record, found) is not False)
    ours_s = mine[0].times_s if paired else np.full(num_seeds, record.time_s)
    saved_s = others.times_s - ours_s
    base_s = others.times_s
    if at_random:
        saved_s, base_s = -saved_s, ours_s
    shares = spread(saved_s / np.maximum(base_s, _TINY_S))
    return SavingsEstimate(
        policy=record.policy,
        other=other,
        recorded_s=record.time_s,
        again_s=mine[0].time_s if paired else None,
        other_s=others.time_s,
        saved_s=spread(saved_s),
        saved_share=replace(shares, mean=float(saved_s.mean() / max(base_s.mean(), _TINY_S))),
        paired=paired,
        num_rounds=replayed.num_rounds,
        of_rounds=record.num_rounds,
        caveats=(*_caveats(record, found, whole=whole), *notes),
        little_known=others.little_known,
        delivered=record.delivered,
        buffered=record.buffered,
        spares=record.has_spares,
    )


def _caveats(record: RunRecord, found: Sequence[Replayed], *, whole: bool) -> list[str]:
    shown = found if whole else [each for each in found if each.policy != RECORDED]
    lines = caveats(record, shown)
    if _NOTABLE <= found[-1].little_known < _VAGUE:
        lines.append(
            f"{percent(found[-1].little_known)} of what {found[-1].policy} selects in the replay "
            "are clients hardly known."
        )
    if found[-1].times_s.size < _FEWEST_SEEDS:
        lines.append(f"With {found[-1].times_s.size} repetitions an interval says little.")
    if record.between_s > _BETWEEN * record.time_s:
        lines.append(
            f"Between its rounds the run spent {seconds(record.between_s)}, waiting for clients, "
            "aggregating or evaluating, which does not count here."
        )
    if record.measured_s - record.time_s > _NOTABLE * record.time_s:
        lines.append(
            "What the server does in a round besides waiting for clients does not count here: "
            f"measured, the rounds took {seconds(record.measured_s)}."
        )
    return lines


def _shortened(record: RunRecord, num_rounds: int) -> RunRecord:
    return replace(record, num_rounds=min(num_rounds, record.num_rounds))
