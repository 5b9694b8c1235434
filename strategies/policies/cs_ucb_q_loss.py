"""CS-UCB-Q-Loss: fast arms, those whose data the model knows least, and floors for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from ..base import BoolArray, FloatArray, IntArray, RoundOutcome, Selection, check_real
from ..policy_spec import PolicySpec
from ..selection import quantile_of
from .cs_ucb_q_adaptive import CsUcbQAdaptive

_RATE: Final = 0.1
"""Weight of the newest report in an arm's average, r; of the first ones 1/n."""
_FORGETTING: Final = 0.01
"""Part of the way to the median that an average goes in a round without a report, f."""
_FARTHEST: Final = 2.0
"""An average counts as at most so many medians away from the median of all."""
_TINY: Final = 1e-300
_USUAL: Final = 0.8
"""Share of the arms, those nearest to the median, whose losses tell how much they differ."""
_SURE: Final = 4.0
"""A loss counts by itself beyond the square root of so many squared errors."""
_LARGEST_REPORT: Final = 1e100
"""What is reported beyond it counts as this: its square is a number."""


class CsUcbQLoss(CsUcbQAdaptive):
    """CS-UCB-Q-Loss: where clients hold different data, seconds to an accuracy.

    The rule of :class:`.CsUcbQAdaptive`, with one more term in what
    arm k is worth,

        u g B_k (l_k - l) / abs(l),    B_k = max(1 - e^2 / s^2, 1 - 4 e^2 / (l_k - l)^2, 0),

    l_k a moving average of the losses that the client reports of its training, l the median of
    these averages, s^2 the mean of (l_k - l)^2 over the four fifths of the arms for which it is
    least, e^2 the mean squared error of the averages, u the weight, g the N-th smallest cost. So a
    client whose loss is twice the median may cost u g more than others.

    B tells difference from chance. It is the factor by which Stein's estimator shrinks averages
    towards their mean (Efron and Morris, "Stein's estimation rule and its competitors", 1973):
    where all clients hold the same data, their averages differ by chance alone, B is about 0 and
    times decide. An arm that is two standard errors away counts by itself (Breiman, "Better subset
    regression using the nonnegative garrote", 1995), and so that it does not make the chance of
    the others count, s^2 leaves out a fifth. The error comes from the reports themselves: e^2 is
    the mean of r / (2 - r) over the arms, times the median of v_k, the moving average of the
    squared deviations of a client's reports from l_k. Averages move by r = max(0.1, 1/n) with the
    n-th report.

    The loss of a client that is not selected grows old: in each round without a report l_k goes
    f = 0.01 of the way to the median. A client that never reported one counts as l; where no client
    does, the rule is that without losses.

    Clients may lie. An average counts as at most that at rank 0.8 K of all, never as the largest of
    all, and at most twice the median away from it: up to a fifth of the clients, one at least, may
    claim what they like, and count as clients at the upper end of the others do (winsorisation;
    Huber, "Robust statistics", 1981). Where all hold the same data that is within chance, and B
    about 0. An honest client whose loss alone is high is believed no more: a floor is what protects
    it.

    Arms that are owed more than d rounds go first here too, whatever the losses.

    Parameters
    ----------
    loss_weight : float, >= 0
        u. Without weight the selections are those of the rule without losses.
    loss_quantile : float, in [0.5, 1]
        Rank of the largest average that is believed, in parts of all; 1: all are.
    min_participation : (num_arms,) array-like of float, in [0, 1), optional
        Least fraction of rounds in which each arm is to be selected, c; 0 if left out.
    **parameters
        Those of :class:`.SchedulingPolicy`.

    Attributes
    ----------
    mean_loss : (*batch, num_arms) float64
        l_k, 0 before the first report.
    loss_variance : (*batch, num_arms) float64, >= 0
        v_k.
    loss_count : (*batch, num_arms) int64
        Number of reports.

    Raises
    ------
    ConfigError
        If a parameter has the wrong type, length or range.
    """

    name: ClassVar[str] = "cs-ucb-q-loss"
    needs: ClassVar[tuple[str, ...]] = ("loss",)
    _per_arm: ClassVar[Mapping[str, float]] = {
        **CsUcbQAdaptive._per_arm,
        **{"mean_loss": 0.0, "loss_variance": 0.0, "loss_count": 0},
    }
    _settings: ClassVar[tuple[str, ...]] = (
        *CsUcbQAdaptive._settings,
        "loss_weight",
        "loss_quantile",
    )

    def __init__(
        self,
        *,
        loss_weight: float = 20.0,
        loss_quantile: float = 0.8,
        min_participation: ArrayLike | None = None,
        **parameters: Any,
    ) -> None:
        super().__init__(min_participation=min_participation, **parameters)
        self.loss_weight = check_real("loss_weight", loss_weight, at_least=0.0)
        self.loss_quantile = check_real("loss_quantile", loss_quantile, at_least=0.5, at_most=1.0)
        self.mean_loss: FloatArray = np.zeros(self.shape)
        self.loss_variance: FloatArray = np.zeros(self.shape)
        self.loss_count: IntArray = np.zeros(self.shape, dtype=np.int64)

    def relative_loss(self) -> FloatArray:
        """Compute by how much the loss of each arm is known to differ from the median.

        Returns
        -------
        (*batch, num_arms) float64
            B_k (l_k - l) / abs(l); 0 for an arm that never reported one.
        """
        known = self.loss_count > 0
        count = np.maximum(np.count_nonzero(known, axis=-1, keepdims=True), 1)
        median = self._quantile(self.mean_loss, known, 0.5)
        median[np.isinf(median)] = 0.0  # of no arm
        room = _FARTHEST * np.abs(median)
        most = np.clip(self._most_believed(known) - median, 0.0, room)
        excess = np.where(known, np.clip(self.mean_loss - median, -room, most), 0.0)

        rate = _rate(self.loss_count)
        error = np.where(known, rate / (2.0 - rate), _TINY).sum(axis=-1, keepdims=True) / count
        # Infinite where no client has reported twice: not known yet.
        error *= self._quantile(self.loss_variance, self.loss_count > 1, 0.5)
        square = excess**2
        usual = known & (square <= self._quantile(square, known, _USUAL))
        variance = np.where(usual, square, 0.0).sum(axis=-1, keepdims=True)
        variance /= np.maximum(np.count_nonzero(usual, axis=-1, keepdims=True), 1)
        shrinkage = np.maximum(_share_beyond(variance, error), _share_beyond(square, _SURE * error))
        scale = np.where(room > 0.0, np.abs(median), 1.0)
        return np.asarray(shrinkage * excess / scale)

    def _most_believed(self, known: BoolArray) -> FloatArray:
        """Return the largest average that counts as it is, (*batch, 1)."""
        if self.loss_quantile == 1.0 or not self.num_arms:
            return np.full((*self.batch_shape, 1), np.inf)
        count = np.count_nonzero(known, axis=-1)
        # The largest of all is never believed by itself; of two none is larger than most.
        rank = np.minimum((count * self.loss_quantile).astype(np.int64), count - 2)
        ordered = np.sort(np.where(known, self.mean_loss, np.inf), axis=-1)
        place = np.maximum(rank, 0)[..., np.newaxis]
        return np.asarray(np.take_along_axis(ordered, place, axis=-1))

    def _preferences(self, fast: FloatArray) -> dict[str, FloatArray]:
        return {"loss": self.loss_weight * fast * self.relative_loss()}

    def _learn(self, selection: Selection, outcome: RoundOutcome) -> None:
        super()._learn(selection, outcome)
        old = self.loss_count > 0
        reported = outcome.reported.get("loss")
        if reported is not None:
            arms = selection.mask & np.isfinite(reported)
            old &= ~arms
            self._average(arms, np.clip(reported[arms], -_LARGEST_REPORT, _LARGEST_REPORT))
        median = self._quantile(self.mean_loss, self.loss_count > 0, 0.5)
        self.mean_loss += np.where(old, _FORGETTING * (median - self.mean_loss), 0.0)

    def _average(self, arms: BoolArray, loss: FloatArray) -> None:
        """Take the reports of these arms into their averages."""
        self.loss_count[arms] += 1
        count = self.loss_count[arms]
        rate, mean, variance = _rate(count), self.mean_loss[arms], self.loss_variance[arms]
        deviation = loss - mean
        self.mean_loss[arms] = mean + rate * deviation
        self.loss_variance[arms] = np.where(
            count > 1, (1.0 - rate) * (variance + rate * deviation**2), 0.0
        )

    @staticmethod
    def _quantile(values: FloatArray, among: BoolArray, part: float) -> FloatArray:
        """Return a quantile of some arms in each row, (*batch, 1); inf if there is none."""
        return quantile_of(values, among, part)[..., np.newaxis]


def _share_beyond(square: FloatArray, error: FloatArray) -> FloatArray:
    """Return which part of a square is not explained by an error, in [0, 1]."""
    square, error = np.broadcast_arrays(square, error)
    beyond = square > error
    return 1.0 - np.divide(error, square, out=np.ones(square.shape), where=beyond)


def _rate(count: IntArray) -> FloatArray:
    """Return by how much an average moves with its newest report, the ``count``-th."""
    return np.asarray(np.maximum(_RATE, 1.0 / np.maximum(count, 1)))


SPEC: Final = PolicySpec.of(
    CsUcbQLoss,
    summary="as cs-ucb-q-adaptive, and trains more where losses are high: for data that differ",
)
