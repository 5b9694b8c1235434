"""The league of somebody's app: policies by seeds, each run in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from app_folders import NUMPY_SERVER, PLAIN_SERVER, write_app

from flower_scheduling.simulation.cli import main

FLAGS = "--num-clients 4 --target-accuracy 0.8 --seeds 2 --processes 2"


def league(app: Path, out: Path, more: str) -> int:
    return main(["league", "--app", str(app), "--out", str(out), *FLAGS.split(), *more.split()])


def test_seconds_to_an_accuracy_are_counted_over_seeds_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A module that counts its runs: each must find itself new.
    server = NUMPY_SERVER.replace("app = ServerApp()", "app = ServerApp()\nruns = []").replace(
        '    print("the server prints")', "    runs.append(1)\n    assert len(runs) == 1"
    )
    app, out = write_app(tmp_path, server), tmp_path / "out"
    assert league(app, out, "--strategy random --strategy cs-ucb") == 0
    shown = capsys.readouterr().out
    assert "Seconds to an accuracy" in shown
    assert "slowest" not in shown
    first = json.loads((out / "app.json").read_text())
    assert [(row["policy"], row["runs"], row["reached"]) for row in first] == [
        ("random", 2, 2),
        ("cs-ucb", 2, 2),
    ]
    assert all(0 < row["seconds"] < 100 for row in first)

    kept = {file: file.stat().st_mtime_ns for file in (out / "jobs").iterdir()}
    assert league(app, out, "--strategy random --strategy cs-ucb") == 0
    assert json.loads((out / "app.json").read_text()) == first
    assert {file: file.stat().st_mtime_ns for file in (out / "jobs").iterdir()} == kept
    module = next(app.glob("*/client_app.py"))
    module.write_text(module.read_text() + "\n")
    assert league(app, out, "--strategy random") == 0
    assert len(list((out / "jobs").iterdir())) == len(kept) + 2, "another app"


def test_a_single_run_takes_the_seconds_that_the_league_counts(tmp_path: Path) -> None:
    app, out = write_app(tmp_path), tmp_path / "out"
    assert league(app, out, "--strategy random --first-seed 5") == 0
    spent = []
    for seed in (5, 6):
        run = tmp_path / f"run-{seed}"
        flags = f"--num-clients 4 --target-accuracy 0.8 --strategy random --seed {seed}"
        assert main(["--app", str(app), *flags.split(), "--run-dir", str(run)]) == 0
        spent.append(json.loads((run / "summary.json").read_text())["target_time_s"])
    (row,) = json.loads((out / "app.json").read_text())
    assert row["seconds"] == pytest.approx(sum(spent) / 2, abs=1e-3)


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ("--scenario paper", "--scenario is not for --app"),
        ("--training", "--training is not for --app"),
        ("--target-accuracy 0", "target-accuracy = 0.0: must be given"),
        ("--num-selected 0", "num-selected = 0"),
        ("--strategy rendom", "did you mean random"),
    ],
)
def test_what_does_not_fit_is_one_line_before_any_work(
    more: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert league(write_app(tmp_path), out, more) == 2
    assert line in capsys.readouterr().err
    assert not out.exists()


def test_flags_of_apps_need_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["league", "--num-clients", "4"]) == 2
    assert "--num-clients is for --app FOLDER" in capsys.readouterr().err


def test_an_app_that_is_not_wrapped_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = write_app(tmp_path, PLAIN_SERVER)
    assert league(app, tmp_path / "out", "--strategy random") in (1, 2)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ")
    assert "ScheduledStrategy" in line
