"""Late updates that are used, in virtual time: each once, as if begun from today's model."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedXgbBagging,
    Result,
    Strategy,
)

from flower_scheduling.errors import ConfigError
from flower_scheduling.reasons import FREE_RIDER, STALE
from flower_scheduling.simulation.engine.virtual_grid import VirtualGrid
from flower_scheduling.simulation.environments.paper import Environment, RoundDraw
from flower_scheduling.strategies.flower import RoundRecord, ScheduledStrategy, TimedGrid
from flower_scheduling.strategies.flower.reply_sorter import ODD

NUM_ARMS = 8


class Links:
    """Client k takes k + 1 seconds, but for those that are given."""

    def __init__(self, time_s: Mapping[int, float] | None = None) -> None:
        self._time_s = np.arange(1.0, NUM_ARMS + 1)
        for arm, given_s in (time_s or {}).items():
            self._time_s[arm] = given_s

    def round(self, t: int) -> RoundDraw:
        nothing, there = np.zeros(NUM_ARMS), np.ones(NUM_ARMS, dtype=np.bool_)
        return RoundDraw(there, nothing, self._time_s, nothing, nothing.astype(np.bool_))


def counting_app(
    copies: Iterable[int] = (), empty: Iterable[int] = (), odd: Iterable[int] = ()
) -> ClientApp:
    """Client k adds 1 to place k of the model; ``copies`` add 1 everywhere to what they get.

    Those that are ``empty`` have no examples, those that are ``odd`` a metric more.
    """
    app, copying, without, unlike = ClientApp(), set(copies), set(empty), set(odd)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        values = arrays["w"].numpy().copy()
        arm = int(context.node_config["partition-id"])
        values[slice(None) if arm in copying else arm] += 1.0
        metrics = MetricRecord({"num-examples": 0 if arm in without else 1})
        if arm in unlike:
            metrics["more"] = 1
        content = RecordDict(
            {
                "arrays": ArrayRecord({"w": Array(values)}),
                "metrics": metrics,
            }
        )
        return Message(content, reply_to=message)

    return app


class Adding(FedAvg):
    """Adds all updates of a round to the model, and keeps how many there were."""

    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.model = np.zeros(0)
        self.used: list[int] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.model = arrays["w"].numpy()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        self.used.append(len(replies))
        updates = [reply.content["arrays"]["w"].numpy() - self.model for reply in replies]
        model = (self.model + np.sum(updates, axis=0)).astype(np.float64)
        return ArrayRecord({"w": Array(model)}), None


def grid_of(links: Any, app: ClientApp | None = None) -> VirtualGrid:
    nodes = [{"partition-id": arm, "name": f"client-{arm}"} for arm in range(NUM_ARMS)]
    return VirtualGrid(counting_app() if app is None else app, links, nodes, {})


def model_of_zeros() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(NUM_ARMS))})


def build(
    records: list[RoundRecord],
    policy: Any = "random",
    wrapped: Strategy | None = None,
    **options: Any,
) -> ScheduledStrategy:
    values: dict[str, Any] = {"num_selected": 3, "num_spare": 2, "tau_max_s": 20.0}
    values |= {"wait_s": 0.0, "log_every_s": math.inf, "late_updates": "use"}
    return ScheduledStrategy(
        Adding() if wrapped is None else wrapped,
        policy,
        hooks=[lambda record, arrays: records.append(record)],
        **{**values, **options},
    )


def used_by(records: Iterable[RoundRecord]) -> list[int]:
    """Return how many updates of each arm went into the model, by the records of steps."""
    used: Counter[int] = Counter()
    for record in records:
        done = [result.arm for result in record.results if result.completed]
        used.update(done if record.stepped else [])
        used.update(record.used_late)
    return [used[arm] for arm in range(NUM_ARMS)]


def windows(taken: np.ndarray, share: float) -> float:
    """Return by how much any run of rounds has more of an arm's turns than its share."""
    sums = np.concatenate([np.zeros((1, NUM_ARMS)), np.cumsum(taken - share, axis=0)])
    return max(float((sums[j] - sums[i]).max()) for i, j in itertools.combinations(range(60), 2))


def test_each_late_update_is_in_the_model_once_as_one_of_today() -> None:
    records: list[RoundRecord] = []
    wrapped = Adding()
    result = build(records, wrapped=wrapped).start(grid_of(Links()), model_of_zeros(), 100)
    model = result.arrays["w"].numpy().tolist()
    assert model == used_by(records)
    late = Counter(arm for record in records for arm in record.late)
    used = Counter(arm for record in records for arm in record.used_late)
    assert sum(used.values()) > 50
    for arm in range(NUM_ARMS):
        assert late[arm] - 1 <= used[arm] <= late[arm], "all but one that may be on its way"
    assert wrapped.used == [len(r.results) + len(r.late_updates) for r in records]


