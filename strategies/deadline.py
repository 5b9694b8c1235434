"""A deadline that is found from measured round-trip times: pure, without a clock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .base import BoolArray, FloatArray, IntArray, check_real

AUTO: Final = "auto"
"""In place of a number of seconds: the deadline is found from what is measured."""
GivenDeadline: TypeAlias = float | Literal["auto"]
"""A deadline [s], or :data:`AUTO`."""
LONGEST_S: Final = 3600.0
"""Longest deadline that is found, and the first one; Flower's own timeout of a round [s]."""


def as_deadline(value: object) -> GivenDeadline:
    """Return a deadline of a file of settings.

    Raises
    ------
    ValueError, TypeError
        If it is neither a number nor :data:`AUTO`.
    """
    return "auto" if value == AUTO else float(value)  # type: ignore[arg-type]


_FACTOR: Final = 2.0
_DEVIATIONS: Final = 2.5
"""An arm is given twice the time that it takes once in 160 rounds, were its times log-normal."""
_LEAST_S: Final = 1.0
"""Least time that an arm is given [s]."""
_FIRST_DEVIATION: Final = 1.0
_LEAST_DEVIATION: Final = 0.1
"""Standard deviation of a log time while nothing is known of it, and the least that counts."""
_FIRST_WEIGHT: Final = 4.0
_POOLED_WEIGHT: Final = 5.0
"""Observations that the first deviation counts for in the pooled one, and this in an arm's own."""
_MEMORY: Final = 50
"""Observations of an arm after which earlier ones fade."""
_SHRINKING: Final = 0.1
"""Largest part that the deadline loses in a round."""
_UNTRIED_FACTOR: Final = 10.0
_UNTRIED_LEAST_S: Final = 60.0
"""An arm that never answered is given so many times what the slowest takes, and so long [s]."""
_GROWTH: Final = 3.0
_MOST_GROWTH: Final = 3
_UNTRIED_GROWTH: Final = 1
"""What a missed deadline multiplies an arm's time by; how often, at most, and for an arm that has
never answered."""


