"""VirtualGrid and the simulation around it: virtual time, isolation, determinism."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apps import echo_app
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedMedian

from flower_scheduling.client.wire.protocol import COMPUTE_S, LINK_S, TIMING
from flower_scheduling.errors import NoStepError
from flower_scheduling.simulation.engine.runner import Simulation, SimulationResult
from flower_scheduling.simulation.engine.virtual_grid import MeasuredCompute, VirtualGrid
from flower_scheduling.simulation.environments.paper import Environment
from flower_scheduling.simulation.settings import SCENARIOS, SimulationConfig
from flower_scheduling.strategies.flower import (
    LOGGER,
    TIMEOUT,
    UNDELIVERABLE,
    RoundRecord,
    ScheduledStrategy,
    TimedExchange,
)


def fail_on_the_third(message: Message, context: Context) -> None:
    if context.node_config["partition-id"] == 3:
        raise RuntimeError("broken device")


def make_grid(app: ClientApp | None = None, num_arms: int = 3, **settings: Any) -> VirtualGrid:
    late = settings.pop("late", "abandon")
    environment = Environment(num_arms=num_arms, seed=1, **settings)
    nodes = [{"partition-id": arm} for arm in range(num_arms)]
    return VirtualGrid(app or echo_app(fail_on_the_third), environment, nodes, {}, late=late)


def to(grid: VirtualGrid, kind: str = MessageType.TRAIN, ttl: float = 60.0) -> list[Message]:
    record = RecordDict(
        {
            "arrays": ArrayRecord({"w": Array(np.zeros(2, dtype=np.float32))}),
            "config": ConfigRecord({"server-round": 1}),
        }
    )
    return [Message(record, node, kind, ttl=ttl) for node in grid.get_node_ids()]


def test_round_trip_is_the_sum_of_its_parts_and_time_moves_by_the_slowest() -> None:
    grid = make_grid()
    assert isinstance(grid, TimedExchange)
    draw = Environment(num_arms=3, seed=1).round(1)
    exchanges = grid.exchange(to(grid), timeout_s=60.0)
    assert [e.rtt_s for e in exchanges] == pytest.approx(draw.round_trip_time_s)
    assert grid.now() == pytest.approx(draw.round_trip_time_s.max())
    timing = exchanges[1].reply.content[TIMING]  # type: ignore[union-attr]
    assert timing[COMPUTE_S] == pytest.approx(draw.compute_s[1])
    assert timing[LINK_S] == pytest.approx(draw.download_s[1] + draw.upload_s[1])
    before = grid.now()
    grid.exchange(to(grid, MessageType.EVALUATE), timeout_s=60.0)
    assert grid.now() - before == pytest.approx((draw.download_s + draw.compute_s).max())


def test_every_client_has_its_own_records() -> None:
    seen: list[Message] = []
    grid = make_grid(echo_app(lambda message, context: seen.append(message)))
    messages = to(grid)
    exchanges = grid.exchange(messages, timeout_s=60.0)
    assert all(e.reply is not None and e.reply.has_content() for e in exchanges)
    assert all(len(m.content["arrays"]) == 1 for m in messages), "the sender's records are whole"
    assert len({id(m.content) for m in seen}) == 3


def test_strategy_that_empties_replies_takes_nothing_from_a_client() -> None:
    def answer(message: Message, context: Context) -> Message:
        context.state["arrays"] = message.content["arrays"]
        return Message(RecordDict(dict(message.content)), reply_to=message)

    grid = make_grid(echo_app(answer))
    for exchange in grid.exchange(to(grid), timeout_s=60.0):
        assert exchange.reply is not None
        for record in exchange.reply.content.array_records.values():
            record.popitem()
    assert [len(context.state["arrays"]) for context in grid._contexts.values()] == [1, 1, 1]


def test_deadline_costs_its_length_and_failed_clients_time_out() -> None:
    grid = make_grid(slow_from_round=1, slow_factor=[1.0, 1.0, 1e5])
    fast, second, late = grid.exchange(to(grid), timeout_s=5.0)
    assert (fast.failure, second.failure, late.failure) == (None, None, TIMEOUT)
    assert grid.now() == 5.0
    assert grid.busy() == set(), "abandoned: free for the next round"

    grid = make_grid(failure_probability=[0.0, 1.0, 0.0])
    failures = [e.failure for e in grid.exchange(to(grid), timeout_s=5.0)]
    assert failures == [None, TIMEOUT, None]


def test_busy_client_is_unavailable_until_its_late_answer_would_have_come() -> None:
    grid = make_grid(slow_from_round=1, slow_factor=[1.0, 1.0, 1e3], late="busy")
    *_, late = grid.exchange(to(grid), timeout_s=5.0)
    assert grid.busy() == {late.node_id}
    due_s = max(grid._busy_until.values())
    grid.wait(1.0)
    assert (grid.now(), grid.busy()) == (6.0, {late.node_id})
    grid.wait(1e6)
    assert (grid.now(), grid.busy()) == (due_s, set()), "not longer: somebody is free"
    grid.wait(1e6)
    assert grid.now() == due_s + 1e6, "nobody else comes within a round"


def test_client_that_raises_is_an_error_reply() -> None:
    grid = make_grid(num_arms=4)
    exchange = grid.exchange(to(grid), timeout_s=60.0)[3]
    assert exchange.reply is not None
    assert exchange.reply.error.reason == "RuntimeError: broken device"
    assert exchange.rtt_s is not None


def measuring_grid(taken_s: float, **settings: Any) -> VirtualGrid:
    """Make a grid on which each client computes for so long, client k (1 + k) times that."""
    now = [0.0]

    def work(message: Message, context: Context) -> None:
        now[0] += taken_s
        fail_on_the_third(message, context)

    late = settings.pop("late", "abandon")
    environment = Environment(num_arms=4, seed=1, **settings)
    measured = MeasuredCompute(np.arange(1.0, 5.0), lambda: now[0])
    nodes = [{"partition-id": arm} for arm in range(4)]
    return VirtualGrid(echo_app(work), environment, nodes, {}, late=late, measured=measured)


def test_measured_times_take_the_place_of_the_draw_and_links_stay() -> None:
    grid = measuring_grid(0.5, slow_from_round=[1, 9, 9, 9], slow_factor=10.0)
    draw = Environment(num_arms=4, seed=1, slow_from_round=[1, 9, 9, 9], slow_factor=10.0).round(1)
    exchanges = grid.exchange(to(grid), 60.0)
    computed_s = np.array([5.0, 1.0, 1.5, 2.0])  # the first is slow, the last raises
    expected_s = computed_s + draw.download_s + draw.upload_s
    assert [each.rtt_s for each in exchanges] == pytest.approx(expected_s.tolist())
    for each, compute_s in zip(exchanges[:3], computed_s, strict=False):
        assert each.reply is not None
        assert each.reply.content[TIMING][COMPUTE_S] == pytest.approx(compute_s)
    assert exchanges[3].reply is not None
    assert exchanges[3].reply.has_error()
    assert grid.now() == pytest.approx(expected_s.max())


def test_what_is_measured_to_be_late_is_late() -> None:
    grid = measuring_grid(100.0, late="busy")
    exchanges = grid.exchange(to(grid), 60.0)
    assert {each.failure for each in exchanges} == {TIMEOUT}
    assert grid.now() == 60.0
    assert len(grid.busy()) == 4
    queries = grid.exchange(to(grid, MessageType.QUERY), 60.0)
    assert {each.rtt_s for each in queries} == {0.0}, "they cost nothing"


def test_joiners_and_absentees() -> None:
    grid = make_grid(joins_at_round=[1, 1, 3], availability=[1.0, 0.0, 1.0])
    first = list(grid.get_node_ids())
    assert len(first) == 2
    assert grid.opted_out() & set(first) == {first[1]}
    grid.begin_round(3)
    assert len(list(grid.get_node_ids())) == 3
    assert [node.node_id for node in grid.get_nodes()] == grid.get_node_ids()
    stranger = Message(RecordDict(), 4711, MessageType.TRAIN)
    assert grid.exchange([stranger], 5.0)[0].failure == UNDELIVERABLE


def test_somebody_elses_loop_can_push_and_pull() -> None:
    grid = make_grid(num_arms=3)
    ids = set(grid.push_messages(to(grid)))
    replies: list[Message] = []
    while ids:
        new = list(grid.pull_messages(ids))
        assert new, "virtual time moves on to the next reply"
        ids -= {reply.metadata.reply_to_message_id for reply in new}
        replies += new
    assert len(replies) == 3
    assert grid.now() > 0
    messages = [*to(grid), Message(RecordDict(), 4711, MessageType.TRAIN)]
    answers = list(grid.send_and_receive(messages, timeout=60.0))
    assert [answer.has_error() for answer in answers] == [False, False, False, True]


@pytest.mark.parametrize("strategy", [FedAvg, FedMedian])
def test_flowers_strategies_run_on_it_by_themselves(strategy: type[FedAvg]) -> None:
    grid = make_grid(num_arms=3)
    arrays = ArrayRecord({"w": Array(np.zeros(2, dtype=np.float32))})
    result = strategy().start(grid, arrays, num_rounds=2)
    assert result.arrays["w"].numpy() == pytest.approx([2.0, 2.0])
    assert result.evaluate_metrics_clientapp[2]["accuracy"] == 0.5


def test_a_round_with_nobody_costs_nothing() -> None:
    grid = make_grid(num_arms=3, availability=0.0)
    records = []
    strategy = ScheduledStrategy(FedAvg(), num_selected=2, tau_max_s=5.0, wait_s=0.0)
    strategy.add_hook(lambda record, arrays: records.append(record))
    arrays = ArrayRecord({"w": Array(np.zeros(2, dtype=np.float32))})
    with pytest.raises(NoStepError) as caught:
        strategy.start(grid, arrays, num_rounds=3)
    result = caught.value.result
    assert [(r.round_s, r.no_step) for r in records] == [(0.0, "nobody-available")] * 3
    assert result.arrays["w"].numpy() == pytest.approx([0.0, 0.0])
    # Unavailable, not gone: the queues of the paper grow.
    assert strategy.policy.last_round == 3


# --- whole simulations ------------------------------------------------------------------------


def simulate(run_dir: Path | None = None, **settings: Any) -> SimulationResult:
    given = {key.replace("_", "-"): value for key, value in settings.items()}
    preset = SCENARIOS[given.get("scenario", "non-ideal")]
    values = {"run-dir": str(run_dir or ""), **preset, **given}
    return Simulation(SimulationConfig.from_mapping(values)).run()


def lines_without_wall(run_dir: Path) -> list[str]:
    lines = []
    for line in (run_dir / "rounds.jsonl").read_text().splitlines():
        values = json.loads(line)
        del values["wall"]
        lines.append(json.dumps(values))
    return lines


@pytest.mark.usefixtures("mnist")
def test_same_seed_same_run_other_seed_other_run(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 40, "failure_probability": "0.1", "eval_every": 7}
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        simulate(tmp_path / name, seed=seed, **settings)
    a, b, c = (lines_without_wall(tmp_path / name) for name in "abc")
    assert a == b
    assert a != c
    model = "model.safetensors"
    assert (tmp_path / "a" / model).read_bytes() == (tmp_path / "b" / model).read_bytes()


@pytest.mark.usefixtures("mnist")
def test_a_simulation_silences_flower_alone_and_only_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flower = logging.getLogger("flwr")
    found: list[tuple[str, str]] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda each: found.append((each.name, each.getMessage())))
    monkeypatch.setattr(flower, "handlers", [handler])
    monkeypatch.setattr(LOGGER, "propagate", True)  # whatever a command line left
    monkeypatch.setattr(LOGGER, "level", logging.NOTSET)

    def hook(record: RoundRecord, arrays: ArrayRecord) -> None:
        LOGGER.warning("ours in round %d", record.round)
        flower.info("Flower's in round %d", record.round)

    level = flower.level
    settings = {"run-dir": str(tmp_path / "run"), "rounds": 3, "eval-every": 3}
    simulation = Simulation(SimulationConfig.from_mapping(settings))
    assert flower.level == level
    simulation.run([hook])
    assert (flower.level, LOGGER.level) == (level, logging.NOTSET)

    assert not [text for name, text in found if name == "flwr"]
    ours = [f"ours in round {t}" for t in (1, 2, 3)]
    assert [text for _, text in found if text in ours] == ours
    log = (tmp_path / "run" / "log.txt").read_text()
    assert all(text in log for text in ours)


@pytest.mark.usefixtures("mnist")
def test_late_joiner_and_drift_show_in_the_records() -> None:
    result = simulate(
        strategy="round-robin",
        rounds=60,
        availability="1",
        joins="3:21",
        slowdowns="1:31:1000",
        eval_every=60,
    )
    # Client 3 joins last and so gets the last arm; the others move up.
    assert all(len(r.available) == 9 for r in result.records[:20])
    assert all(len(r.available) == 10 for r in result.records[20:])
    assert result.summary["arms"][9]["name"] == "client-3"
    slow = [r.reason[r.selected.index(0)] for r in result.records if 0 in r.selected]
    assert slow[-1] == TIMEOUT
    assert slow[0] is None


@pytest.mark.usefixtures("mnist")
def test_payload_of_the_real_model_takes_its_time() -> None:
    small = simulate(rounds=5, eval_every=5)
    large = simulate(rounds=5, eval_every=5, payload_bits="model", tau_max_s=1000.0)
    assert large.summary["time_s"] > 20 * small.summary["time_s"]  # 251200 bit against 5000
