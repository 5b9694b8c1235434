"""Buffered steps on a scripted grid: channels, staleness, weights, floors, refusals."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedXgbBagging,
    FedYogi,
    Krum,
    QFedAvg,
    Strategy,
)
from scripted_grid import Client, ScriptedGrid, erring

from flower_scheduling.client.wire.protocol import NUM_EXAMPLES, REPEAT, REQUEST
from flower_scheduling.errors import ConfigError, NoStepError
from flower_scheduling.strategies import Explanation, RoundContext, SchedulingPolicy
from flower_scheduling.strategies.base import BoolArray
from flower_scheduling.strategies.flower import Pick, RoundRecord, ScheduledStrategy
from flower_scheduling.strategies.flower.buffer.steps import BufferedStep
from flower_scheduling.strategies.selection import top_arms


def adding(value: float = 1.0, num_examples: int = 10) -> Client:
    """Return a client that answers with the model that it was sent plus a value."""

    def train(message: Message) -> Message:
        received = message.content["arrays"]
        arrays = {key: Array(a.numpy() + np.float32(value)) for key, a in received.items()}
        content = RecordDict(
            {
                "arrays": ArrayRecord(arrays),
                "metrics": MetricRecord({NUM_EXAMPLES: num_examples, "train_loss": 1.0}),
            }
        )
        return Message(content, reply_to=message)

    return train


def silent(message: Message) -> None:
    return None


def run(
    clients: Sequence[Client],
    *,
    strategy: Strategy | None = None,
    rounds: int = 20,
    grid: ScriptedGrid | None = None,
    **settings: Any,
) -> tuple[float, list[RoundRecord], ScriptedGrid, ScheduledStrategy]:
    """Run steps; return the model's one weight, the records, the grid and the strategy."""
    grid = grid or ScriptedGrid(clients)
    records: list[RoundRecord] = []
    defaults: dict[str, Any] = {
        **{"policy": "random", "num_selected": 2, "tau_max_s": 4.0, "wait_s": 3.0},
        **{"client_eval_every": 0, "mode": "buffered"},
    }
    scheduled = ScheduledStrategy(
        strategy or FedAvg(),
        **{**defaults, **settings},
        hooks=[lambda record, arrays: records.append(record)],
    )
    initial = ArrayRecord({"w": Array(np.zeros(2, dtype=np.float32))})
    result = scheduled.start(grid, initial, num_rounds=rounds)
    return float(result.arrays["w"].numpy()[0]), records, grid, scheduled


def test_channels_are_refilled_at_once_and_each_update_enters_one_step() -> None:
    # Client 0 takes no time at all, client 9 0.9 s: in rounds the slow one would be waited for.
    at_work: Counter[int] = Counter()
    most = 0

    class Watching(ScriptedGrid):
        def dispatch(self, messages: Sequence[Message], timeout_s: float) -> None:
            nonlocal most
            super().dispatch(messages, timeout_s)
            most = max(most, len(self.under_way))
            at_work.update(message.metadata.dst_node_id for message in messages)

    grid = Watching([adding()] * 10)
    settings: dict[str, Any] = {"num_selected": 3, "buffer_size": 2, "even_weights": False}
    weight, records, _, scheduled = run([], grid=grid, **settings)
    assert most == 3, "N at work, never more"
    ended = [result for record in records for result in record.results]
    assert [len(record.results) for record in records] == [2] * 20
    assert all(result.completed for result in ended)
    assert sum(at_work.values()) == len(ended) + len(grid.under_way), "none is lost or used twice"
    assert scheduled.policy.play_count.sum() == len(ended)
    # Each adds 1 to the model that it was sent: so do they, as if trained from today's.
    assert weight == pytest.approx(20.0)
    ends_s = [result.begin_s + (result.rtt_s or 0.0) for result in ended if result.begin_s]
    assert ends_s == sorted(ends_s)


def test_staleness_is_counted_in_steps_and_beyond_its_bound_the_update_is_named() -> None:
    # Client 30 takes 3 s, while the others make a step every 0.1 s.
    clients = [silent, adding(), adding(), *[silent] * 27, adding(100.0)]
    grid = ScriptedGrid(clients)
    grid.away = {100 + k for k in range(31)} - {101, 102, 130}
    kwargs: dict[str, Any] = {"grid": grid, "num_selected": 3, "buffer_size": 1, "rounds": 60}
    _, records, _, _ = run([], max_staleness=1000, even_weights=False, **kwargs)
    late = [r for record in records for r in record.results if r.arm == 30]
    fast = [r for record in records for r in record.results if r.arm != 30]
    assert (late[0].staleness or 0) >= 30
    assert max(r.staleness or 0 for r in fast) <= 3
    weight, records, _, _ = run([], max_staleness=10, **{**kwargs, "grid": _again(grid)})
    late = [r for record in records for r in record.results if r.arm == 30]
    assert re.fullmatch(r"stale: \d+ steps old, at most 10", late[0].reason or "")
    assert weight < 100.0, "it did not enter the model"


