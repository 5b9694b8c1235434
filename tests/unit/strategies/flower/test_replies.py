"""Replies: what would spoil a model is refused, in one short line; and the vote on names."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata

from flower_scheduling.client.wire.protocol import COMPUTE_S, LINK_S, METRICS, TIMING
from flower_scheduling.columns import number
from flower_scheduling.errors import ConfigError, InvalidReplyError
from flower_scheduling.reasons import (
    BAD_WEIGHT,
    NOT_FINITE,
    TOO_LARGE,
    WRONG_ARRAYS,
    WRONG_RECORDS,
)
from flower_scheduling.strategies.flower import replies
from flower_scheduling.strategies.flower.replies import ArraySpec, ReplyChecker, reported
from flower_scheduling.strategies.flower.schema_vote import SchemaVote

SPECS = {"w": ArraySpec((2,), np.dtype(np.float32))}


def update(values: Any = (1.0, 2.0), dtype: str = "f4", key: str = "w", **metrics: Any) -> Message:
    arrays = ArrayRecord({key: Array(np.array(values, dtype=dtype))})
    content = RecordDict(
        {"arrays": arrays, "metrics": MetricRecord({"num-examples": 1, **metrics})}
    )
    return make_message(Metadata(1, "m", 1, 7, "r", "", 0.0, 60.0, "train"), content)


def refusal(message: Message, model: ArrayRecord | None = None, **settings: Any) -> str:
    with pytest.raises(InvalidReplyError) as caught:
        ReplyChecker("num-examples", **settings).read(message, SPECS, model)
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "dtype", "reason"),
    [
        ((math.nan, 0), "f4", f"{NOT_FINITE}: array 'w'"),
        ((0, -math.inf), "f4", f"{NOT_FINITE}: array 'w'"),
        ((0, 1e300), "f8", f"{TOO_LARGE}: array 'w' has a value of 1e+300, at most 1e+15"),
        ((0, -3e38), "f4", f"{TOO_LARGE}: array 'w' has a value of 3e+38, at most 1e+15"),
        ((0, math.inf), "g", f"{NOT_FINITE}: array 'w'"),
        ((0, 0, 0), "f4", f"{WRONG_ARRAYS}: 'w' has shape (3,), not (2,)"),
        ((0, 0), "c8", f"{WRONG_ARRAYS}: 'w' has dtype complex64, not float32"),
        ((0, 0), "m8[s]", f"{WRONG_ARRAYS}: 'w' has dtype timedelta64[s], not float32"),
        (("", ""), "U1", f"{WRONG_ARRAYS}: 'w' has dtype <U1, not float32"),
    ],
)
def test_values_that_spoil_a_model_are_refused(values: Any, dtype: str, reason: str) -> None:
    assert refusal(update(values, dtype)) == reason


def test_value_that_fits_the_reply_but_not_the_model_is_refused() -> None:
    specs = {"w": ArraySpec((2,), np.dtype(np.float16))}
    with pytest.raises(
        InvalidReplyError, match=r"too large: .* value of 7e\+04, at most 6.55e\+04"
    ):
        ReplyChecker("num-examples").read(update((0, 7e4)), specs)


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (1e18, "metric 'num-examples' is 1e+18, at most 1e+15 is believed"),
        (1e300, "metric 'num-examples' is 1e+300, at most 1e+15 is believed"),
        (2**62, f"metric 'num-examples' is {2**62}, at most 1e+15 is believed"),
        (-1, "metric 'num-examples' is -1, not a number of at least 0"),
        ([1] * 5000, "metric 'num-examples' is a list of 5000, not a number of at least 0"),
    ],
)
def test_absurd_number_of_examples_is_refused(weight: Any, reason: str) -> None:
    assert refusal(update(**{"num-examples": weight})) == f"{BAD_WEIGHT}: {reason}"


@pytest.mark.parametrize("weight", [math.nan, math.inf, -math.inf, 10**400])
def test_number_of_examples_that_is_none_is_refused(weight: float) -> None:
    assert refusal(update(**{"num-examples": weight})).startswith(NOT_FINITE)


def test_bound_on_the_number_of_examples_can_be_set() -> None:
    checker = ReplyChecker("num-examples", max_num_examples=50)
    assert checker.read(update(**{"num-examples": 50}), SPECS).num_examples == 50.0
    assert refusal(update(**{"num-examples": 51}), max_num_examples=50).startswith(BAD_WEIGHT)


def test_update_beyond_the_norm_is_refused() -> None:
    model = ArrayRecord({"w": Array(np.array([100.0, 100.0], "f4"))})
    checker = ReplyChecker("num-examples", max_update_norm=5.0)
    assert checker.read(update((103.0, 104.0)), SPECS, model)
    reason = refusal(update((103.0, 104.1)), model, max_update_norm=5.0)
    assert reason == f"{TOO_LARGE}: the update's norm is 5.08, at most 5"
    assert refusal(update((3.0, 4.1)), max_update_norm=5.0).startswith(TOO_LARGE)
    assert ReplyChecker("num-examples").read(update((1e6, 1e6)), SPECS, model), "off by default"


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_examples": 0},
        {"max_num_examples": math.nan},
        {"max_update_norm": 0.0},
        {"max_update_norm": -1.0},
        {"max_update_norm": math.nan},
        {"max_update_norm": 1.0, "fixed_shapes": False},
    ],
)
def test_limits_that_are_none_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        ReplyChecker("num-examples", **settings)


def test_odd_and_many_names_are_told_in_one_short_line() -> None:
    odd = update(key="x\n\x1b[2J" + "y" * 1000)
    assert refusal(odd).startswith(f"{WRONG_ARRAYS}: keys ['x\\n\\x1b[2J")
    many = ArrayRecord({str(i): Array(np.zeros(1, "f4")) for i in range(5000)})
    metrics = MetricRecord({"num-examples": 1})
    message = make_message(
        Metadata(1, "m", 1, 7, "r", "", 0.0, 60.0, "train"),
        RecordDict({"arrays": many, "metrics": metrics}),
    )
    assert refusal(message) == f"{WRONG_ARRAYS}: keys 5000 of them instead of ['w']"
    crowded = update(**{str(i): 1.0 for i in range(1000)})
    assert refusal(crowded) == f"{WRONG_RECORDS}: 1001 metrics, 1000 at most"


def test_metric_lists_of_other_lengths_are_other_names() -> None:
    checker = ReplyChecker("num-examples")
    honest = [checker.read(update(losses=[1.0, 2.0]), SPECS) for _ in range(3)]
    odd = [
        checker.read(update(losses=[1.0]), SPECS),
        checker.read(update(losses=1.0), SPECS),
        checker.read(update(**{"2:losses": 1.0}), SPECS),
    ]
    signatures = {arm: update.signature for arm, update in enumerate([*odd, *honest])}
    assert SchemaVote().agree(signatures) == {3, 4, 5}


def test_one_client_cannot_make_its_names_those_of_all() -> None:
    plain = ("arrays", "metrics", frozenset({":num-examples"}))
    odd = ("arrays", "metrics", frozenset({":num-examples", ":zzz"}))
    vote = SchemaVote()
    for _ in range(1000):
        assert vote.agree({0: odd}) == {0}, "alone it is right"
    assert vote.agree({0: odd, 1: plain}) == {0}, "one against one: the first"
    assert vote.agree({0: odd, 2: plain}) == {2}, "two against one, though one of them is away"
    assert vote.agree({0: odd, 1: plain}) == {1}
    pairs = [[int(arm), names] for names, arms in vote.state().items() for arm in arms.split()]
    for state in (vote.state(), pairs):  # of this version, and of 0.1
        again = SchemaVote()
        again.load_state(json.loads(json.dumps(state)))
        assert again.agree({0: odd, 1: plain}) == {1}
    assert vote.agree({}) == set()


# --- what clients report of their work ------------------------------------------------------------


def reply_with(record: str, values: dict[str, Any]) -> Message:
    content = RecordDict({record: ConfigRecord(values)})
    return make_message(Metadata(1, "m", 2, 3, "r", "g", 0.0, 60.0, "train"), content)


def test_columns_that_a_client_reports_are_read() -> None:
    reply = reply_with(TIMING, {COMPUTE_S: 0.5, LINK_S: 2, "of-another-version": 1})
    assert reported(reply, MetricRecord()) == {"compute_s": 0.5, "link_s": 2}
    assert reported(reply_with(TIMING, {LINK_S: 2}), MetricRecord()) == {"link_s": 2}
    assert reported(reply_with("other", {COMPUTE_S: 0.5}), MetricRecord()) == {}


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, True, "0.5", [0.5], 10**30])
def test_a_reported_value_that_cannot_be_one_is_none(value: Any) -> None:
    assert reported(reply_with(TIMING, {COMPUTE_S: value, LINK_S: 1.0}), MetricRecord()) == {
        "link_s": 1.0
    }


def test_a_column_may_be_a_metric_of_any_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "_REPORTED", {METRICS: [("energy_j", "energy-j", number)]})
    reply = reply_with(TIMING, {})
    assert reported(reply, MetricRecord({"energy-j": 3.5, "loss": 1.0})) == {"energy_j": 3.5}
