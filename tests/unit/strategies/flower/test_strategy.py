"""ScheduledStrategy around Flower's strategies, on a scripted grid: full, short, empty, hostile."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedMedian,
    FedProx,
    FedXgbCyclic,
    Krum,
    MultiKrum,
    Strategy,
)
from scripted_grid import Client, ScriptedGrid, erring

from flower_scheduling.client.wire.protocol import (
    COMPUTE_S,
    LINK_S,
    LOCAL_ACCURACY,
    NUM_EXAMPLES,
    OVERSIZED_CODE,
    REPORT,
    REQUEST,
    TIMING,
    TRAIN_LOSS,
)
from flower_scheduling.errors import ConfigError, NoStepError, SchedulingError, UnknownPolicyError
from flower_scheduling.strategies import RoundOutcome, Selection
from flower_scheduling.strategies.comparators.oort import Oort
from flower_scheduling.strategies.flower import (
    LOGGER,
    TIMEOUT,
    RoundRecord,
    ScheduledStrategy,
)
from flower_scheduling.strategies.update_sketch import SKETCH_SIZE

NUM_SELECTED = 5
TAU_MAX_S = 4.0


def reply(
    message: Message,
    value: float = 1.0,
    *,
    num_examples: float = 10,
    arrays: dict[str, np.ndarray[Any, Any]] | None = None,
    metrics: dict[str, Any] | None = None,
    records: dict[str, Any] | None = None,
) -> Message:
    """Answer as a well-behaved client does: the received model plus ``value``."""
    if arrays is None:
        received = message.content["arrays"]
        assert isinstance(received, ArrayRecord)
        arrays = {key: array.numpy() + np.float32(value) for key, array in received.items()}
    content = RecordDict(
        {
            "arrays": ArrayRecord({key: Array(np.asarray(v)) for key, v in arrays.items()}),
            "metrics": MetricRecord({NUM_EXAMPLES: num_examples, **(metrics or {})}),
            TIMING: ConfigRecord({COMPUTE_S: 0.25, LINK_S: 0.125}),
            **(records or {}),
        }
    )
    return Message(content, reply_to=message)


def silent(message: Message) -> None:
    return None


def initial() -> ArrayRecord:
    return ArrayRecord(
        {
            "weight": Array(np.zeros((2, 3), dtype=np.float32)),
            "bias": Array(np.zeros(2, dtype=np.float32)),
        }
    )


def run(
    strategy: Strategy,
    clients: Sequence[Client],
    *,
    rounds: int = 1,
    grid: ScriptedGrid | None = None,
    **settings: Any,
) -> tuple[np.ndarray[Any, Any], list[RoundRecord], ScriptedGrid, ScheduledStrategy]:
    """Run rounds; return the model's weights, the records, the grid and the strategy."""
    grid = grid or ScriptedGrid(clients)
    records: list[RoundRecord] = []
    defaults: dict[str, Any] = {
        "policy": "random",
        "num_selected": NUM_SELECTED,
        "tau_max_s": TAU_MAX_S,
        "wait_s": 3.0,
        "client_eval_every": 0,
    }
    scheduled = ScheduledStrategy(
        strategy, **{**defaults, **settings}, hooks=[lambda record, arrays: records.append(record)]
    )
    try:
        result = scheduled.start(grid, initial(), num_rounds=rounds)
    except NoStepError as error:
        assert not any(record.stepped for record in records)
        result = error.result
    else:
        assert any(record.stepped for record in records)
    assert all(a.numpy().dtype == np.float32 for a in result.arrays.values())
    return result.arrays["weight"].numpy(), records, grid, scheduled


def dp() -> Strategy:
    return DifferentialPrivacyServerSideFixedClipping(
        FedAvg(), noise_multiplier=0.0, clipping_norm=100.0, num_sampled_clients=NUM_SELECTED
    )


WRAPPED: dict[str, Callable[[], Strategy]] = {
    "fedavg": FedAvg,
    "fedprox": lambda: FedProx(proximal_mu=0.1),
    "fedadam": FedAdam,
    "fedmedian": FedMedian,
    "multikrum": lambda: MultiKrum(num_malicious_nodes=1, num_nodes_to_select=2),
    "dp": dp,
}
"""Each with Flower's own defaults for the numbers of nodes."""


def step_of(name: str, values: Sequence[float], weights: Sequence[float]) -> float | None:
    """Return the step that a strategy makes from updates of +value, by hand."""
    if name == "multikrum" and len(values) < 5:
        return None
    if name == "fedadam":  # one step from zero: eta_norm m / (sqrt(v) + tau)
        delta = float(np.average(values, weights=weights))
        m, v = 0.1 * delta, 0.01 * delta**2
        eta = 0.1 * math.sqrt(1 - 0.99**2) / (1 - 0.9**2)
        return eta * m / (math.sqrt(v) + 1e-3)
    if name == "fedmedian":
        return float(np.median(values))
    if name == "multikrum":  # the two in the middle of 1..5 have the nearest neighbours
        return None
    return float(np.average(values, weights=weights))