def _again(grid: ScriptedGrid) -> ScriptedGrid:
    fresh = ScriptedGrid(list(grid.clients.values()))
    fresh.away = grid.away
    return fresh


def test_updates_of_clients_that_deliver_often_weigh_less() -> None:
    # Client 1 delivers ten times as often as client 10, and pulls the other way.
    clients = [silent, adding(-1.0), *[silent] * 8, adding(1.0)]
    grid = ScriptedGrid(clients)
    grid.away = {100 + k for k in range(11)} - {101, 110}
    plain, *_ = run([], grid=grid, rounds=200, even_weights=False)
    even, records, *_ = run([], grid=_again(grid), rounds=200)
    counts = Counter(r.arm for record in records for r in record.results)
    assert counts[1] > 8 * counts[10]
    assert plain < -150.0, "nine of ten pull down, each by one"
    assert abs(even) < 50.0, "in the long run both count alike"


def test_a_deadline_that_is_found_is_each_clients_own() -> None:
    # Client 1 takes 0.1 s, client 30 takes 3 s.
    grid = ScriptedGrid([silent, adding(), *[silent] * 28, adding()])
    grid.away = {100 + k for k in range(31)} - {101, 130}
    _, records, _, scheduled = run(
        [], grid=grid, tau_max_s="auto", policy="cs-ucb-adaptive", buffer_size=1, rounds=300
    )
    assert all(result.completed for record in records for result in record.results)
    trained = [message for message in grid.sent if message.metadata.message_type == "train"]
    deadlines_s = {101: [0.0], 130: [0.0]}
    for message, deadline_s in zip(trained, grid.deadlines, strict=True):
        deadlines_s[message.metadata.dst_node_id].append(deadline_s)
        assert message.metadata.ttl == max(60.0, 4 * deadline_s), "none expires before its end"
    assert deadlines_s[101][1] == deadlines_s[130][1] == 3600.0
    assert deadlines_s[101][-1] < 3.0 < deadlines_s[130][-1] < 60.0
    assert records[-1].deadline_s in deadlines_s[101] + deadlines_s[130]
    assert scheduled.policy.tau_max_s < 60.0, "it learns seconds, and knows the present deadline"


def test_the_timeout_of_the_start_bounds_a_deadline_that_is_found() -> None:
    grid = ScriptedGrid([adding()] * 4)
    strategy = ScheduledStrategy(
        FedAvg(fraction_evaluate=0.0), "random", num_selected=2, mode="buffered"
    )
    initial = ArrayRecord({"w": Array(np.zeros(2, dtype=np.float32))})
    strategy.start(grid, initial, num_rounds=3, timeout=30.0)
    assert grid.deadlines[0] == 30.0


def test_spare_clients_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r'^num_spare = 1: needs mode="rounds".*$') as error:
        run([adding()] * 4, num_spare=1)
    assert "\n" not in str(error.value)


def test_failures_free_their_channel_and_do_not_hold_up_the_others() -> None:
    clients = [adding(), erring, silent, adding(), adding()]
    settings: dict[str, Any] = {"num_selected": 2, "buffer_size": 2, "even_weights": False}
    weight, records, _, scheduled = run(clients, rounds=30, **settings)
    assert weight == pytest.approx(30.0)
    reasons = {r.arm: r.reason for record in records for r in record.results if r.reason}
    assert reasons[1].startswith("client error")
    assert reasons[2] == "timeout"
    assert scheduled.policy.mean_reward[1] == scheduled.policy.mean_reward[2] == 0.0


def test_run_in_which_all_fail_ends_with_an_error_and_no_endless_step() -> None:
    with pytest.raises(NoStepError, match="client error"):
        run([erring] * 4, rounds=3)


def test_step_without_clients_is_waited_for_within_its_bound() -> None:
    grid = ScriptedGrid([adding()] * 3)
    grid.on_begin = lambda number: grid.connected.clear() if number > 10 else None
    _, records, _, _ = run([], grid=grid, rounds=12)
    assert records[-1].no_step == "nobody-available"
    assert records[-1].results == []
    assert records[0].stepped


