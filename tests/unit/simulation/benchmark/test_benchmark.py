"""The league and replays: scenarios are read or refused, results are those of the study."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from flower_scheduling.simulation.benchmark import cli as benchmark_cli
from flower_scheduling.simulation.benchmark.scenario import Scenario, suite
from flower_scheduling.simulation.benchmark.tasks import REFERENCE, eligible_policies, jobs_of
from flower_scheduling.simulation.cli import main
from flower_scheduling.simulation.jobs import Arrays, Job
from flower_scheduling.strategies import POLICIES


def one_error(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") or line.startswith("Usage")
    return line


# --- scenarios ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", suite())
def test_every_scenario_of_the_suite_runs(name: str) -> None:
    scenario = Scenario.load(name)
    env = scenario.environment()(batch_shape=(2,), seed=1)
    draw = env.round(1)
    assert draw.round_trip_time_s.shape == (2, scenario.num_clients)
    assert np.isfinite(env.expected_time_s(scenario.tau_max_s, scenario.rounds)).all()
    assert scenario.summary
    assert eligible_policies(scenario)


def test_shares_and_lists_are_spread_over_the_clients(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'summary = "x"\nnum-clients = 4\nnum-selected = 2\n[world]\nfailing-share = 0.5\n'
        "failure-probability = 1.0\njoining-share = 0.25\njoins-at-round = 9\n"
        "distance-m = [100.0, 400.0]\nrate-step = 0.0\n"
    )
    scenario = Scenario.load(str(file))
    env = scenario.environment()(seed=0)
    assert env.round(1).failed.tolist() == [True, True, False, False]
    assert env.round(1).available.tolist() == [False, True, True, True]
    assert env.round(9).available.all()
    assert env.distance_m.tolist() == [100.0, 100.0, 400.0, 400.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "summary"),
        ('summary = "x"\nnum-client = 3', "did you mean num-clients?"),
        ('summary = "x"\nnum-clients = 0', "num-clients = 0"),
        ('summary = "x"\nseeds = 1', "seeds = 1"),
        ('summary = "x"\nnum-selected = 21', "must be at most num-clients = 20"),
        ('summary = "x"\n[world]\navailability = 0.0', "must be above 0 for some client"),
        ('summary = "x"\n[world]\ncompute-shape = 2.0', "without a compute-law"),
        ('summary = "x"\nfloors = 0.9', "feasible"),
        ('summary = "x"\nfloors = "all"', "a number, or one per client"),
        ('summary = "x"\n[world]\ndrfit = 1', "did you mean drift?"),
        ('summary = "x"\n[world]\ndistance-m = [1.0, 2.0, 3.0]', "as divide 20"),
        ('summary = "x"\n[world]\nfailing-share = 2.0', "failing-share"),
        ("summary = ", "readable TOML"),
        ('summary = "x"\nworld = 3', "a table"),
        ('summary = "x"\n[world]\nbase-rate = -1.0', "world"),
        ('summary = "x"\nfloors = 0.1\n[world]\ndrift = 0.5', "in a world with drift"),
    ],
)
def test_a_wrong_scenario_is_one_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text(text)
    assert main(["league", "--scenario", str(tmp_path / "mine.toml")]) == 2
    assert message in one_error(capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scenario", "papper"], "did you mean paper?"),
        (["--scenario", "paper", "--strategy", "oracle"], "strategy = 'oracle': must be one of"),
        (["--scenario", "paper", "--policy", "oracle"], "strategy = 'oracle': must be one of"),
        (["--scenario", "paper", "--strategy", "cs-ucbq"], "(did you mean cs-ucb-q?)"),
    ],
)
def test_unknown_names_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["league", *arguments]) == 2
    assert message in one_error(capsys)


@pytest.mark.parametrize("command", ["league", "benchmark"])
def test_a_policy_without_floors_is_refused_where_there_are_some_before_anything_is_computed(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["--scenario", "floors-10", "--strategy", "cs-ucb", "--out", str(out)]
    assert main([command, *arguments]) == 2
    line = one_error(capsys)
    assert "cs-ucb" in line
    assert "scenario floors-10" in line
    assert f"must be one of {', '.join(eligible_policies(Scenario.load('floors-10')))}" in line
    assert not out.exists()


def test_of_the_whole_suite_a_policy_without_floors_skips_the_scenarios_that_have_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def note(
        jobs: Sequence[Job], out: Path, num_processes: int, cluster: object
    ) -> dict[str, Arrays]:
        asked.extend(job.name for job in jobs)
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmark_cli, "run_shown", note)
    assert main(["league", "--strategy", "cs-ucb", "--out", str(tmp_path / "out")]) == 130
    free = [name for name in suite() if not name.startswith("floors")]
    assert asked == [f"{name}-{policy}" for name in free for policy in (REFERENCE, "cs-ucb")]


GREEDY = """
import numpy as np
from flower_scheduling.strategies import SchedulingPolicy, top_arms

