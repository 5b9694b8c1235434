"""Lines of rounds.jsonl: what is written is read back, also without a column of later versions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from factories import round_record

from flower_scheduling.server.runs import round_lines
from flower_scheduling.server.runs.round_lines import line_of, parse_round, read_line
from flower_scheduling.strategies.flower import RoundRecord


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


def test_a_column_that_an_earlier_version_did_not_write_has_its_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(round_lines, "_OPTIONAL", (*round_lines._OPTIONAL, "link_s"))
    line = line_of(record(link_s=[0.25, None]))
    del line["link_s"]
    assert parse_round(encoded(line), 1, ["a", "b", "c"]) == record(link_s=[None, None])


@pytest.mark.parametrize("column", ["rtt_s", "completed", "reason", "compute_s", "link_s"])
def test_columns_are_as_long_as_the_super_arm(column: str) -> None:
    line = line_of(record())
    line[column] = line[column][:1]
    with pytest.raises(ValueError, match="not equally long"):
        read_line(encoded(line), 1)