@pytest.mark.parametrize("name", WRAPPED)
def test_full_round(name: str) -> None:
    values, sizes = [1.0, 2.0, 3.0, 4.0, 5.0], [1, 2, 3, 4, 10]
    clients = [
        lambda m, v=v, s=s: reply(m, v, num_examples=s) for v, s in zip(values, sizes, strict=True)
    ]
    weight, (record,), _, _ = run(WRAPPED[name](), clients)
    assert record.stepped
    assert record.completed == [True] * 5
    assert record.rtt_s == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert record.compute_s == [0.25] * 5
    assert record.link_s == [0.125] * 5
    expected = step_of(name, values, sizes)
    if name == "multikrum":  # of 3 and one of its neighbours, weighted 3 to 2 or 4
        candidates = [(3 * 3 + 2 * 2) / 5, (3 * 3 + 4 * 4) / 7]
        assert any(weight[0, 0] == pytest.approx(c) for c in candidates)
    else:
        assert weight == pytest.approx(np.full((2, 3), expected), rel=1e-5)


@pytest.mark.parametrize("name", WRAPPED)
def test_short_round_of_one_reply(name: str) -> None:
    clients: list[Client] = [silent, silent, lambda m: reply(m, 3.0), erring, silent]
    weight, (record,), grid, scheduled = run(WRAPPED[name](), clients)
    assert record.completed == [False, False, True, False, False]
    assert record.reason[0] == TIMEOUT
    assert record.reason[3] == "client error: RuntimeError: out of memory"
    assert grid.now_s >= TAU_MAX_S
    expected = step_of(name, [3.0], [10])
    if expected is None:
        assert (record.stepped, record.no_step) == (False, "quorum")
        assert (weight == 0).all()
    else:
        assert weight == pytest.approx(np.full((2, 3), expected), rel=1e-5)
    # Failures are learned as reward 0, whatever time an error took.
    assert scheduled.policy.mean_reward[3] == 0.0
    assert scheduled.policy.mean_reward[2] == pytest.approx(1 - 0.2 / TAU_MAX_S)
    assert (scheduled.policy.play_count == 1).all()


@pytest.mark.parametrize("name", WRAPPED)
def test_round_of_one_node(name: str) -> None:
    grid = ScriptedGrid([reply])
    _, (record,), _, _ = run(WRAPPED[name](), [], grid=grid)
    assert grid.now_s >= 3.0, "waited for more, within the bound"
    if name == "multikrum":
        assert (record.selected, record.no_step) == ([], "quorum")
        assert grid.trained() == [], "nobody works for a step that cannot be made"
    else:
        assert record.selected == [0]
        assert record.stepped


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("kind", ["nobody", "silence"])
def test_empty_round(name: str, kind: str) -> None:
    grid = ScriptedGrid([silent] * 5)
    if kind == "nobody":
        grid.connected = set()
    weight, records, _, _ = run(WRAPPED[name](), [], grid=grid, rounds=2)
    assert (weight == 0).all()
    assert [r.stepped for r in records] == [False, False]
    expected = "nobody-available" if kind == "nobody" else "no-replies"
    assert [r.no_step for r in records] == [expected, expected]


def nan_update(message: Message) -> Message:
    return reply(message, math.nan)


def other(message: Message) -> ArrayRecord:
    return ArrayRecord({"weight": Array(np.ones((2, 3), dtype=np.float32))})