class AutoDeadline:
    """A deadline for each round, long enough for its arms by all that is known of them.

    An arm is given the time

        a_k = max(1 s, 2 exp(m_k + 2.5 s_k)),

    with m_k the mean and s_k the standard deviation of the logarithm of its last 50 or so
    round-trip times: a fading link takes a hundred times as long now and then, which a mean of
    times would follow and one of logarithms hardly notices. s_k is shrunk towards the deviation of
    all arms, as if five times had been observed with that one; and that begins as 1, which is a
    factor of 24 on a first time. A second is what a busy host or a sleeping radio takes now and
    then, however short the times were. The deadline of a round is

        d(t) = max(l(t), max over the super arm of a_k),
        l(t + 1) = max(0.9 l(t), max over its arms that answered of a_k).

    So it grows at once, shrinks by at most a tenth a round, and no arm of a round, with a floor or
    without, gets less than its own a_k. Arms that are selected no more do not hold it up.

    - Before anything was measured the deadline is ``longest_s``: the first round of a fleet is not
      timed out by a guess. Later an arm that never answered is given a minute, or 10 times what the
      slowest arm typically takes.
    - A missed deadline says that the arm takes longer than that, or is dead. The next time the arm
      is selected, it gets 3 times as long, then 9, and after 4, 8, 16, ... misses in a row 27 times
      as long; in between, and in l, its misses count for nothing. A client that has become 20 times
      slower is reached by its third round; a dead one holds the fleet up a few times and then ever
      more rarely. An arm that never answered is given 3 times as long at most.
    - A time above exp(m_k + 2.5 s_k), right after another such one or a missed deadline, means that
      the arm has changed: what was known of it is forgotten.
    - Times of missed deadlines do not enter m and s. With them a client that fails now and then
      would stretch its own deadline, and so what its next failure counts.

    Parameters
    ----------
    longest_s : float, > 0
        Longest deadline [s].

    Attributes
    ----------
    num_arms : int
        Arms that anything is known of, by index.

    Raises
    ------
    ConfigError
        If the longest deadline is out of range.
    """

    def __init__(self, longest_s: float = LONGEST_S) -> None:
        self.longest_s = check_real("longest_s", longest_s, above=0.0)
        self._level_s = math.nan  # l; NaN before anything was measured
        self._count: IntArray = np.zeros(0, dtype=np.int64)
        self._mean: FloatArray = np.zeros(0)  # of log times
        self._variance: FloatArray = np.zeros(0)
        self._missed: IntArray = np.zeros(0, dtype=np.int64)  # deadlines in a row
        self._beyond: BoolArray = np.zeros(0, dtype=np.bool_)  # whether the last time was odd

    @property
    def num_arms(self) -> int:
        """Arms that anything is known of."""
        return self._count.size

    @property
    def num_known(self) -> int:
        """Arms that have been timed."""
        return int(np.count_nonzero(self._count))

    @property
    def level_s(self) -> float:
        """What a round of known arms takes at most, l [s]; the longest at the beginning."""
        return self.longest_s if math.isnan(self._level_s) else min(self._level_s, self.longest_s)

    @property
    def slowest_s(self) -> float:
        """Geometric mean time of the slowest arm that has been timed [s]; NaN if none has."""
        known = self._mean[self._count > 0]
        return float(np.exp(known.max())) if known.size else math.nan

    def deadline_s(
        self, arms: Sequence[int] | IntArray, slowdown: FloatArray | None = None
    ) -> float:
        """Return the deadline of a round of these arms [s]; nothing moves.

        Parameters
        ----------
        arms : sequence of int
            The super arm.
        slowdown : (len(arms),) float64, optional
            How many times as long as the times that were told each will take; above 1 it is given
            so many times a_k.
        """
        if math.isnan(self._level_s):
            return self.longest_s
        chosen = np.asarray(arms, dtype=np.int64)
        if not chosen.size:
            return self.level_s
        self._grow(int(chosen.max()) + 1)
        untried = self._count[chosen] == 0
        missed = self._missed[chosen]
        # After 1, 2, 4, 8, ... misses it is tried with more time.
        exponent = np.floor(np.log2(np.maximum(missed, 1))) + 1.0
        exponent = np.minimum(exponent, np.where(untried, _UNTRIED_GROWTH, _MOST_GROWTH))
        retried = (missed > 0) & (missed & (missed - 1) == 0)
        factor = np.where(retried, _GROWTH**exponent, 1.0)
        first_s = max(_UNTRIED_LEAST_S, _UNTRIED_FACTOR * self.slowest_s)
        needed_s = np.where(untried, first_s, self._allowed_s()[chosen]) * factor
        needed_s[untried & (missed > 0) & ~retried] = 0.0
        if slowdown is not None:
            needed_s *= np.maximum(slowdown, 1.0)
        return min(max(self._level_s, float(needed_s.max())), self.longest_s)

    def tell(self, arms: Sequence[int] | IntArray, rtt_s: ArrayLike, completed: ArrayLike) -> None:
        """Learn from a round, or from what came after its end.

        Parameters
        ----------
        arms : sequence of int, each once
            Those that answered, or were not heard of before the deadline. What else failed, such
            as a lost connection, says nothing about times.
        rtt_s : (len(arms),) array-like of float
            Round-trip times [s]; read only where completed.
        completed : (len(arms),) array-like of bool
            Whether the arm answered.
        """
        chosen = np.asarray(arms, dtype=np.int64)
        done = np.asarray(completed, dtype=np.bool_)
        if not chosen.size:
            return
        self._grow(int(chosen.max()) + 1)
        self._missed[chosen[~done]] += 1
        chosen, taken_s = chosen[done], np.asarray(rtt_s, dtype=np.float64)[done]
        if not chosen.size:
            return
        value = np.log(np.maximum(taken_s, np.finfo(np.float64).tiny))
        beyond = value > self._upper()[chosen]
        changed = beyond & (self._beyond[chosen] | (self._missed[chosen] > 0))
        self._count[chosen[changed]] = 0
        self._beyond[chosen] = beyond & ~changed
        self._missed[chosen] = 0
        count = self._count[chosen] + 1
        weight = 1.0 / np.minimum(count, _MEMORY)
        change = np.where(count > 1, value - self._mean[chosen], 0.0)
        self._mean[chosen] = np.where(count > 1, self._mean[chosen] + weight * change, value)
        self._variance[chosen] = np.where(
            count > 1, (1.0 - weight) * (self._variance[chosen] + weight * change**2), 0.0
        )
        self._count[chosen] = count
        needed_s = float(self._allowed_s()[chosen].max())
        kept_s = 0.0 if math.isnan(self._level_s) else (1.0 - _SHRINKING) * self._level_s
        self._level_s = min(max(needed_s, kept_s), self.longest_s)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next deadline depends on, as copies.

        Returns
        -------
        dict
            Plain values and arrays.
        """
        return {
            "level_s": None if math.isnan(self._level_s) else self._level_s,
            "count": self._count.copy(),
            "mean": self._mean.copy(),
            "variance": self._variance.copy(),
            "missed": self._missed.copy(),
            "beyond": self._beyond.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` left off."""
        level_s = state["level_s"]
        self._level_s = math.nan if level_s is None else float(level_s)
        self._count = np.array(state["count"], dtype=np.int64)
        self._mean = np.array(state["mean"], dtype=np.float64)
        self._variance = np.array(state["variance"], dtype=np.float64)
        self._missed = np.array(state["missed"], dtype=np.int64)
        self._beyond = np.array(state["beyond"], dtype=np.bool_)

    def _grow(self, num_arms: int) -> None:
        if (missing := num_arms - self._count.size) > 0:
            for name in ("_count", "_mean", "_variance", "_missed", "_beyond"):
                setattr(self, name, np.pad(getattr(self, name), (0, missing)))

    def _upper(self) -> FloatArray:
        """Return the upper quantile of each arm's log times, m + 2.5 s; infinite if untried."""
        more = np.maximum(np.minimum(self._count, _MEMORY) - 1, 0)
        squares = np.minimum(self._count, _MEMORY) * self._variance
        pooled = _FIRST_WEIGHT * _FIRST_DEVIATION**2 + squares.sum()
        pooled /= _FIRST_WEIGHT + more.sum()
        own = (_POOLED_WEIGHT * pooled + squares) / (_POOLED_WEIGHT + more)
        deviation: NDArray[Any] = np.maximum(np.sqrt(own), _LEAST_DEVIATION)
        return np.where(self._count > 0, self._mean + _DEVIATIONS * deviation, np.inf)

    def _allowed_s(self) -> FloatArray:
        """Return what each arm is given, a [s]; infinite if untried."""
        return np.maximum(_LEAST_S, _FACTOR * np.exp(self._upper()))
