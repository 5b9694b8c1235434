"""Sketches of what clients send: which arrays are compared, and what has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from flower_scheduling._flwr import take_identity
from flower_scheduling.strategies.flower.replies import Update
from flower_scheduling.strategies.flower.updates.sketches import sketch_of
from flower_scheduling.strategies.update_sketch import sketch_of_change

MODEL = {
    "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "steps": np.array([7]),
    "bias": np.zeros(2, dtype=np.float32),
}
TRAINED = {"weight": MODEL["weight"] + 1, "steps": np.array([9]), "bias": np.ones(2)}


def record(arrays: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord({key: Array(np.asarray(value)) for key, value in arrays.items()})


def update(*records: dict[str, Any]) -> Update:
    content = RecordDict({f"arrays{n}": record(arrays) for n, arrays in enumerate(records)})
    take_identity(1)
    message = Message(content, dst_node_id=1, message_type="train")
    return Update(message, MetricRecord(), 1.0, ("", "", frozenset()))


def test_floats_are_compared_in_the_order_of_the_model() -> None:
    expected = sketch_of_change([(np.ones(8), np.zeros(8))])
    assert expected is not None
    reverse = dict(reversed(TRAINED.items()))
    fortran = {**TRAINED, "weight": np.asfortranarray(TRAINED["weight"])}
    halves = {"weight": TRAINED["weight"], "more": np.ones(3)}, {"bias": TRAINED["bias"]}
    for sent in ([TRAINED], [reverse], [fortran], halves):
        found = sketch_of(update(*sent), record(MODEL))
        assert found is not None
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "sent",
    [
        [],
        [{}],
        [{"weight": TRAINED["weight"]}],
        [{**TRAINED, "bias": np.ones(3, np.float32)}],
        [{**TRAINED, "bias": np.ones((2, 1), np.float32)}],
        [{**TRAINED, "bias": np.array(["a", "b"])}],
        [{**TRAINED, "bias": np.ones(2, np.complex64)}],
        [{**TRAINED, "bias": np.array([1.0, np.nan])}],
        [{**TRAINED, "weight": np.full((2, 3), np.inf)}],
        [TRAINED, TRAINED],
    ],
)
def test_what_cannot_be_compared_has_no_sketch(sent: list[dict[str, Any]]) -> None:
    assert sketch_of(update(*sent), record(MODEL)) is None


def test_a_model_without_floats_has_none() -> None:
    trees = {"trees": np.arange(5, dtype=np.uint8)}
    assert sketch_of(update(trees), record(trees)) is None