def test_dropping_is_the_default_and_loses_them() -> None:
    records: list[RoundRecord] = []
    strategy = build(records, late_updates="drop")
    result = strategy.start(grid_of(Links()), model_of_zeros(), 100)
    assert not any(record.late_updates for record in records)
    selected = Counter(arm for record in records for arm in record.selected)
    assert result.arrays["w"].numpy().tolist() == [selected[arm] for arm in range(NUM_ARMS)]
    assert "late-updates" not in strategy.asked_settings
    assert build([]).asked_settings["late-updates"] == "use"


def test_a_late_update_is_recorded_with_its_true_time_and_staleness() -> None:
    records: list[RoundRecord] = []
    build(records).start(grid_of(Links()), model_of_zeros(), 60)
    sent: dict[int, RoundRecord] = {}
    for record in records:
        for result in record.late_updates:
            begun = sent.pop(result.arm)
            assert (result.rtt_s, result.compute_s, result.reason) == (result.arm + 1.0,) * 2 + (
                None,
            )
            assert result.staleness == record.round - begun.round
            came_s = begun.time_s - begun.round_s + result.arm + 1.0
            assert came_s <= record.time_s + 1e-9, "not before it was there"
            if record.round - begun.round > 1:
                assert came_s > records[record.round - 2].time_s - 1e-9, "and at once then"
        sent |= dict.fromkeys(record.late, record)


@pytest.mark.parametrize("policy", ["cs-ucb", "cs-ucb-adaptive"])
def test_true_times_are_learned_as_if_they_were_dropped(policy: str) -> None:
    strategy = build([], policy)
    strategy.start(grid_of(Links()), model_of_zeros(), 200)
    for arm in range(NUM_ARMS):
        assert strategy.policy.mean_reward[arm] == pytest.approx(1 - (arm + 1) / 20.0)


def test_a_late_update_that_is_used_pays_a_debt() -> None:
    records: list[RoundRecord] = []
    strategy = build(records, "cs-ucb-q-adaptive", fairness="equal:0.3")
    queues: list[list[float]] = []
    strategy.add_hook(lambda record, arrays: queues.append(strategy.queues or []))
    strategy.start(grid_of(Links()), model_of_zeros(), 100)
    assert sum(len(record.used_late) for record in records) > 20
    before = np.zeros(NUM_ARMS)
    for record, queue in zip(records, queues, strict=True):
        for times, arms in ((0.3, record.selected), (0.0, record.used_late)):
            before = np.maximum(before + times - np.isin(np.arange(NUM_ARMS), arms), 0.0)
        assert queue == pytest.approx(before)


def test_no_client_takes_more_than_its_largest_share() -> None:
    for late_updates in ("use", "drop"):
        records: list[RoundRecord] = []
        strategy = build(records, "cs-ucb", max_share=0.5, late_updates=late_updates)
        strategy.start(grid_of(Links()), model_of_zeros(), 60)
        taken = np.zeros((len(records), NUM_ARMS))
        for row, record in enumerate(records):
            np.add.at(taken[row], record.served, 1.0)
        assert windows(taken, 0.5) < 2.0
        assert taken.sum() > 150


def test_one_that_is_too_old_is_lost_and_named() -> None:
    records: list[RoundRecord] = []
    result = build(records, max_staleness=1).start(grid_of(Links()), model_of_zeros(), 80)
    late = [each for record in records for each in record.late_updates]
    lost = [each for each in late if not each.completed]
    assert {each.reason for each in lost if each.staleness == 2} == {
        f"{STALE}: 2 steps old, at most 1"
    }
    assert {(each.staleness or 0) > 1 for each in lost} == {True}
    assert {(each.staleness or 0) > 1 for each in late if each.completed} == {False}
    assert result.arrays["w"].numpy().tolist() == used_by(records)


def test_a_discount_makes_late_updates_shorter() -> None:
    records: list[RoundRecord] = []
    strategy = build(records, staleness_discount=1.0)
    result = strategy.start(grid_of(Links()), model_of_zeros(), 40)
    expected = np.zeros(NUM_ARMS)
    for record in records:
        expected[record.selected] += 1.0
        for each in record.late_updates:
            expected[each.arm] += 1.0 / (1.0 + (each.staleness or 0))
    np.testing.assert_allclose(result.arrays["w"].numpy(), expected)