HOSTILE: dict[str, tuple[Client, str]] = {
    "nan": (nan_update, "not finite: array 'weight'"),
    "infinity": (lambda m: reply(m, math.inf), "not finite: array 'weight'"),
    "wrong shape": (
        lambda m: reply(m, arrays={"weight": np.ones((3, 2), "f4"), "bias": np.ones(2, "f4")}),
        "wrong arrays: 'weight' has shape (3, 2), not (2, 3)",
    ),
    "wrong dtype": (
        lambda m: reply(m, arrays={"weight": np.ones((2, 3), "c8"), "bias": np.ones(2, "f4")}),
        "wrong arrays: 'weight' has dtype complex64, not float32",
    ),
    "missing array": (
        lambda m: reply(m, arrays={"weight": np.ones((2, 3), "f4")}),
        "wrong arrays: keys ['weight'] instead of ['bias', 'weight']",
    ),
    "second ArrayRecord": (
        lambda m: reply(m, records={"more": other(m)}),
        "wrong records: 2 ArrayRecords instead of exactly one",
    ),
    "no ArrayRecord": (
        lambda m: Message(RecordDict({"metrics": MetricRecord({NUM_EXAMPLES: 1})}), reply_to=m),
        "wrong records: 0 ArrayRecords instead of exactly one",
    ),
    "other metric keys": (
        lambda m: reply(m, metrics={"surprise": 1.0}),
        "other names: record or metric names unlike the other clients'",
    ),
    "no weight": (
        lambda m: Message(
            RecordDict({"arrays": reply(m).content["arrays"], "metrics": MetricRecord({"a": 1})}),
            reply_to=m,
        ),
        "bad weight: metric 'num-examples' is missing",
    ),
    "weight beyond all others'": (
        lambda m: reply(m, num_examples=1e12),
        "bad weight: 1e+12 examples, where the other clients have ",
    ),
    "negative weight": (
        lambda m: reply(m, num_examples=-5),
        "bad weight: metric 'num-examples' is -5, not a number of at least 0",
    ),
    "nan weight": (
        lambda m: reply(m, num_examples=math.nan),
        "not finite: metric 'num-examples'",
    ),
    "garbage bytes": (
        lambda m: Message(
            RecordDict(
                {
                    "arrays": ArrayRecord(
                        {
                            "weight": Array("float32", (2, 3), "numpy.ndarray", b"garbage"),
                            "bias": Array(np.ones(2, "f4")),
                        }
                    ),
                    "metrics": MetricRecord({NUM_EXAMPLES: 1}),
                }
            ),
            reply_to=m,
        ),
        "wrong arrays: 'weight' cannot be read",
    ),
    "error": (erring, "client error: RuntimeError: out of memory"),
    "oversized": (
        lambda m: Message(Error(OVERSIZED_CODE, "reply of 2 MB, 1 MB at most"), reply_to=m),
        "oversized reply: reply of 2 MB, 1 MB at most",
    ),
}


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_reply_never_enters_the_model(name: str, attack: str) -> None:
    client, reason = HOSTILE[attack]
    honest: list[Client] = [lambda m: reply(m, 2.0)] * 6
    clients = [honest[0], client, *honest[1:]]
    settings: dict[str, Any] = {"num_selected": 7}
    strategy = WRAPPED[name]()
    if name == "dp":
        strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, 100.0, 7)
    weight, (record,), _, scheduled = run(strategy, clients, **settings)
    assert record.stepped
    assert str(record.reason[1]).startswith(reason)
    assert record.reason[:1] + record.reason[2:] == [None] * 6
    expected = step_of(name, [2.0] * 6, [10] * 6)
    assert weight == pytest.approx(np.full((2, 3), expected or 2.0), rel=1e-5)
    assert scheduled.policy.mean_reward[1] == 0.0


def test_lone_reply_with_other_names_cannot_outvote_earlier_rounds() -> None:
    def shy(message: Message) -> Message | None:
        config = message.content["config"]
        return reply(message) if config["server-round"] == 1 else None

    def turncoat(message: Message) -> Message:
        config = message.content["config"]
        extra = {} if config["server-round"] == 1 else {"surprise": 1.0}
        return reply(message, metrics=extra)

    # In round 2 the two signatures have one vote each: the one known from round 1 wins.
    loyal: Client = lambda m: reply(m)  # noqa: E731
    _, records, _, _ = run(FedAvg(), [turncoat, loyal, shy], rounds=2, num_selected=3)
    assert records[1].completed == [False, True, False]


