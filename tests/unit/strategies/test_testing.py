"""The conformance suite finds what it is there to find."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from flower_scheduling.strategies import Explanation, PolicySpec, SchedulingPolicy
from flower_scheduling.strategies.selection import top_arms
from flower_scheduling.strategies.testing import check_policy


class Sound(SchedulingPolicy):
    """Select the arms with the highest mean reward."""

    def _select(self, context):
        return top_arms((self.mean_reward,), context.available, self.num_selected, self._rng)

    def _explain(self, selection):
        return Explanation("largest", "", {"mean": self.mean_reward.copy()})


class IgnoresAvailability(Sound):
    def _select(self, context):
        everyone = np.ones_like(context.available)
        return top_arms((self.mean_reward,), everyone, self.num_selected, self._rng)


class SelectsTooFew(Sound):
    def _select(self, context):
        return np.zeros_like(context.available)


class LearnsByAsking(Sound):
    def _select(self, context):
        self.mean_reward += 1e-3
        return super()._select(context)


class ForgetsItsState(Sound):
    def __init__(self, **parameters):
        super().__init__(**parameters)
        self.rounds_so_far = 0

    def _select(self, context):
        order = np.broadcast_to(np.arange(self.num_arms), self.shape)
        key = -order if self.rounds_so_far % 2 else order
        return top_arms((key.astype(float),), context.available, self.num_selected, self._rng)

    def _explain(self, selection):
        return None

    def _learn(self, selection, outcome):
        self.rounds_so_far += 1


class MixesRows(Sound):
    def _learn(self, selection, outcome):
        self.mean_reward[...] = self.mean_reward.mean() if self.mean_reward.size else 0.0


class NewArmsAreNotNew(Sound):
    _per_arm: ClassVar = {"play_count": 7, "mean_reward": 0.0}


class ExplainsAnotherRule(Sound):
    def _explain(self, selection):
        return Explanation("smallest", "", {"mean": self.mean_reward.copy()})


class FloorsWithoutFloorPolicy(Sound):
    def __init__(self, *, min_participation=None, **parameters):
        super().__init__(**parameters)


def test_a_sound_policy_passes() -> None:
    check_policy(Sound)
    check_policy("cs-ucb-q", num_cases=5)
    check_policy(PolicySpec.of(Sound, "by-spec"), num_cases=5)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (IgnoresAvailability, "check_selection: an arm was selected that is unavailable"),
        (SelectsTooFew, "check_selection: the super arm has another size"),
        (LearnsByAsking, "check_selection: ask changed what was learned"),
        (ForgetsItsState, "check_reload: after a reload another super arm was selected"),
        (MixesRows, "check_rows: mean_reward of row"),
        (NewArmsAreNotNew, "check_new_arms: play_count of a new arm is not 0"),
        (ExplainsAnotherRule, "check_explanation: an arm was left out"),
        (FloorsWithoutFloorPolicy, "check_floors: it takes min_participation"),
    ],
)
def test_each_broken_promise_is_found(policy: type[SchedulingPolicy], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_policy(policy, num_cases=60)
