"""Oort: useful and fast clients first, some unknown ones in each round."""

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
    check_real,
)
from ..policy_spec import PolicySpec
from ..selection import quantile_of
from .common import flat, known_or_mean, largest, learn_losses, times_s

_EXPLORATION: Final = 0.9
_LEAST_EXPLORATION: Final = 0.2
"""Part of the places for clients never tried, in round 1, and at least."""
_UNCERTAINTY: Final = 0.1
_TINY: Final = 1e-300


class Oort(SchedulingPolicy):
    """Oort's training selector, of Lai, Zhu, Madhyastha and Chowdhury.

    "Oort: Efficient Federated Learning via Guided Participant Selection", OSDI 2021, equation (1)
    and Algorithm 1; the authors' code where the paper is silent. The utility of a tried client is

        util_k = (U_k + sqrt(0.1 ln t / L_k)) (T / D_k)^alpha    if D_k > T,
        util_k =  U_k + sqrt(0.1 ln t / L_k)                     else,

    with U the statistical utility, D the last measured time, L the round in which the client was
    last selected. A part epsilon of the places, 0.9 at first, times 0.98 in each round and at
    least 0.2, goes to clients that were never tried. The others are drawn without replacement in
    proportion to their utility among those with at least 0.95 of the utility of the last that
    would be in. Without new clients, epsilon is 0.

    Taken as it is: the above, and as in the code, U cut at its 95 % quantile and scaled to
    [0, 1] between 0.999 of the least and the greatest.

    Different here:

    - Oort takes the root of the mean of the samples' squared losses, times the number of samples
      trained on. Here U is the absolute value of the mean loss that the client reports of its
      training (``train-loss`` in a fleet), and all train on equally many. A client that reports
      none keeps its last value; one that never did has the mean of those that did, and where
      no client does, all have the same and only times and the uncertainty matter.
    - T is a fixed percentile of the last times of the clients tried, 30 as in the code's
      settings. The pacer, which relaxes T when the sum of the utilities stagnates, is left out:
      with equal utilities it would relax T until times no longer mattered.
    - Clients never tried are drawn uniformly: their speed is unknown. Places that exploration
      cannot fill go to clients tried, by utility, where the code fills up at random.
    - A failure has the time tau_max.

    As in the paper, 1.3 N clients are asked in a round, which ends when the first N have answered;
    rounded down, as in the code. They are the spare clients of ``num_spare="auto"``, with which the
    scheduler builds this policy with 1.3 N for ``num_selected``. Late updates are dropped, late
    times are learned when they come. Not so in buffered mode, where no client waits for another
    one, nor in studies of times without training (``league`` without ``--training``, ``replay``),
    where the super arms of all policies are of N.

    Left out: the blacklist (off in the code), the mixture with fairness (f = 0, the paper's
    default), noise for privacy, and the testing selector.

    Parameters
    ----------
    time_penalty : float, >= 0
        alpha, 2 in the paper.
    preferred_percentile : float, in (0, 100]
        Which percentile of the times T is; with 100 all clients are fast enough.
    **parameters
        Those of :class:`.SchedulingPolicy`.

    Attributes
    ----------
    last_loss : (*batch, num_arms) float64
        Last reported loss, by its absolute value; ``-inf`` before the first report.
    last_time_s : (*batch, num_arms) float64
        D [s].
    last_selected : (*batch, num_arms) int64
        L, 0 if never.

    Raises
    ------
    ConfigError
        If a parameter has the wrong type or is out of range.
    """

    name: ClassVar[str] = "oort"
    uses: ClassVar[tuple[str, ...]] = ("loss",)
    over_asking: ClassVar[float] = 1.3
    _exploration_decay: ClassVar[float] = 0.98
    """Factor of the part of the places for clients never tried, from round to round."""
    _clip_quantile: ClassVar[float] = 0.95
    """Where statistical utilities are cut."""
    _cutoff: ClassVar[float] = 0.95
    """Part of the utility at the cut that lets a client into the draw, c."""
    _per_arm: ClassVar[Mapping[str, float]] = {
        **SchedulingPolicy._per_arm,
        "last_loss": -np.inf,
        "last_time_s": 0.0,
        "last_selected": 0,
    }
    _settings: ClassVar[tuple[str, ...]] = (
        *SchedulingPolicy._settings,
        *("time_penalty", "preferred_percentile"),
    )

    def __init__(
        self, *, time_penalty: float = 2.0, preferred_percentile: float = 30.0, **parameters: Any
    ) -> None:
        super().__init__(**parameters)
        self.time_penalty = check_real("time_penalty", time_penalty, at_least=0.0)
        self.preferred_percentile = check_real(
            "preferred_percentile", preferred_percentile, above=0.0, at_most=100.0
        )
        self.last_loss: FloatArray = np.full(self.shape, -np.inf)
        self.last_time_s: FloatArray = np.zeros(self.shape)
        self.last_selected: IntArray = np.zeros(self.shape, dtype=np.int64)

    def utility(self, round: int) -> FloatArray:
        """Compute the utility of every client that was tried, 0 for the others."""
        return self._utilities(round)[-1]

    def _utilities(self, round: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return U, the uncertainty that is added to it, and the utility."""
        tried = self.play_count > 0
        since = np.maximum(self.last_selected, 1)
        statistical = self._statistical_utility()
        uncertainty = np.sqrt(_UNCERTAINTY * math.log(round) / since)
        utility = statistical + uncertainty
        preferred_s = quantile_of(self.last_time_s, tried, self.preferred_percentile / 100.0)
        ratio = preferred_s[..., np.newaxis] / np.maximum(self.last_time_s, _TINY)
        utility *= np.minimum(ratio, 1.0) ** self.time_penalty
        return statistical, uncertainty, np.where(tried, utility, 0.0)

    def _statistical_utility(self) -> FloatArray:
        known = np.isfinite(self.last_loss)
        if not known.any():
            return np.ones(self.shape)
        loss = known_or_mean(self.last_loss)
        cut = quantile_of(loss, known, self._clip_quantile)[..., np.newaxis]
        least = 0.999 * np.where(known, loss, np.inf).min(axis=-1, keepdims=True)
        greatest = np.where(known, loss, -np.inf).max(axis=-1, keepdims=True)
        anybody = known.any(axis=-1, keepdims=True)
        least, greatest = np.where(anybody, least, 0.0), np.where(anybody, greatest, 0.0)
        scaled = (np.minimum(loss, cut) - least) / np.maximum(greatest - least, 1e-4)
        return np.where(anybody, scaled, 1.0)

    def _select(self, context: RoundContext) -> BoolArray:
        if self.num_arms <= self.num_selected:
            return context.available.copy()
        utility = self.utility(context.round)
        admitted, new, exploiting, exploring = self._candidates(context, utility)
        # The largest of ln(utility) + Gumbel noise: a draw in proportion, without replacement.
        noise = self._rng.gumbel(size=self.shape)
        key = np.where(admitted, np.log(np.maximum(utility, _TINY)) + noise, -np.inf)
        mask = largest(key, exploiting)
        if exploring.any():
            mask |= largest(np.where(new, self._rng.random(self.shape), -np.inf), exploring)
        return mask

    def _candidates(
        self, context: RoundContext, utility: FloatArray
    ) -> tuple[BoolArray, BoolArray, IntArray, IntArray]:
        """Return the tried and the new arms to draw from, and how many of either are drawn."""
        tried = context.available & (self.play_count > 0)
        new = context.available & ~tried
        num_tried, num_new = (np.count_nonzero(mask, axis=-1) for mask in (tried, new))

        places = self.num_selected
        part = max(
            _EXPLORATION * self._exploration_decay ** (context.round - 1), _LEAST_EXPLORATION
        )
        exploring = np.minimum(num_new, places - int(places * (1.0 - part) + 1e-9))
        exploiting = np.minimum(num_tried, places - exploring)
        exploring = np.minimum(num_new, places - exploiting)

        utility = np.where(tried, utility, -1.0)
        last_in = np.maximum(exploiting - 1, 0)[..., np.newaxis]
        cut = np.take_along_axis(-np.sort(-utility, axis=-1), last_in, axis=-1)
        return tried & (utility >= self._cutoff * cut), new, exploiting, exploring

    def _explain(self, selection: Selection) -> Explanation:
        loss, bonus, utility = self._utilities(selection.round)
        tried = self.play_count > 0
        loss, bonus = np.where(tried, loss, 0.0), np.where(tried, bonus, 0.0)
        parts = {"time": utility - (loss + bonus), "bonus": bonus, "loss": loss}
        parts["chance"] = self._chance(selection.context, utility)
        return Explanation("drawn", "", parts)

    def _chance(self, context: RoundContext, utility: FloatArray) -> FloatArray:
        """Return what makes utilities comparable with how the places are given away.

        It leaves nothing of the utility of a client that is not drawn from, and gives a new one
        the utility with which a tried one would be about as likely.
        """
        if not self.num_arms:
            return np.zeros(self.shape)
        admitted, new, exploiting, exploring = self._candidates(context, utility)
        per_place = np.where(admitted, utility, 0.0).sum(axis=-1) / np.maximum(exploiting, 1)
        per_place = np.where(exploiting > 0, per_place, 1.0)
        as_new = per_place * exploring / np.maximum(np.count_nonzero(new, axis=-1), 1)
        left_out = context.available & ~new & ~admitted
        return np.where(left_out, -utility, np.where(new, as_new[..., np.newaxis], 0.0))

    def _learn(self, selection: Selection, outcome: RoundOutcome) -> None:
        arms = selection.positions
        flat(self.last_time_s)[arms] = times_s(self, selection, outcome)
        flat(self.last_selected)[arms] = selection.round
        learn_losses(self.last_loss, selection, outcome)


SPEC: Final = PolicySpec.of(
    Oort, summary="loss and time of each client, with exploration (Lai et al., 2021)"
)
