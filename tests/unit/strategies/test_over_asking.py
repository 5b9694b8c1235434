"""How many spare clients a policy asks for by itself."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from flower_scheduling.strategies import POLICIES, build_policy
from flower_scheduling.strategies.comparators.oort import Oort
from flower_scheduling.strategies.flower import ScheduledStrategy
from flower_scheduling.strategies.over_asking import spares_of


def test_oort_asks_for_three_tenths_more_rounded_down() -> None:
    expected = {1: 0, 3: 0, 4: 1, 5: 1, 7: 2, 10: 3, 30: 9, 70: 21, 100: 30}
    assert {n: spares_of("oort", n) for n in expected} == expected
    assert spares_of(Oort, 10) == 3


def test_no_policy_of_ours_does() -> None:
    over = {name for name in POLICIES if spares_of(name, 10)}
    assert over == {"oort", "pyramidfl"}
    assert spares_of(lambda **values: build_policy("random", **values), 10) == 0


def test_a_policy_that_was_built_is_asked_for_what_it_was_built_for() -> None:
    policy = Oort(num_arms=0, num_selected=10, tau_max_s=5.0, rng=np.random.default_rng(0))
    assert spares_of(policy, 10) == 0
    ScheduledStrategy(FedAvg(), policy, num_selected=10, tau_max_s=5.0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, 3), ({"num_spare": 0}, 0), ({"num_spare": 7}, 7), ({"mode": "buffered"}, 0)],
)
def test_a_number_that_is_given_counts(options: dict[str, int | str], expected: int) -> None:
    strategy = ScheduledStrategy(FedAvg(), "oort", num_selected=10, **options)  # type: ignore[arg-type]
    assert strategy.asked_settings.get("num-spare", 0) == expected
