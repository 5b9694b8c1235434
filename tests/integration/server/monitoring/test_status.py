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
from factories import round_record
from flwr.proto.node_pb2 import NodeInfo
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from waiting import until

from flower_scheduling.errors import ConfigError
from flower_scheduling.server.callbacks import RunEnd
from flower_scheduling.server.monitoring.alarms import Alarm, AlarmLog
from flower_scheduling.server.monitoring.live_file import FILE, LiveFile
from flower_scheduling.server.monitoring.prometheus import metrics_server
from flower_scheduling.server.monitoring.status import ServerStatus, status_table
from flower_scheduling.server.runs.totals import RunTotals
from flower_scheduling.strategies.flower import Arm


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

    def now(self) -> float:
        return 7.0


def started(status: ServerStatus, totals: RunTotals | None = None, **more: Any) -> Any:
    """Start a status with a run; return the run."""
    arms = [Arm(i, f"key{i}", 100 + i, name, 10) for i, name in enumerate("abc")]
    strategy = SimpleNamespace(
        arms=SimpleNamespace(arms=arms, left_out=lambda now_s: []),
        floors=[0.5, 0.25, 0.0],
        queues=[0.0, 1.5, 2.0],
    )
    run: Any = SimpleNamespace(
        **{"tau_max_s": 5.0, **more},
        strategy=strategy,
        totals=totals or RunTotals(),
        num_rounds=10,
    )
    status.on_start(run)
    return run


def play(totals: RunTotals, number: int, **changes: Any) -> None:
    values: dict[str, Any] = {
        "time_s": 2.0 * number,
        "round_s": 2.0,
        "available": [0, 1],
        "rtt_s": [0.5 * number, None],
        "reason": [None, "client error: code 2, ValueError: no"],
    }
    totals.count(round_record(number, **{**values, **changes}))


@pytest.fixture
def status() -> ServerStatus:
    alarms = AlarmLog()
    alarms.active = (Alarm("always-fails", 1, "b has failed 5 times in a row: client error"),)
    status = ServerStatus(num_rounds=10, alarm_log=alarms)
    totals = started(status).totals
    play(totals, 1, accuracy=0.75, loss=0.9)
    play(totals, 2)
    play(totals, 3, rtt_s=[None, None], reason=["timeout", "timeout"], stepped=False)
    return status


@pytest.mark.parametrize("name", ["[/foo]", "[link=http://evil.example]ok[/link]", "[b]a[/b]"])
def test_names_are_shown_as_they_are(status: ServerStatus, name: str) -> None:
    told = status.snapshot(Grid())  # type: ignore[arg-type]
    told["arms"][0]["name"] = name
    assert name in _shown(told)


def test_before_the_first_round_nothing_is_known() -> None:
    told = ServerStatus().snapshot(Grid())  # type: ignore[arg-type]
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


def test_rounds_are_counted_by_arm(status: ServerStatus) -> None:
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


def test_a_client_that_is_left_out_after_failures_is_neither_free_nor_away() -> None:
    status = ServerStatus(num_rounds=10)
    run = started(status)
    run.strategy.arms.left_out = lambda now_s: [0] if now_s == 7.0 else []
    told = status.snapshot(Grid())  # type: ignore[arg-type]
    assert (told["connected"], told["available"], told["left_out"]) == (3, 0, 1)
    assert [arm["left_out"] for arm in told["arms"]] == [True, False, False, False]
    assert "left out" in _shown(told)
    assert status.connections(Grid())["left_out"] == [0]  # type: ignore[arg-type]


def test_the_deadline_is_the_given_one_or_the_last_that_was_found(status: ServerStatus) -> None:
    assert status.snapshot(Grid())["deadline_s"] == 5.0  # type: ignore[arg-type]
    totals = RunTotals()
    started(status, totals, tau_max_s="auto")
    assert status.snapshot(Grid())["deadline_s"] is None  # type: ignore[arg-type]
    play(totals, 1, deadline_s=2.5)
    assert status.snapshot(Grid())["deadline_s"] == 2.5  # type: ignore[arg-type]


