"""Discounted and sliding-window UCB: confidence bounds that forget, for a world that changes.

Both are of Garivier and Moulines, "On Upper-Confidence Bound Policies for Switching Bandit
Problems", ALT 2011, section 2 (the technical report is arXiv:0805.3415), with rewards in [0, 1],
their B = 1. The paper plays one arm per round; here the N available arms with the largest index
are played. "Rounds" are rounds in both: the paper's discounted number of plays n_t is that of
rounds when one arm is played in each. Time stands still between rounds told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np

from ..base import (
    BoolArray,
    Explanation,
    FloatArray,
    IntArray,
    RoundContext,
    RoundOutcome,
    SchedulingPolicy,
    Selection,
    check_count,
    check_real,
)
from ..policy_spec import PolicySpec
from ..selection import top_arms
from .common import flat, rewards

_BELOW_ONE: Final = math.nextafter(1.0, 0.0)


class DiscountedUcb(SchedulingPolicy):
    """D-UCB: what was seen s rounds ago counts gamma^s.

    The index is

        X_k / N_k + 2 sqrt(xi ln n / N_k),
        N_k = sum of gamma^(t-1-s) over the rounds s < t in which k was played,
        X_k = the same sum of its rewards,    n = sum of gamma^(t-1-s) over all rounds s < t,

    and ``+inf`` for an arm that was never played.

    Parameters
    ----------
    discount : float, in (0, 1)
        gamma. The paper takes 1 - sqrt(changes / T) / 4; the default is that of its simulations
        (T = 10000, section 4) for one change.
    exploration : float, > 0
        xi. The paper's bound wants more than 1/2.
    **parameters
        Those of :class:`.SchedulingPolicy`.

    Attributes
    ----------
    discounted_count, discounted_reward : (*batch, num_arms) float64
        N and X.

    Raises
    ------
    ConfigError
        If a parameter has the wrong type or is out of range.
    """

    name: ClassVar[str] = "d-ucb"
    _per_arm: ClassVar[Mapping[str, float]] = {
        **SchedulingPolicy._per_arm,
        "discounted_count": 0.0,
        "discounted_reward": 0.0,
    }
    _settings: ClassVar[tuple[str, ...]] = (
        *SchedulingPolicy._settings,
        "discount",
        "exploration",
    )

    def __init__(
        self, *, discount: float = 0.9975, exploration: float = 0.6, **parameters: Any
    ) -> None:
        super().__init__(**parameters)
        self.discount = check_real("discount", discount, above=0.0, at_most=_BELOW_ONE)
        self.exploration = check_real("exploration", exploration, above=0.0)
        self.discounted_count: FloatArray = np.zeros(self.shape)
        self.discounted_reward: FloatArray = np.zeros(self.shape)

    def discounted_index(self) -> FloatArray:
        """Compute the index of every arm for the next round."""
        return _index(self.discounted_reward, self.discounted_count, self._width())

    def _width(self) -> float:
        rounds = (1.0 - self.discount**self.last_round) / (1.0 - self.discount)
        return 4.0 * self.exploration * math.log(max(rounds, 1.0))

    def _select(self, context: RoundContext) -> BoolArray:
        index = self.discounted_index()
        return top_arms((index,), context.available, self.num_selected, self._rng)

    def _explain(self, selection: Selection) -> Explanation:
        return _explanation(self.discounted_reward, self.discounted_count, self._width())

    def _learn(self, selection: Selection, outcome: RoundOutcome) -> None:
        fading = self.discount ** (selection.round - self.last_round)
        self.discounted_count *= fading
        self.discounted_reward *= fading
        arms = selection.positions
        flat(self.discounted_count)[arms] += 1.0
        flat(self.discounted_reward)[arms] += rewards(self, selection, outcome)


class SlidingWindowUcb(SchedulingPolicy):
    """SW-UCB: only the last tau rounds count.

    The index is

        X_k / N_k + sqrt(xi ln(min(t - 1, tau)) / N_k),

    with N the plays in the last tau rounds and X the sum of their rewards, and ``+inf`` for an
    arm that was not played in them: it is tried again.

    Parameters
    ----------
    window : int, >= 1
        tau [rounds]. The paper's order is sqrt(T ln T / changes); the default is its
        simulations' 4 sqrt(T ln T) for T = 10000 (section 4).
    exploration : float, > 0
        xi. The paper's bound wants more than 1/2.
    **parameters
        Those of :class:`.SchedulingPolicy`.

    Attributes
    ----------
    recent_count : (*batch, num_arms) int64
        N.
    recent_reward : (*batch, num_arms) float64
        X.
    window_arm : (*batch, window, num_selected) int64
        Arms played in each round of the window, -1 for none.
    window_gain : (*batch, window, num_selected) float64
        Their rewards.

    Raises
    ------
    ConfigError
        If a parameter has the wrong type or is out of range.
    """

    name: ClassVar[str] = "sw-ucb"
    _per_arm: ClassVar[Mapping[str, float]] = {
        **SchedulingPolicy._per_arm,
        "recent_count": 0,
        "recent_reward": 0.0,
    }
    _per_row: ClassVar[tuple[str, ...]] = ("window_arm", "window_gain")
    _settings: ClassVar[tuple[str, ...]] = (*SchedulingPolicy._settings, "window", "exploration")

    def __init__(self, *, window: int = 1214, exploration: float = 0.6, **parameters: Any) -> None:
        super().__init__(**parameters)
        self.window = check_count("window", window, minimum=1)
        self.exploration = check_real("exploration", exploration, above=0.0)
        self.recent_count: IntArray = np.zeros(self.shape, dtype=np.int64)
        self.recent_reward: FloatArray = np.zeros(self.shape)
        # The arms played, not a mark for every arm: the memory does not grow with the fleet.
        places = (*self.batch_shape, self.window, self.num_selected)
        self.window_arm: IntArray = np.full(places, -1, dtype=np.int64)
        self.window_gain: FloatArray = np.zeros(places)

    def window_index(self) -> FloatArray:
        """Compute the index of every arm for the next round."""
        return _index(self.recent_reward, self.recent_count, self._width())

    def _width(self) -> float:
        return self.exploration * math.log(max(min(self.last_round, self.window), 1))

    def _select(self, context: RoundContext) -> BoolArray:
        index = self.window_index()
        return top_arms((index,), context.available, self.num_selected, self._rng)

    def _explain(self, selection: Selection) -> Explanation:
        return _explanation(self.recent_reward, self.recent_count, self._width())

    def _learn(self, selection: Selection, outcome: RoundOutcome) -> None:
        oldest = max(self.last_round, selection.round - self.window)
        for round in range(oldest, selection.round):  # one, unless rounds were left out
            self._leave(round % self.window)
        arms = selection.positions
        if not arms.size:
            return
        gain = rewards(self, selection, outcome)
        flat(self.recent_count)[arms] += 1
        flat(self.recent_reward)[arms] += gain
        rows, arm = np.divmod(arms, self.num_arms)
        counts = np.bincount(rows)
        place = np.arange(arms.size) - (np.cumsum(counts) - counts)[rows]
        slot = (selection.round - 1) % self.window
        self._places(self.window_arm)[rows, slot, place] = arm
        self._places(self.window_gain)[rows, slot, place] = gain

    def _leave(self, slot: int) -> None:
        """Take a round out of the sums, and out of the window."""
        arm, gain = (self._places(a)[:, slot] for a in (self.window_arm, self.window_gain))
        rows, place = np.nonzero(arm >= 0)
        if not rows.size:
            return
        arms = rows * self.num_arms + arm[rows, place]
        flat(self.recent_count)[arms] -= 1
        left = self.recent_reward.take(arms) - gain[rows, place]
        flat(self.recent_reward)[arms] = np.where(self.recent_count.take(arms) > 0, left, 0.0)
        arm[...] = -1
        gain[...] = 0.0

    def _places(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return a view with one axis for all rows of the batch."""
        return array.reshape(-1, self.window, self.num_selected)


def _index(reward: FloatArray, count: FloatArray | IntArray, width: float) -> FloatArray:
    """Return reward / count + sqrt(width / count), ``+inf`` where there is no count."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        index = reward / count + np.sqrt(width / count)
    return np.where(count > 0, index, np.inf)


def _explanation(reward: FloatArray, count: FloatArray | IntArray, width: float) -> Explanation:
    """Return the two parts of :func:`_index`."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        mean, bonus = reward / count, np.sqrt(width / count)
    played = count > 0
    parts = {"mean": np.where(played, mean, 0.0), "bonus": np.where(played, bonus, np.inf)}
    return Explanation("largest", "", parts)


DISCOUNTED_UCB: Final = PolicySpec.of(
    DiscountedUcb, summary="UCB that discounts the past (Garivier and Moulines, 2011)"
)
SLIDING_WINDOW_UCB: Final = PolicySpec.of(
    SlidingWindowUcb,
    summary="UCB of the last rounds alone (Garivier and Moulines, 2011)",
    example=lambda num_arms, rng: {"window": int(rng.integers(1, 8))},
)