def test_what_comes_while_there_are_no_steps_waits_for_the_next_one() -> None:
    environment = Environment(num_arms=NUM_ARMS, seed=3, failure_probability=0.3)
    records: list[RoundRecord] = []
    strategy = build(records, min_replies=3, tau_max_s=2.0)
    waiting: list[int] = []
    strategy.add_hook(
        lambda record, arrays: waiting.append(len(strategy.state_dict()["late"]["waiting"]))
    )
    result = strategy.start(grid_of(environment), model_of_zeros(), 100)
    assert result.arrays["w"].numpy().tolist() == used_by(records)
    assert not any(record.used_late for record in records if not record.stepped)
    assert max(waiting) > 0
    for record, count in zip(records, waiting, strict=True):
        assert not (record.stepped and count), "a step takes them all"
    lost = {each.reason for record in records for each in record.late_updates if each.reason}
    assert lost == {"timeout"}, "late and silent ones are named"


def test_copies_are_no_updates_when_they_come_late() -> None:
    # Clients 3 and 4 send the same update of one model, one after the other, both late.
    records: list[RoundRecord] = []
    grid = grid_of(Links({3: 3.2, 4: 3.4}), counting_app([3, 4]))
    strategy = build(
        records, "round-robin", num_selected=2, num_spare=4, accept_unchanged=False, fairness="none"
    )
    result = strategy.start(grid, model_of_zeros(), 30)
    kinds = {
        (each.reason or "").partition(":")[0]
        for record in records
        for each in record.late_updates
        if each.arm in (3, 4)
    }
    assert FREE_RIDER in kinds
    used = used_by(records)
    copies = used[3] + used[4]
    expected = [n + copies if arm not in (3, 4) else copies for arm, n in enumerate(used)]
    assert result.arrays["w"].numpy().tolist() == expected


@pytest.mark.parametrize(
    ("options", "environment_seed"),
    [
        ({"policy": "cs-ucb-q-adaptive", "tau_max_s": "auto"}, 3),
        ({"policy": "cs-ucb-q", "min_replies": 3, "tau_max_s": 2.0, "max_share": 0.8}, 4),
        ({"policy": "random", "staleness_discount": 0.5}, 5),
    ],
)
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(
    options: dict[str, Any], environment_seed: int
) -> None:
    environment = Environment(num_arms=NUM_ARMS, seed=environment_seed, failure_probability=0.2)
    whole: list[RoundRecord] = []
    undisturbed = build(whole, **options)
    states: list[dict[str, Any]] = []
    undisturbed.add_hook(lambda record, arrays: states.append(undisturbed.state_dict()["late"]))
    expected = undisturbed.start(grid_of(environment), model_of_zeros(), 60).arrays
    at_work = [number for number, state in enumerate(states[:40], 1) if state["sent"]]
    waiting = [number for number, state in enumerate(states[:40], 1) if state["waiting"]]
    assert at_work
    assert waiting or "min_replies" not in options
    for last in {at_work[-1], *waiting[-1:]}:
        first: list[RoundRecord] = []
        half = build(first, stop_when=lambda record, last=last: record.round == last, **options)
        grid = grid_of(environment)
        arrays = half.start(grid, model_of_zeros(), 60).arrays
        rest: list[RoundRecord] = []
        again, grid_again = build(rest, **options), grid_of(environment)
        again.load_state_dict(half.state_dict())
        grid_again.load_state_dict(grid.state_dict())
        found = again.start(grid_again, arrays, 60).arrays
        assert first + rest == whole
        assert found["w"].numpy().tobytes() == expected["w"].numpy().tobytes()


def test_a_restarted_server_has_lost_what_was_on_its_way() -> None:
    first: list[RoundRecord] = []
    half = build(first, stop_when=lambda record: bool(record.round > 4 and record.late))
    arrays = half.start(grid_of(Links()), model_of_zeros(), 60).arrays
    rest: list[RoundRecord] = []
    again = build(rest)
    again.load_state_dict(half.state_dict())
    found = again.start(grid_of(Links()), arrays, 60).arrays  # of another clock: not a virtual one
    assert found["w"].numpy().tolist() == used_by(first + rest)


def test_a_further_run_does_not_use_what_an_earlier_one_was_sent() -> None:
    records: list[RoundRecord] = []
    strategy, grid = build(records), grid_of(Links())
    strategy.start(grid, model_of_zeros(), 20)
    assert records[-1].late or grid.busy()
    records.clear()
    result = strategy.start(grid, model_of_zeros(), 20)
    assert result.arrays["w"].numpy().tolist() == used_by(records)