def test_replies_are_aggregated_in_the_order_of_arms() -> None:
    seen: list[list[float]] = []

    class Spy(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            replies = list(replies)
            seen.append([float(r.content["metrics"][NUM_EXAMPLES]) for r in replies])
            return super().aggregate_train(server_round, replies)

    clients = [lambda m, k=k: reply(m, num_examples=k + 1) for k in range(5)]
    run(Spy(), clients, rounds=3)
    assert seen == [[1.0, 2.0, 3.0, 4.0, 5.0]] * 3


def test_exactly_the_super_arm_is_trained_whatever_flowers_minimum_counts() -> None:
    strategy = FedAvg()
    _, records, grid, _ = run(strategy, [reply] * 8, rounds=4, num_selected=3, min_clients=8)
    trained = grid.trained()
    for i, record in enumerate(records):
        assert sorted(trained[3 * i : 3 * i + 3]) == record.selected
        assert len(set(record.selected)) == 3
    assert (strategy.min_train_nodes, strategy.min_available_nodes) == (2, 2), "put back"


def test_deadline_and_time_to_live() -> None:
    _, _, grid, _ = run(FedAvg(), [reply] * 5)
    assert set(grid.deadlines) == {TAU_MAX_S}
    assert {m.metadata.ttl for m in grid.sent if m.metadata.message_type == "train"} == {60.0}
    _, _, grid, _ = run(FedAvg(), [reply] * 5, tau_max_s=100.0)
    assert {m.metadata.ttl for m in grid.sent if m.metadata.message_type == "train"} == {400.0}


def test_query_gives_names_sizes_and_floors() -> None:
    _, _, _, scheduled = run(
        FedAvg(), [reply] * 4, policy="cs-ucb-q", num_selected=2, fairness="proportional:1"
    )
    assert [arm.name for arm in scheduled.arms.arms] == ["dev-0", "dev-1", "dev-2", "dev-3"]
    assert [arm.num_examples for arm in scheduled.arms.arms] == [100, 200, 300, 400]
    assert scheduled.floors == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_a_name_that_the_grid_knows_is_not_the_clients_to_choose() -> None:
    class NamedGrid(ScriptedGrid):
        def get_nodes(self) -> Iterable[NodeInfo]:
            return [NodeInfo(node_id=n, name=f"proven-{n}") for n in self.connected]

    _, _, _, scheduled = run(
        FedAvg(),
        [],
        grid=NamedGrid([reply] * 2),
        policy="cs-ucb-q",
        num_selected=1,
        fairness="dev-0=0.9,proven-101=0.5",
    )
    assert [arm.name for arm in scheduled.arms.arms] == ["proven-100", "proven-101"]
    assert scheduled.floors == [0.0, 0.5], "nobody takes another's floor by calling itself so"


def test_update_far_from_the_model_is_refused_if_told_so() -> None:
    clients: list[Client] = [reply, lambda m: reply(m, 100.0)]
    _, (record,), _, _ = run(FedAvg(), clients, num_selected=2, max_update_norm=10.0)
    assert record.reason[0] is None
    assert str(record.reason[1]).startswith("too large")
    _, (record,), _, _ = run(FedAvg(), clients, num_selected=2)
    assert record.completed == [True, True]


def test_client_without_query_gets_equal_floors_then_its_first_num_examples() -> None:
    grid = ScriptedGrid([lambda m: reply(m, num_examples=30), *[reply] * 3], answers_query=False)
    floors: list[list[float] | None] = []
    scheduled = ScheduledStrategy(
        FedAvg(), num_selected=4, tau_max_s=1.0, fairness="proportional:1", wait_s=0.0
    )
    scheduled.add_hook(lambda record, arrays: floors.append(scheduled.floors))
    grid.on_begin = lambda server_round: (
        floors.append(scheduled.floors) if server_round > 1 else None
    )
    scheduled.start(grid, initial(), num_rounds=2)
    assert floors[0] == pytest.approx([0.5, 1 / 6, 1 / 6, 1 / 6])


def test_late_joiner_becomes_a_new_arm_and_returning_device_is_the_old_one() -> None:
    grid = ScriptedGrid([reply] * 4)
    grid.connected = {100, 101}

    def change(server_round: int) -> None:
        if server_round == 2:
            grid.connected = {100, 102}  # 101 leaves, 102 joins
        if server_round == 3:
            grid.connected = {100, 101, 102, 103}

    grid.on_begin = change
    _, records, _, scheduled = run(
        FedAvg(), [], grid=grid, rounds=3, policy="cs-ucb-q", num_selected=4, min_clients=1
    )
    assert [record.available for record in records] == [[0, 1], [0, 2], [0, 1, 2, 3]]
    assert scheduled.policy.play_count.tolist() == [3, 2, 2, 1]


def test_device_that_has_left_accrues_no_debt() -> None:
    grid = ScriptedGrid([reply] * 4)

    def change(server_round: int) -> None:
        grid.connected = {100, 101, 102, 103} if server_round == 1 else {100, 101, 103}
        grid.away = {101} if server_round > 1 else set()
        grid.leave = {103} if server_round > 1 else set()

    grid.on_begin = change
    _, _, _, scheduled = run(
        FedAvg(), [], grid=grid, rounds=11, policy="cs-ucb-q", num_selected=4, fairness="equal:0.5"
    )
    queue = scheduled.policy.state_dict()["virtual_queue"]
    assert queue[1] == pytest.approx(10 * 0.5), "unavailable: owed its rounds"
    assert queue[2] == 0.0, "gone: owed nothing"
    assert queue[3] == 0.0, "on leave by its own will: owed nothing"


def test_local_accuracy_is_asked_for_and_used() -> None:
    def client(accuracy: float) -> Client:
        def answer(message: Message) -> Message:
            assert message.content[REQUEST][REPORT] == LOCAL_ACCURACY
            assert REPORT not in message.content["config"], "whose keys are the app's"
            return reply(message, metrics={LOCAL_ACCURACY: accuracy})

        return answer

    clients = [client(a) for a in (0.9, 0.2, 0.8, 0.1)]
    _, records, _, _ = run(
        FedAvg(), clients, rounds=3, policy="local-accuracy", num_selected=2, min_clients=4
    )
    assert sorted(records[0].selected + records[1].selected) == [0, 1, 2, 3]
    assert records[2].selected == [1, 3]


@pytest.mark.parametrize("name", [TRAIN_LOSS, "train_loss", "loss"])
def test_oort_is_told_the_losses_that_clients_report(name: str) -> None:
    def client(loss: float) -> Client:
        return lambda message: reply(message, metrics={name: loss})

    clients = [client(loss) for loss in (0.5, 2, math.nan, -1.0)]
    _, _, _, scheduled = run(FedAvg(), clients, rounds=2, policy="oort", num_selected=2)
    told = scheduled.policy.state_dict()["last_loss"]
    assert told.tolist() == [0.5, 2.0, -math.inf, 1.0], "no number is no report"


def test_delay_het_gets_a_sketch_of_each_update_that_can_be_compared() -> None:
    def client(value: float) -> Client:
        return lambda message: reply(message, value)

    def other_shapes(message: Message) -> Message:
        return reply(message, arrays={"weight": np.ones((2, 3), np.float32)})

    def not_finite(message: Message) -> Message:
        return reply(message, math.nan)

    clients = [client(1.0), client(-2.0), other_shapes, not_finite, silent]
    settings: dict[str, Any] = {"policy": "delay-het", "fixed_shapes": False}
    sketches = []
    for _ in range(2):
        _, (record,), _, scheduled = run(FedAvg(), clients, **settings)
        assert record.completed[:2] == [True, True]
        sketches.append(scheduled.policy.state_dict()["sketch"])
    assert np.array_equal(*sketches), "whatever process or run it is of"
    assert np.isfinite(sketches[0]).all(axis=0).tolist() == [True, True, False, False, False]
    assert sketches[0][:, 1] == pytest.approx(-2.0 * sketches[0][:, 0])
    # Eight values of 1, with random signs, in 32 random directions.
    assert sketches[0][:, 0] @ sketches[0][:, 0] == pytest.approx(8.0, rel=0.75)


def test_only_policies_that_learn_from_updates_are_given_sketches() -> None:
    given = []

    class Watching(Oort):
        name = "watching"

        def _learn(self, selection: Selection, outcome: RoundOutcome) -> None:
            given.append(outcome.update_sketch)

    class Needing(Watching):
        name = "needing"
        needs_updates = True

    for policy in (Watching, Needing):
        run(FedAvg(), [reply] * 5, policy=policy, num_spare=0)
    assert given[0] is None
    assert given[1] is not None
    assert given[1].shape == (5, SKETCH_SIZE)


def test_delay_het_gets_sketches_in_buffered_mode_too() -> None:
    clients: list[Client] = [silent, reply, lambda message: reply(message, 2.0)]
    settings: dict[str, Any] = {"mode": "buffered", "num_selected": 3, "buffer_size": 1}
    # The third begins from the first model and ends when the second has made another.
    _, records, _, scheduled = run(FedAvg(), clients, rounds=3, policy="delay-het", **settings)
    assert {result.arm for record in records for result in record.results} == {1, 2}
    sketch = scheduled.policy.state_dict()["sketch"]
    assert sketch[:, 2] == pytest.approx(sketch[:, 1] * 2.0, rel=1e-5)


@pytest.mark.parametrize("rounds", [9, 30])
def test_it_is_said_if_nobody_reports_what_a_policy_learns_from(
    rounds: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger=LOGGER.name):
        run(FedAvg(), [reply] * 4, rounds=rounds, policy="cs-ucb-q-loss", num_selected=2)
    said = [line for line in caplog.messages if "no client reports the metric" in line]
    expected = [
        "no client reports the metric 'train-loss' or 'train_loss' or 'loss': "
        "cs-ucb-q-loss does without"
    ]
    assert said == (expected if rounds == 30 else [])


def test_differential_privacy_noise_fits_the_replies_that_came() -> None:
    stds = []
    for num_replies in (1, 4):
        strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 4)
        np.random.seed(0)  # noqa: NPY002  # Flower draws its noise from the global generator
        answering = [lambda m: reply(m, 0.0)] * num_replies + [silent] * (4 - num_replies)
        weight, _, _, _ = run(strategy, answering, num_selected=4)
        stds.append(float(np.abs(weight).max()))
        assert strategy.num_sampled_clients == 4
    assert stds[0] == pytest.approx(4 * stds[1], rel=1e-5)


