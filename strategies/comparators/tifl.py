"""TiFL: clients of one speed per round, slow ones where the model is worse for them."""

from __future__ import annotations

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
)
from ..policy_spec import PolicySpec
from ..selection import top_arms
from .common import known_or_mean, learn_losses


class TiFl(SchedulingPolicy):
    """TiFL of Chai and nine others.

    "TiFL: A Tier-based Federated Learning System", HPDC 2020 (arXiv:2001.09249), Algorithm 2.
    Clients are sorted by their times into T tiers of equal size. In each round a tier is drawn, of
    those that have credits left, which costs it one; N of its clients are drawn uniformly. Tiers
    are equally likely at first. Every I rounds, if the accuracy A of the tier drawn last is not
    above what it was I rounds before, the chances change: of n tiers with credits, the one with
    the r-th lowest accuracy, r = 1 ... n, has

        p = (n - r + 1) / (n (n + 1) / 2),

    and a tier without credits has none. This follows public reproductions, the text of the paper
    not being at hand: two of them have the condition on A, and p, which by one of them the paper
    leaves open, is that of bacox/fltk and of one after it.

    Different here:

    - TiFL tests the model on held-out data of each tier. Here A is the mean of the last losses
      that clients of the tier report of their training, with a minus. A client that reports none
      counts with the mean of those that do; where no client does, the chances stay equal.
    - TiFL measures every client in rounds of their own before it begins, and leaves out those that
      always miss the deadline. Here clients that were never tried come first, N at a time. From
      then on tiers are formed anew after each round by mean times; a failure has the time tau_max.
    - A tier must have N clients: there are T tiers, or as many as can have N each. Only tiers with
      N clients available are drawn. If none of them has credits left, one without is; if there is
      none, the tier with most clients available is taken whole, and others are drawn uniformly.
    - Credits are given for a number of rounds that is known beforehand, in the reproductions the
      same to each tier. Here all tiers have ``credits``; when all are spent, all are given again
      and the chances are equal.

    Parameters
    ----------
    num_tiers : int, >= 1
        T; 5 in the reproductions.
    interval : int, >= 1
        I; 10 as in two of them.
    credits : int, >= 1
        How often each tier can be drawn before all credits are given again.
    **parameters
        Those of :class:`.SchedulingPolicy`.

    Attributes
    ----------
    tier : (*batch, num_arms) int64
        Tier of each arm, from 0, the fastest; -1 before its first round.
    last_loss : (*batch, num_arms) float64
        Last reported loss, by its absolute value; ``-inf`` before the first report.
    credits_left : (*batch, num_tiers) int64
        Credits of each tier.
    tier_chance : (*batch, num_tiers) float64
        p of each tier; they add up to 1.
    tier_checked_loss : (*batch, num_tiers) float64
        -A when the condition was last checked, ``-inf`` before.
    last_tier : (*batch,) int64
        Tier drawn last, -1 before the first draw.

    Raises
    ------
    ConfigError
        If a parameter has the wrong type or is out of range.
    """

    name: ClassVar[str] = "tifl"
    uses: ClassVar[tuple[str, ...]] = ("loss",)
    _per_arm: ClassVar[Mapping[str, float]] = {
        **SchedulingPolicy._per_arm,
        "tier": -1,
        "last_loss": -np.inf,
    }
    _per_row: ClassVar[tuple[str, ...]] = (
        *("credits_left", "tier_chance", "tier_checked_loss", "last_tier"),
    )
    _settings: ClassVar[tuple[str, ...]] = (
        *SchedulingPolicy._settings,
        *("num_tiers", "interval", "credits"),
    )

    def __init__(
        self, *, num_tiers: int = 5, interval: int = 10, credits: int = 100, **parameters: Any
    ) -> None:
        super().__init__(**parameters)
        self.num_tiers = check_count("num_tiers", num_tiers, minimum=1)
        self.interval = check_count("interval", interval, minimum=1)
        self.credits = check_count("credits", credits, minimum=1)
        per_tier = (*self.batch_shape, self.num_tiers)
        self.tier: IntArray = np.full(self.shape, -1)
        self.last_loss: FloatArray = np.full(self.shape, -np.inf)
        self.credits_left: IntArray = np.full(per_tier, self.credits)
        self.tier_chance: FloatArray = np.full(per_tier, 1.0 / self.num_tiers)
        self.tier_checked_loss: FloatArray = np.full(per_tier, -np.inf)
        self.last_tier: IntArray = np.full(self.batch_shape, -1)

    def probability(self, available: BoolArray) -> FloatArray:
        """Compute the probability of each arm to be selected, (*batch, num_arms)."""
        new = available & (self.tier < 0)
        chance = self._draw_chance(available)
        probability = np.zeros(self.shape)
        for tier in range(self.num_tiers):
            inside = available & (self.tier == tier)
            probability += chance[..., tier, np.newaxis] * self._first(inside, available)
        some_new = new.any(axis=-1, keepdims=True)
        return np.where(some_new, self._first(new, available), probability)

    def _first(self, inside: BoolArray, available: BoolArray) -> FloatArray:
        """Return the probability of each arm if those inside come first, all else uniformly."""
        num_inside = np.count_nonzero(inside, axis=-1, keepdims=True)
        count = np.count_nonzero(available, axis=-1, keepdims=True)
        places = np.minimum(count, self.num_selected)
        taken = np.minimum(places, num_inside)
        others = (places - taken) / np.maximum(count - num_inside, 1)
        return np.where(inside, taken / np.maximum(num_inside, 1), available * others)

    def _draw_chance(self, available: BoolArray) -> FloatArray:
        """Return the probability of each tier to be drawn, (*batch, num_tiers)."""
        count = self._per_tier(available)
        full = count >= self.num_selected
        funded = full & (self.credits_left > 0)
        largest = np.arange(self.num_tiers) == count.argmax(axis=-1, keepdims=True)
        weight = self.tier_chance * funded
        for instead in (funded, full, largest):
            weight = np.where(weight.any(axis=-1, keepdims=True), weight, instead)
        return np.asarray(weight / weight.sum(axis=-1, keepdims=True))

    def _per_tier(self, values: BoolArray | FloatArray) -> FloatArray:
        """Return the sum of the values of each tier's arms, (*batch, num_tiers)."""
        inside = self.tier[..., np.newaxis, :] == np.arange(self.num_tiers)[:, np.newaxis]
        sums = (values[..., np.newaxis, :] * inside).sum(axis=-1, dtype=np.float64)
        return np.asarray(sums)

    def _select(self, context: RoundContext) -> BoolArray:
        if self.num_arms <= self.num_selected:
            return context.available.copy()
        new = context.available & (self.tier < 0)
        chance = self._draw_chance(context.available)
        beyond = chance.cumsum(axis=-1) > self._rng.random((*self.batch_shape, 1))
        drawn = np.argmax(beyond, axis=-1, keepdims=True)
        first = np.where(new.any(axis=-1, keepdims=True), new, self.tier == drawn)
        key = first.astype(np.float64)
        return top_arms((key,), context.available, self.num_selected, self._rng)

    def _explain(self, selection: Selection) -> Explanation:
        return Explanation("drawn", "", {"weight": self.probability(selection.context.available)})

    def _learn(self, selection: Selection, outcome: RoundOutcome) -> None:
        learn_losses(self.last_loss, selection, outcome)
        self._charge(selection.mask)
        self._sort()
        there = self._per_tier(self.tier >= 0) > 0
        spent = ~((self.credits_left > 0) & there).any(axis=-1, keepdims=True)
        self.credits_left = np.where(spent, self.credits, self.credits_left)
        self.tier_chance = np.where(spent, 1.0 / self.num_tiers, self.tier_chance)
        if selection.round // self.interval > self.last_round // self.interval:
            self._change_chances(there & (self.credits_left > 0))

    def _charge(self, mask: BoolArray) -> None:
        """Take a credit from the tier that was drawn: no other has more arms in the super arm."""
        count = self._per_tier(mask)
        untried = (mask & (self.tier < 0)).any(axis=-1, keepdims=True)
        a_tier = mask.any(axis=-1, keepdims=True) & ~untried
        drawn = count.argmax(axis=-1, keepdims=True)
        paid = a_tier & (np.arange(self.num_tiers) == drawn)
        self.credits_left = np.maximum(self.credits_left - paid, 0)
        self.last_tier = np.where(a_tier, drawn, self.last_tier[..., np.newaxis])[..., 0]

    def _sort(self) -> None:
        """Form the tiers by mean times."""
        tried = self.play_count > 0
        count = np.count_nonzero(tried, axis=-1, keepdims=True)
        rank = _rank(np.where(tried, -self.mean_reward, np.inf))
        num_tiers = np.clip(count // self.num_selected, 1, self.num_tiers)
        self.tier = np.where(tried, rank * num_tiers // np.maximum(count, 1), -1)

    def _change_chances(self, funded: BoolArray) -> None:
        """Give the tiers chances by their losses, where that of the last tier did not fall."""
        tried = self.tier >= 0
        known = np.isfinite(self.last_loss).any(axis=-1, keepdims=True)
        loss = self._per_tier(known_or_mean(self.last_loss) * tried)
        loss /= np.maximum(self._per_tier(tried), 1)
        last = np.maximum(self.last_tier, 0)[..., np.newaxis]
        now, before = (
            np.take_along_axis(losses, last, axis=-1) for losses in (loss, self.tier_checked_loss)
        )
        changed = known & (self.last_tier >= 0)[..., np.newaxis] & (now >= before)

        count = np.count_nonzero(funded, axis=-1, keepdims=True)
        rank = _rank(np.where(funded, -loss, np.inf))
        chance = np.where(funded, (count - rank) / np.maximum(count * (count + 1) / 2, 1), 0.0)
        self.tier_chance = np.where(changed, chance, self.tier_chance)
        self.tier_checked_loss = np.where(known, loss, self.tier_checked_loss)


def _rank(key: FloatArray) -> IntArray:
    """Return the rank of each entry in its row, 0 for the smallest, the first first of equals."""
    return key.argsort(axis=-1, kind="stable").argsort(axis=-1, kind="stable")


def _any_tiers(num_arms: int, rng: np.random.Generator) -> Mapping[str, Any]:
    return {name: int(rng.integers(1, 5)) for name in ("num_tiers", "interval", "credits")}


SPEC: Final = PolicySpec.of(
    TiFl,
    summary="clients of one speed per round, slow ones too (Chai et al., 2020)",
    example=_any_tiers,
)
