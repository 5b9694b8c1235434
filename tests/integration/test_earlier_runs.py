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


def near(value: Any) -> Any:
    """Return what equals a value of a record, a float to six digits."""
    if isinstance(value, list):
        return [near(each) for each in value]
    return pytest.approx(value, rel=1e-6) if isinstance(value, float) else value


@pytest.mark.usefixtures("mnist")
def test_a_simulation_goes_on_as_the_version_that_began_it(runs: Path) -> None:
    before = rows(runs / "simulation" / "rounds.jsonl")
    assert len(before) == 25
    assert main(["--resume", "simulation"]) == 0
    found = rows(runs / "simulation" / "rounds.jsonl")
    assert found[:25] == before
    # Another kind of processor than the one that wrote it rounds the last digits otherwise.
    for line, expected in zip(found[25:], rows(runs / "continued.jsonl"), strict=True):
        parts = expected["scores"]["rows"]
        parts[parts.index("mean")] = "time"  # what a part that is no mean was called
        assert {key: line.get(key) for key in expected} == {  # and columns of later versions
            key: near(value) for key, value in expected.items()
        }
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
