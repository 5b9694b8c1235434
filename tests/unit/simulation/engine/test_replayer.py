"""Replays of a recorded run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_scheduling.errors import ConfigError
from flower_scheduling.simulation.cli import main
from flower_scheduling.simulation.engine.replayer import RECORDED, caveats, replay, reproduced
from flower_scheduling.simulation.environments.recorded import (
    RecordedEnvironment,
    RunRecord,
    read_record,
)
from flower_scheduling.strategies import RoundContext, RoundOutcome, build_policy


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


@pytest.mark.usefixtures("mnist")
def test_buffered_steps_are_replayed_as_rounds_with_as_many_updates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "buffered"
    arguments = "--scenario ideal --mode buffered --strategy cs-ucb-q-adaptive --rounds 300"
    settings = ["--fairness", "equal:0.1", "--eval-every", "300", "--target-accuracy", "0"]
    assert main([*arguments.split(), *settings, "--run-dir", str(path)]) == 0
    record = read_record(path)
    assert record.buffered
    assert record.num_steps == 300
    assert record.num_rounds == 300 * 3 // 5, "half of N, rounded up, in each step"
    assert record.floors == pytest.approx([0.1] * 20), "of rounds, as they were asked for"
    summary = json.loads((path / "summary.json").read_text())
    assert record.time_s == pytest.approx(summary["time_s"])
    assert sum(arm["share"] for arm in summary["arms"]) == pytest.approx(1.0)
    assert [arm["floor"] for arm in summary["arms"]] == pytest.approx([0.02] * 20)
    found = replay(record, ["cs-ucb-q-adaptive"], num_seeds=20)
    assert [each.policy for each in found] == ["cs-ucb-q-adaptive"], "its own rule is no round's"
    assert found[0].time_s.mean > record.time_s, "waiting costs"
    assert caveats(record, found)[0].startswith("The run was in buffered mode")
    capsys.readouterr()
    assert main(["replay", str(path), "--seeds", "2"]) == 0
    title = " ".join(capsys.readouterr().out.partition("┏")[0].split())
    assert title.startswith(
        "300 buffered steps, 5 of 20 clients at work, recorded with cs-ucb-q-ad"
    )
    assert title.endswith("; replayed: rounds with as many updates")


@pytest.mark.parametrize("late_updates", ["drop", "use"])
@pytest.mark.usefixtures("mnist")
def test_a_run_with_spare_clients_is_replayed_without_them_and_that_is_said(
    late_updates: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "spare"
    arguments = "--scenario ideal --strategy random --rounds 100 --num-clients 8 --num-selected 3"
    settings = ["--num-spare", "2", "--late-updates", late_updates, "--late", "busy"]
    rest = ["--eval-every", "100", "--target-accuracy", "0", "--run-dir", str(path)]
    assert main([*arguments.split(), *settings, *rest]) == 0
    record = read_record(path)
    assert (record.num_asked, record.has_spares) == (5, True)
    found = replay(record, [], num_seeds=20)
    assert reproduced(record, found) is None, "rounds that wait for all are longer"
    told = " ".join(caveats(record, found))
    assert "spare clients: 5 were asked, and a round ended when 3 had answered" in told
    assert "took another time" not in told
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    late = sum(len(line.get("late", ())) for line in lines)
    used = sum(len(line.get("late_updates", ())) for line in lines)
    assert record.num_untimed == late - used
    missing = f"{late} times, and whether they failed, is not in the record"
    assert (missing in told) == (late_updates == "drop")
    if late_updates == "use":
        assert found[0].time_s.mean > 1.2 * record.time_s, "waiting costs"
    capsys.readouterr()
    assert main(["replay", str(path), "--seeds", "2"]) == 0
    title = " ".join(capsys.readouterr().out.partition("┏")[0].split())
    assert title.startswith(
        "100 rounds, 3 of 5 that were asked, of 8 clients, recorded with random:"
    )
    assert title.endswith("; replayed: 3 of 8 clients")


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


@pytest.mark.parametrize("once", [False, True])
def test_a_short_record_is_played_at_about_what_it_took(once: bool) -> None:
    """With a deadline far above all times, what may yet fail must not be all of the result."""
    policy = build_policy(
        "cs-ucb-q-adaptive",
        num_arms=4,
        num_selected=2,
        tau_max_s=6.0,
        rng=np.random.default_rng(3),
    )
    rng = np.random.default_rng(2)
    samples: list[list[float]] = [[] for _ in range(4)]
    available = np.ones((12, 4), dtype=np.bool_)
    took_s = 0.0
    for number, there in enumerate(available, start=1):
        there[3] = not (once and samples[3])
        selection = policy.ask(RoundContext(number, there, there))
        times_s = np.array([0.01, 0.012, 0.02, 0.03]) * rng.gamma(9, 1 / 9, 4)
        policy.tell(selection, RoundOutcome(times_s, np.ones(4, dtype=np.bool_)))
        for arm in np.flatnonzero(selection.mask).tolist():
            samples[arm].append(float(times_s[arm]))
        took_s += float(times_s[selection.mask].max())
    record = RunRecord(
        names=("a", "b", "c", "d"),
        policy="cs-ucb-q-adaptive",
        num_selected=2,
        num_rounds=12,
        tau_max_s=6.0,
        samples_s=tuple(map(np.array, samples)),
        available=available,
        member=available,
        floors=(),
        params={},
        time_s=took_s,
        measured_s=took_s,
    )
    found = replay(record, [])
    assert found[0].time_s.mean == pytest.approx(took_s, rel=0.5)
    told = caveats(record, found)
    assert any("None of 24 requests failed" in line for line in told)
    assert any("Fewer than 10 requests were recorded of" in line for line in told)


def test_parameters_of_policies_are_set_and_the_runs_own_is_there_once(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def replayed(*arguments: str) -> list[dict[str, Any]]:
        assert main(["replay", str(run_dir), "--seeds", "4", "--json", *arguments]) == 0
        return json.loads(capsys.readouterr().out)["replayed"]  # type: ignore[no-any-return]

    assert [each["policy"] for each in replayed()] == [RECORDED, "cs-ucb-q", "cs-ucb-q-adaptive"]
    assert [each["policy"] for each in replayed("--strategy", "random")] == [RECORDED]
    (_, usual) = replayed("--strategy", "sw-ucb")
    (_, other) = replayed("--strategy", "sw-ucb", "--strategy-option", "window=5")
    assert other["policy"] == "sw-ucb window=5"
    assert other["time_s"] != usual["time_s"]
    wrong = (
        ("--strategy-option window=5", "wants the --strategy"),
        ("--strategy sw-ucb --strategy-option widow=5", "did you mean window?"),
        ("--strategy sw-ubc", "did you mean sw-ucb?"),
    )
    for arguments, text in wrong:
        assert main(["replay", str(run_dir), *arguments.split()]) == 2
        assert text in capsys.readouterr().err
    assert main(["replay", "--help"]) == 0
    help_text = " ".join(capsys.readouterr().out.split())
    names = help_text.replace("- ", "-").split()  # a line may end within one
    assert {"cs-ucb-adaptive,", "cs-ucb-q-adaptive,"} <= set(names)
    assert "local-accuracy" not in help_text.partition("--strategy-option")[0]


def test_the_policy_of_the_record_keeps_its_parameters(run_dir: Path) -> None:
    record = replace(read_record(run_dir), policy="sw-ucb", option="window=5")
    again, same, usual = (
        *replay(record, ["sw-ucb"], num_seeds=4),
        *replay(replace(record, option=""), [], num_seeds=4),
    )
    assert again.times_s.tolist() == same.times_s.tolist()
    assert again.times_s.tolist() != usual.times_s.tolist()
    strange = replace(record, option="window=<object>")  # of another app
    assert [each.policy for each in replay(strange, ["random"], num_seeds=4)] == ["random"]
