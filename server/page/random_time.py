"""Estimate of what random selection would have taken so far, from the times a run has measured."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flower_scheduling.strategies.flower import RoundRecord

from ..runs.round_lines import MAX_LISTED_ARMS

_SAMPLES: Final = 32  # times that are kept of each client, drawn from all that it has shown
_FEW: Final = 10  # rounds below which a client is hardly known
_WELL_KNOWN: Final = 20  # rounds from which on it is known by its own times alone
_LEAST_ROUNDS: Final = 20
_REPEATS: Final = 40
_DRAWS: Final = 250  # rounds of a repeat, fewer in large fleets
_MOST_DRAWS: Final = 1_000_000  # of clients, in all repeats
_LONGEST_WORK: Final = 400  # pieces of work of a repeat in buffered mode
_MORE: Final = 1.1  # by which a run has grown when its estimate is made anew
_TINY: Final = 1e-12  # of times so well known that none is foreign
_INTERVAL: Final = (0.025, 0.975)

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class RandomTime:
    """What a run would have taken so far with clients selected at random.

    Attributes
    ----------
    mean_s, low_s, high_s : float
        Time of as many rounds, or buffered updates, and a 95 % interval of what the measured times
        leave open [s].
    unknown : float
        Share of the random selections that fall on clients with fewer than ten measured rounds.
    """

    mean_s: float
    low_s: float
    high_s: float
    unknown: float


class RandomTimes:
    """The times that clients have shown, and an estimate made of them.

    A random round asks as many clients as a round of the run, drawn from those that are there as
    often as in the run, and lasts as long as the slowest of them. A client takes one of the times
    that it has shown; one that failed takes until its error came, or else until its round or step
    was over. Of a client with n < 20 times only n / 20 of the draws are its own: the others come
    from all clients, those seldom tried first, since policies seldom try the slow. In buffered mode
    a random idle client is given each channel that becomes free.

    This is the estimate of ``flower-simulation report`` without its replay of the run's own policy,
    and without laws for failures that were never seen.

    Parameters
    ----------
    num_selected : int
        Clients of a round, or channels.
    """

    def __init__(self, num_selected: int) -> None:
        self._num_selected = num_selected
        self._rng = np.random.default_rng(0)
        self._times_s: NDArray[np.float32] = np.zeros((0, _SAMPLES), dtype=np.float32)
        self._failed: NDArray[np.bool_] = np.zeros((0, _SAMPLES), dtype=np.bool_)
        self._counts: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._there: FloatArray = np.zeros(0)
        self._rounds = 0
        self._units = 0  # rounds with clients, or pieces of work
        self._completed = 0
        self._buffered = False
        self._made: tuple[int, FloatArray, float] | None = None

    def add(self, record: RoundRecord, deadline_s: float | None) -> None:
        """Add a round; the deadline is the one of the settings [s], if they have one."""
        self._grow(record.num_arms)
        self._rounds += 1
        self._buffered |= record.buffered
        results = record.results
        self._units += len(results) if record.buffered else bool(results)
        self._completed += record.completed.count(True)
        if record.buffered or len(record.available) in (0, record.num_arms):
            self._there[: record.num_arms] += 1.0
            self._there[record.absent] -= 1.0
        elif record.num_arms <= MAX_LISTED_ARMS:
            self._there[record.available] += 1.0
        else:  # they are counted there, and not listed
            self._there[: record.num_arms] += len(record.available) / record.num_arms
        longest_s = record.deadline_s or deadline_s or record.round_s
        for result in results:
            over_s = record.round_s
            if record.buffered:
                over_s = longest_s if result.begin_s is None else record.time_s - result.begin_s
            taken_s = min(longest_s, over_s) if result.rtt_s is None else result.rtt_s
            count = int(self._counts[result.arm])
            place = count if count < _SAMPLES else int(self._rng.integers(count + 1))
            if place < _SAMPLES:
                self._times_s[result.arm, place] = max(taken_s, 0.0)
                self._failed[result.arm, place] = not result.completed
            self._counts[result.arm] += 1

    def estimate(self) -> RandomTime | None:
        """Return the estimate; ``None`` where too little is known."""
        if self._rounds < _LEAST_ROUNDS or not self._completed or self._num_selected < 1:
            return None
        if self._made is None or self._units > _MORE * self._made[0]:
            of_one_s, unknown = self._of_channels() if self._buffered else self._of_rounds()
            self._made = self._units, of_one_s, unknown
        _, of_one_s, unknown = self._made
        total_s = of_one_s * (self._completed if self._buffered else self._units)
        low_s, high_s = np.quantile(total_s, _INTERVAL)
        return RandomTime(float(total_s.mean()), float(low_s), float(high_s), unknown)

    def _grow(self, num_arms: int) -> None:
        if (missing := num_arms - self._counts.size) > 0:
            self._counts = np.pad(self._counts, (0, missing))
            self._there = np.pad(self._there, (0, missing))
            self._times_s = np.pad(self._times_s, ((0, missing), (0, 0)))
            self._failed = np.pad(self._failed, ((0, missing), (0, 0)))

    def _laws(self, rng: np.random.Generator) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Draw what each client may take [s] and whether it fails, (num_arms, num_samples) each."""
        kept = np.minimum(self._counts, _SAMPLES)
        place = (rng.random((kept.size, _SAMPLES)) * kept[:, None]).astype(np.int64)
        times_s = np.take_along_axis(self._times_s, place, axis=1).astype(np.float64)
        failed = np.take_along_axis(self._failed, place, axis=1)
        mask = np.arange(_SAMPLES) < kept[:, None]
        weight = np.broadcast_to(((_FEW / (_FEW + self._counts)) ** 2)[:, None], mask.shape)[mask]
        chance = np.maximum(rng.standard_gamma(weight), _TINY)
        pool = rng.choice(chance.size, times_s.shape, p=chance / chance.sum())
        foreign = rng.random(times_s.shape) >= (self._counts / _WELL_KNOWN)[:, None]
        return (
            np.where(foreign, self._times_s[mask][pool], times_s),
            np.where(foreign, self._failed[mask][pool], failed),
        )

    def _of_rounds(self) -> tuple[FloatArray, float]:
        """Return the mean length of a random round in each repeat [s], and the unknown share."""
        rng, num_arms = np.random.default_rng(1), self._counts.size
        num_selected = min(self._num_selected, num_arms)
        draws = int(np.clip(_MOST_DRAWS // (_REPEATS * num_arms), 20, _DRAWS))
        rate = np.minimum(self._there / self._rounds, 1.0)
        means_s, unknown = np.zeros(_REPEATS), 0.0
        for repeat in range(_REPEATS):
            times_s, _ = self._laws(rng)
            key = rng.random((draws, num_arms))
            key[rng.random(key.shape) >= rate] = np.inf
            arms = np.argpartition(key, num_selected - 1, axis=1)[:, :num_selected]
            there = np.isfinite(np.take_along_axis(key, arms, axis=1))
            which = rng.integers(0, _SAMPLES, arms.shape)
            slowest_s = np.where(there, times_s[arms, which], 0.0).max(axis=1)
            means_s[repeat] = slowest_s[there.any(axis=1)].mean() if there.any() else 0.0
            unknown += (self._counts[arms] < _FEW)[there].mean() if there.any() else 0.0
        return means_s, float(unknown / _REPEATS)

    def _of_channels(self) -> tuple[FloatArray, float]:
        """Return the time per usable update in each repeat [s], and the unknown share."""
        rng, draw = np.random.default_rng(1), random.Random(1)
        num_arms = self._counts.size
        channels = min(self._num_selected, num_arms)
        rate = np.minimum(self._there / self._rounds, 1.0).tolist()
        known = (self._counts >= _FEW).tolist()
        means_s, picks, strange = np.zeros(_REPEATS), 0, 0
        for repeat in range(_REPEATS):
            laws_s, lost = (law.tolist() for law in self._laws(rng))
            idle, now_s, completed = list(range(num_arms)), 0.0, 0
            work: list[tuple[float, int, bool]] = []
            for _ in range(_LONGEST_WORK):
                while len(work) < channels and idle:
                    for _ in range(num_arms):
                        at = draw.randrange(len(idle))
                        if draw.random() < rate[idle[at]]:
                            break
                    idle[at], idle[-1] = idle[-1], idle[at]
                    arm, which = idle.pop(), draw.randrange(_SAMPLES)
                    picks, strange = picks + 1, strange + (not known[arm])
                    heapq.heappush(work, (now_s + laws_s[arm][which], arm, lost[arm][which]))
                now_s, arm, failed = heapq.heappop(work)
                completed += not failed
                idle.append(arm)
            means_s[repeat] = now_s / max(completed, 1)
        return means_s, strange / picks


def as_json(found: RandomTime | None, ours_s: float) -> dict[str, Any] | None:
    """Return an estimate beside what the run has taken [s], ready for JSON."""
    if found is None:
        return None
    return {
        "ours_s": round(ours_s, 6),
        "random_s": round(found.mean_s, 6),
        "low_s": round(found.low_s, 6),
        "high_s": round(found.high_s, 6),
        "unknown": round(found.unknown, 4),
    }
