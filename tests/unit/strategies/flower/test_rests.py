"""Clients whose work comes to nothing time and again: left out for a while, longer each time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from scripted_grid import Client, ScriptedGrid, erring

from flower_scheduling.client.wire.protocol import NUM_EXAMPLES
from flower_scheduling.strategies.flower import Exchange, RoundRecord, ScheduledStrategy

MODES = pytest.mark.parametrize("mode", ["rounds", "buffered"])


def training(message: Message) -> Message:
    arrays = {k: Array(a.numpy() + np.float32(1)) for k, a in message.content["arrays"].items()}
    metrics = MetricRecord({NUM_EXAMPLES: 10})
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
    return Message(content, reply_to=message)


def silent(message: Message) -> None:
    return None


def failing_until(count: int) -> Client:
    """Return a client whose app raises so many times at first."""
    asked = 0

    def train(message: Message) -> Message:
        nonlocal asked
        asked += 1
        return erring(message) if asked <= count else training(message)

    return train


class Grid(ScriptedGrid):
    """Client k takes ``times_s[k]``; notes when each is asked, and sleeps as long as it is told."""

    def __init__(self, clients: Sequence[Client], times_s: Sequence[float]) -> None:
        super().__init__(clients)
        self.times_s = times_s
        self.asked_s: list[list[float]] = [[] for _ in clients]

    def _exchange(self, message: Message, timeout_s: float) -> Exchange:
        found = super()._exchange(message, timeout_s)
        arm = found.node_id - 100
        self.asked_s[arm].append(self.now_s)
        return found if found.rtt_s is None else replace(found, rtt_s=self.times_s[arm])


def built(records: list[RoundRecord], **settings: Any) -> ScheduledStrategy:
    defaults: dict[str, Any] = {
        **{"policy": "random", "num_selected": 2, "min_clients": 1, "tau_max_s": 40.0},
        **{"wait_s": 60.0, "client_eval_every": 0},
    }
    if settings.get("mode") == "buffered":
        defaults["buffer_size"] = 1
    hooks = [lambda record, arrays: records.append(record)]
    strategy = settings.pop("strategy", FedAvg())
    return ScheduledStrategy(strategy, **{**defaults, **settings}, hooks=hooks)


def model() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(2, dtype=np.float32))})


def run(grid: Grid, rounds: int, **settings: Any) -> tuple[list[RoundRecord], ScheduledStrategy]:
    records: list[RoundRecord] = []
    scheduled = built(records, **settings)
    scheduled.start(grid, model(), num_rounds=rounds)
    return records, scheduled


@MODES
def test_a_client_that_fails_at_once_is_asked_less_and_less_often(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    grid = Grid([failing_until(12)], [0.0])
    records, scheduled = run(grid, 13 if mode == "rounds" else 2, mode=mode)
    rests_s = np.diff(grid.asked_s[0])[:12]
    assert rests_s.tolist() == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert records[-1].stepped
    assert scheduled.arms.arms[0].failures == 0, "it trains again, and is asked at once"
    lines = [line for line in caplog.messages if "times in a row" in line]
    assert lines == [
        "dev-0 has failed 3 times in a row (client error): it is left out for 1 s, for longer each "
        "time that it fails again, and owed nothing meanwhile"
    ]
    assert any("; left out for a while after failures: dev-0" in line for line in caplog.messages)


@MODES
def test_no_other_client_waits_for_it_and_it_is_owed_nothing(mode: str) -> None:
    grid = Grid([erring, training, training], [0.0, 0.5, 0.5])
    policy = {"policy": "cs-ucb-q-adaptive", "fairness": "equal:0.5"}
    records, scheduled = run(grid, 400, mode=mode, **policy)
    assert records[-1].time_s < 0.5 * 400 + 1.0
    assert len(grid.asked_s[0]) < 20
    out = [record for record in records if 0 in record.absent]
    assert len(out) > 300
    assert all(0 not in record.available for record in out)
    assert scheduled.queues is not None
    assert scheduled.queues[0] < 7.0, "the policy lets six rounds pile up before it acts"


@MODES
@pytest.mark.parametrize("wait_s", [0.0, 60.0])
def test_a_run_waits_for_rests_whatever_its_bound_on_waits(mode: str, wait_s: float) -> None:
    grid = Grid([failing_until(6), failing_until(6), failing_until(6)], [0.1, 0.1, 0.1])
    records, _ = run(grid, 40, mode=mode, wait_s=wait_s)
    assert records[-1].stepped
    assert not any(record.no_step == "nobody-available" for record in records)


def test_enough_rested_clients_are_waited_for() -> None:
    grid = Grid([training, *[failing_until(4)] * 2], [0.1] * 3)
    strategy = FedAvg(min_train_nodes=3, min_available_nodes=3)
    records, _ = run(grid, 20, wait_s=0.0, num_selected=3, strategy=strategy)
    assert records[-1].stepped
    assert all(len(record.results) == 3 for record in records)


def test_a_device_that_comes_back_is_tried_again_at_once() -> None:
    grid = Grid([failing_until(9), training], [0.0, 0.5])

    def come_and_go(number: int) -> None:
        if number == 30:
            grid.connected = {101}
        if number == 32:
            grid.connected = {100, 101}

    grid.on_begin = come_and_go
    records, scheduled = run(grid, 40)
    asked = [record.round for record in records if 0 in record.selected]
    assert asked[-1] == 32
    assert scheduled.arms.arms[0].failures == len(asked), "what it did before is not forgotten"


def test_floors_of_others_stay_while_one_is_left_out_for_long() -> None:
    grid = Grid([erring, training, training], [0.0, 0.05, 0.05])
    floors: list[list[float]] = []
    scheduled = built([], fairness="proportional:1", policy="cs-ucb-q-adaptive")
    scheduled.add_hook(lambda record, arrays: floors.append(scheduled.floors or []))
    scheduled.start(grid, model(), num_rounds=900)
    assert floors[-1] == floors[5]


def test_work_that_takes_long_is_followed_by_a_rest_as_long() -> None:
    grid = Grid([erring], [20.0])
    with pytest.raises(Exception, match="no round has changed the model"):
        run(grid, 8, wait_s=200.0)
    rests_s = np.diff(grid.asked_s[0]) - 20.0
    assert rests_s.tolist() == [0, 0, 20, 40, 80, 160, 160]


def test_a_client_without_examples_is_not_all_there_is_while_another_rests() -> None:
    def empty(message: Message) -> Message:
        reply = training(message)
        reply.content["metrics"][NUM_EXAMPLES] = 0
        return reply

    grid = Grid([empty, failing_until(5)], [0.5, 0.0])
    records, _ = run(grid, 30)
    assert records[-1].stepped
    assert 0 in records[-1].left_out


def test_missed_deadlines_are_no_reason() -> None:
    grid = Grid([silent, training], [0.0, 0.5])
    run(grid, 20, num_selected=2)
    assert len(grid.asked_s[0]) == 20


def test_work_that_is_always_too_stale_is_given_out_less_often() -> None:
    grid = Grid([training, training], [20.0, 0.5])
    settings: dict[str, Any] = {"mode": "buffered", "max_staleness": 5, "policy": "random"}
    records, _ = run(grid, 4000, **settings)
    kinds = [each.reason for record in records for each in record.results if each.arm == 0]
    assert all(reason is not None and reason.startswith("stale") for reason in kinds)
    assert records[-1].time_s > 1900.0, "time for a hundred pieces of such work"
    assert len(grid.asked_s[0]) < 20


@pytest.mark.parametrize("same_clock", [True, False])
def test_a_run_that_goes_on_keeps_rests_if_its_clock_goes_on(same_clock: bool) -> None:
    whole = Grid([failing_until(7), training], [0.0, 0.5])
    run(whole, 60, policy="cs-ucb-q")
    grid = Grid([failing_until(7), training], [0.0, 0.5])
    _, scheduled = run(grid, 20, policy="cs-ucb-q")
    state = scheduled.state_dict()
    assert scheduled.arms.arms[0].rest_end_s > grid.now_s
    if not same_clock:
        grid.now_s -= 5.0
    again = built([], policy="cs-ucb-q")
    again.load_state_dict(state)
    before = len(grid.asked_s[0])
    again.start(grid, model(), num_rounds=60)
    if same_clock:
        assert grid.asked_s == whole.asked_s
    else:
        assert grid.asked_s[0][before] == pytest.approx(state["now_s"] - 5.0), "it is tried at once"


def test_another_run_on_another_clock_begins_without_rests() -> None:
    grid = Grid([failing_until(9), training], [0.0, 0.5])
    _, scheduled = run(grid, 40)
    assert scheduled.arms.arms[0].rest_end_s > grid.now_s
    grid.now_s, grid.asked_s = 0.0, [[], []]
    scheduled.start(grid, model(), num_rounds=2)
    assert grid.asked_s[0] == [0.0]


def test_a_rest_that_ends_while_the_wait_begins_is_no_negative_wait() -> None:
    """A real clock goes on between two looks at it."""

    class Ticking(Grid):
        def now(self) -> float:
            self.now_s += 0.01
            return self.now_s

        def wait(self, seconds: float) -> None:
            assert seconds >= 0.0
            self.now_s += min(seconds, 0.005)

    records, _ = run(Ticking([failing_until(5)], [0.1]), 8)
    assert records[-1].stepped