def test_every_channel_that_is_given_away_is_recorded_with_its_reason() -> None:
    grid = ScriptedGrid([adding()] * 6)
    settings: dict[str, Any] = {"num_selected": 3, "buffer_size": 2, "explain": True}
    _, records, _, _ = run([], grid=grid, policy="cs-ucb-adaptive", rounds=12, **settings)
    picks = [(pick.arm, pick.begin_s) for record in records for pick in record.picks]
    ended = [(r.arm, r.begin_s) for record in records for r in record.results]
    assert set(ended) <= set(picks), "what has ended was given a channel, then and not later"
    assert len(picks) - len(ended) <= 3, "the others are at work"
    for record in records:
        for pick in record.picks:
            assert pick.idle is not None
            assert pick.explanation is not None
            assert pick.idle[pick.arm]
            score = pick.explanation.score
            assert score[pick.arm] == score[pick.idle].min(), "by the score of that moment"
    assert records[-1].explanation is records[-1].picks[-1].explanation


def test_client_whose_reply_is_in_and_not_yet_taken_gets_no_second_channel() -> None:
    grid = ScriptedGrid([silent, *[adding()] * 3])
    grid.away = {100}
    grid.busy = set  # type: ignore[method-assign]  # all are free, as they are once they replied
    _, records, _, _ = run([], grid=grid, num_selected=2, buffer_size=1, rounds=20)
    ended = Counter((r.arm, r.begin_s) for record in records for r in record.results)
    assert len(ended) == 20
    assert set(ended.values()) == {1}
    assert sum(len(record.picks) for record in records) - len(ended) == 1, "none is lost"


def test_of_many_picks_in_a_large_fleet_the_last_ones_are_explained() -> None:
    parts: Any = SimpleNamespace(timed=SimpleNamespace(now=lambda: 0.0))
    one = BufferedStep(parts, 1, ArrayRecord(), None)
    explanation = Explanation("drawn", "", {"chance": np.zeros(1024)})
    for arm in range(10):
        idle = np.ones(1024, dtype=np.bool_)
        one.note_pick(Pick(arm, 0.5 * arm, idle, explanation))
    assert [pick.explanation is not None for pick in one.picks] == [False] * 6 + [True] * 4
    assert [pick.arm for pick in one.picks] == list(range(10))


class Picky(SchedulingPolicy):
    """Selects no client but in its first ten pieces of work."""

    def _select(self, context: RoundContext) -> BoolArray:
        if context.round > 10:
            return np.zeros_like(context.available)
        return top_arms((), context.available, self.num_selected, self._rng)


def test_policy_that_selects_none_of_those_there_ends_the_step_and_not_the_server() -> None:
    _, records, _, _ = run([adding()] * 3, policy=Picky, rounds=15, buffer_size=1)
    assert [record.no_step for record in records][-3:] == ["quorum"] * 3
    assert sum(len(record.results) for record in records) in (10, 11), "those at work still end"


def test_client_asked_twice_in_a_step_draws_other_minibatches() -> None:
    asked: list[tuple[int, Any]] = []

    def noting(message: Message) -> Message:
        request = message.content.get(REQUEST)
        repeat = request[REPEAT] if isinstance(request, ConfigRecord) else 0
        asked.append((int(message.content["config"]["server-round"]), repeat))
        return adding()(message)

    run([noting], num_selected=1, buffer_size=3, rounds=2)
    assert asked[:4] == [(1, 0), (1, 1), (1, 2), (2, 0)]


@pytest.mark.parametrize(
    "build",
    [
        *(FedAvg, FedProx, FedAvgM, FedMedian, FedTrimmedAvg, FedAdam, FedAdagrad, FedYogi),
        lambda: QFedAvg(client_learning_rate=0.1),
        lambda: Krum(num_malicious_nodes=0),
    ],
)
def test_flowers_strategies_run_unchanged(build: Callable[[], Strategy]) -> None:
    kwargs: dict[str, Any] = {"proximal_mu": 0.1} if build is FedProx else {}
    weight, records, _, _ = run([adding()] * 8, strategy=build(**kwargs), num_selected=5)
    assert all(record.stepped for record in records)
    assert weight > 0


