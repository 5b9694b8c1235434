"""CS-UCB, Algorithm 1 of the paper, and its form for arms that come and go."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final

import numpy as np

from ..base import (
    BoolArray,
    Explanation,
    FloatArray,
    RoundContext,
    RoundOutcome,
    SchedulingPolicy,
    Selection,
)
from ..policy_spec import PolicySpec
from ..selection import top_arms


class UcbPolicy(SchedulingPolicy):
    """What the policies with an upper confidence bound have in common.

    Parameters
    ----------
    **parameters
        Those of :class:`.SchedulingPolicy`.
    """

    def __init__(self, **parameters: Any) -> None:
        super().__init__(**parameters)
        self._any_unplayed = self.num_arms > 0
        # 1 / sqrt(z), +inf for z = 0. Kept because only the few selected arms change it, while a
        # division and a root for every arm would be most of the work of a round.
        self._inverse_root_count: FloatArray = np.full(self.shape, np.inf)
        # Large temporary arrays cost more to allocate than to compute, round after round.
        self._index: FloatArray = np.empty(self.shape)
        self._scratch: FloatArray = np.empty(self.shape)

    def ucb_index(self, round: int, exploration: float) -> FloatArray:
        """Compute the upper confidence bound of every arm's reward.

        Parameters
        ----------
        round : int, >= 1
            Round number t.
        exploration : float, > 0
            The constant under the root, a.

        Returns
        -------
        (*batch, num_arms) float64
            y + sqrt(a ln t / z) from the rounds told; ``+inf`` for arms never played. The array
            is used again by the next call.
        """
        index = self._bonus(round, exploration, self._index)
        index += self.mean_reward
        return index

    def _bonus(self, round: int, exploration: float, out: FloatArray) -> FloatArray:
        """Compute what the index adds to the mean reward."""
        if round == 1:  # ln 1 = 0, but nothing was played before round 1
            out.fill(np.inf)
        else:
            scale = math.sqrt(exploration * math.log(round))
            np.multiply(self._inverse_root_count, scale, out=out)
        return out

    def _learn(self, selection: Selection, outcome: RoundOutcome) -> None:
        arms = selection.positions
        counts = self.play_count.take(arms)
        self._inverse_root_count.reshape(-1)[arms] = 1.0 / np.sqrt(counts)
        if self._any_unplayed:
            self._any_unplayed = not self.play_count.all()

    def _refresh(self, *, grown: bool) -> None:
        with np.errstate(divide="ignore"):
            self._inverse_root_count = 1.0 / np.sqrt(self.play_count)
        self._index = np.empty(self.shape)
        self._scratch = np.empty(self.shape)
        self._any_unplayed = not self.play_count.all()


class ModifiedCsUcb(UcbPolicy):
    """CS-UCB among the available arms: untried arms first, then the largest index.

    The index is that of :class:`CsUcb`, ``+inf`` for an arm that was never played. Ties, and so
    the order of the untried, are random.

    Parameters
    ----------
    **parameters
        Those of :class:`.SchedulingPolicy`.
    """

    name: ClassVar[str] = "modified-cs-ucb"

    def _select(self, context: RoundContext) -> BoolArray:
        index = self.ucb_index(context.round, self.num_selected + 1)
        return top_arms(
            (index,), context.available, self.num_selected, self._rng, scratch=self._scratch
        )

    def _explain(self, selection: Selection) -> Explanation:
        bonus = self._bonus(selection.round, self.num_selected + 1, np.empty(self.shape))
        return Explanation("largest", "", {"mean": self.mean_reward.copy(), "bonus": bonus})


class CsUcb(ModifiedCsUcb):
    """CS-UCB, Algorithm 1 of Xia et al.

    An initial pass of ceil(K/N) rounds plays random disjoint groups of N arms; where N does not
    divide K, its last round is filled up at random from those already played. From then on the N
    arms with the largest

        y_k(t-1) + sqrt((N+1) ln t / z_k(t-1)).

    The paper's setting has every arm available in every round. A row of the batch with an
    unavailable arm, or a fleet that grew, is on the rule of :class:`ModifiedCsUcb` from that
    round on; the two differ only in how the last round of the pass is filled up.

    Parameters
    ----------
    **parameters
        Those of :class:`.SchedulingPolicy`.

    Attributes
    ----------
    ideal : (*batch,) bool
        False once an arm was unavailable during the initial pass, or arms joined.
    """

    name: ClassVar[str] = "cs-ucb"
    _per_row: ClassVar[tuple[str, ...]] = ("ideal",)

    def __init__(self, **parameters: Any) -> None:
        super().__init__(**parameters)
        self.ideal: BoolArray = np.ones(self.batch_shape, dtype=np.bool_)

    def _select(self, context: RoundContext) -> BoolArray:
        if not self._any_unplayed:
            return super()._select(context)
        index = self.ucb_index(context.round, self.num_selected + 1)
        # A random N of the unplayed arms in each round are random disjoint groups; one finite
        # value for all played arms fills up the last round at random.
        index[self._fill_up(context)] = 0.0
        return top_arms(
            (index,), context.available, self.num_selected, self._rng, scratch=self._scratch
        )

    def _explain(self, selection: Selection) -> Explanation:
        explanation = super()._explain(selection)
        if self._any_unplayed:
            fill_up = self._fill_up(selection.context)
            for part in explanation.parts.values():
                part[fill_up] = 0.0
        return explanation

    def _fill_up(self, context: RoundContext) -> BoolArray:
        """Tell which arms only fill up rounds of the initial pass, (*batch, num_arms)."""
        in_pass = self.ideal & context.available.all(axis=-1)
        in_pass &= ~self.play_count.all(axis=-1)
        return np.asarray(in_pass[..., np.newaxis] & (self.play_count > 0))

    def _learn(self, selection: Selection, outcome: RoundOutcome) -> None:
        super()._learn(selection, outcome)
        if self._any_unplayed:  # nothing depends on it in a row whose pass is over
            pass_over = self.play_count.all(axis=-1)
            self.ideal &= pass_over | selection.context.available.all(axis=-1)

    def _refresh(self, *, grown: bool) -> None:
        super()._refresh(grown=grown)
        if grown:
            self.ideal.fill(False)


CS_UCB: Final = PolicySpec.of(
    CsUcb, summary="learns which clients are fast (the paper's Algorithm 1)"
)
MODIFIED_CS_UCB: Final = PolicySpec.of(
    ModifiedCsUcb,
    summary="learns which clients are fast among those available, untried clients first",
)