def test_accountant_makes_no_step_in_a_short_round() -> None:
    class Accountant:
        """Counts releases; a real one needs a package that Flower does not install by itself."""

        config = PrivacyConfig(
            target_delta=1e-5,
            population_size=10,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=SamplingMethod.NO_AMPLIFICATION,
        )
        num_releases = 0

        def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
            assert event.sample_size == 4
            self.num_releases += count

        def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
            return PrivacySpent(1.0, 1e-5, self.num_releases, "test")

    accountant: Any = Accountant()
    for answering, stepped in ((4, True), (3, False)):
        strategy = DifferentialPrivacyServerSideFixedClipping(
            FedAvg(), 1.0, 1.0, 4, accountant=accountant
        )
        clients: list[Client] = [reply] * answering + [silent] * (4 - answering)
        _, (record,), _, _ = run(strategy, clients, num_selected=4)
        assert record.stepped is stepped
        assert record.no_step == (None if stepped else "quorum")
    assert accountant.num_releases == 1


def test_configuration_that_does_not_fit_is_refused_at_construction() -> None:
    def build(strategy: Strategy, **settings: Any) -> ScheduledStrategy:
        return ScheduledStrategy(strategy, **{"num_selected": 5, "tau_max_s": 1.0, **settings})

    with pytest.raises(ConfigError, match=r"fraction_train = 0\.0: must be above 0"):
        build(FedAvg(fraction_train=0.0))
    with pytest.raises(ConfigError, match="num_selected = 5: must be 1: FedXgbCyclic"):
        build(FedXgbCyclic())
    with pytest.raises(ConfigError, match="num_selected = 5: must be at least 7"):
        build(MultiKrum(num_malicious_nodes=2))
    with pytest.raises(ConfigError, match="num_selected = 5: must be at least 7"):
        build(Krum(num_malicious_nodes=2))
    with pytest.raises(ConfigError, match="at least 7"):
        build(Bulyan(num_malicious_nodes=1))
    with pytest.raises(ConfigError, match="at least 6"):
        build(FedAvg(min_train_nodes=6))
    with pytest.raises(ConfigError, match="at least 6"):
        build(FedAvg(), min_replies=6)
    with pytest.raises(ConfigError, match="num_sampled_clients = 3: must be num_selected = 5"):
        build(DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 3))
    with pytest.raises(UnknownPolicyError, match="did you mean cs-ucb-q") as caught:
        build(FedAvg(), policy="CS-UCBQ")
    assert str(caught.value).startswith("policy = 'CS-UCBQ': must be one of cs-ucb, ")
    assert "oracle" not in str(caught.value), "it cannot be used here"
    with pytest.raises(ConfigError, match="policy = 'oracle': needs expected_time_s: a run has no"):
        build(FedAvg(), policy="oracle")
    with pytest.raises(ConfigError, match="beta"):
        build(FedAvg(), beta=2.0)
    with pytest.raises(ConfigError, match="tau_max_s"):
        build(FedAvg(), tau_max_s=0.0)


