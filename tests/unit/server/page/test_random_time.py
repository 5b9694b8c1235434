"""What random selection would have taken, from the times that a run has measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from factories import round_record

from flower_scheduling.server.page.random_time import RandomTime, RandomTimes, as_json


def estimate(
    times_s: list[list[float]], num_selected: int = 1, rounds: int = 60, **changes: Any
) -> RandomTime | None:
    """Estimate from rounds in which the clients are selected one after the other."""
    found, count = RandomTimes(num_selected), len(times_s)
    for number in range(rounds):
        arm = number % count
        taken_s = times_s[arm][number // count % len(times_s[arm])]
        values = {"num_arms": count, "available": list(range(count)), "round_s": taken_s}
        found.add(round_record(number + 1, [arm], rtt_s=[taken_s], **{**values, **changes}), 10.0)
    return found.estimate()


def test_a_random_round_lasts_as_long_as_the_slowest_of_its_clients() -> None:
    one = estimate([[1.0], [3.0]])
    assert one is not None
    assert one.mean_s == pytest.approx(60 * 2.0, rel=0.05)
    assert one.unknown == 0.0
    # Of two of three clients the slowest takes 3 s but where the slow one is left out.
    two = estimate([[1.0], [2.0], [6.0]], num_selected=2)
    assert two is not None
    assert two.mean_s == pytest.approx(60 * (2 * 6.0 + 2.0) / 3, rel=0.05)
    assert two.low_s < two.mean_s < two.high_s


def test_clients_that_are_seldom_there_seldom_cost_anything() -> None:
    found = RandomTimes(1)
    for number in range(1, 401):
        there = [0, 1] if number % 10 == 0 else [0]
        arm = there[-1]
        taken_s = 5.0 if arm else 1.0
        found.add(
            round_record(number, [arm], rtt_s=[taken_s], round_s=taken_s, num_arms=2,
                         available=there), 10.0,
        )  # fmt: skip
    estimated = found.estimate()
    assert estimated is not None
    assert estimated.mean_s == pytest.approx(400 * (0.95 * 1.0 + 0.05 * 5.0), rel=0.1)


def test_a_failure_costs_what_it_has_cost_the_round() -> None:
    found = RandomTimes(1)
    for number in range(1, 61):
        fails = number % 2
        found.add(
            round_record(number, [0], rtt_s=[None if fails else 1.0], num_arms=1, available=[0],
                         reason=["timeout" if fails else None], round_s=4.0 if fails else 1.0),
            10.0,
        )  # fmt: skip
    estimated = found.estimate()
    assert estimated is not None
    assert estimated.mean_s == pytest.approx(60 * 2.5, rel=0.1)


@pytest.mark.parametrize(("buffered", "total_s"), [(False, 60 * 0.75), (True, 30 * 1.5)])
def test_a_client_that_raises_at_once_costs_no_more_than_that(
    buffered: bool, total_s: float
) -> None:
    found = RandomTimes(1)
    for number in range(1, 61):
        fails = number % 2
        found.add(
            round_record(number, [0], rtt_s=[0.5 if fails else 1.0], num_arms=1, available=[0],
                         reason=["client error: x" if fails else None], round_s=4.0,
                         buffered=buffered), 10.0,
        )  # fmt: skip
    estimated = found.estimate()
    assert estimated is not None
    assert estimated.mean_s == pytest.approx(total_s, rel=0.1)


def test_what_says_nothing_of_its_time_had_failed_by_the_end_of_its_step() -> None:
    found = RandomTimes(1)
    for number in range(1, 61):
        fails = number % 2
        record = round_record(
            number, [0], rtt_s=[None if fails else 1.0], num_arms=1, available=[0], time_s=100.0,
            reason=["connection lost" if fails else None], begin_s=[98.0], buffered=True,
        )  # fmt: skip
        found.add(record, 10.0)
    estimated = found.estimate()
    assert estimated is not None
    assert estimated.mean_s == pytest.approx(30 * (2.0 + 1.0), rel=0.2)


def test_a_channel_is_free_again_when_its_client_is_done() -> None:
    found = estimate([[1.0], [3.0], [2.0]], num_selected=1, buffered=True)
    assert found is not None
    assert found.mean_s == pytest.approx(60 * 2.0, rel=0.05)
    two = estimate([[1.0], [1.0], [1.0]], num_selected=2, buffered=True)
    assert two is not None
    assert two.mean_s == pytest.approx(60 * 0.5, rel=0.02), "two channels, twice as many updates"


def test_what_clients_hardly_tried_would_take_is_said_to_be_unknown() -> None:
    found = RandomTimes(2)
    for number in range(1, 101):
        found.add(round_record(number, [0, 1], num_arms=10, available=list(range(10))), 10.0)
    estimated = found.estimate()
    assert estimated is not None
    assert estimated.unknown == pytest.approx(0.8, abs=0.02)


def test_there_is_no_estimate_of_few_rounds_or_of_no_update() -> None:
    assert estimate([[1.0]], rounds=19) is None
    assert estimate([[1.0]], rounds=20) is not None
    found = RandomTimes(1)
    for number in range(1, 50):
        found.add(round_record(number, [0], rtt_s=[None], reason=["timeout"]), 1.0)
    assert found.estimate() is None
    assert as_json(None, 1.0) is None


def test_it_is_the_same_again_and_follows_the_run_between_two_estimates() -> None:
    def add(found: RandomTimes, first: int, last: int) -> None:
        rng = np.random.default_rng(first)
        for number in range(first, last):
            taken_s = rng.uniform(0.5, 1.5, 2).tolist()
            found.add(round_record(number, [0, 1], rtt_s=taken_s, round_s=max(taken_s)), None)

    one, other = RandomTimes(2), RandomTimes(2)
    add(one, 1, 101)
    add(other, 1, 101)
    before = one.estimate()
    assert before == other.estimate()
    assert before is not None
    add(one, 101, 103)
    after = one.estimate()
    assert after is not None
    assert after.mean_s == pytest.approx(before.mean_s * 1.02)
