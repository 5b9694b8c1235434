"""Spare clients, in virtual time: rounds end with the N-th answer, floors and learning hold."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from apps import echo_app
from factories import small_model
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp.strategy import FedAvg

from flower_scheduling.errors import ConfigError
from flower_scheduling.simulation.engine.virtual_grid import VirtualGrid
from flower_scheduling.simulation.environments.paper import Environment, RoundDraw
from flower_scheduling.strategies.flower import (
    LATE,
    TIMEOUT,
    RoundRecord,
    ScheduledStrategy,
    SpareExchange,
)

NUM_ARMS = 8


class Links:
    """Client k takes k + 1 seconds, but for what a test changes."""

    def __init__(
        self, change: Callable[[int, np.ndarray], np.ndarray] = lambda t, time_s: time_s
    ) -> None:
        self._change = change

    def round(self, t: int) -> RoundDraw:
        time_s = self._change(t, np.arange(1.0, NUM_ARMS + 1))
        nothing, there = np.zeros(NUM_ARMS), np.ones(NUM_ARMS, dtype=np.bool_)
        return RoundDraw(there, nothing, time_s, nothing, np.isinf(time_s))


def grid_of(links: Any) -> VirtualGrid:
    nodes = [{"partition-id": arm, "name": f"client-{arm}"} for arm in range(NUM_ARMS)]
    return VirtualGrid(echo_app(), links, nodes, {})


def build(records: list[RoundRecord], policy: Any = "random", **options: Any) -> ScheduledStrategy:
    values: dict[str, Any] = {"num_selected": 3, "num_spare": 2, "tau_max_s": 20.0}
    values |= {"wait_s": 0.0, "log_every_s": math.inf}
    return ScheduledStrategy(
        FedAvg(fraction_evaluate=0.0),
        policy,
        hooks=[lambda record, arrays: records.append(record)],
        **{**values, **options},
    )


def run(links: Any, num_rounds: int = 100, **options: Any) -> list[RoundRecord]:
    records: list[RoundRecord] = []
    build(records, **options).start(grid_of(links), small_model(), num_rounds=num_rounds)
    return records


def test_an_exchange_ends_with_the_nth_answer_and_the_late_ones_come_later() -> None:
    grid = grid_of(Links())
    assert isinstance(grid, SpareExchange)
    exchanges = grid.exchange(_messages(grid, range(5)), 20.0, 3)
    assert [each.failure for each in exchanges] == [None, None, None, LATE, LATE]
    assert (grid.now(), grid.late()) == (3.0, [])
    late = [each.node_id for each in exchanges[3:]]
    assert grid.busy() == set(late)
    grid.wait(1.0)
    (fourth,) = grid.late()
    assert (fourth.node_id, fourth.rtt_s, fourth.failure) == (late[0], 4.0, None)
    assert grid.busy() == {late[1]}
    grid.wait(1.0)
    assert [each.rtt_s for each in grid.late()] == [5.0]
    assert grid.late() == []


def test_an_awaited_client_is_waited_for() -> None:
    grid = grid_of(Links())
    messages = _messages(grid, range(5))
    node = messages[3].metadata.dst_node_id
    exchanges = grid.exchange(messages, 20.0, 2, [node])
    assert [each.failure for each in exchanges] == [None, None, None, None, LATE]
    assert grid.now() == 4.0


def test_failures_are_not_answers() -> None:
    grid = grid_of(Links(lambda t, time_s: np.where(np.arange(NUM_ARMS) < 2, np.inf, time_s)))
    exchanges = grid.exchange(_messages(grid, range(5)), 20.0, 3)
    assert [each.failure for each in exchanges] == [LATE, LATE, None, None, None]
    assert grid.now() == 5.0, "two are silent: the three others are waited for"
    grid.wait(15.0)
    assert [each.failure for each in grid.late()] == [TIMEOUT, TIMEOUT], "known at the deadline"
    grid = grid_of(Links(lambda t, time_s: np.where(np.arange(NUM_ARMS) < 3, np.inf, time_s)))
    exchanges = grid.exchange(_messages(grid, range(5)), 20.0, 3)
    assert [each.failure for each in exchanges] == [TIMEOUT] * 3 + [None] * 2
    assert grid.now() == 20.0


def test_a_round_lasts_as_long_as_the_nth_answer() -> None:
    records = run(Links(), policy="round-robin", fairness="none")
    whole = run(Links(), policy="round-robin", num_spare=0, fairness="none")
    assert all(len(record.results) == 3 and record.stepped for record in records)
    assert all(r.round_s == pytest.approx(max(s or 0.0 for s in r.rtt_s)) for r in records)
    assert sum(record.round_s for record in records) < 0.75 * sum(r.round_s for r in whole)
    for record in records:
        assert not set(record.late) & set(record.selected)
        assert len(record.late) + len(record.selected) <= 5
    assert not any(record.late for record in whole)


def test_a_late_client_is_busy_until_it_has_answered() -> None:
    slowest = NUM_ARMS - 1
    records = run(Links(lambda t, time_s: np.where(time_s == NUM_ARMS, 1e3, time_s)), tau_max_s=2e3)
    first = next(record for record in records if slowest in record.late)
    free_s = first.time_s - first.round_s + 1e3
    meanwhile = [r for r in records[first.round :] if r.time_s - r.round_s < free_s - 1e-6]
    assert len(meanwhile) > 20
    assert not any(slowest in record.available for record in meanwhile)


@pytest.mark.parametrize("policy", ["cs-ucb", "cs-ucb-adaptive", "round-robin"])
def test_true_times_of_late_clients_are_learned(policy: str) -> None:
    records: list[RoundRecord] = []
    strategy = build(records, policy)
    strategy.start(grid_of(Links()), small_model(), num_rounds=200)
    told = Counter(arm for record in records for arm in record.selected)
    late = Counter(arm for record in records for arm in record.late)
    assert (strategy.policy.play_count > 0).all(), "none is untried for ever"
    for arm in range(NUM_ARMS):
        assert told[arm] <= strategy.policy.play_count[arm] <= told[arm] + late[arm]
        expected = 1 - (arm + 1) / 20.0
        assert strategy.policy.mean_reward[arm] == pytest.approx(expected)


def test_a_slow_client_with_a_floor_is_waited_for() -> None:
    records: list[RoundRecord] = []
    strategy = build(records, "cs-ucb-q-adaptive", fairness="client-7=0.3")
    strategy.start(grid_of(Links()), small_model(), num_rounds=400)
    arm = strategy.arms.names.index("client-7")
    assert np.mean([arm in record.selected for record in records]) >= 0.29
    assert max(strategy.queues or []) < 7.0


def test_a_late_update_pays_no_debt() -> None:
    records: list[RoundRecord] = []
    strategy = build(records, "cs-ucb-q-adaptive", fairness="equal:0.1")
    queues: list[list[float]] = []
    strategy.add_hook(lambda record, arrays: queues.append(strategy.queues or []))
    strategy.start(grid_of(Links()), small_model(), num_rounds=100)
    before = np.zeros(NUM_ARMS)
    for record, queue in zip(records, queues, strict=True):
        counted = np.isin(np.arange(NUM_ARMS), record.selected)
        before = np.maximum(before + 0.1 - counted, 0.0)
        assert queue == pytest.approx(before)


def test_a_resumed_run_learns_of_what_was_on_its_way() -> None:
    environment = Environment(num_arms=NUM_ARMS, seed=3, failure_probability=0.1)
    options: dict[str, Any] = {"policy": "cs-ucb-q-adaptive", "tau_max_s": "auto"}
    whole: list[RoundRecord] = []
    build(whole, **options).start(grid_of(environment), small_model(), num_rounds=60)
    first: list[RoundRecord] = []
    half = build(first, stop_when=lambda record: record.round == 25, **options)
    grid = grid_of(environment)
    arrays = half.start(grid, small_model(), num_rounds=60).arrays
    assert grid.state_dict()["late"], "something is on its way"
    rest: list[RoundRecord] = []
    again, grid_again = build(rest, **options), grid_of(environment)
    again.load_state_dict(half.state_dict())
    grid_again.load_state_dict(grid.state_dict())
    again.start(grid_again, arrays, num_rounds=60)
    assert first + rest == whole


def test_numbers_are_checked() -> None:
    with pytest.raises(ConfigError, match="num_spare = -1: must be an integer >= 0"):
        build([], num_spare=-1)
    with pytest.raises(ConfigError, match="num_selected = 0: must be an integer >= 1"):
        build([], num_selected=0)
    assert build([]).asked_settings["num-spare"] == 2
    assert "num-spare" not in build([], num_spare=0).asked_settings


def _messages(grid: VirtualGrid, arms: range) -> list[Message]:
    nodes = list(grid.get_node_ids())
    content = RecordDict({"arrays": small_model()})
    return [Message(content, nodes[arm], MessageType.TRAIN, ttl=60.0) for arm in arms]


def test_late_ones_that_end_at_once_come_in_the_order_of_nodes_whatever_that_of_messages() -> None:
    grid = grid_of(Links(lambda t, time_s: np.minimum(time_s, 4.0)))
    grid.exchange(_messages(grid, range(8))[::-1], 20.0, 2)
    grid.wait(1.0)
    grid.wait(1.0)
    found = [each.node_id for each in grid.late()]
    assert found == sorted(found)
    assert len(found) == 6


def test_late_replies_are_whole_in_a_checkpoint() -> None:
    grid, again = grid_of(Links()), grid_of(Links())
    grid.exchange(_messages(grid, range(4)), 20.0, 3)
    again.load_state_dict(grid.state_dict())
    grid.wait(1.0)
    again.wait(1.0)
    (expected,), (found,) = grid.late(), again.late()
    assert found.rtt_s == expected.rtt_s == 4.0
    assert expected.reply is not None
    assert found.reply is not None
    for each in (expected.reply, found.reply):
        assert each.content["arrays"]["w"].numpy().tolist() == [1.0, 1.0]


def test_too_few_clients_for_spare_ones_are_said_so(caplog: pytest.LogCaptureFixture) -> None:
    run(Links(), num_rounds=1, num_selected=7, num_spare=4)
    assert "4 spare clients wanted, 1 known beyond the 7 that a round waits for" in caplog.messages
    caplog.clear()
    run(Links(), num_rounds=1, num_selected=5, num_spare=3)
    assert not any("spare clients wanted" in line for line in caplog.messages)
