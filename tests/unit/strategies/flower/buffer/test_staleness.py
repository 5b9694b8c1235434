"""Stale updates are moved to today's model, in any dtype, and what cannot be stays as it came."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord, RecordDict

from flower_scheduling._flwr import take_identity
from flower_scheduling.client.wire.protocol import NUM_EXAMPLES
from flower_scheduling.strategies.flower.buffer.staleness import rebased

AnyArray = np.ndarray[Any, Any]


def record(**arrays: AnyArray) -> ArrayRecord:
    return ArrayRecord({key: Array(value) for key, value in arrays.items()})


def reply(arrays: ArrayRecord, **metrics: Any) -> Message:
    take_identity(1)
    asked = Message(RecordDict(), 7, MessageType.TRAIN)
    found = MetricRecord({NUM_EXAMPLES: 10, **metrics})
    return Message(RecordDict({"arrays": arrays, "metrics": found}), reply_to=asked)


def moved(values: AnyArray, sent: AnyArray, now: AnyArray, scale: float = 1.0) -> AnyArray:
    message = reply(record(w=values))
    found = rebased(message, record(w=sent), record(w=now), scale=scale)
    assert (message.content["arrays"]["w"].numpy() == values).all(), "left unchanged"
    return found.content["arrays"]["w"].numpy()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.complex64])
def test_difference_is_added_to_the_model_of_today(dtype: Any) -> None:
    found = moved(*(np.array(v, dtype=dtype) for v in ([3, 5, 7], [1, 4, 9], [10, 20, 30])))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.array([12, 21, 28], dtype=dtype))


def test_scale_takes_a_part_of_the_difference() -> None:
    values, sent, now = (np.array(v, dtype=np.float32) for v in ([3, 5], [1, 9], [10, 10]))
    np.testing.assert_array_equal(moved(values, sent, now, 0.25), np.float32([10.5, 9]))


def test_counters_count_on_and_truth_values_stay() -> None:
    counters = [np.array(v, dtype=np.int64) for v in (7, 5, 11)]
    assert moved(*counters) == 13
    assert moved(*counters).shape == (), "without dimensions"
    assert moved(*counters, 0.6) == 12, "1.2 more, rounded"
    flags = [np.array([v]) for v in (True, False, False)]
    assert moved(*flags).tolist() == [True]


def test_masks_stay_masks() -> None:
    mask = np.array([-np.inf, 1.0], dtype=np.float32)
    now = np.array([-np.inf, 3.0], dtype=np.float32)
    np.testing.assert_array_equal(moved(mask, mask, now), now)


def test_large_arrays_in_any_order_of_axes() -> None:
    rng = np.random.default_rng(0)
    values, sent, now = (rng.integers(-99, 99, (300, 400)).astype(np.float32) for _ in range(3))
    expected = values - sent + now
    np.testing.assert_array_equal(moved(values, sent, now), expected)
    np.testing.assert_array_equal(moved(np.asfortranarray(values), sent, now), expected)


def test_arrays_that_the_model_lacks_come_as_they_are() -> None:
    own = record(w=np.ones(2), adapter=np.ones(3), other=np.ones(4))
    model = record(w=np.zeros(2), other=np.zeros(5))
    found = rebased(reply(own), model.copy(), model).content["arrays"]
    assert [found[key].numpy().tolist() for key in ("adapter", "other")] == [[1] * 3, [1] * 4]


def test_weight_is_scaled_under_its_key_alone() -> None:
    model = record(w=np.zeros(2))
    message = reply(record(w=np.ones(2)), loss=4.0)
    found = rebased(message, model, model, weight=0.5, weighted_by_key=NUM_EXAMPLES)
    assert dict(found.content["metrics"]) == {NUM_EXAMPLES: 5.0, "loss": 4.0}
    assert message.content["metrics"][NUM_EXAMPLES] == 10
    assert found.content["arrays"] is message.content["arrays"], "nothing to move"
    without = rebased(message, model, model, weight=0.5, weighted_by_key="tokens")
    assert dict(without.content["metrics"]) == dict(message.content["metrics"])


def test_updates_of_other_numbers_of_steps_are_scaled_but_for_running_statistics() -> None:
    values = {"w": [3.0], "bn.running_mean": [3.0], "bn.running_var": [3.0]}
    sent = record(**{key: np.float32([1.0]) for key in values}, n=np.array(7))
    message = reply(record(**{k: np.float32(v) for k, v in values.items()}, n=np.array(9)))
    found = rebased(message, sent, sent, per_step=4.0).content["arrays"]
    shown = {key: array.numpy().tolist() for key, array in found.items()}
    assert shown == {"w": [9.0], "bn.running_mean": [3.0], "bn.running_var": [3.0], "n": 9}
