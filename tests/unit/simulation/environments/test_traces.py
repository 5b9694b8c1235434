"""Traces: read with one line for every fault, and played in their order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flower_scheduling.errors import ConfigError
from flower_scheduling.simulation.environments.paper import Environment
from flower_scheduling.simulation.environments.traces import (
    TracedEnvironment,
    Traces,
    read_traces,
)

FAULTS = {
    "": "must begin with the line client,seconds, not ''",
    "name,seconds\na,1\n": "must begin with the line client,seconds, not 'name,seconds'",
    "client,seconds,round\na,1,1\n": "must begin with the line client,seconds",
    "client,seconds\n": "has no round trips",
    "client,seconds\na,1\nb\n": "line 3 has 1 values",
    "client,seconds\na,1,2\n": "line 2 has 3 values",
    "client,seconds\n,1\n": "line 2 names no client",
    "client,seconds\na,fast\n": "line 2 has seconds = 'fast': must be above 0",
    "client,seconds\na,0\n": "line 2 has seconds = '0'",
    "client,seconds\na,-1\n": "line 2 has seconds = '-1'",
    "client,seconds\na,nan\n": "line 2 has seconds = 'nan'",
    "client,seconds\na,inf\n": "line 2 has seconds = 'inf'",
    "client,seconds\na,\nb,\n": "has no round trip that was answered",
    'client,seconds\n"a,1\n': "must be a run directory, or a CSV file of client,seconds",
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_bad_file_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_traces(tmp_path / "t.csv", "times")
    assert str(caught.value).startswith("times = ")
    assert FAULTS[text] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_file_and_no_text(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"client,seconds\n\xff,1\n")
    for name in ("t.csv", "nowhere.csv"):
        with pytest.raises(ConfigError, match="must be a run directory, or a CSV file"):
            read_traces(tmp_path / name, "times")


def test_columns_in_any_order_and_spaces(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\ufeffseconds, client\n1.5, b\n\n, a\n2,b\n3,a\n")
    traces = read_traces(tmp_path / "t.csv", "times")
    assert traces.names == ("b", "a")
    assert [times.tolist() for times in traces.times_s] == [[1.5, 2.0], [np.inf, 3.0]]


TRACES = Traces(("a", "b"), (np.array([1.0, 2.0, 3.0]), np.array([4.0, np.inf])))


def test_rounds_take_the_rows_in_order_and_begin_anew() -> None:
    environment = TracedEnvironment(TRACES, Environment(num_arms=2, seed=0))
    draws = [environment.round(t) for t in range(1, 7)]
    assert [draw.round_trip_time_s[0] for draw in draws] == [1, 2, 3, 1, 2, 3]
    assert [draw.round_trip_time_s[1] for draw in draws] == [4, np.inf] * 3
    assert [draw.failed.tolist() for draw in draws[:2]] == [[False, False], [False, True]]
    assert environment.regimes == [1]
    assert environment.expected_time_s(2.5).tolist() == [(1 + 2 + 2.5) / 3, 2.5]


def test_availability_and_drift_come_on_top() -> None:
    base = Environment(
        num_arms=2, seed=0, availability=[1.0, 0.0], failure_probability=[0.0, 1.0],
        slow_from_round=[2, 9], slow_factor=[10.0, 1.0],
    )  # fmt: skip
    environment = TracedEnvironment(TRACES, base)
    first, second = environment.round(1), environment.round(2)
    assert first.available.tolist() == [True, False]
    assert first.failed.tolist() == [False, True]
    assert (first.round_trip_time_s[0], second.round_trip_time_s[0]) == (1.0, 20.0)
    assert environment.regimes == [1, 2]
    assert environment.expected_time_s(100.0, 2).tolist() == [20.0, 100.0]