def test_a_resumed_run_is_counted_as_a_whole() -> None:
    totals = RunTotals()
    play(totals, 1, accuracy=0.75, loss=0.9)
    play(totals, 2)
    status = ServerStatus()
    started(status, totals)
    told = status.snapshot(Grid())  # type: ignore[arg-type]
    assert (told["round"], told["steps"], told["time_s"], told["accuracy"]) == (2, 2, 4.0, 0.75)
    play(totals, 3)
    play(totals, 4, selected=[1], names=["b"], rtt_s=[0.5], reason=[None])
    told = status.snapshot(Grid())  # type: ignore[arg-type]
    assert (told["round"], told["steps"]) == (4, 4)
    a, b, c = told["arms"][:3]
    assert [arm["share"] for arm in (a, b, c)] == [0.75, 1.0, 0.0]
    assert [arm["selections"] for arm in (a, b, c)] == [3, 4, 0]
    assert (a["mean_rtt_s"], b["failures"]) == (1.0, {"client error": 3})


def test_people_see_who_is_away_first(status: ServerStatus) -> None:
    text = _shown(status.snapshot(Grid()))  # type: ignore[arg-type]
    assert "round 3 of 10, accuracy 0.75, loss 0.9" in text
    begin = next(i for i, line in enumerate(text.splitlines()) if "───" in line)
    rows = [line.split()[0] for line in text.splitlines()[begin + 1 :] if line.strip()][:4]
    assert rows == ["c", "a", "b", "newcomer"]


def test_prometheus_reads_it_all(status: ServerStatus) -> None:
    grid: Any = Grid()
    with metrics_server("127.0.0.1:0", lambda: status.snapshot(grid)) as server:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            text = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/elsewhere")
        with pytest.raises(ConfigError, match="the port is in use"):
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


def test_connections_are_listed_and_since_when_the_others_are_gone(status: ServerStatus) -> None:
    grid: Any = Grid()
    first, second = status.connections(grid), status.connections(grid)
    assert first["connected"] == [0, 1]
    assert (first["busy"], first["opted_out"], first["newcomers"]) == ([1], [], ["newcomer"])
    assert list(first["last_seen"]) == ["2"]
    assert first == second, "nothing has changed"
    grid.get_nodes = lambda: [NodeInfo(node_id=102, name="c")]
    assert list(status.connections(grid)["last_seen"]) == ["0", "1"]


def test_live_file_is_there_while_the_server_lives(
    status: ServerStatus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid: Any = Grid()
    file = tmp_path / FILE
    monkeypatch.setattr("flower_scheduling.server.monitoring.live_file._INTERVAL_S", 0.01)
    live = LiveFile(lambda: status.connections(grid))
    begin = time.time()
    live.on_start(started(status, directory=SimpleNamespace(path=tmp_path)))
    until(file.exists)
    written = json.loads(file.read_text())
    assert begin <= written["time"] <= time.time()
    assert written["connected"] == [0, 1]
    live.on_end(RunEnd.FINISHED, {})
    assert list(tmp_path.iterdir()) == []
    live.on_start(started(status, directory=None))
    live.on_end(RunEnd.FINISHED, {})


def test_no_name_is_cut_in_a_narrow_window(status: ServerStatus) -> None:
    told = status.snapshot(Grid())  # type: ignore[arg-type]
    names = ["client-7", "warehouse-north-4711", "x" * 64]
    for arm, name in zip(told["arms"], names, strict=False):
        arm |= {"name": name, "failures": {"wrong records": 3, "client error": 12}}
    text = _shown(told, width=80)
    assert names[0] in text
    assert names[1] in text
    assert text.count("x") == 64, "it goes on below"
    assert "…" not in text
    assert "0.750" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_title_has_what_the_server_measures(status: ServerStatus) -> None:
    told = status.snapshot(Grid())  # type: ignore[arg-type]
    told |= {"accuracy": None, "loss": 2.5, "server_metrics": {"perplexity[red]": 12.25}}
    assert ", loss 2.5, perplexity[red] 12.25" in _shown(told)


def _shown(told: dict[str, Any], width: int = 160) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(status_table(told))
    return console.export_text()
