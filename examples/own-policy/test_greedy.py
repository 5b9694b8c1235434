"""The promises of every policy, and what is particular about this one."""

import numpy as np
from greedy import Greedy

from flower_scheduling.strategies import RoundContext, RoundOutcome
from flower_scheduling.strategies.testing import check_policy


def test_greedy_is_a_policy():
    check_policy(Greedy)


def test_greedy_stays_with_the_fastest():
    policy = Greedy(num_arms=3, num_selected=1, tau_max_s=5.0, rng=np.random.default_rng(0))
    everyone = np.ones(3, dtype=bool)
    for t in range(1, 11):
        selection = policy.ask(RoundContext(t, everyone))
        policy.tell(selection, RoundOutcome(np.array([3.0, 1.0, 2.0]), everyone))
    assert policy.play_count.tolist() == [1, 8, 1]
