"""Free riders: who is one, who is not, and that it is no success anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray
from scripted_grid import Client, ScriptedGrid

from flower_scheduling._flwr import take_identity
from flower_scheduling.client.wire.protocol import NUM_EXAMPLES
from flower_scheduling.errors import ConfigError
from flower_scheduling.strategies.flower import Exchange, RoundRecord, ScheduledStrategy
from flower_scheduling.strategies.flower.replies import Update
from flower_scheduling.strategies.flower.updates.free_riders import UNCHANGED, FreeRiders

SIZE = 70_000  # more than one piece
Change = Callable[[str, NDArray[Any]], NDArray[Any]]
MODEL = "free-rider: the update is the model that was sent"
OTHER = "free-rider: the update equals that of another client"


def client(change: Change, num_examples: int = 10) -> Client:
    """Return a client that does this with each array."""

    def train(message: Message) -> Message:
        received = message.content["arrays"]
        arrays = {key: Array(change(key, array.numpy())) for key, array in received.items()}
        metrics = MetricRecord({NUM_EXAMPLES: num_examples, "loss": 1.0})
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
        return Message(content, reply_to=message)

    return train


def working(seed: int) -> Client:
    """Return a client that moves the last values of the second array, as if the rest was frozen."""
    rng = np.random.default_rng(seed)

    def change(key: str, values: NDArray[Any]) -> NDArray[Any]:
        if key == "head":
            last = values[..., -2:]
            last += rng.normal(size=last.shape).astype(values.dtype)
        return values

    return client(change)


def same(key: str, values: NDArray[Any]) -> NDArray[Any]:
    return values


class Grid(ScriptedGrid):
    """Client k takes (k + 1) / 10 seconds."""

    def _exchange(self, message: Message, timeout_s: float) -> Exchange:
        found = super()._exchange(message, timeout_s)
        return replace(found, rtt_s=None if found.rtt_s is None else found.rtt_s + 0.1)


def run(
    clients: Sequence[Client], rounds: int = 6, **settings: Any
) -> tuple[list[RoundRecord], ScheduledStrategy, NDArray[Any]]:
    """Run rounds of all clients, on a model with an array that nobody trains."""
    records: list[RoundRecord] = []
    scheduled = ScheduledStrategy(
        settings.pop("strategy", FedAvg()),
        **{
            **{"policy": "cs-ucb-adaptive", "num_selected": len(clients), "tau_max_s": 9.0},
            **{"client_eval_every": 0, "wait_s": 3.0},
            **settings,
        },
        hooks=[lambda record, arrays: records.append(record)],
    )
    rng = np.random.default_rng(0)
    initial = {
        "backbone": rng.normal(size=SIZE).astype(np.float32),
        "head": rng.normal(size=(SIZE // 10, 10)).astype(np.float32).T,
    }
    arrays = ArrayRecord({key: Array(value) for key, value in initial.items()})
    result = scheduled.start(Grid(clients), arrays, num_rounds=rounds)
    return records, scheduled, result.arrays["head"].numpy()


def reasons(records: Sequence[RoundRecord], arm: int) -> list[str | None]:
    return [each.reason for record in records for each in record.results if each.arm == arm]


@pytest.mark.parametrize("mode", ["rounds", "buffered"])
def test_a_client_that_sends_the_model_back_fails(mode: str) -> None:
    clients = [client(same), working(1), working(2), working(3)]
    records, scheduled, _ = run(clients, mode=mode, rounds=20)
    found = reasons(records, 0)
    # In buffered mode it is the first to answer, when no other client is known yet.
    assert found[2:] == [MODEL] * (len(found) - 2)
    assert 3 < len(found) < 20, "it is left out for a while after the third time in a row"
    if mode == "rounds":
        assert found == [MODEL] * len(found)
    assert all(reason is None for arm in (1, 2, 3) for reason in reasons(records, arm))
    policy: Any = scheduled.policy
    assert policy.failure_count[0] >= len(found) - 2, "the policy learns that it fails"
    assert policy.success_count[1] > 0


def test_it_does_not_enter_the_model() -> None:
    _, _, alone = run([working(1), working(2)])
    _, _, beside = run([working(1), working(2), client(same)])
    _, _, believed = run([working(1), working(2), client(same)], accept_unchanged=True)
    np.testing.assert_array_equal(beside, alone)
    assert not np.array_equal(believed, alone), "there it takes a third of each step"


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.float32])
def test_rounding_is_no_work(dtype: type[np.floating[Any]]) -> None:
    def rounded(key: str, values: NDArray[Any]) -> NDArray[Any]:
        return (values * np.float32(1.0 + 2e-7)).astype(dtype)

    records, *_ = run([client(rounded), working(1), working(2)], rounds=3)
    assert reasons(records, 0) == [MODEL] * 3


def test_values_that_are_no_numbers_in_the_model_are_no_work_either() -> None:
    records: list[RoundRecord] = []
    scheduled = ScheduledStrategy(
        FedAvg(),
        num_selected=3,
        tau_max_s=9.0,
        client_eval_every=0,
        hooks=[lambda record, arrays: records.append(record)],
    )
    mask = np.array([np.nan, -np.inf, *range(20)], dtype=np.float32)
    arrays = ArrayRecord({"head": Array(np.zeros((200, 2), np.float32)), "mask": Array(mask)})
    scheduled.start(Grid([client(same), working(1), working(2)]), arrays, num_rounds=3)
    assert reasons(records, 0) == [MODEL] * 3
    assert reasons(records, 1) == [None] * 3


@pytest.mark.parametrize("mode", ["rounds", "buffered"])
def test_two_clients_with_one_update_fail_both(mode: str) -> None:
    clients = [working(7), working(7), working(1), working(2), working(3)]
    size = 8 if mode == "buffered" else None  # of the first step, in which all of them answer
    records, *_ = run(clients, mode=mode, buffer_size=size, rounds=1)
    assert [reasons(records, arm)[0] for arm in (0, 1)] == [OTHER] * 2
    assert all(reason is None for arm in (2, 3, 4) for reason in reasons(records, arm))


@pytest.mark.parametrize(
    ("clients", "settings"),
    [
        ([client(same)] * 4, {}),  # as where the model has converged
        ([client(same)] * 3 + [working(1)], {}),
        ([working(7)] * 4, {}),
        ([client(same)], {}),  # no other client to compare with
        ([client(same), working(1), working(2)], {"accept_unchanged": True}),
    ],
    ids=["all unchanged", "most unchanged", "all equal", "one client", "switched off"],
)
def test_where_most_do_the_same_it_is_meant(
    clients: Sequence[Client], settings: dict[str, Any]
) -> None:
    records, *_ = run(clients, **settings)
    assert all(result.completed for record in records for result in record.results)


def test_a_client_whose_data_have_nothing_more_to_teach_is_believed() -> None:
    count = 0
    worker = working(1)

    def converged(message: Message) -> Message | None:
        nonlocal count
        count += 1
        return worker(message) if count <= 5 else client(same)(message)

    records, *_ = run([converged, working(2), working(3)], rounds=20)
    found = reasons(records, 0)
    assert found[:13] == [None] * 10 + [MODEL] * 3, "as often as it has worked"
    assert set(found[13:]) <= {MODEL}


def test_a_client_without_examples_is_none() -> None:
    records, *_ = run([client(same, num_examples=0), working(1), working(2)])
    assert not any(reasons(records, 0))


def test_a_rule_of_the_apps_own_decides_what_replies_may_be() -> None:
    class Counting(FedAvg):
        """Analytics: what matters is in the metrics."""

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            assert len(list(replies)) == 3
            return None, MetricRecord({"sum": 3.0})

    clients = [client(same), working(1), working(2)]
    records, *_ = run(clients, strategy=Counting())
    assert all(result.completed for record in records for result in record.results)

    class Logging(FedAvg):
        """Training, with a line more."""

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            return super().aggregate_train(server_round, replies)

    records, *_ = run(clients, strategy=Logging(), accept_unchanged=False, rounds=3)
    assert reasons(records, 0) == [MODEL] * 3


def test_what_clients_have_sent_survives_a_restart() -> None:
    clients = [client(same), working(1), working(2)]
    _, scheduled, head = run(clients, mode="buffered", rounds=10)
    state = scheduled.state_dict()
    assert state["work"]["changed"].tolist()[0] == 0
    assert state["work"]["works"].tolist()[:3] == [False, True, True]
    records: list[RoundRecord] = []
    again = ScheduledStrategy(
        FedAvg(),
        "cs-ucb-adaptive",
        num_selected=3,
        tau_max_s=9.0,
        mode="buffered",
        client_eval_every=0,
        hooks=[lambda record, arrays: records.append(record)],
    )
    again.load_state_dict(state)
    arrays = {"backbone": np.zeros(SIZE, np.float32), "head": head}
    model = ArrayRecord({key: Array(value) for key, value in arrays.items()})
    again.start(Grid(clients), model, num_rounds=12)
    assert reasons(records, 0)[0] == MODEL, "at once"


def test_a_word_for_the_switch_is_refused() -> None:
    wrong: Any = "yes"
    with pytest.raises(ConfigError, match=r"^accept_unchanged = 'yes': must be true, false"):
        ScheduledStrategy(FedAvg(), num_selected=2, accept_unchanged=wrong)


KINDS = ["float16", "float32", "float64", "complex64", "complex128", "int8", "uint64", "bool"]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (300, 400), (0, 7)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_one_value_is_a_change_in_arrays_of_any_kind(
    dtype: str, shape: tuple[int, ...], order: Literal["C", "F"]
) -> None:
    rng = np.random.default_rng(3)
    values = np.asarray(rng.integers(0, 2, size=shape).astype(dtype), order=order)
    frozen = rng.normal(size=5).astype(np.float32)
    model = ArrayRecord({"frozen": Array(frozen), "w": Array(values)})
    judge = FreeRiders()
    assert judge.change_of(update_of(frozen=frozen, w=values), model) == UNCHANGED
    if not values.size:
        return
    changed = values.copy(order="K")
    place = tuple(int(rng.integers(size)) for size in shape)
    changed[place] = 1 - changed[place] if dtype != "bool" else not changed[place]
    found = judge.change_of(update_of(frozen=frozen, w=changed), model)
    assert found is not None
    assert found.key == "w"
    assert found.place >= 0


def test_what_cannot_be_compared_is_not_judged() -> None:
    w = np.ones(9, np.float32)
    model = ArrayRecord({"w": Array(w)})
    judge = FreeRiders()
    for arrays in ({}, {"other": w}, {"w": w[:8]}, {"w": w.view("V4")}):
        assert judge.change_of(update_of(**arrays), model) is None
    assert judge.change_of(update_of(w=w + 1, other=w), model) is not None, "it is work"
    mixed = {0: noted(judge, model, other=w), 1: noted(judge, model, w=w + 1)}
    mixed[2] = noted(judge, model, w=w + 2)
    assert judge.judge(mixed) == ({}, {})


def update_of(**arrays: NDArray[Any]) -> Update:
    content = RecordDict({"arrays": ArrayRecord({k: Array(v) for k, v in arrays.items()})})
    take_identity(1)
    message = Message(content, dst_node_id=1, message_type="train")
    return Update(message, MetricRecord(), 1.0, ("", "", frozenset()))


def noted(judge: FreeRiders, model: ArrayRecord, **arrays: NDArray[Any]) -> Update:
    update = update_of(**arrays)
    return replace(update, change=judge.change_of(update, model))