def test_adaptive_rules_step_from_the_model_of_the_step() -> None:
    # FedAdam keeps the model of its last configure_train: here none is configured in some steps.
    grid = ScriptedGrid([adding()] * 4)
    seen: list[float] = []

    class Watching(FedAdam):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            assert self.current_arrays is not None
            seen.append(float(self.current_arrays["w"][0]))
            return super().aggregate_train(server_round, replies)

    models: list[float] = [0.0]
    scheduled = ScheduledStrategy(
        Watching(),
        "random",
        num_selected=4,
        tau_max_s=4.0,
        mode="buffered",
        buffer_size=1,
        client_eval_every=0,
        hooks=[lambda record, arrays: models.append(float(arrays["w"].numpy()[0]))],
    )
    initial = ArrayRecord({"w": Array(np.zeros(2, dtype=np.float32))})
    # Those at work go on, and none is given a channel.
    grid.on_begin = lambda number: grid.away.update(grid.clients) if number > 6 else None
    scheduled.start(grid, initial, num_rounds=8)
    assert len(seen) == 6
    assert seen == pytest.approx(models[:6], abs=1e-6)


def test_what_an_earlier_run_left_at_work_is_no_work_of_the_next() -> None:
    grid = ScriptedGrid([adding()] * 6)
    settings: dict[str, Any] = {"num_selected": 3, "buffer_size": 1, "even_weights": False}
    _, _, _, scheduled = run([], grid=grid, rounds=3, **settings)
    assert len(grid.under_way) == 2
    zero = ArrayRecord({"w": Array(np.zeros(2, dtype=np.float32))})
    result = scheduled.start(grid, zero, num_rounds=4)
    assert result.arrays["w"].numpy()[0] == 4.0


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (
            lambda: DifferentialPrivacyClientSideFixedClipping(FedAvg(), 0.1, 1.0, 2),
            "DifferentialPrivacyClientSideFixedClipping needs a fixed set of clients",
        ),
        (FedXgbBagging, "FedXgbBagging needs a fixed set of clients"),
        (lambda: Bulyan(num_malicious_nodes=1), "the updates that Bulyan"),
    ],
)
def test_what_needs_a_fixed_set_is_refused_by_name(
    strategy: Callable[[], Strategy], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ScheduledStrategy(strategy(), "random", num_selected=2, tau_max_s=1.0, mode="buffered")


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "asynchronous"},
        {"mode": "rounds", "buffer_size": 3},
        {"buffer_size": 0},
        {"max_staleness": -1},
        {"staleness_discount": -0.5},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ScheduledStrategy(
            FedAvg(), num_selected=2, tau_max_s=1.0, **{"mode": "buffered", **settings}
        )


def test_floors_are_shares_of_completed_updates(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    # Client 20 takes 2 s, the others 0.1 to 0.4 s; a fifth of all updates are to be its own.
    clients = [silent, *[adding()] * 4, *[silent] * 15, adding()]
    grid = ScriptedGrid(clients)
    grid.away = {100 + k for k in range(21)} - {101, 102, 103, 104, 120}
    _, records, _, scheduled = run(
        [],
        grid=grid,
        policy="cs-ucb-q-adaptive",
        num_selected=4,
        rounds=150,
        fairness="dev-20=0.2",
    )
    ended = [r.arm for record in records for r in record.results]
    assert scheduled.floors is not None
    assert scheduled.floors[20] == pytest.approx(0.05), "0.2 of rounds of four"
    assert max(scheduled.queues or [math.inf]) < 6 + 1 + 4
    assert ended.count(20) >= 0.05 * len(ended) - (6 + 1 + 4)
    assert caplog.text.count("updates/s, without them") == 1
    assert "dev-20 takes 2 s and is guaranteed 5.0% of all updates" in caplog.text


def test_a_client_that_hangs_holds_up_its_own_channel_alone() -> None:
    """It is owed nothing once its work takes more than four times the longest answer."""
    clients = [silent, *[adding()] * 4, silent]
    grid = ScriptedGrid(clients)
    grid.away = {100}
    _, records, _, scheduled = run(
        [],
        grid=grid,
        policy="cs-ucb-q-adaptive",
        num_selected=2,
        rounds=300,
        tau_max_s=60.0,
        fairness="equal:0.3",
    )
    times = [0.0, *(record.time_s for record in records)]
    assert np.diff(times).max() < 2.0
    hung = [r for record in records for r in record.results if r.arm == 5]
    assert {r.reason for r in hung} <= {"timeout"}
    assert scheduled.queues is not None
    assert scheduled.queues[5] < 6 + 5 + 2
