"""A deadline that is found, in virtual time: links of 0.1 to 20 s, fading ones, changes, deaths."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from apps import echo_app
from factories import small_model
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

from flower_scheduling.simulation.engine.virtual_grid import VirtualGrid
from flower_scheduling.simulation.environments.paper import Environment, RoundDraw
from flower_scheduling.strategies.deadline import LONGEST_S
from flower_scheduling.strategies.flower import RoundRecord, ScheduledStrategy
from flower_scheduling.strategies.policies.cs_ucb import CsUcb

NUM_ARMS = 10
POLICIES = ("random", "cs-ucb", "cs-ucb-q", "cs-ucb-adaptive", "cs-ucb-q-adaptive")


class Links:
    """Round trips of 0.1 to 20 s, the same in each round but for what a test changes."""

    def __init__(self, change: Callable[[int, np.ndarray], np.ndarray]) -> None:
        self._change = change

    def round(self, t: int) -> RoundDraw:
        time_s = self._change(t, np.geomspace(0.1, 20.0, NUM_ARMS))
        nothing = np.zeros(NUM_ARMS)
        there = np.ones(NUM_ARMS, dtype=np.bool_)
        return RoundDraw(there, nothing, np.where(there, time_s, 0), nothing, np.isinf(time_s))


def grid_of(environment: Any) -> VirtualGrid:
    nodes = [{"partition-id": arm, "name": f"client-{arm}"} for arm in range(NUM_ARMS)]
    return VirtualGrid(echo_app(), environment, nodes, {})


def run(
    environment: Any, policy: Any, num_rounds: int = 300, **options: Any
) -> tuple[list[RoundRecord], ScheduledStrategy]:
    records: list[RoundRecord] = []
    values: dict[str, Any] = {"num_selected": 4, "wait_s": 0.0, "log_every_s": math.inf}
    strategy = ScheduledStrategy(
        FedAvg(fraction_evaluate=0.0),
        policy,
        hooks=[lambda record, arrays: records.append(record)],
        **{**values, **options},
    )
    strategy.start(grid_of(environment), small_model(), num_rounds=num_rounds)
    return records, strategy


def failures(records: list[RoundRecord]) -> list[tuple[int, str]]:
    return [(r.round, a.name) for r in records for a in r.results if not a.completed]


@pytest.mark.parametrize("policy", POLICIES)
def test_constant_links_lose_nothing_from_the_first_round_on(policy: str) -> None:
    records, _ = run(Links(lambda t, time_s: time_s), policy)
    assert not failures(records)
    deadlines_s = [record.deadline_s or 0.0 for record in records]
    assert deadlines_s[0] == LONGEST_S
    assert len({name for record in records for name in record.names}) == NUM_ARMS
    assert max(deadlines_s[50:]) < 60.0, "soon it is near what the slowest needs, or below"
    for record in records[50:]:
        assert max(each or 0.0 for each in record.rtt_s) < (record.deadline_s or 0.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", POLICIES)
def test_fading_links_lose_no_round_and_hardly_an_update(policy: str, seed: int) -> None:
    environment = Environment(num_arms=NUM_ARMS, seed=seed, availability=0.9)
    records, _ = run(environment, policy, 500)
    assert all(record.stepped for record in records)
    assert len(failures(records)) <= 0.015 * 4 * len(records)
    assert not failures(records[:20]), "what is not known yet is not cut off"
    later_s = [record.deadline_s or 0.0 for record in records[100:]]
    assert np.median(later_s) < 5.0


@pytest.mark.parametrize("policy", ["random", "round-robin", "cs-ucb-q-adaptive"])
def test_a_client_that_becomes_twenty_times_slower_is_waited_for_again(policy: str) -> None:
    def slower(t: int, time_s: np.ndarray) -> np.ndarray:
        return np.where((np.arange(NUM_ARMS) == 4) & (t > 100), 20.0 * time_s, time_s)

    records, _ = run(Links(slower), policy, fairness="equal:0.2")
    lost = failures(records)
    assert {name for _, name in lost} <= {"client-4"}
    assert len(lost) <= 2
    assert sum("client-4" in record.names for record in records[150:]) >= 20


@pytest.mark.parametrize("policy", ["random", "round-robin", "cs-ucb-q-adaptive"])
def test_a_client_that_dies_costs_a_few_deadlines(policy: str) -> None:
    def dead(t: int, time_s: np.ndarray) -> np.ndarray:
        return np.where((np.arange(NUM_ARMS) == 4) & (t > 100), np.inf, time_s)

    records, _ = run(Links(dead), policy, 400, fairness="equal:0.2")
    assert {name for _, name in failures(records)} == {"client-4"}
    assert all(record.stepped for record in records)
    long = [r.round for r in records[100:] if r.round_s > 60.0]
    assert len(long) <= 6, "of 60 rounds and more in which it was selected"
    assert records[-1].deadline_s is not None
    assert records[-1].deadline_s < 200.0


@pytest.mark.parametrize("policy", POLICIES)
def test_channels_lose_nothing_on_constant_links(policy: str) -> None:
    options: dict[str, Any] = {"mode": "buffered", "max_staleness": 10_000}
    records, strategy = run(Links(lambda t, time_s: time_s), policy, **options)
    assert not failures(records)
    deadlines_s = [record.deadline_s or 0.0 for record in records]
    assert deadlines_s[0] == LONGEST_S
    assert 0.2 < deadlines_s[-1] < 60.0
    assert (strategy.policy.play_count > 0).all()
    for record in records[50:]:
        assert max(each or 0.0 for each in record.rtt_s) < (record.deadline_s or 0.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_channels_hardly_lose_an_update_on_fading_links(policy: str) -> None:
    environment = Environment(num_arms=NUM_ARMS, seed=1, availability=0.9)
    records, _ = run(environment, policy, 500, mode="buffered")
    ended = sum(len(record.results) for record in records)
    assert all(record.stepped for record in records)
    assert len(failures(records)) <= 0.02 * ended
    assert np.median([record.deadline_s or 0.0 for record in records[100:]]) < 5.0


@pytest.mark.parametrize("policy", ["random", "round-robin", "cs-ucb-q-adaptive"])
def test_a_client_that_dies_holds_its_channel_ever_more_rarely(policy: str) -> None:
    def dead(t: int, time_s: np.ndarray) -> np.ndarray:
        return np.where((np.arange(NUM_ARMS) == 4) & (t > 200), np.inf, time_s)

    records, _ = run(Links(dead), policy, 400, fairness="equal:0.2", mode="buffered")
    assert {name for _, name in failures(records)} == {"client-4"}
    assert all(record.stepped for record in records)
    long = [record.round for record in records[100:] if (record.deadline_s or 0.0) > 60.0]
    assert len(long) <= 6


def test_rewards_of_channels_keep_their_unit_once_n_clients_were_timed() -> None:
    _, early = run(Links(lambda t, time_s: time_s), "cs-ucb", 20, mode="buffered")
    _, later = run(Links(lambda t, time_s: time_s), "cs-ucb", 400, mode="buffered")
    assert early.policy.tau_max_s == later.policy.tau_max_s < LONGEST_S
    fastest = np.argsort(-later.policy.play_count)[:3]
    names = sorted(later.arms.names[arm] for arm in fastest)
    assert names == ["client-0", "client-1", "client-2"]


def test_a_client_that_never_answers_costs_few_long_rounds() -> None:
    def mute(t: int, time_s: np.ndarray) -> np.ndarray:
        return np.where(np.arange(NUM_ARMS) == 4, np.inf, time_s)

    records, _ = run(Links(mute), "round-robin", 400)
    assert {name for _, name in failures(records)} == {"client-4"}
    long_s = [r.round_s for r in records if r.round_s > 150.0]
    assert len(long_s) <= 9, "of 160 in which it was selected"
    assert max(long_s[1:]) <= 3 * 10 * 20.0 + 1e-6


def test_rewards_keep_their_unit_once_n_clients_were_timed() -> None:
    records, strategy = run(Links(lambda t, time_s: time_s), "cs-ucb", 1)
    unit_s = strategy.policy.tau_max_s
    slowest_s = max(each or 0.0 for each in records[0].rtt_s)
    assert unit_s == pytest.approx(3.0 * slowest_s)
    assert strategy.policy.mean_reward.max() == pytest.approx(
        1 - min(each or 0.0 for each in records[0].rtt_s) / unit_s
    )
    _, later = run(Links(lambda t, time_s: time_s), "cs-ucb", 200)
    assert later.policy.tau_max_s == unit_s
    fastest = np.argsort(-later.policy.play_count)[:3]
    names = sorted(later.arms.names[arm] for arm in fastest)
    assert names == ["client-0", "client-1", "client-2"], "an hour would make all clients alike"


def test_a_policy_that_learns_seconds_knows_the_present_deadline() -> None:
    records, strategy = run(Links(lambda t, time_s: time_s), "cs-ucb-adaptive")
    assert strategy.policy.tau_max_s <= (records[-1].deadline_s or 0.0)
    assert strategy.policy.tau_max_s < 60.0


def test_a_policy_that_was_given_keeps_its_own_unit() -> None:
    given = CsUcb(num_arms=0, num_selected=4, tau_max_s=7.0, rng=np.random.default_rng(0))
    _, strategy = run(Links(lambda t, time_s: time_s), given, 20)
    assert strategy.policy is given
    assert given.tau_max_s == 7.0


def test_evaluation_on_clients_has_a_deadline_of_its_own() -> None:
    asked_s: list[float] = []

    class Noting(VirtualGrid):
        def exchange(self, messages: Any, timeout_s: float) -> Any:
            if messages and messages[0].metadata.message_type == "evaluate":
                asked_s.append(timeout_s)
            return super().exchange(messages, timeout_s)

    nodes = [{"partition-id": arm} for arm in range(NUM_ARMS)]
    strategy = ScheduledStrategy(FedAvg(), "random", num_selected=4, log_every_s=math.inf)
    links = Links(lambda t, time_s: time_s)
    result = strategy.start(Noting(echo_app(), links, nodes, {}), small_model(), num_rounds=60)  # type: ignore[arg-type]
    assert len(result.evaluate_metrics_clientapp) == 60
    assert asked_s[0] == LONGEST_S
    assert asked_s[-1] < 60.0


def test_a_shorter_timeout_of_the_start_bounds_it() -> None:
    records: list[RoundRecord] = []
    strategy = ScheduledStrategy(
        FedAvg(fraction_evaluate=0.0),
        "random",
        num_selected=4,
        hooks=[lambda record, arrays: records.append(record)],
    )
    grid = grid_of(Links(lambda t, time_s: time_s))
    strategy.start(grid, small_model(), num_rounds=5, timeout=30.0)
    assert [record.deadline_s for record in records[:2]] == [30.0, 30.0]


def test_what_was_found_goes_on_with_the_run() -> None:
    def play(strategy: ScheduledStrategy, grid: VirtualGrid, arrays: ArrayRecord) -> ArrayRecord:
        return strategy.start(grid, arrays, num_rounds=60).arrays

    def build(records: list[RoundRecord], **options: Any) -> ScheduledStrategy:
        return ScheduledStrategy(
            FedAvg(fraction_evaluate=0.0),
            "cs-ucb-q",
            num_selected=4,
            hooks=[lambda record, arrays: records.append(record)],
            log_every_s=math.inf,
            **options,
        )

    environment = Environment(num_arms=NUM_ARMS, seed=1, failure_probability=0.05)
    whole: list[RoundRecord] = []
    play(build(whole), grid_of(environment), small_model())

    first: list[RoundRecord] = []
    half = build(first, stop_when=lambda record: record.round == 25)
    grid = grid_of(environment)
    arrays = play(half, grid, small_model())
    rest: list[RoundRecord] = []
    again, grid_again = build(rest), grid_of(environment)
    again.load_state_dict(half.state_dict())
    grid_again.load_state_dict(grid.state_dict())
    play(again, grid_again, arrays)
    assert first + rest == whole
    assert len(rest) == 35