class Greedy(SchedulingPolicy):
    def _select(self, context):
        index = np.where(self.play_count > 0, self.mean_reward, np.inf)
        return top_arms((index,), context.available, self.num_selected, self._rng)
"""


def test_a_policy_of_ones_own_takes_part_and_is_computed_anew_when_its_code_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('summary = "x"\nnum-clients = 6\nrounds = 50\n')
    name = "greedy.py:Greedy"
    (tmp_path / "greedy.py").write_text(GREEDY)
    arguments = ["league", "--scenario", "mine.toml", "--seeds", "2", "--strategy", name]
    assert main([*arguments, "--out", "out"]) == 0
    found = list(csv.DictReader((tmp_path / "out" / "league.csv").read_text().splitlines()))
    assert [row["policy"] for row in found] == [name]
    jobs = jobs_of(Scenario.load("mine.toml").changed(seeds=2), [name])
    folder = Path("out/jobs")
    assert {job.path(folder) for job in jobs} == set(folder.iterdir())
    (tmp_path / "greedy.py").write_text(GREEDY + "# changed\n")
    changed = jobs_of(Scenario.load("mine.toml").changed(seeds=2), [name])
    assert [job.path(folder).exists() for job in changed] == [True, False], "not the reference"
    capsys.readouterr()
    assert main([*arguments, "--strategy", "greedy.py:Gredy", "--out", "out"]) == 2
    assert "greedy.py has no Gredy" in one_error(capsys)


def test_policies_that_a_scenario_can_have() -> None:
    plain = eligible_policies(Scenario.load("paper"))
    assert "local-accuracy" not in plain
    assert "oracle" not in plain
    with_floors = eligible_policies(Scenario.load("floors-equal"))
    assert {"random", "cs-ucb-q", "cs-ucb-q-adaptive"} <= set(with_floors)
    takes = {
        name
        for name, spec in POLICIES.items()
        if "min_participation" in spec.parameters() and not spec.needs
    }
    assert set(with_floors) == takes | {"random"}


# --- the league -----------------------------------------------------------------------------------


def play_league(
    out: Path, *scenarios: str, processes: int = 1
) -> dict[tuple[str, str], dict[str, str]]:
    arguments = ["league", "--seeds", "3", "--out", str(out), "--processes", str(processes)]
    for name in scenarios:
        arguments += ["--scenario", name]
    for name in ("random", "cs-ucb-q-adaptive"):
        arguments += ["--strategy", name]
    assert main(arguments) == 0
    rows = list(csv.DictReader((out / "league.csv").read_text().splitlines()))
    found = {(row["scenario"], row["policy"]): row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.slow
def test_the_league_leaves_its_numbers_and_keeps_what_was_computed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name, floors in (("plain", ""), ("owing", "floors = 0.1")):
        (tmp_path / f"{name}.toml").write_text(f'summary = "{name}"\nrounds = 300\n{floors}\n')
    scenarios = [str(tmp_path / f"{name}.toml") for name in ("plain", "owing")]
    found = play_league(out, *scenarios)
    chance, ours = "random", "cs-ucb-q-adaptive"
    assert found.keys() == {(name, each) for name in ("plain", "owing") for each in (chance, ours)}
    for name in ("plain", "owing"):
        assert float(found[name, chance]["ratio"]) > float(found[name, ours]["ratio"])
    assert found["plain", chance]["floors_met"] == ""
    assert json.loads((out / "league.json").read_text())[0]["seeds"] == 3
    assert (out / "forest.png").stat().st_size > 10_000
    files = {f: f.stat().st_mtime_ns for f in (out / "jobs").iterdir()}
    assert len(files) == 6
    assert play_league(out, *scenarios) == found
    assert {f: f.stat().st_mtime_ns for f in (out / "jobs").iterdir()} == files


@pytest.mark.slow
def test_what_the_league_says_of_chance_and_of_our_policy(tmp_path: Path) -> None:
    found = play_league(tmp_path / "out", "paper", "floors-equal", processes=2)
    ratio = {key: float(row["ratio"]) for key, row in found.items()}
    assert ratio["paper", "random"] > 1.8
    assert 0.9 < ratio["paper", "cs-ucb-q-adaptive"] < 1.15
    assert 0.9 < ratio["floors-equal", "cs-ucb-q-adaptive"] < 1.1 < ratio["floors-equal", "random"]
    assert float(found["floors-equal", "cs-ucb-q-adaptive"]["floors_met"]) == 1.0
    assert found["paper", "random"]["floors_met"] == ""


def test_all_policies_of_a_scenario_see_the_same_draws() -> None:
    scenario = Scenario.load("identical").changed(rounds=200, seeds=4)
    reference, alone = (job.compute() for job in jobs_of(scenario, ["random"]))
    # Alike in law, the reference picks the same arms in all rounds of one mean, ties at random.
    assert reference["time_s"] == pytest.approx(alone["time_s"], rel=0.05)
    assert jobs_of(scenario, [])[0].name == f"identical-{REFERENCE}"


# --- replays --------------------------------------------------------------------------------------