def test_must_be_outermost() -> None:
    inner = ScheduledStrategy(FedAvg(), num_selected=2, tau_max_s=1.0)
    outer = DifferentialPrivacyServerSideFixedClipping(inner, 1.0, 1.0, 2)
    with pytest.raises(SchedulingError, match="must be the outermost strategy"):
        outer.configure_train(1, initial(), ConfigRecord(), ScriptedGrid([reply] * 2))
    with pytest.raises(ConfigError, match="is scheduled already"):
        ScheduledStrategy(outer, num_selected=2, tau_max_s=1.0)


def test_strategy_that_samples_by_itself_trains_a_part_of_the_super_arm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Sampling(FedAvg):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
        ) -> Iterable[Message]:
            messages = super().configure_train(server_round, arrays, config, grid)
            return [m for m in messages if m.metadata.dst_node_id % 2 == server_round % 2]

    with caplog.at_level(logging.WARNING, logger=LOGGER.name):
        _, records, grid, scheduled = run(Sampling(), [reply] * 5, rounds=2)
    assert [record.selected for record in records] == [[1, 3], [0, 2, 4]]
    assert sorted(grid.trained()) == [0, 1, 2, 3, 4]
    assert scheduled.policy.play_count.tolist() == [1] * 5
    said = [line for line in caplog.messages if "it samples by itself" in line]
    assert said == ["round 1: Sampling trains 2 of the 5 selected clients: it samples by itself"]


def test_strategy_with_messages_for_others_is_named() -> None:
    class Twice(FedAvg):
        def configure_train(self, *args: Any) -> Iterable[Message]:
            return [*super().configure_train(*args), *super().configure_train(*args)]

    with pytest.raises(SchedulingError, match="Twice configured 10 messages for the 5 selected"):
        run(Twice(), [reply] * 5)


