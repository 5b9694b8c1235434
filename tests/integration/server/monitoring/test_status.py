"""What a running server tells: counted right, for scripts, for people and for Prometheus."""

from __future__ import annotations

import io
import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factories import round_record, small_model
from flwr.proto.node_pb2 import NodeInfo
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from waiting import until

from flower_scheduling.errors import ConfigError
from flower_scheduling.server.monitoring.alarms import Alarm, AlarmLog
from flower_scheduling.server.monitoring.presence import FILE, PresenceWriter
from flower_scheduling.server.monitoring.prometheus import metrics_server
from flower_scheduling.server.monitoring.status import RunStatus, status_table
from flower_scheduling.server.runs.totals import RunHistory
from flower_scheduling.strategies.flower import Arm, RoundHook

MODEL = small_model()


class Grid:
    """Three clients are connected: a is free, b busy, the newcomer opted out; c is away."""

    num_refused, num_late_replies, num_ignored_replies = 4, 1, 0

    def get_nodes(self) -> list[NodeInfo]:
        names = {100: "a", 101: "b", 103: "newcomer"}
        return [NodeInfo(node_id=node, name=name) for node, name in names.items()]

    def busy(self) -> set[int]:
        return {101}

    def opted_out(self) -> set[int]:
        return {103}


def strategy(hooks: list[RoundHook]) -> Any:
    arms = [Arm(i, f"key{i}", 100 + i, name, 10) for i, name in enumerate("abc")]
    return SimpleNamespace(
        arms=SimpleNamespace(arms=arms),
        floors=[0.5, 0.25, 0.0],
        queues=[0.0, 1.5, 2.0],
        add_hook=hooks.append,
    )


def play(hooks: list[RoundHook], number: int, **changes: Any) -> None:
    values: dict[str, Any] = {
        "time_s": 2.0 * number,
        "round_s": 2.0,
        "available": [0, 1],
        "rtt_s": [0.5 * number, None],
        "reason": [None, "client error: code 2, ValueError: no"],
    }
    record = round_record(number, **{**values, **changes})
    for hook in hooks:
        hook(record, MODEL)


@pytest.fixture
def status() -> RunStatus:
    alarms = AlarmLog()
    alarms.active = (Alarm("always-fails", 1, "b has failed 5 times in a row: client error"),)
    status = RunStatus(num_rounds=10, alarm_log=alarms)
    hooks: list[RoundHook] = []
    status.watch(strategy(hooks), RunHistory(MODEL))
    play(hooks, 1, accuracy=0.75, loss=0.9)
    play(hooks, 2)
    play(hooks, 3, rtt_s=[None, None], reason=["timeout", "timeout"], stepped=False)
    return status


@pytest.mark.parametrize("name", ["[/foo]", "[link=http://evil.example]ok[/link]", "[b]a[/b]"])
def test_names_are_shown_as_they_are(status: RunStatus, name: str) -> None:
    told = status.snapshot(Grid())  # type: ignore[arg-type]
    told["arms"][0]["name"] = name
    assert name in _shown(told)


def test_before_the_first_round_nothing_is_known() -> None:
    told = RunStatus().snapshot(Grid())  # type: ignore[arg-type]
    assert (told["round"], told["rounds"], told["accuracy"], told["connected"]) == (
        0,
        None,
        None,
        3,
    )
    assert [arm["name"] for arm in told["arms"]] == ["a", "b", "newcomer"]
    assert all(arm["index"] is None for arm in told["arms"])
    json.dumps(told, allow_nan=False)
    assert _shown(told).count("free") == 1


def test_rounds_are_counted_by_arm(status: RunStatus) -> None:
    told = status.snapshot(Grid())  # type: ignore[arg-type]
    json.dumps(told, allow_nan=False)
    assert told["round"] == 3
    assert told["steps"] == 2
    assert (told["connected"], told["available"], told["busy"], told["opted_out"]) == (3, 1, 1, 1)
    assert (told["refused"], told["late_replies"]) == (4, 1)
    assert (told["accuracy"], told["loss"]) == (0.75, 0.9)
    a, b, c, newcomer = told["arms"]
    assert (a["selections"], a["completed"], a["share"], a["floor"]) == (3, 2, 1.0, 0.5)
    assert (a["mean_rtt_s"], a["last_rtt_s"]) == (0.75, 1.0)
    assert a["failures"] == {"timeout": 1}
    assert (b["completed"], b["mean_rtt_s"], b["queue"]) == (0, None, 1.5)
    assert b["failures"] == {"client error": 2, "timeout": 1}
    assert (b["connected"], b["busy"], b["opted_out"]) == (True, True, False)
    assert (c["connected"], c["selections"], c["share"]) == (False, 0, 0.0)
    assert newcomer["name"] == "newcomer"
    assert newcomer["opted_out"]


