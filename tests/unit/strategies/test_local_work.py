"""Work by speed: the estimates by hand, the work that fits, and what policies are told."""

from __future__ import annotations

import json

import numpy as np
import pytest

from flower_scheduling.errors import ConfigError
from flower_scheduling.strategies.local_work import WorkBySpeed

THERE = np.ones(4, dtype=np.bool_)


def reporting(
    step_s: tuple[float, ...] = (0.1, 0.2, 0.4, 1.0), rest_s: float = 1.0, num_selected: int = 2
) -> WorkBySpeed:
    """Return what has learned of clients that report their computing, ten steps each."""
    work = WorkBySpeed(10, num_selected)
    for arm, each in enumerate(step_s):
        work.tell(arm, 10, rest_s + 10 * each, 10 * each)
    return work


def test_work_fits_the_time_of_the_nth_fastest() -> None:
    work = reporting()  # at base work 2, 3, 5 and 11 s: the second fastest takes 3
    assert work.ask(range(4), THERE).tolist() == [20, 10, 5, 3], "(3 - 1) / step, 3 at least"


def test_bounds_hold() -> None:
    work = reporting((0.01, 0.5, 0.5, 50.0))
    assert work.ask(range(4), THERE).tolist() == [40, 10, 10, 3]
    one = WorkBySpeed(1, 1)
    for arm, each in enumerate((0.1, 5.0)):
        one.tell(arm, 1, each, each)
    assert one.ask([0, 1], THERE[:2]).tolist() == [1, 1], "no client makes less than one step"


def test_those_that_are_not_there_do_not_set_the_time() -> None:
    there = np.array([False, True, True, True])
    # The second fastest of the others takes 5 s at base work.
    assert reporting().ask([1, 2, 3], there).tolist() == [20, 10, 4]


def test_until_n_clients_are_timed_all_do_the_base_work() -> None:
    work = WorkBySpeed(10, 2)
    assert work.ask([0, 1], THERE).tolist() == [10, 10]
    work.tell(0, 10, 2.0, 1.0)
    assert work.ask([0, 1], THERE).tolist() == [10, 10]
    work.tell(1, 10, 11.0, 10.0)
    assert work.ask([0, 1, 2], THERE).tolist() == [40, 10, 10], "a client not timed does base work"


def test_asking_moves_nothing() -> None:
    work = reporting()
    before = json.dumps({k: v.tolist() for k, v in work.state_dict().items()})
    work.ask(range(4), THERE)
    assert json.dumps({k: v.tolist() for k, v in work.state_dict().items()}) == before


def test_a_round_trip_counts_as_work_until_other_steps_show_how_much_is() -> None:
    work = WorkBySpeed(10, 1)
    work.tell(0, 10, 4.0)
    assert work.step_s(0) == pytest.approx(0.4)
    # In truth 3 s for the link and 0.1 s a step: least squares with the prior (mean n / 4)^2.
    work.tell(0, 20, 5.0)
    mean, mean_s, squares, products, prior = 15.0, 4.5, 50.0, 5.0, (15 / 4) ** 2
    expected = (products + prior * mean_s / mean) / (squares + prior)
    assert work.step_s(0) == pytest.approx(expected)
    rng = np.random.default_rng(0)
    for steps in rng.integers(3, 41, size=200).tolist():
        work.tell(0, steps, 3.0 + 0.1 * steps)
    assert work.step_s(0) == pytest.approx(0.1, rel=0.25)


def test_one_that_waits_for_its_link_is_found_out() -> None:
    """Clients that do not report: half computes slowly, half sits behind a slow link."""
    work = WorkBySpeed(20, 2)
    truth = [(0.1, 0.5), (0.12, 0.4), (0.6, 0.4), (0.02, 10.0)]  # s per step, other s
    rng = np.random.default_rng(1)
    for _ in range(60):
        for arm, steps in enumerate(work.ask(range(4), THERE).tolist()):
            step_s, rest_s = truth[arm]
            work.tell(arm, steps, rest_s * rng.uniform(0.9, 1.1) + step_s * steps)
    steps = work.ask(range(4), THERE).tolist()
    assert steps[2] == 5, "computes slowly"
    assert steps[3] == 5, "no number of steps fits"
    assert work.step_s(3) * 5 < 1.0, "most of its round trip is not work"
    assert work.step_s(2) * 5 > 2.0
    assert work.at_base_s(3, 5, 10.1) < 14.0, "so it is not told as four times as slow"


def test_policies_are_told_times_of_the_base_work() -> None:
    work = reporting()
    assert work.at_base_s(3, 3, 1.0 + 3 * 1.0, 3.0) == pytest.approx(11.0)
    assert work.at_base_s(0, 20, 1.0 + 20 * 0.1, 2.0) == pytest.approx(2.0)
    assert work.at_base_s(2, 10, 7.7, 3.0) == 7.7, "of the base work, as it is"
    assert work.at_base_s(2, 5, 3.0) == pytest.approx(3.0 + 5 * 0.4), "by the estimate"
    assert work.at_base_s(1, 40, 2.0, 500.0) > 0, "a lie about computing makes no time negative"


def test_a_change_of_speed_is_followed() -> None:
    work = reporting()
    for _ in range(60):
        work.tell(0, 10, 1.0 + 10 * 2.0, 20.0)
    assert work.step_s(0) == pytest.approx(2.0, rel=0.1)


def test_slowdowns_are_relative_to_the_base_work() -> None:
    work = reporting()
    steps = work.ask(range(4), THERE)
    assert work.slowdowns(range(4), steps.tolist()) == pytest.approx([3 / 2, 1, 3 / 5, 4 / 11])
    assert WorkBySpeed(10, 1).slowdowns([], []).size == 0


def test_updates_of_different_steps_count_alike() -> None:
    """FedNova with clients whose steps all move by their own gradient: the mean of base work."""
    work, rng = WorkBySpeed(10, 2), np.random.default_rng(2)
    model, gradients, weights = rng.normal(size=5), rng.normal(size=(3, 5)), [0.2, 0.3, 0.5]
    steps = [3, 10, 40]
    updates = [model - n * g for n, g in zip(steps, gradients, strict=True)]
    shown = [model + work.scale(n) * (u - model) for n, u in zip(steps, updates, strict=True)]
    np.testing.assert_allclose(
        sum(p * each for p, each in zip(weights, shown, strict=True)),
        model - 10 * sum(p * g for p, g in zip(weights, gradients, strict=True)),
    )


def test_it_goes_on_where_it_was() -> None:
    work, again = reporting(), WorkBySpeed(10, 2)
    again.load_state_dict(work.state_dict())
    assert again.ask(range(4), THERE).tolist() == work.ask(range(4), THERE).tolist()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"base_steps": 0}, "local_steps = 0: must be an integer >= 1"),
        ({"least": 0.0}, "least_work = 0.0: must be a finite number > 0"),
        ({"least": 1.5}, "least_work = 1.5: must be"),
        ({"most": 0.5}, "most_work = 0.5: must be"),
        ({"most": float("inf")}, "most_work = inf: must be"),
    ],
)
def test_numbers_are_checked(values: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorkBySpeed(**{"base_steps": 10, "num_selected": 2, **values})  # type: ignore[arg-type]