def test_aggregation_that_raises_makes_no_step_and_the_run_goes_on() -> None:
    class Moody(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            if server_round == 1:
                raise RuntimeError("bad mood")
            return super().aggregate_train(server_round, replies)

    weight, records, _, _ = run(Moody(), [reply] * 5, rounds=2)
    assert [r.no_step for r in records] == ["aggregation", None]
    assert weight == pytest.approx(np.ones((2, 3)))


def test_server_and_client_evaluation_and_result() -> None:
    evaluated: list[int] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        evaluated.append(server_round)
        return MetricRecord({"accuracy": server_round / 10, "loss": 1.0})

    def client(message: Message) -> Message:
        if message.metadata.message_type == MessageType.TRAIN:
            return reply(message, metrics={"train-loss": 0.5})
        metrics = MetricRecord({NUM_EXAMPLES: 1, "eval-accuracy": 0.75})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    grid = ScriptedGrid([client] * 5)
    records: list[RoundRecord] = []
    scheduled = ScheduledStrategy(
        FedAvg(),
        policy="random",
        num_selected=2,
        tau_max_s=TAU_MAX_S,
        eval_every=3,
        client_eval_every=2,
        client_eval_on="selected",
        client_eval_timeout_s=9.0,
        min_clients=5,
        stop_when=lambda record: record.round == 7,
    )
    scheduled.add_hook(lambda record, arrays: records.append(record))
    result = scheduled.start(grid, initial(), num_rounds=20, evaluate_fn=evaluate)
    assert evaluated == [0, 3, 6]
    assert [r.accuracy for r in records] == [None, None, 0.3, None, None, 0.6, None]
    assert sorted(result.evaluate_metrics_serverapp) == [0, 3, 6]
    assert sorted(result.evaluate_metrics_clientapp) == [2, 4, 6]
    assert result.evaluate_metrics_clientapp[2]["eval-accuracy"] == 0.75
    found = [None, {"eval-accuracy": 0.75}]
    assert [r.client_metrics for r in records] == [found[r.round % 2 == 0] for r in records]
    assert result.train_metrics_clientapp[1]["train-loss"] == 0.5
    asked = [m for m in grid.sent if m.metadata.message_type == MessageType.EVALUATE]
    assert [m.metadata.dst_node_id - 100 for m in asked[:2]] != []
    assert {m.metadata.dst_node_id - 100 for m in asked[:2]} == set(records[1].selected)
    assert 9.0 in grid.deadlines
    assert scheduled.policy.play_count.sum() == 7 * 2, "evaluation is not the policy's business"


def test_evaluations_of_broken_and_hostile_clients_do_not_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def evaluating(**metrics: Any) -> Callable[[Message], Message]:
        def client(message: Message) -> Message:
            if message.metadata.message_type == MessageType.TRAIN:
                return reply(message)
            return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

        return client

    good = evaluating(**{NUM_EXAMPLES: 1, "accuracy": 0.5})
    bad = [
        evaluating(**{NUM_EXAMPLES: 1e30, "accuracy": 1.0}),
        evaluating(**{NUM_EXAMPLES: 1, "accuracy": math.nan}),
        evaluating(**{NUM_EXAMPLES: -1, "accuracy": 1.0}),
        evaluating(**{NUM_EXAMPLES: 1, "other": 1.0}),
    ]
    scheduled = ScheduledStrategy(
        FedAvg(),
        policy="random",
        num_selected=6,
        tau_max_s=TAU_MAX_S,
        client_eval_every=1,
        min_clients=6,
    )
    with caplog.at_level(logging.WARNING, logger=LOGGER.name):
        result = scheduled.start(ScriptedGrid([*bad, good, good]), initial(), num_rounds=3)
    assert [m["accuracy"] for m in result.evaluate_metrics_clientapp.values()] == [0.5] * 3
    said = [r.getMessage() for r in caplog.records if "no evaluation from" in r.getMessage()]
    assert len(said) == len(bad), "each once, not every round"


def test_who_does_not_answer_the_query_takes_no_part_until_it_does() -> None:
    grid = ScriptedGrid([reply] * 4)
    grid.mute = {100, 101}

    def begin(server_round: int) -> None:
        if server_round == 2:
            (asked,) = [m for m in grid.sent if m.metadata.dst_node_id == 101]
            lost = Message(Error(5, "gone"), reply_to=asked)  # says the grid, not the client
            grid.mailbox[asked.metadata.message_id] = lost
            grid.mute = {100}

    grid.on_begin = begin
    _, records, grid, scheduled = run(FedAvg(), [], grid=grid, rounds=4, num_selected=2)
    assert [record.available for record in records] == [[2, 3], [2, 3], [1, 2, 3], [1, 2, 3]]
    queried = [m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == "query"]
    assert sorted(queried) == [100, 101, 101, 102, 103]
    assert [arm.num_examples for arm in scheduled.arms.arms] == [None, 200, 300, 400]
    assert records[-1].absent == [0]


def test_waits_for_clients_within_the_bound() -> None:
    grid = ScriptedGrid([reply] * 3)
    grid.connected = set()
    waited: list[float] = []
    wait = grid.wait

    def arrive(seconds: float) -> None:
        wait(min(seconds, 1.0))
        waited.append(grid.now_s)
        if grid.now_s >= 2.0:
            grid.connected = {100, 101, 102}

    grid.wait = arrive  # type: ignore[method-assign]
    _, (record,), _, _ = run(FedAvg(), [], grid=grid, num_selected=2, wait_s=60.0)
    assert waited == [1.0, 2.0]
    assert len(record.selected) == 2


@pytest.mark.parametrize("begin_s", [0.0, 0.1, 1e-9, 146.8727880419222, 1e9 + 0.7])
@pytest.mark.parametrize("wait_s", [7.3, 0.1, 1e-3, 1e9])
def test_a_wait_ends_whatever_a_clock_rounds(begin_s: float, wait_s: float) -> None:
    grid = ScriptedGrid([reply] * 3)
    grid.connected = set()
    grid.now_s = begin_s
    steps: list[float] = []

    def wait(seconds: float) -> None:
        steps.append(seconds)
        assert len(steps) < 200
        grid.now_s += min(seconds, wait_s / 7)

    grid.wait = wait  # type: ignore[method-assign]
    _, (record,), _, _ = run(FedAvg(), [], grid=grid, num_selected=2, wait_s=wait_s)
    assert record.selected == []


def test_a_client_that_joins_while_others_evaluate_is_an_arm_of_the_next_round() -> None:
    def joined(message: Message) -> Message:
        grid.connected.add(102)
        return reply(message)

    grid = ScriptedGrid([joined, joined, reply])
    grid.connected = {100, 101}
    seen: list[tuple[int, int, int]] = []
    scheduled: ScheduledStrategy

    def hook(record: RoundRecord, arrays: ArrayRecord) -> None:
        state = scheduled.state_dict()
        arms = json.loads(state["arms"]["rows"].tobytes())
        assert len(arms) == scheduled.policy.num_arms == len(scheduled.floors or [])
        seen.append((record.round, record.num_arms, len(scheduled.arms)))

    scheduled = ScheduledStrategy(
        FedAvg(), num_selected=2, tau_max_s=TAU_MAX_S, client_eval_every=1, hooks=[hook]
    )
    scheduled.start(grid, initial(), num_rounds=2)
    assert seen == [(1, 2, 3), (2, 3, 3)]


def test_client_that_crashes_fast_is_not_taken_for_the_fastest() -> None:
    # It answers first of all, with an error; it has no more than its floor while it is not left out
    # for having failed, when it is owed nothing.
    clients: list[Client] = [erring, *[reply] * 5]
    _, records, _, scheduled = run(
        FedAvg(),
        clients,
        rounds=1200,
        policy="cs-ucb-q",
        num_selected=2,
        min_clients=6,
        tau_max_s=1.0,
        fairness="equal:0.1",
        beta=0.05,
        truncate=False,
    )
    late = np.bincount([arm for record in records[-300:] for arm in record.selected]) / 300
    assert late[0] < 0.1
    assert late.argmax() == 1, "the fastest of those that deliver"
    assert scheduled.policy.mean_reward[0] == 0.0


def test_waiting_for_the_first_clients_is_no_part_of_the_runs_time() -> None:
    grid = ScriptedGrid([reply] * 2)
    grid.connected = set()

    def come(server_round: int) -> None:
        grid.connected = {100, 101}

    grid.on_begin = come
    _, records, _, _ = run(FedAvg(), [], grid=grid, rounds=2, num_selected=2, wait_s=30.0)
    assert records[0].time_s == pytest.approx(records[0].round_s)
    assert records[1].time_s == pytest.approx(records[0].round_s + records[1].round_s)


def test_a_model_that_does_not_change_is_spoken_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger=LOGGER.name):
        run(FedAvg(), [erring] * 2, rounds=45, num_selected=2)
    said = [r.getMessage() for r in caplog.records if "has not changed" in r.getMessage()]
    assert [text.split(":")[0] for text in said] == ["round 10", "round 20", "round 40"]
    assert said[0].endswith("for 10 rounds, now for the reason: no-replies")