def test_a_resumed_run_is_counted_as_a_whole() -> None:
    history = RunHistory(MODEL)
    play([history.record], 1, accuracy=0.75, loss=0.9)
    play([history.record], 2)
    status = RunStatus()
    hooks: list[RoundHook] = [history.record]
    status.watch(strategy(hooks), history)
    told = status.snapshot(Grid())  # type: ignore[arg-type]
    assert (told["round"], told["steps"], told["time_s"], told["accuracy"]) == (2, 2, 4.0, 0.75)
    play(hooks, 3)
    play(hooks, 4, selected=[1], names=["b"], rtt_s=[0.5], reason=[None])
    told = status.snapshot(Grid())  # type: ignore[arg-type]
    assert (told["round"], told["steps"]) == (4, 4)
    a, b, c = told["arms"][:3]
    assert [arm["share"] for arm in (a, b, c)] == [0.75, 1.0, 0.0]
    assert [arm["selections"] for arm in (a, b, c)] == [3, 4, 0]
    assert (a["mean_rtt_s"], b["failures"]) == (1.0, {"client error": 3})
    assert history.tallies.rounds == 4, "which nothing else counts into"


def test_people_see_who_is_away_first(status: RunStatus) -> None:
    text = _shown(status.snapshot(Grid()))  # type: ignore[arg-type]
    assert "round 3 of 10, accuracy 0.7500" in text
    rows = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
    assert rows == ["c", "a", "b", "newcomer"]


def test_prometheus_reads_it_all(status: RunStatus) -> None:
    grid: Any = Grid()
    with metrics_server("127.0.0.1:0", lambda: status.snapshot(grid)) as server:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            text = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/elsewhere")
        with pytest.raises(ConfigError, match="not in use"):
            metrics_server(f"127.0.0.1:{server.port}", dict).__enter__()
    found = {
        (sample.name.removeprefix("flower_scheduling_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["clients", "connected"] == 3
    assert found["round",] == 3
    assert found["accuracy",] == 0.75
    assert found["refused_connections_total",] == 4
    assert found["client_selections_total", "a"] == 3
    assert found["client_round_trip_seconds_sum", "a"] == 1.5
    assert found["client_round_trip_seconds_count", "a"] == 2
    assert found["client_failures_total", "b", "client error"] == 2
    assert found["client_virtual_queue", "b"] == 1.5
    assert found["client_connected", "c"] == 0
    assert found["alarms", "always-fails"] == 1
    assert found["alarms", "floor-missed"] == 0


def test_presence_has_who_is_there_and_since_when_the_others_are_not(status: RunStatus) -> None:
    grid: Any = Grid()
    first, second = status.presence(grid), status.presence(grid)
    assert first["connected"] == [0, 1]
    assert (first["busy"], first["opted_out"], first["newcomers"]) == ([1], [], ["newcomer"])
    assert list(first["last_seen"]) == ["2"]
    assert first == second, "nothing has changed"
    grid.get_nodes = lambda: [NodeInfo(node_id=102, name="c")]
    assert list(status.presence(grid)["last_seen"]) == ["0", "1"]


def test_presence_is_written_while_the_server_lives(
    status: RunStatus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    grid: Any = Grid()
    file = run_dir / FILE
    looks: list[float] = []

    def presence() -> dict[str, Any]:
        looks.append(time.time())
        return status.presence(grid)

    begin = time.time()
    monkeypatch.setattr("flower_scheduling.server.monitoring.presence._INTERVAL_S", 0.01)
    with PresenceWriter(run_dir, presence):
        until(lambda: len(looks) > 1)  # the first look is over
        assert not run_dir.exists(), "the run makes its directory itself"
        run_dir.mkdir()
        until(file.exists)
        written = json.loads(file.read_text())
        assert begin <= written["time"] <= time.time()
        assert written["connected"] == [0, 1]
    assert list(run_dir.iterdir()) == []


def _shown(told: dict[str, Any]) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(status_table(told))
    return console.export_text()
