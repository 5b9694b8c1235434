"""The largest share of a client: its bound, the arms that are barred, what cannot be kept."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Krum
from scripted_grid import ScriptedGrid

from flower_scheduling.client.wire.protocol import NUM_EXAMPLES
from flower_scheduling.errors import ConfigError
from flower_scheduling.strategies.flower import RoundRecord, ScheduledStrategy
from flower_scheduling.strategies.registry import runnable_policies
from flower_scheduling.strategies.share_bound import ShareBound


def train(message: Message) -> Message:
    arrays = {key: Array(array.numpy() + 1) for key, array in message.content["arrays"].items()}
    metrics = MetricRecord({NUM_EXAMPLES: 10, "loss": 1.0, "local-accuracy": 0.5})
    return Message(
        RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message
    )


def run(
    num_clients: int = 10, rounds: int = 100, grid: ScriptedGrid | None = None, **settings: Any
) -> tuple[list[RoundRecord], ScheduledStrategy]:
    records: list[RoundRecord] = []
    scheduled = ScheduledStrategy(
        settings.pop("strategy", FedAvg()),
        settings.pop("policy", "cs-ucb-adaptive"),
        **{
            **{"num_selected": 3, "tau_max_s": 4.0, "fairness": "none", "wait_s": 2.0},
            **{"client_eval_every": 0},
            **settings,
        },
        hooks=[lambda record, arrays: records.append(record)],
    )
    arrays = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    scheduled.start(grid or ScriptedGrid([train] * num_clients), arrays, num_rounds=rounds)
    return records, scheduled


def most_in_any(turns: Sequence[set[int]], length: int) -> int:
    """Return the most turns that an arm has in so many in a row."""
    arms = set().union(*turns)
    counts = [
        sum(arm in turn for turn in turns[t : t + length])
        for arm in arms
        for t in range(len(turns) - length + 1)
    ]
    return max(counts)


@pytest.mark.parametrize("policy", ["cs-ucb-adaptive", "cs-ucb", "random", "round-robin", "oort"])
def test_no_arm_has_more_than_its_share_of_any_rounds(policy: str) -> None:
    records, _ = run(policy=policy, max_share=0.4)
    turns = [set(record.selected) for record in records]
    assert all(len(turn) == 3 for turn in turns)
    for length in (1, 2, 5, 10, 30, 100):
        assert most_in_any(turns, length) < 0.4 * length + 2
    if policy == "cs-ucb-adaptive":
        alone, _ = run(policy=policy)
        assert most_in_any([set(record.selected) for record in alone], 50) == 50


@pytest.mark.parametrize("mode", ["rounds", "buffered"])
@pytest.mark.parametrize("policy", runnable_policies())
def test_every_policy_keeps_it(policy: str, mode: str) -> None:
    settings: dict[str, Any] = {"fairness": "equal:0.1", "rounds": 60, "mode": mode}
    records, _ = run(policy=policy, max_share=0.35, **settings)
    turns: list[set[int]] = [set(record.selected) for record in records]
    share = 0.35
    if mode == "buffered":
        turns = [{result.arm} for record in records for result in record.results]
        share /= 3
    for length in (2, 10, len(turns)):
        assert most_in_any(turns, length) < share * length + 2


def test_of_channels_it_is_a_share_of_completed_work_as_floors_are() -> None:
    settings: dict[str, Any] = {"mode": "buffered", "buffer_size": 2, "rounds": 150}
    records, _ = run(max_share=0.4, **settings)
    turns = [{result.arm} for record in records for result in record.results]
    for length in (3, 30, 100, 300):
        assert most_in_any(turns, length) < 0.4 / 3 * length + 2
    alone, _ = run(**settings)
    counts = Counter(result.arm for record in alone for result in record.results)
    assert counts.most_common(1)[0][1] > 0.5 * counts.total(), "client 0 takes no time"


def test_where_too_few_are_left_a_round_is_smaller_but_no_smaller_than_a_step_needs() -> None:
    def grid() -> ScriptedGrid:
        found = ScriptedGrid([train] * 10)

        def leave(server_round: int) -> None:
            found.away = {100 + k for k in range(3, 10)} if server_round > 20 else set()

        found.on_begin = leave
        return found

    records, _ = run(max_share=0.4, grid=grid())
    late = records[30:]
    share = np.mean([0 in record.selected for record in late])
    assert 0.3 < share < 0.45, "three clients are there, and the bound holds"
    assert {len(record.selected) for record in late} == {1, 2}
    assert all(record.stepped for record in late)
    assert all(set(record.selected) <= set(record.available) for record in records)
    krum = Krum(num_malicious_nodes=0)
    records, _ = run(max_share=0.4, grid=grid(), strategy=krum)
    assert {len(record.selected) for record in records[30:]} == {3}


def test_a_channel_is_not_left_free_for_ever() -> None:
    grid = ScriptedGrid([train] * 10)
    grid.on_begin = lambda decision: grid.away.update(
        {101 + k for k in range(9)} if decision > 60 else set()
    )
    records, _ = run(max_share=0.4, grid=grid, mode="buffered", rounds=60)
    assert all(record.stepped for record in records)
    assert {result.arm for result in records[-1].results} == {0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_share": 0.25}, "0.25: needs 12 clients where 3 are selected, 10 are there"),
        ({"max_share": 0.25, "num_clients": 2}, "0.25: needs 12 clients where 3 are selected, 2 "),
        (
            {"max_share": 0.5, "fairness": "dev-1=0.6", "policy": "cs-ucb-q"},
            "0.5: is below the floor of dev-1, 0.6",
        ),
        ({"max_share": 0.0}, "0.0: must be a finite number > 0 and <= 1"),
        ({"max_share": "0.5"}, "'0.5': must be a finite number > 0 and <= 1"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_the_first_round(
    settings: dict[str, Any], message: str
) -> None:
    grid = ScriptedGrid([train] * settings.pop("num_clients", 10))
    with pytest.raises(ConfigError, match=f"^max_share = {re.escape(message)}"):
        run(grid=grid, **settings)
    assert grid.trained() == []


def test_the_first_round_waits_for_as_many_clients_as_the_share_needs() -> None:
    grid = ScriptedGrid([train] * 10)
    grid.connected = {100, 101, 102}
    waited = grid.wait

    def wait(seconds: float) -> None:
        waited(seconds)
        grid.connected = set(grid.clients)

    grid.wait = wait  # type: ignore[method-assign]
    records, _ = run(max_share=0.3, grid=grid, rounds=1)
    assert records[0].num_arms == 10


def test_a_floor_of_a_client_that_joins_later_is_cut_off() -> None:
    grid = ScriptedGrid([train] * 10)
    grid.connected = set(grid.clients) - {109}

    def join(server_round: int) -> None:
        grid.connected = set(grid.clients) if server_round > 5 else grid.connected

    grid.on_begin = join
    _, scheduled = run(
        max_share=0.5, grid=grid, policy="cs-ucb-q-adaptive", fairness="dev-9=0.7,dev-1=0.4"
    )
    assert scheduled.floors == [0.0, 0.4, *[0.0] * 7, 0.5]


@pytest.mark.parametrize("mode", ["rounds", "buffered"])
def test_floors_below_it_are_kept(mode: str) -> None:
    records, _ = run(
        max_share=0.5, policy="cs-ucb-q-adaptive", fairness="equal:0.25", mode=mode, rounds=300
    )
    counts = Counter(arm for record in records for arm in record.selected)
    turns = len(records) if mode == "rounds" else counts.total() / 3
    assert max(counts.values()) < 0.5 * turns + 2
    assert min(counts.values()) > 0.25 * turns - 16


@pytest.mark.parametrize("mode", ["rounds", "buffered"])
def test_shares_survive_a_restart(mode: str) -> None:
    kwargs: dict[str, Any] = {"max_share": 0.4, "mode": mode}
    _, scheduled = run(rounds=21, **kwargs)
    state = scheduled.state_dict()
    again = ScheduledStrategy(
        FedAvg(), "cs-ucb-adaptive", num_selected=3, tau_max_s=4.0, fairness="none", **kwargs
    )
    again.load_state_dict(state)
    assert again._policy.share_state()["excess"].tolist() == state["shares"]["excess"].tolist()
    assert state["shares"]["excess"].any()
    _, unbounded = run(rounds=3)
    assert "shares" not in unbounded.state_dict()


def test_excess_is_a_leaky_bucket() -> None:
    bound = ShareBound(0.25)
    bound.tell(2, [0])
    assert bound.state()["excess"].tolist() == [0.75, 0.0]
    assert bound.allowed(np.array([True, True])).tolist() == [True, True]
    bound.tell(2, [0])
    assert bound.allowed(np.array([True, True])).tolist() == [False, True]
    assert bound.allowed(np.array([True, False]), at_least=1).tolist() == [True, False]
    bound.tell(3, [2])
    bound.tell(3, [2])
    assert bound.allowed(np.ones(3, dtype=np.bool_)).tolist() == [False, True, False]
    assert bound.allowed(np.ones(3, dtype=np.bool_), at_least=2).tolist() == [True, True, False]
    bound.tell(3, [])
    assert bound.allowed(np.ones(3, dtype=np.bool_)).tolist() == [True, True, False]


def test_what_is_taken_beside_a_turn_counts_each_time() -> None:
    bound = ShareBound(0.5)
    bound.charge(3, [1, 1])
    bound.tell(3, [2])
    assert bound.state()["excess"].tolist() == [0.0, 1.5, 0.5]
    assert bound.allowed(np.ones(3, dtype=np.bool_)).tolist() == [True, False, True]
    free = ShareBound(1.0)
    free.charge(3, [1])
    assert free.allowed(np.ones(3, dtype=np.bool_)).all()