def test_floors_by_a_name_that_no_client_has_are_warned_of_until_it_joins(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = ScriptedGrid([reply] * 3)
    grid.connected.discard(102)
    grid.on_begin = lambda server_round: grid.connected.add(102) if server_round == 105 else None
    floors: list[list[float] | None] = []
    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        scheduled = ScheduledStrategy(
            FedAvg(),
            "cs-ucb-q",
            num_selected=1,
            tau_max_s=TAU_MAX_S,
            fairness="dev0=0.2,dev-1=0.3,dev-2=0.4",
            hooks=[lambda record, arrays: floors.append(scheduled.floors)],
        )
        scheduled.start(grid, initial(), num_rounds=110)
    found = [line for line in caplog.messages if "no client" in line or "has joined" in line]
    warning = "fairness: no client is called dev-2 or dev0 (did you mean dev-0?)"
    assert found == [warning, warning, "dev-2 has joined, and its floor counts"]
    assert (floors[0], floors[-1]) == ([0.0, 0.3], [0.0, 0.3, 0.4])


def test_floors_of_clients_that_have_left_do_not_count_as_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = ScriptedGrid([reply] * 10)

    def one_after_the_other(server_round: int) -> None:
        grid.connected = {100 + (server_round - 1) // 2}

    grid.on_begin = one_after_the_other
    one_after_the_other(1)
    settings: dict[str, Any] = {"policy": "cs-ucb-q", "num_selected": 1, "fairness": "equal:0.3"}
    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        *_, scheduled = run(FedAvg(), [], rounds=20, grid=grid, **settings)
    assert len(scheduled.arms) == 10
    assert "cannot be met" not in caplog.text
    assert scheduled.queues is not None
    assert max(scheduled.queues) <= 1.0, "nor is it owed to them"


def test_sizes_of_clients_that_are_gone_for_good_take_nothing_from_the_others_floors() -> None:
    grid = ScriptedGrid([reply] * 4)

    def one_leaves_and_returns(server_round: int) -> None:
        grid.connected = {100, 101, 102} | ({103} if not 10 < server_round <= 150 else set())

    grid.on_begin = one_leaves_and_returns
    floors: dict[int, list[float] | None] = {}
    scheduled = ScheduledStrategy(
        FedAvg(),
        policy="cs-ucb-q",
        num_selected=2,
        tau_max_s=TAU_MAX_S,
        fairness="proportional:1",
        hooks=[lambda record, arrays: floors.update({record.round: scheduled.floors})],
    )
    scheduled.start(grid, initial(), num_rounds=160)
    whole = pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert floors[10] == whole
    assert floors[100] == whole, "it may come back"
    assert floors[120] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 0.4]), "its own is what it was"
    assert floors[160] == whole


def test_floors_that_cannot_be_kept_once_clients_are_back_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = ScriptedGrid([reply] * 4)

    def come_and_go(server_round: int) -> None:
        here = {1: (0, 1, 2), 2: (1, 2, 3)}.get(server_round, (0, 1, 2, 3))
        grid.connected = {100 + k for k in here}

    grid.on_begin = come_and_go
    come_and_go(1)
    settings: dict[str, Any] = {"policy": "cs-ucb-q", "num_selected": 1, "fairness": "equal:0.3"}
    warned: list[bool] = []
    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        scheduled = ScheduledStrategy(
            FedAvg(),
            **settings,
            tau_max_s=TAU_MAX_S,
            hooks=[lambda record, arrays: warned.append("cannot be met" in caplog.text)],
        )
        scheduled.start(grid, initial(), num_rounds=5)
    assert warned == [False, False, True, True, True]
    assert caplog.text.count("cannot be met") == 1