def test_a_grid_that_is_polled_does_the_same() -> None:
    grid, records = grid_of(Links()), list[RoundRecord]()
    timed = TimedGrid(grid, clock=grid.now, sleep=grid.wait, poll_interval_s=0.5)
    result = build(records).start(timed, model_of_zeros(), 60)
    assert result.arrays["w"].numpy().tolist() == used_by(records)
    assert sum(len(record.used_late) for record in records) > 20


def test_flowers_own_rules_take_them_unchanged() -> None:
    for wrapped in (FedAvg(fraction_evaluate=0.0), FedAdam(fraction_evaluate=0.0)):
        records: list[RoundRecord] = []
        result = build(records, wrapped=wrapped).start(grid_of(Links()), model_of_zeros(), 30)
        assert all(record.stepped for record in records)
        assert any(record.used_late for record in records)
        assert np.isfinite(result.arrays["w"].numpy()).all()
    # FedAvg moves by the mean of all updates, so all places together by 1 in each round.
    plain = FedAvg(fraction_evaluate=0.0)
    result = build([], wrapped=plain).start(grid_of(Links()), model_of_zeros(), 30)
    assert result.arrays["w"].numpy().sum() == pytest.approx(30.0)


class OwnStart(FedAvg):
    """Runs its rounds by itself."""

    def start(self, *args: Any, **kwargs: Any) -> Result:
        return super().start(*args, **kwargs)


def test_what_cannot_be_is_refused_by_name() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"num_spare": 0}, "late_updates = 'use': needs num_spare"),
        ({"late_updates": "keep"}, "late_updates = 'keep': must be use or drop"),
        ({"max_staleness": -1}, "max_staleness = -1: "),
        ({"mode": "buffered"}, 'num_spare = 2: needs mode="rounds"'),
        (
            {"wrapped": FedXgbBagging()},
            "late_updates = 'use': FedXgbBagging needs a fixed set of clients",
        ),
        (
            {"wrapped": DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 3)},
            "DifferentialPrivacyServerSideFixedClipping needs a fixed set of clients",
        ),
        ({"wrapped": OwnStart()}, r"OwnStart runs rounds by a start\(\) of its own"),
    ]
    for options, message in refused:
        with pytest.raises(ConfigError, match=message):
            build([], **options)


def test_a_late_client_without_examples_is_left_out() -> None:
    records: list[RoundRecord] = []
    strategy = build(records, "round-robin", fairness="none")
    strategy.start(grid_of(Links(), counting_app(empty=[7])), model_of_zeros(), 40)
    arm = strategy.arms.names.index("client-7")
    assert any(arm in record.late for record in records)
    assert not any(arm in record.served for record in records)
    assert strategy.arms.arms[arm].empty


def test_the_log_names_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    records: list[RoundRecord] = []
    build(records, log_every_s=0.0).start(grid_of(Links()), model_of_zeros(), 10)
    used = next(record for record in records if record.used_late and record.late)
    line = next(text for text in caplog.messages if text.startswith(f"[ROUND {used.round}/10]"))
    assert f"; {len(used.late)} not waited for; {len(used.used_late)} late ones used;" in line


class OfTheSameNames(Adding):
    """Fails on updates that have not all the same metrics."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        if len({tuple(reply.content["metrics"]) for reply in replies}) > 1:
            raise ValueError("other names")
        return super().aggregate_train(server_round, replies)


@pytest.mark.parametrize("fixed_shapes", [True, False])
def test_late_ones_of_other_names_cost_no_step(fixed_shapes: bool) -> None:
    records: list[RoundRecord] = []
    # Client 7 is mostly late. With free names a step has them all, and a second try has most.
    grid = grid_of(Links(), counting_app(odd=[7] if fixed_shapes else [0, 7]))
    strategy = build(records, wrapped=OfTheSameNames(), fixed_shapes=fixed_shapes)
    result = strategy.start(grid, model_of_zeros(), 60)
    odd = [each for record in records for each in record.late_updates if each.arm == 7]
    assert odd
    if fixed_shapes:
        assert {each.reason for each in odd} == {ODD}
    assert any(each.reason == ODD for each in odd)
    assert all(record.stepped for record in records) or not fixed_shapes
    stepped = [record for record in records if record.stepped]
    assert result.arrays["w"].numpy().tolist() == used_by(stepped)
