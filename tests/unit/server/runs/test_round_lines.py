"""Lines of rounds.jsonl: what is written is read back, also without a column of later versions."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from factories import round_record
from flwr.app import MetricRecord

from flower_scheduling.columns import Column, When, or_none, seconds
from flower_scheduling.server.runs import round_lines
from flower_scheduling.server.runs.round_lines import line_of, parse_round, read_line
from flower_scheduling.strategies.flower import ArmResult, RoundRecord
from flower_scheduling.strategies.flower.record import finite_metrics


def record(**changes: Any) -> RoundRecord:
    values: dict[str, Any] = {
        "round": 1, "time_s": 2.0, "round_s": 1.5, "num_arms": 3, "available": [0, 1, 2],
        "selected": [0, 2], "names": ["a", "c"], "rtt_s": [1.0, None],
        "reason": [None, "timeout"], "compute_s": [0.5, None], "link_s": [None, None],
        "stepped": True,
    }  # fmt: skip
    return round_record(**{**values, **changes})


def encoded(line: dict[str, Any]) -> bytes:
    return json.dumps(line).encode()


def test_a_record_comes_back_as_it_was() -> None:
    assert parse_round(encoded(line_of(record())), 1, ["a", "b", "c"]) == record()


def test_a_diverged_loss_is_written_where_there_is_one() -> None:
    line = line_of(record(diverged=True))
    assert line["diverged"] is True
    assert parse_round(encoded(line), 1, ["a", "b", "c"]) == record(diverged=True)
    assert "diverged" not in line_of(record())


def test_bytes_are_written_where_they_are_known() -> None:
    sizes = {"sent_bytes": 2000, "received_bytes": 500}
    line = line_of(record(**sizes))
    assert sizes.items() <= line.items()
    assert parse_round(encoded(line), 1, ["a", "b", "c"]) == record(**sizes)
    assert not sizes.keys() & line_of(record()).keys()
    with pytest.raises(ValueError, match="'sent_bytes' is missing or wrong"):
        read_line(encoded({**line, "sent_bytes": -1}), 1)


def test_a_deadline_is_written_where_it_was_found() -> None:
    line = line_of(record(deadline_s=2.5))
    assert line["deadline_s"] == 2.5
    assert parse_round(encoded(line), 1, ["a", "b", "c"]) == record(deadline_s=2.5)
    assert "deadline_s" not in line_of(record())
    with pytest.raises(ValueError, match="'deadline_s' is missing or wrong"):
        read_line(encoded({**line, "deadline_s": "long"}), 1)


def test_late_arms_are_written_where_there_are_any() -> None:
    line = line_of(record(late=[1]))
    assert line["late"] == [1]
    assert parse_round(encoded(line), 1, ["a", "b", "c"]) == record(late=[1])
    assert "late" not in line_of(record())
    for wrong, text in (([3], "beyond its 3"), ("b", "'late' is missing or wrong")):
        with pytest.raises(ValueError, match=text):
            read_line(encoded({**line, "late": wrong}), 1)


def test_late_updates_are_written_where_there_are_any() -> None:
    late = [
        ArmResult(1, "b", 7.5, None, 2.0, 1.0, staleness=2),
        ArmResult(1, "b", None, "timeout", staleness=0),
    ]
    line = line_of(record(late_updates=late))
    good = line["late_updates"][0]
    shown = {"arm": 1, "rtt_s": 7.5, "reason": None, "compute_s": 2.0, "staleness": 2}
    assert shown.items() <= good.items()
    found = parse_round(encoded(line), 1, ["a", "b", "c"])
    assert found == record(late_updates=late)
    assert (found.used_late, found.served) == ([1], [0, 2, 1])
    assert "late_updates" not in line_of(record())
    earlier = {key: value for key, value in good.items() if key != "link_s"}  # a later column
    found = parse_round(encoded({**line, "late_updates": [earlier]}), 1, ["a", "b", "c"])
    assert (found.late_updates[0].rtt_s, found.late_updates[0].link_s) == (7.5, None)
    for wrong in ("b", [1], [{**good, "rtt_s": None}], [{**good, "staleness": -1}], [{"arm": 1}]):
        with pytest.raises(ValueError, match="'late_updates' is missing or wrong"):
            read_line(encoded({**line, "late_updates": wrong}), 1)
    with pytest.raises(ValueError, match="beyond its 3"):
        read_line(encoded({**line, "late_updates": [{**good, "arm": 3}]}), 1)
    with pytest.raises(ValueError, match="an arm without a name"):
        parse_round(encoded({**line, "late_updates": [{**good, "arm": 2}]}), 1, ["a", "b"])


def test_a_column_that_an_earlier_version_did_not_write_has_its_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(round_lines, "_OPTIONAL", (*round_lines._OPTIONAL, "link_s"))
    line = line_of(record(link_s=[0.25, None]))
    del line["link_s"]
    assert parse_round(encoded(line), 1, ["a", "b", "c"]) == record(link_s=[None, None])


def test_a_list_that_is_written_if_any_client_has_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = Column(or_none(seconds), When.IF_ANY)
    monkeypatch.setitem(round_lines._ARM_COLUMNS, "link_s", sparse)
    assert line_of(record(link_s=[0.0, None]))["link_s"] == [0.0, None]
    assert "link_s" not in line_of(record(link_s=[None, None]))


@pytest.mark.parametrize("column", ["rtt_s", "completed", "reason", "compute_s", "link_s"])
def test_columns_are_as_long_as_the_super_arm(column: str) -> None:
    line = line_of(record())
    line[column] = line[column][:1]
    with pytest.raises(ValueError, match="not equally long"):
        read_line(encoded(line), 1)


@pytest.mark.parametrize("key", ["client_metrics", "server_metrics"])
def test_metrics_come_back_and_are_optional(key: str) -> None:
    with_metrics = record(**{key: {"eval-acc": 0.5, "steps": 7.0}})
    assert parse_round(encoded(line_of(with_metrics)), 1, ["a", "b", "c"]) == with_metrics
    assert key not in line_of(record()), "nor are they in the lines of earlier versions"


@pytest.mark.parametrize("key", ["client_metrics", "server_metrics"])
@pytest.mark.parametrize("value", [None, [], {"a": "x"}, {"a": None}, {"a": True}, {"x" * 81: 1.0}])
def test_damaged_metrics_are_refused(key: str, value: Any) -> None:
    line = {**line_of(record()), key: value}
    with pytest.raises(ValueError, match=f"'{key}' is missing or wrong"):
        read_line(encoded(line), 1)


def test_metrics_are_recorded_where_they_are_finite_numbers_with_short_names() -> None:
    odd = {"a": 0.5, "nan": math.nan, "list": [1.0, 2.0], "y\n" + "x" * 100: 3}
    assert finite_metrics(MetricRecord(odd)) == {"a": 0.5, "y " + "x" * 78: 3.0}
    many = finite_metrics(MetricRecord({f"m{number}": 1.0 for number in range(100)}))
    assert many is not None
    assert len(many) == 64
    assert finite_metrics(MetricRecord({"nan": math.nan})) is None
    assert finite_metrics(None) is None


def test_steps_are_written_where_they_were_asked_for() -> None:
    results = [ArmResult(0, "a", 1.0, steps_asked=20, steps_done=7)]
    results.append(ArmResult(2, "c", None, "timeout", steps_asked=5))
    late = ArmResult(1, "b", 3.0, staleness=2, steps_asked=4, steps_done=4)
    asked = RoundRecord(1, 2.0, 1.5, 3, [0, 1, 2], results, True, late_updates=[late])
    line = line_of(asked)
    assert (line["steps_asked"], line["steps_done"]) == ([20, 5], [7, None])
    assert parse_round(encoded(line), 1, ["a", "b", "c"]) == asked
    plain = line_of(record(late_updates=[ArmResult(1, "b", 3.0, staleness=2)]))
    assert not {"steps_asked", "steps_done"} & {*plain, *plain["late_updates"][0]}
    with pytest.raises(ValueError, match="'steps_done' is missing or wrong"):
        read_line(encoded({**line, "steps_done": [-1, None]}), 1)
