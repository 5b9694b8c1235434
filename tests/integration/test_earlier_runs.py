"""Run directories of version 0.1.0 are resumed, watched, reported and replayed.

tests/data/run-0.1.0 was written by it: ``simulation``, stopped after 25 of 40 rounds, ``fleet``, a
server and three clients on loopback, and in ``continued.jsonl`` the rounds from 26 on of the same
simulation undisturbed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

from flower_scheduling.server.cli.main import main as server_main
from flower_scheduling.server.page.run_view import RunView
from flower_scheduling.simulation.cli import main

DATA = ROOT / "tests" / "data" / "run-0.1.0"
RUNS = ("simulation", "fleet")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of the runs, in the current folder as when they were written."""
    shutil.copytree(DATA, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(file: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "wall"} for line in lines]


@pytest.mark.usefixtures("mnist")
def test_a_simulation_goes_on_where_it_was_stopped(runs: Path) -> None:
    before = rows(runs / "simulation" / "rounds.jsonl")
    assert len(before) == 25
    assert main(["--resume", "simulation"]) == 0
    found = rows(runs / "simulation" / "rounds.jsonl")
    assert found[:25] == before
    # Times are estimated otherwise than in 0.1.0, and other clients may be selected; who is there,
    # and how long a client takes, are the world's.
    world = {"round", "num_arms", "num_available", "available", "absent"}
    for line, expected in zip(found[25:], rows(runs / "continued.jsonl"), strict=True):
        assert expected.keys() <= line.keys()
        assert {key: line[key] for key in world} == {key: expected[key] for key in world}
        times_s = dict(zip(expected["selected"], expected["rtt_s"], strict=True))
        own_s = dict(zip(line["selected"], line["rtt_s"], strict=True))
        for arm in times_s.keys() & own_s.keys():
            expected_s = times_s[arm]  # none of a failure
            assert own_s[arm] == (expected_s and pytest.approx(expected_s, rel=1e-6))
    assert json.loads((runs / "simulation" / "summary.json").read_text())["rounds"] == 40


@pytest.mark.usefixtures("mnist")
def test_a_fleet_is_resumed_from_its_checkpoint(runs: Path) -> None:
    before = (runs / "fleet" / "rounds.jsonl").read_bytes()
    summary = json.loads((runs / "fleet" / "summary.json").read_text())
    # All of its rounds were run: it ends without waiting for clients.
    assert server_main(["--resume", "fleet", "--address", "127.0.0.1:0"]) == 0
    assert (runs / "fleet" / "rounds.jsonl").read_bytes() == before
    after = json.loads((runs / "fleet" / "summary.json").read_text())
    assert {key: after[key] for key in summary} == summary
    assert (runs / "fleet" / "model.safetensors").exists()
    assert "goes on after round 12" in (runs / "fleet" / "log.txt").read_text()


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_watched(name: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    view = RunView(runs / name)
    assert view.refresh()
    lines = rows(runs / name / "rounds.jsonl")
    assert view.num_rounds == len(lines)
    state = json.dumps(view.state(), allow_nan=False)
    for arm in json.loads((runs / name / "arms.json").read_text()):
        assert arm["name"] in state
    last = view.round(len(lines))
    assert last is not None
    assert json.dumps(last, allow_nan=False)
    assert main(["watch", name, "--save", f"{name}.html"]) == 0
    assert (runs / f"{name}.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_reported_and_replayed(
    name: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", name, "--seeds", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    lines = rows(runs / name / "rounds.jsonl")
    assert found["rounds"] == len(lines)
    page = (runs / name / "report.html").read_text()
    started = {"simulation": "--num-clients 4", "fleet": "flower-server --strategy cs-ucb-q"}
    assert started[name] in page
    assert main(["replay", name, "--seeds", "4", "--strategy", "random", "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out)
    assert replayed["recorded_s"] == pytest.approx(found["recorded_s"])
    assert [each["policy"] for each in replayed["replayed"]] == ["recorded", "random"]
