"""The weighted mean is Flower's, bit for bit, and takes less memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.serverapp.strategy import FedAvg, FedProx
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from flower_scheduling.client.wire.arrays import decode_array
from flower_scheduling.strategies.flower.updates.averaging import weighted_mean
from flower_scheduling.strategies.flower.wrapped import WrappedStrategy

Values = np.ndarray[Any, Any]
WEIGHTS = [3, 1.7, 12]
LARGE = 150_001  # items: more than a piece


def values(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Values:
    rng = np.random.default_rng(seed)
    return np.asarray(100 * rng.standard_normal(shape)).astype(dtype)


def reply(
    arrays: dict[str, Values], weight: float = 1, name: str = "arrays", **more: Any
) -> Message:
    record = ArrayRecord({key: Array(np.asarray(value)) for key, value in arrays.items()})
    metrics = MetricRecord({"num-examples": weight, "loss": weight / 3, **more})
    metadata = Metadata(1, "m", 1, 7, "r", "", 0.0, 60.0, "train")
    return make_message(metadata, RecordDict({name: record, "metrics": metrics}))


def replies(make: Callable[[int], dict[str, Values]]) -> list[Message]:
    return [reply(make(seed), weight) for seed, weight in enumerate(WEIGHTS)]


def flowers(messages: list[Message]) -> ArrayRecord:
    return aggregate_arrayrecords([each.content for each in messages], "num-examples")


def assert_same(found: ArrayRecord | None, expected: ArrayRecord) -> None:
    assert found is not None
    assert list(found) == list(expected)
    for key, array in expected.items():
        assert (found[key].dtype, found[key].shape) == (array.dtype, array.shape)
        assert found[key].data == array.data, key


def check(make: Callable[[int], dict[str, Values]]) -> None:
    expected = flowers(replies(make))
    wrapped = WrappedStrategy(FedAvg(), num_selected=3)
    found, metrics = wrapped.aggregate_train(1, replies(make))
    assert_same(found, expected)
    _, theirs = FedAvg().aggregate_train(1, replies(make))
    assert metrics == theirs


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16", "i8", "u1", "?", ">f4"])
def test_of_every_dtype_and_size(dtype: str) -> None:
    shapes = [(), (0, 3), (7,), (2, 3, 4), (LARGE,), (3, LARGE // 3)]
    check(lambda seed: {str(shape): values(dtype, shape, seed) for shape in shapes})


def test_in_every_order_of_axes() -> None:
    large = (2, LARGE // 2)

    def make(seed: int) -> dict[str, Values]:
        one = values("f4", large, seed)
        mixed = np.asfortranarray(one) if seed == 1 else one
        return {"turned": np.asfortranarray(one), "mixed": mixed, "first": one.T.copy().T}

    check(make)


def test_of_replies_in_other_dtypes() -> None:
    kinds = ["f4", "f8", "i8"]
    check(lambda seed: {"w": values(kinds[seed], (LARGE,), seed), "n": values(kinds[seed], ())})


def test_not_a_number_stays_where_it_is() -> None:
    def make(seed: int) -> dict[str, Values]:
        array = values("f4", (LARGE,), seed)
        array[seed], array[-1] = np.nan, -np.inf
        return {"w": array}

    with np.errstate(all="ignore"):
        check(make)


@pytest.mark.parametrize(
    "odd",
    [
        lambda: reply({"other": np.ones(2)}),
        lambda: reply({"w": np.ones(2), "v": np.ones(1)}),
        lambda: reply({"w": np.ones(2)}, name="elsewhere"),
        lambda: reply({"w": np.ones(2)}, accuracy=1.0),
        lambda: reply({"w": np.ones(3)}),
    ],
)
def test_what_flower_refuses_is_refused_and_no_reply_loses_its_arrays(odd: Any) -> None:
    messages = [reply({"w": np.ones(2)}), odd(), reply({"w": np.ones(2)})]
    before = [dict(each.content) for each in messages]
    with pytest.raises(Exception) as expected:  # noqa: PT011
        FedAvg().aggregate_train(1, messages)
    wrapped = WrappedStrategy(FedAvg(), num_selected=3)
    with pytest.raises(type(expected.value)):
        wrapped.aggregate_train(1, messages)
    assert [dict(each.content) for each in messages] == before


@pytest.mark.parametrize("consume", [False, True])
def test_replies_are_let_go_if_they_may_be(consume: bool) -> None:
    messages = replies(lambda seed: {"w": values("f4", (5,), seed)})
    records = [each.content["arrays"] for each in messages]
    wrapped = WrappedStrategy(FedProx(proximal_mu=0.1), num_selected=3)
    wrapped.aggregate_train(1, messages, consume=consume)
    assert [len(each.content["arrays"]) for each in messages] == [0 if consume else 1] * 3
    assert all(len(each.content["metrics"]) == 2 for each in messages)
    assert [len(record) for record in records] == [1] * 3, "a record may be somebody else's too"


def test_one_record_in_several_replies_is_averaged_as_often() -> None:
    messages = replies(lambda seed: {"w": values("f4", (5,))})
    for each in messages:
        each.content["arrays"] = messages[0].content["arrays"]
    expected = flowers(messages)
    found, _ = WrappedStrategy(FedAvg(), num_selected=3).aggregate_train(1, messages, consume=True)
    assert_same(found, expected)


def test_what_an_app_has_of_its_own_sees_the_arrays() -> None:
    seen: list[int] = []

    def own_metrics(records: list[RecordDict], key: str) -> MetricRecord:
        seen.extend(len(record["arrays"]) for record in records)
        return MetricRecord({"own": 1.0})

    class Own(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            replies = list(replies)
            seen.extend(len(each.content["arrays"]) for each in replies)
            return super().aggregate_train(server_round, replies)

    class Choosy(FedAvg):
        def _check_and_log_replies(self, replies: Any, is_train: bool, *args: Any) -> Any:
            valid, errors = super()._check_and_log_replies(replies, is_train, *args)
            return valid[:2], errors

    for strategy in (FedAvg(train_metrics_aggr_fn=own_metrics), Own()):
        seen.clear()
        messages = replies(lambda seed: {"w": values("f4", (5,), seed)})
        expected = flowers(messages)
        wrapped = WrappedStrategy(strategy, num_selected=3)
        found, _ = wrapped.aggregate_train(1, messages, consume=True)
        assert seen == [1, 1, 1]
        assert_same(found, expected)
    messages = replies(lambda seed: {"w": values("f4", (5,), seed)})
    found, _ = WrappedStrategy(Choosy(), num_selected=3).aggregate_train(1, messages, consume=True)
    assert_same(found, flowers(messages[:2]))


def test_the_mean_takes_the_room_of_the_replies() -> None:
    size, keys = 400_000, [str(number) for number in range(10)]

    def records() -> list[dict[str, Values]]:
        return [{key: values("f4", (size,), seed) for key in keys} for seed in range(3)]

    tracemalloc.start()
    try:
        found = records()
        one, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        mean = weighted_mean(found, [0.5, 0.25, 0.25])
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not any(found)
    assert decode_array(mean["3"]).shape == (size,)
    assert peak < one * 1.2, "three arrays make room for one"
    assert now < one * 0.4
