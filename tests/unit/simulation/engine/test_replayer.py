"""Replays of a recorded run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flower_scheduling.errors import ConfigError
from flower_scheduling.simulation.cli import main
from flower_scheduling.simulation.engine.replayer import RECORDED, replay
from flower_scheduling.simulation.environments.recorded import RecordedEnvironment, read_record


def one_error(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") or line.startswith("Usage")
    return line


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory, mnist: object) -> Path:
    path = tmp_path_factory.mktemp("replay") / "run"
    arguments = "--scenario ideal --strategy random --rounds 400 --eval-every 400"
    assert main([*arguments.split(), "--target-accuracy", "0", "--run-dir", str(path)]) == 0
    return path


def test_the_policy_of_the_record_comes_out_at_what_was_recorded(run_dir: Path) -> None:
    record = read_record(run_dir)
    assert record.time_s == pytest.approx(
        json.loads((run_dir / "summary.json").read_text())["time_s"], rel=1e-9
    )
    again, fast = replay(record, ["cs-ucb-adaptive"], num_seeds=40)
    assert again.policy == RECORDED
    assert again.time_s.low < record.time_s < again.time_s.high
    assert fast.time_s.high < again.time_s.low
    assert fast.little_known == 0.0


def test_what_the_record_does_not_say_is_told(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = read_record(run_dir)
    few = [np.array([0.001])] * 5 + [np.array([])] * 5
    samples = [*few, *record.samples_s[len(few) :]]
    poor = replace(record, samples_s=tuple(samples))
    (_, fast) = replay(poor, ["cs-ucb-adaptive"], num_seeds=20)
    assert fast.little_known > 0.1
    fleet = RecordedEnvironment(poor, (2,), np.random.SeedSequence(0))
    assert np.isfinite(fleet.expected_time_s(5.0)).all()
    assert np.isfinite(fleet.round(1).compute_s).all()
    assert main(["replay", str(run_dir), "--strategy", "cs-ucb-adaptive", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["recorded_s"] == record.time_s
    assert [each["policy"] for each in told["replayed"]] == [RECORDED, "cs-ucb-adaptive"]


def test_replays_that_cannot_be_are_refused(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="learns from times alone"):
        replay(read_record(run_dir), ["local-accuracy"])
    assert main(["replay", str(tmp_path)]) == 2
    assert "must be a run directory" in one_error(capsys)
