"""The report of a run: its numbers are those of the rounds, whoever wrote the names in it."""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import round_record
from reports import Page, a_round, a_run, check_self_contained, steady

from flower_scheduling.errors import ConfigError
from flower_scheduling.server.page.saved import MARK as PAGE_MARK
from flower_scheduling.server.runs.round_lines import MAX_LISTED_ARMS
from flower_scheduling.server.settings.run import ServerConfig
from flower_scheduling.simulation.cli import main
from flower_scheduling.simulation.engine.replayer import (
    RECORDED,
    caveats,
    changed_arms,
    replay,
)
from flower_scheduling.simulation.environments.recorded import (
    RecordedEnvironment,
    RunRecord,
    open_run,
    read_record,
    record_of,
)
from flower_scheduling.simulation.report import savings as savings_module
from flower_scheduling.simulation.report.document import MARK
from flower_scheduling.simulation.report.run_group import read_compared
from flower_scheduling.simulation.report.run_statistics import (
    RunStatistics,
    gather_statistics,
    held_up,
)
from flower_scheduling.simulation.report.savings import SavingsEstimate, estimate_savings
from flower_scheduling.simulation.theory.estimate import Estimate
from flower_scheduling.simulation.wording import percent, plain, seconds
from flower_scheduling.strategies import POLICIES
from flower_scheduling.strategies.flower import RoundRecord

HOSTILE = "<script>alert(1)</script>"
MATHS = r"$\frac{"
REASON = '<img src=x onerror="alert(2)">: </svg><b>details</b>'
BIDI = "evil\u202ename"


# --- hand-made runs -------------------------------------------------------------------------------


def told(path: Path) -> tuple[RunRecord, RunStatistics]:
    run = open_run(path)
    record = record_of(run)
    return record, gather_statistics(run, record)


def reported(run_dir: Path, *arguments: str) -> Page:
    assert main(["report", str(run_dir), "--seeds", "4", *arguments]) == 0
    text = (run_dir / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    check_self_contained(text, page)
    return page


def one_error(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line


# --- a real run -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory, mnist: object) -> Path:
    path = tmp_path_factory.mktemp("report") / "run"
    arguments = "--rounds 120 --eval-every 20 --joins 3:60 --failure-probability 0.05"
    assert main([*arguments.split(), "--target-accuracy", "0", "--run-dir", str(path)]) == 0
    return path


def test_numbers_are_those_of_the_rounds(run_dir: Path) -> None:
    rounds = [json.loads(line) for line in (run_dir / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((run_dir / "summary.json").read_text())
    _, stats = told(run_dir)
    for key in summary.keys() - {"arms"}:
        assert stats.summary[key] == summary[key], key
    page = reported(run_dir)
    count = len(rounds)
    length_s = sum(line["round_s"] for line in rounds)
    assert f"{count}, {seconds(length_s / count)} each on average" in page.text
    failures = [reason for line in rounds for reason in line["reason"] if reason]
    requests = sum(len(line["selected"]) for line in rounds)
    assert f"{len(failures)} of {requests} requests" in page.text
    accuracy = max(line["accuracy"] or 0 for line in rounds)
    assert f"best {100 * accuracy:.2f} % in round" in page.text
    for arm, client in enumerate(stats.clients):
        places = [(line, line["selected"].index(arm)) for line in rounds if arm in line["selected"]]
        times = [line["rtt_s"][at] for line, at in places if line["completed"][at]]
        assert client.selections == len(places)
        assert client.failures.total() == len(places) - len(times)
        if times:
            assert client.median_s == pytest.approx(np.median(times))
            assert client.quantile_s(0.9) == pytest.approx(np.quantile(times, 0.9))
    late = next(client for client in stats.clients if client.joined == 60)
    assert late.turns == count - 59
    assert "joined after the first round: 1" in page.text
    assert len(page.figures) == 10
    broken = f"{len(failures)} of {requests} requests brought no update"
    assert broken in page.text, "failures have a figure of their own"
    assert stats.failed.sum() == sum(stats.failures.values()).sum() == len(failures)
    assert stats.requests.sum() == requests


def test_the_answer_comes_from_pairs(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = read_record(run_dir)
    again, at_random = replay(record, ["random"], num_seeds=30)
    found = estimate_savings(record, 30)
    assert (again.policy, found.policy, found.other) == (RECORDED, "cs-ucb-q", "random")
    assert found.paired
    differences = at_random.times_s - again.times_s
    assert found.saved_s.mean == pytest.approx(differences.mean())
    assert found.saved_s.low == pytest.approx(np.quantile(differences, 0.025))
    assert found.saved_share.mean == pytest.approx(differences.mean() / at_random.times_s.mean())
    assert found.saved_share.high == pytest.approx(
        np.quantile(differences / at_random.times_s, 0.975)
    )
    assert found.again_s == again.time_s
    assert found.other_s == at_random.time_s
    # Draws are shared, so pairs know more than two totals.
    assert np.ptp(differences) < np.ptp(at_random.times_s) + np.ptp(again.times_s)
    assert main(["report", str(run_dir), "--seeds", "30", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["saved_s"]["mean"] == found.saved_s.mean
    assert printed["recorded_s"] == record.time_s
    assert printed["sentence"] == found.sentence
    assert Path(printed["report"]) == run_dir / "report.html"


def test_the_command_of_the_run_is_told(run_dir: Path) -> None:
    text = reported(run_dir).text
    assert "python -m simulation --rounds 120 --target-accuracy 0.0" in text
    assert "--joins 3:60" in text
    assert f"python -m simulation report {run_dir} --seeds 4" in text


# --- the answer -----------------------------------------------------------------------------------


def test_a_clear_saving_is_said(tmp_path: Path) -> None:
    record = read_record(a_run(tmp_path / "run", steady(200), strategy="mine"))
    found = estimate_savings(record, 40)
    assert found.resolved
    assert found.saved_share.low > 0.2
    share = found.saved_share
    assert found.sentence == (
        f"Scheduling with mine took {seconds(record.time_s)}. Random selection on the "
        f"same latencies would have taken {seconds(found.other_s.mean)} for as many rounds "
        f"(95 %: {found.other_s.low:.0f} to {found.other_s.high:.0f}): "
        f"saved {percent(share.mean)} (95 %: {percent(share.low)} to {percent(share.high)})."
    )


def test_good_luck_is_told_beside_what_it_would_explain() -> None:
    found = SavingsEstimate(
        policy="cs-ucb",
        other="random",
        recorded_s=100.0,
        again_s=Estimate(120.0, 90.0, 150.0, 40),
        other_s=Estimate(240.0, 200.0, 280.0, 40),
        saved_s=Estimate(120.0, 60.0, 180.0, 40),
        saved_share=Estimate(0.5, 0.3, 0.7, 40),
        paired=True,
        num_rounds=10,
        of_rounds=10,
        caveats=(),
    )
    assert found.sentence == (
        "Scheduling with cs-ucb took 100 s, and 120 s on average when replayed. Random selection "
        "on the same latencies would have taken 240 s for as many rounds (95 %: 200 to 280): saved "
        "50 % (95 %: 30 % to 70 %)."
    )
    assert "when replayed" not in replace(found, recorded_s=119.0).sentence


def test_what_hangs_on_clients_hardly_tried_is_no_number() -> None:
    found = SavingsEstimate(
        policy="cs-ucb",
        other="random",
        recorded_s=100.0,
        again_s=None,
        other_s=Estimate(300.0, 120.0, 600.0, 40),
        saved_s=Estimate(200.0, 20.0, 500.0, 40),
        saved_share=Estimate(0.66, 0.15, 0.83, 40),
        paired=True,
        num_rounds=10,
        of_rounds=10,
        caveats=(),
        little_known=0.22,
    )
    assert found.sentence == (
        "Scheduling with cs-ucb took 100 s. What random selection would have taken for as many "
        "rounds cannot be told well: 22 % of what it selects are clients that this run hardly "
        "tried. It is somewhere between 120 s and 600 s: scheduling saved between 15 % and 83 %."
    )
    worse = Estimate(-50.0, -80.0, -10.0, 40)
    dearer = replace(found, saved_s=worse, saved_share=Estimate(-0.5, -0.8, -0.1, 40))
    assert dearer.sentence.endswith("scheduling cost between 10 % and 80 % more.")
    unresolved = replace(found, saved_s=Estimate(10.0, -10.0, 20.0, 40))
    unresolved = replace(unresolved, saved_share=Estimate(0.1, -0.1, 0.2, 40), policy="random")
    assert unresolved.sentence.endswith("would have saved time is open (−10 % to 20 %).")
    assert "cannot be told well" not in replace(found, little_known=0.05).sentence


def test_the_headline_of_a_run_says_that_it_hardly_tried_some(tmp_path: Path) -> None:
    rounds = [a_round(n, {0: 0.2, 1: 0.3}) for n in range(1, 100)]
    rounds += [a_round(100, {0: 0.2, 2: 1.5}), a_round(101, {1: 0.3, 3: None})]
    run = a_run(tmp_path / "run", rounds)
    page = reported(run)
    assert re.search(r"cannot be told well: \d+ % of what it selects", page.text)
    assert ("p", {"class": "answer open"}) in page.tags


def test_evaluations_on_clients_are_told_where_there_are_any(tmp_path: Path) -> None:
    rounds = steady(20)
    rounds[4] |= {"client_metrics": {HOSTILE: 0.25, "loss": 2.0}}
    rounds[9] |= {"client_metrics": {HOSTILE: 0.5, "loss": 1.5}}
    rounds[14] |= {"client_metrics": {HOSTILE: 0.75, "loss": 1.25}}
    page = reported(a_run(tmp_path / "run", rounds))
    assert "On clients" in page.text
    assert "0.75 (0.25), loss 1.25 (2) in round 15 (in round 5)" in page.text
    assert "On clients" not in reported(a_run(tmp_path / "without", steady(20))).text


def test_a_run_in_which_nobody_delivered_says_so(tmp_path: Path) -> None:
    rounds = [a_round(n, {0: None, 1: None}) for n in range(1, 31)]
    run = a_run(tmp_path / "run", rounds)
    found = estimate_savings(read_record(run), 4)
    assert not found.resolved
    assert found.sentence == (
        "No client delivered anything in time: 30 rounds with cs-ucb-adaptive took 150 s. Such "
        "a run does not say what scheduling saves."
    )
    assert "No client delivered" in reported(run).text


def test_no_difference_is_said_to_be_none(tmp_path: Path) -> None:
    rounds = [a_round(n, {n % 4: 1.0 + n % 3, (n + 1) % 4: 1.0 + n % 5}) for n in range(1, 100)]
    found = estimate_savings(
        read_record(a_run(tmp_path / "run", rounds, strategy="round-robin")), 40
    )
    assert not found.resolved
    assert "no difference that this run can tell" in found.sentence
    assert "includes zero" in found.sentence


def test_a_run_at_random_hears_of_the_default(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    means = np.array([0.2, 0.3, 1.0, 2.0])
    rounds = []
    for number in range(1, 201):
        pair = sorted(rng.choice(4, 2, replace=False).tolist())
        rounds.append(a_round(number, {a: float(means[a] * rng.gamma(9, 1 / 9)) for a in pair}))
    record = read_record(a_run(tmp_path / "run", rounds, strategy="random"))
    found = estimate_savings(record, 40)
    assert found.other == ServerConfig().strategy
    assert found.saved_share.low > 0.3
    assert found.sentence.startswith("Random selection took")
    assert f"Scheduling with {ServerConfig().strategy} on the same" in found.sentence
    assert "it would have saved" in found.sentence


def test_a_policy_that_costs_time_is_told_so(tmp_path: Path) -> None:
    # Every round has the slow client: worse than random, and no policy of ours to play again.
    rounds = [a_round(n, {3: 3.0, n % 3: 0.1}) for n in range(1, 100)]
    found = estimate_savings(read_record(a_run(tmp_path / "run", rounds, strategy="mine")), 40)
    assert not found.paired
    assert found.saved_s.high < 0
    assert re.search(r": cost \d+ % more \(95 %: \d+ % to \d+ %\)\.$", found.sentence)
    assert any("mine cannot be replayed" in line for line in found.caveats)


def test_a_record_that_its_policy_does_not_reproduce_stands_for_itself(tmp_path: Path) -> None:
    # Who is slow changes from round to round for all alike: no independent draws give that.
    rounds = [
        a_round(n, dict.fromkeys((0, 1), 4.0 if n % 2 else 0.1), num_arms=2) for n in range(1, 300)
    ]
    record = read_record(a_run(tmp_path / "run", rounds, names=("a", "b")))
    found = estimate_savings(record, 40)
    assert not found.paired
    assert found.saved_s.mean == pytest.approx(found.other_s.mean - record.time_s)
    assert any("another time than was recorded" in line for line in found.caveats)


@pytest.mark.parametrize(("round_s", "measured_s"), [(1.005, None), (1.5, 43.5)])
def test_the_servers_own_work_does_not_count_and_is_said_not_to(
    tmp_path: Path, round_s: float, measured_s: float | None
) -> None:
    error = {"completed": [True, False], "reason": [None, "client error: boom"]}
    rounds = [a_round(n, {0: 1.0, 1: 0.2}, **error, round_s=round_s) for n in range(1, 30)]
    record = read_record(a_run(tmp_path / "run", rounds))
    assert record.time_s == pytest.approx(29.0)
    assert record.measured_s == pytest.approx(29 * round_s)
    found = estimate_savings(record, 4)
    assert found.sentence.startswith("Scheduling with cs-ucb-adaptive took 29.0 s, and")
    said = [line for line in found.caveats if "measured, the rounds took" in line]
    assert [line.endswith("took 43.5 s.") for line in said] == [True] * (measured_s is not None)


def test_large_runs_are_replayed_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(savings_module, "_LEARNING", 400)
    monkeypatch.setattr(savings_module, "_SHORTENED", 400)
    found = estimate_savings(read_record(a_run(tmp_path / "learning", steady(200))))
    assert not found.paired
    assert found.num_rounds == 200
    assert any("takes long to replay" in line for line in found.caveats)
    found = estimate_savings(
        read_record(a_run(tmp_path / "random", steady(200), strategy="random"))
    )
    assert (found.num_rounds, found.of_rounds, found.paired) == (100, 200, True)
    assert "for the first 100 of 200 rounds" in found.sentence


def spare_rounds(count: int, **changes: Any) -> list[dict[str, Any]]:
    """Return rounds of two of three clients, and in every fourth one a failure."""
    rounds = []
    for number in range(1, count + 1):
        first, second, late = (number % 4, (number + 1) % 4, (number + 2) % 4)
        more = {"late": [late], **changes}
        if number % 4 == 0:
            more |= {"reason": [None, "client error: x"], "completed": [True, False]}
        rounds.append(a_round(number, {first: 1.0, second: 2.0}, **more))
    return rounds


def test_of_a_run_with_spare_clients_it_is_said_what_was_asked(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", spare_rounds(40), **{"num-spare": 1})
    _, stats = told(run)
    assert [client.selections for client in stats.clients] == [20] * 4
    assert [client.share for client in stats.clients] == [0.5] * 4
    assert stats.lost_s == 0.0
    text = reported(run).text
    assert "4, of which 3 were asked per round at most and 2 waited for" in text
    assert "10 of 80 requests (12 %): client error 10" in text
    assert "40 of 120 requests were not waited for; updates used in later steps: none" in text
    assert "no round waited for its slowest client" in text
    assert "The run had spare clients: 3 were asked, and a round ended when 2 had" in text


def test_late_updates_count_among_requests_shares_and_failures(tmp_path: Path) -> None:
    rounds = spare_rounds(40)
    for line in rounds[1:]:
        arm = (line["round"] + 1) % 4
        failed = {"rtt_s": None, "reason": "timeout"}
        line["late_updates"] = [{"arm": arm, **({"rtt_s": 3.0, "reason": None} if arm else failed)}]
    run = a_run(tmp_path / "run", rounds, **{"num-spare": 1, "late-updates": "use"})
    record, stats = told(run)
    assert sum(values.size for values in record.samples_s) == stats.num_requests == 80 + 39
    assert [client.served for client in stats.clients] == [20, 30, 29, 30]
    assert stats.summary["failures"] == 10 + 10
    text = reported(run).text
    assert "20 of 119 requests (17 %)" in text
    assert "40 of 120 requests were not waited for; updates used in later steps: 29" in text
    compared = read_compared(open_run(run))
    assert (compared.requests, compared.failures) == (119, 20)


def test_what_spare_clients_save_is_not_called_the_saving_of_the_policy(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", spare_rounds(80), **{"num-spare": 1, "strategy": "mine"})
    found = estimate_savings(read_record(run), 20)
    assert found.spares
    assert not found.paired
    faster = replace(found, saved_s=Estimate(9.0, 5.0, 12.0, 20), little_known=0.0)
    faster = replace(faster, saved_share=Estimate(0.3, 0.2, 0.4, 20))
    assert "spare clients and the policy together saved 30 %" in faster.sentence
    again = replace(faster, paired=True, again_s=Estimate(400.0, 300.0, 500.0, 20))
    assert "and 400 s on average when replayed without spare clients." in again.sentence
    assert "together" not in again.sentence


# --- replays --------------------------------------------------------------------------------------


def test_the_settings_of_the_run_are_replayed(tmp_path: Path) -> None:
    settings = {"strategy": "cs-ucb-q", "beta": 0.9, "truncate": False}
    run = a_run(tmp_path / "run", steady(200), floor=0.4, **settings)
    record = read_record(run)
    assert record.params == {"beta": 0.9, "truncate": False}
    again, the_same = replay(record, ["cs-ucb-q"], num_seeds=4)
    assert again.times_s.tolist() == the_same.times_s.tolist()
    (alone,) = replay(record, ["cs-ucb-q"], num_seeds=4, again=False)
    assert alone.times_s.tolist() == the_same.times_s.tolist()


def test_large_fleets_are_available_as_many_as_there_were(tmp_path: Path) -> None:
    count = MAX_LISTED_ARMS + 10
    rounds = [
        a_round(n, {count - 1: 1.0, n: 1.0}, num_arms=count, num_available=50)
        for n in range(1, 100)
    ]
    for line in rounds:
        del line["available"], line["absent"]
    names = tuple(f"c{arm}" for arm in range(count))
    record = read_record(a_run(tmp_path / "run", rounds, names=names))
    assert (record.available.sum(axis=1) == 50).all()
    assert record.available[:, count - 1].all()
    assert record.available.any(axis=0).all()


def test_changed_clients_are_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rounds = [
        a_round(
            n, {0: (1.0 + (n > 40)) * rng.uniform(0.8, 1.2), 1: rng.uniform(0.8, 1.2)}, num_arms=2
        )
        for n in range(1, 81)
    ]
    record = read_record(a_run(tmp_path / "run", rounds, names=("drifts\x1b[31m", "stays")))
    assert changed_arms(record) == [0]
    (line,) = (line for line in caveats(record, []) if "quarter" in line)
    assert "drifts" in line
    assert "\x1b" not in line
    assert "stays" not in line


def drawn(samples_s: list[list[float]], num_rows: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Return what a fleet with such a record draws: times and failures, (rounds, rows, arms)."""
    count, num_rounds = len(samples_s), 256
    there = np.ones((num_rounds, count), dtype=np.bool_)
    record = RunRecord(
        names=tuple(f"c{arm}" for arm in range(count)),
        policy="random",
        num_selected=1,
        num_rounds=num_rounds,
        tau_max_s=5.0,
        samples_s=tuple(np.array(values) for values in samples_s),
        available=there,
        member=there,
        floors=(),
        params={},
        time_s=1.0,
        measured_s=1.0,
    )
    fleet = RecordedEnvironment(record, (num_rows,), np.random.SeedSequence(0))
    draws = [fleet.round(t) for t in range(1, num_rounds + 1)]
    times_s = np.stack([draw.round_trip_time_s for draw in draws])
    cost_s = np.minimum(times_s, 5.0).mean(axis=0)
    assert fleet.expected_time_s(5.0) == pytest.approx(cost_s, abs=1.0)
    assert fleet.expected_time_s(5.0).mean() == pytest.approx(cost_s.mean(), rel=0.02)
    return times_s, np.stack([draw.failed for draw in draws])


FAILED = float("inf")


def test_one_failure_of_one_is_mostly_bad_luck() -> None:
    usual = [0.1] * 97 + [FAILED] * 3
    _, failed = drawn([usual, usual, usual, usual, [FAILED]])
    by_row = failed.mean(axis=0)[:, 4]
    assert np.median(by_row) < 0.1
    assert by_row.mean() < 0.5
    assert by_row.max() > 0.5, "that it always fails is possible"


def test_who_always_fails_goes_on_failing() -> None:
    usual = [0.1] * 100
    _, failed = drawn([usual, usual, usual, [FAILED] * 30, [FAILED] * 5])
    assert failed[..., 3].mean() > 0.95
    assert failed[..., 4].mean() > 0.75
    assert failed[..., :3].mean() < 0.01


def test_well_known_clients_keep_their_own_times_and_failures() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.gamma(9, 1 / 9, 300).tolist(), rng.gamma(9, 1 / 90, 300).tolist()
    second[:60] = [FAILED] * 60
    times_s, failed = drawn([first, second, [3.0]])
    assert set(times_s[..., 0][~failed[..., 0]].tolist()) <= set(first)
    assert set(times_s[..., 1][~failed[..., 1]].tolist()) <= set(second)
    assert failed[..., 1].mean() == pytest.approx(0.2, abs=0.02)
    assert failed[..., 0].mean() < 0.01


def test_repetitions_differ_by_what_is_not_known() -> None:
    rng = np.random.default_rng(0)
    times_s, failed = drawn(
        [rng.gamma(9, 1 / 9, 300).tolist(), rng.gamma(9, 1 / 9, 300).tolist(), [1.0], []]
    )
    cost_s = np.minimum(times_s, 5.0).mean(axis=0)
    assert (cost_s[:, 2:].std(axis=0) > 2 * cost_s[:, 0].std()).all()
    assert (failed.mean(axis=(0, 1)) < 0.1).all()


# --- stragglers -----------------------------------------------------------------------------------


def record_with(
    rtt_s: list[float | None], round_s: float, reason: list[str | None] | None = None
) -> RoundRecord:
    reason = reason or [None if time is not None else "timeout" for time in rtt_s]
    arms = list(range(len(rtt_s)))
    times = {"time_s": round_s, "round_s": round_s, "rtt_s": rtt_s, "reason": reason}
    return round_record(1, arms, num_arms=len(arms), available=arms, **times)


@pytest.mark.parametrize(
    ("rtt_s", "round_s", "slowest", "lost_s"),
    [
        ([1.0, 2.0, 4.5], 4.5, [False, False, True], 2.5),
        ([1.0, None, 2.0], 5.0, [False, True, False], 3.0),
        ([1.0, None, None], 5.0, [False, True, True], 0.0),  # one alone could not help it
        ([1.0, 2.0, None], 2.001, [False, True, False], 1.0),  # failed long before the end
        ([2.0], 2.0, [False], 0.0),
        ([], 0.0, [], 0.0),
        ([None, None], 5.0, [True, True], 0.0),
    ],
)
def test_who_held_a_round_up(
    rtt_s: list[float | None], round_s: float, slowest: list[bool], lost_s: float
) -> None:
    found, found_s = held_up(record_with(rtt_s, round_s), 3)
    assert found.tolist() == slowest
    assert found_s == pytest.approx(lost_s)


def test_rounds_that_end_before_their_slowest_have_none() -> None:
    early = replace(record_with([1.0, 2.0, 4.5], 4.5), late=[2])
    found, found_s = held_up(early, 3)
    assert (found.tolist(), found_s) == ([False] * 3, 0.0), "it would have waited for another"
    found, found_s = held_up(early, 2)
    assert (found.tolist(), found_s) == ([False, False, True], 2.5), "this one was waited for"


def test_time_lost_to_stragglers_adds_up(tmp_path: Path) -> None:
    rounds = [
        a_round(1, {0: 1.0, 1: 3.0}),
        a_round(2, {0: 1.5, 2: 1.0, 3: 1.25}),
        a_round(3, {0: 1.0, 1: None}),
        a_round(4, {3: 2.0}),
    ]
    run = a_run(tmp_path / "run", rounds)
    _, stats = told(run)
    assert [client.lost_s for client in stats.clients] == pytest.approx([0.25, 6.0, 0.0, 0.0])
    assert [client.slowest for client in stats.clients] == [1, 2, 0, 0]
    assert stats.lost_s == pytest.approx(6.25)
    page = reported(run)
    assert "6.25 s of 11.5 s" in page.text
    assert any("most to b, 6.00 s" in (attrs.get("alt") or "") for _, attrs in page.tags)


# --- special runs ---------------------------------------------------------------------------------


def test_names_and_reasons_of_strangers_are_text(tmp_path: Path) -> None:
    rounds = [
        a_round(n, {0: 1.0, 1: 2.0, 2: None, 3: 1.5}, reason=[None, None, REASON, None])
        for n in range(1, 40)
    ]
    run = a_run(tmp_path / "run", rounds, names=(HOSTILE, MATHS, MATHS + BIDI, "名前\x00\ud800"))
    page = reported(run)
    assert HOSTILE in page.text
    assert MATHS in page.text
    assert plain(REASON.partition(":")[0]) in page.text
    assert "\u202e" not in page.text
    texts = [element.text or "" for svg in page.figures for element in ET.fromstring(svg).iter()]
    assert any(text.startswith("<script>alert") for text in texts)
    assert MATHS in texts
    assert not any("<script" in svg for svg in page.figures)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda rounds: rounds, id="no accuracy, no floors, no summary"),
        pytest.param(lambda rounds: rounds[:1], id="one round"),
        pytest.param(lambda rounds: rounds[3:4], id="one round of the slow"),
        pytest.param(
            lambda rounds: [a_round(n, {0: None, 1: None}) for n in range(1, len(rounds) + 1)],
            id="nobody ever answered",
        ),
        pytest.param(
            lambda rounds: [*rounds, a_round(len(rounds) + 1, {}, stepped=False, available=[])],
            id="nobody available at the end",
        ),
        pytest.param(
            lambda rounds: [{**r, "accuracy": 0.5 if r["round"] == 7 else None} for r in rounds],
            id="one evaluation",
        ),
        pytest.param(
            lambda rounds: [
                a_round(n, {0: 1.0, 1: 2.0}, num_arms=4 if n > 60 else 2)
                for n in range(1, len(rounds) + 1)
            ],
            id="late joiners",
        ),
    ],
)
def test_reports_are_made_of_whatever_there_is(
    change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], tmp_path: Path
) -> None:
    rounds = [{**line, "round": n} for n, line in enumerate(change(steady(64)), start=1)]
    page = reported(a_run(tmp_path / "run", rounds))
    assert "The run has not ended, or was cut off" in page.text
    assert "no floors to keep" in page.text


def test_a_client_that_nobody_asked_has_a_row(tmp_path: Path) -> None:
    page = reported(a_run(tmp_path / "run", [a_round(n, {0: 1.0, 1: 2.0}) for n in range(1, 30)]))
    assert "selected fewer than 10 times: 2" in page.text
    assert sum(tag == "th" and attrs.get("scope") == "row" for tag, attrs in page.tags) == 4


def test_the_target_is_told_with_its_time(tmp_path: Path) -> None:
    rounds = [{**line, "accuracy": line["round"] / 50} for line in steady(40)]
    run = a_run(tmp_path / "run", rounds, **{"target-accuracy": 0.5, "rounds": 60})
    (run / "summary.json").write_text('{"rounds": 40}')
    text = reported(run).text
    assert "the target of 50.00 % was reached in round 25, after 150 s" in text
    assert "ended after 40 of 60 rounds, where its target was reached" in text
    for others in (39, 41):  # those of a run that went on, before and after they were read
        (run / "summary.json").write_text(f'{{"rounds": {others}}}')
        assert "has not ended" in reported(run).text


def test_half_a_line_at_the_end_is_left_out(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", steady(40))
    with (run / "rounds.jsonl").open("a") as file:
        file.write('{"schema": 1, "rou')
    assert "40 rounds so far" in reported(run).text


def test_of_a_short_run_it_is_not_said_that_floors_were_kept(tmp_path: Path) -> None:
    short = reported(a_run(tmp_path / "short", steady(10), floor=0.3)).text
    assert "No client is behind its floor by more than the six rounds that it may be." in short
    assert "All floors were kept" in reported(a_run(tmp_path / "none", steady(10), floor=1e-9)).text


def test_missed_floors_are_marked(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", steady(200), floor=0.3)
    _, stats = told(run)
    assert [client.missed for client in stats.clients] == [False, False, True, True]
    page = reported(run)
    assert page.text.count("0.250 missed") == 2
    assert "2 of 4 clients missed their floors" in page.text


def test_shares_of_buffered_steps_are_of_updates_like_the_floors(tmp_path: Path) -> None:
    lines = [
        {**line, "buffered": True, "staleness": [0, 0], "begin_s": [0.0, 0.0]}
        for line in steady(200)
    ]
    run = a_run(tmp_path / "run", lines, floor=0.3, mode="buffered")
    _, stats = told(run)
    assert [client.turns for client in stats.clients] == [400] * 4
    assert [client.share for client in stats.clients] == [0.375, 0.375, 0.125, 0.125]
    assert [client.missed for client in stats.clients] == [False, False, True, True]
    assert np.nanmax(stats.heat) <= 0.5
    page = reported(run)
    assert page.text.count("0.125 missed") == 2
    assert "2 of 4 clients missed their floors" in page.text
    assert "The run has not ended, or was cut off: 200 steps so far" in page.text
    assert "more\nthan 12 updates" in page.text, "6 + K + N"
    assert "lost to stragglers" not in page.text.lower(), "none is waited for"


@pytest.mark.parametrize(
    ("strategy", "took", "would"),
    [
        (
            "cs-ucb-adaptive",
            "Scheduling with cs-ucb-adaptive in buffered mode took 1,201 s. Rounds of randomly "
            "selected clients on the same latencies would have taken",
            "more",
        ),
        ("random", "Random selection in buffered mode took 1,201 s. Rounds with", "they would"),
    ],
)
def test_what_buffered_mode_saves_is_not_called_the_saving_of_the_policy(
    tmp_path: Path, strategy: str, took: str, would: str
) -> None:
    lines = [
        {**line, "buffered": True, "staleness": [0, 0], "begin_s": [0.0, 0.0]}
        for line in steady(200)
    ]
    lines[-1]["time_s"] = 1201.0  # clients worked on between the steps
    run = a_run(tmp_path / "run", lines, mode="buffered", strategy=strategy)
    sentence = estimate_savings(record_of(open_run(run)), 4).sentence
    assert sentence.startswith(took)
    assert would in sentence


def test_parts_of_round_trips_are_split(tmp_path: Path) -> None:
    parts = {"compute_s": [0.5, None], "link_s": [0.25, None]}
    run = a_run(tmp_path / "run", [a_round(n, {0: 1.0, 1: 2.0}, **parts) for n in range(1, 30)])
    _, stats = told(run)
    assert stats.clients[0].split == pytest.approx([0.5, 0.25, 0.25])
    assert stats.clients[1].split is None
    svg = reported(run).figures[-1]
    assert all(word in svg for word in ("compute", "link", "network", "not reported"))


def test_of_many_clients_the_slowest_and_those_short_of_their_floors_are_listed(
    tmp_path: Path,
) -> None:
    count = 300
    rounds = [
        a_round(
            n,
            {arm: 0.01 * (arm + 1) for arm in range(count) if arm or n < 5},
            num_arms=count,
        )
        for n in range(1, 31)
    ]
    names = tuple(f"c{arm}" for arm in range(count))
    run = a_run(tmp_path / "run", rounds, names=names, floor=0.9, **{"num-selected": count})
    page = reported(run)
    rows = re.findall(r'<th scope="row">(c\d+)</th>', (run / "report.html").read_text())
    assert rows == [f"c{arm}" for arm in range(count - 1, count - 101, -1)] + ["c0"]
    assert "101 of 300 clients" in page.text
    assert "Each row is a group of 7 or 8 clients" in page.text


# --- files ----------------------------------------------------------------------------------------


def test_files_of_a_run_are_never_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, other = (a_run(tmp_path / name, steady(20)) for name in ("run", "other"))
    (run / "checkpoint").mkdir()
    (run / "checkpoint" / "state").write_text("state")
    (tmp_path / "link").symlink_to(run)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    for target in (
        run / "rounds.jsonl",
        run / "checkpoint" / "state",
        tmp_path / "link" / "config.toml",
        other / "arms.json",
    ):
        for command in ("report", str(run), "--out"), ("watch", str(run), "--save"):
            assert main([*command, str(target), "--force"]) == 2
            assert "is never overwritten" in one_error(capsys)
    after = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert after == before


def test_saved_pages_are_replaced_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path / "run", steady(20))
    page = run / "page.html"
    for _ in range(2):
        assert main(["watch", str(run), "--save", str(page)]) == 0
    assert main(["report", str(run), "--seeds", "2"]) == 0
    capsys.readouterr()
    assert main(["watch", str(run), "--save", str(run / "report.html"), "--force"]) == 2
    assert "is never overwritten" in one_error(capsys)
    other = tmp_path / "other.html"
    other.write_text("mine")
    assert main(["watch", str(run), "--save", str(other)]) == 2
    assert "must be a new file or an earlier page (--force overwrites)" in one_error(capsys)
    assert other.read_text() == "mine"
    assert main(["watch", str(run), "--save", str(other), "--force"]) == 0
    assert PAGE_MARK in other.read_text()


@pytest.mark.parametrize("command", [("report", "--out"), ("watch", "--save")])
@pytest.mark.parametrize("name", ["fifo", "folder", ""])
def test_only_files_are_written(
    command: tuple[str, str], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path / "run", steady(20))
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    target = str(tmp_path / name) if name else ""
    assert main([command[0], str(run), command[1], target, "--force"]) == 2
    assert "must be the name of a file, not of a folder, pipe or device" in one_error(capsys)
    assert (tmp_path / "fifo").is_fifo()


def test_replay_names_the_runs_of_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "compared"
    base.mkdir()
    a_run(base / "random", steady(5))
    assert main(["replay", str(base)]) == 2
    assert one_error(capsys).endswith(f"must be a run directory: {base} holds the run random")
    for name in "abcdef":
        a_run(base / name, steady(5))
    assert main(["replay", str(base)]) == 2
    assert "holds the runs a, b, c, d, e and 2 more" in one_error(capsys)


def test_only_reports_are_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "run", steady(20))
    reported(run)
    first = (run / "report.html").read_bytes()
    reported(run)
    assert (run / "report.html").read_bytes() == first, "the same run gives the same report"
    other = tmp_path / "other.html"
    other.write_text("mine")
    capsys.readouterr()
    assert main(["report", str(run), "--out", str(other)]) == 2
    assert "must be a new file or an earlier report" in one_error(capsys)
    assert other.read_text() == "mine"
    assert main(["report", str(run), "--out", str(other), "--force", "--seeds", "2"]) == 0
    assert MARK in other.read_text()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["other.html", "run"]


@pytest.mark.parametrize(
    ("spoil", "message", "code"),
    [
        (lambda run: (run / "config.toml").unlink(), "a run directory (it has no config.toml)", 2),
        (lambda run: (run / "arms.json").unlink(), "a run directory (it has no arms.json)", 2),
        (lambda run: (run / "config.toml").write_text("x = 1"), "must be a run directory", 2),
        (lambda run: (run / "arms.json").write_text("[3]"), "must be a run directory", 2),
        (
            lambda run: (run / "arms.json").write_text("[]"),
            "line 1 of its rounds.jsonl is damaged",
            2,
        ),
        (
            lambda run: (run / "arms.json").write_text('[{"name": "a"}, {"name": "b"}]'),
            "lacks a client",
            2,
        ),
        (lambda run: (run / "rounds.jsonl").unlink(), "must be a run with rounds", 2),
        (
            lambda run: (run / "rounds.jsonl").write_text("{}\n"),
            "line 1 of its rounds.jsonl is damaged",
            2,
        ),
        (lambda run: (run / "report.html").mkdir(), "must be the name of a file", 2),
    ],
)
def test_what_cannot_be_reported_is_one_line(
    spoil: Callable[[Path], None],
    message: str,
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = a_run(tmp_path / "run", steady(20))
    spoil(run)
    assert main(["report", str(run)]) == code
    assert message in one_error(capsys)


def test_a_file_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path / "run", steady(20))
    target = tmp_path / "nowhere" / "report.html"
    assert main(["report", str(run), "--out", str(target), "--seeds", "2"]) == 1
    assert one_error(capsys) == f"error: {target}: No such file or directory"


def test_a_run_without_selections_is_refused(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", [a_round(1, {})])
    with pytest.raises(ConfigError, match="clients were selected"):
        read_record(run)


# --- wording --------------------------------------------------------------------------------------


def test_numbers_have_three_digits() -> None:
    shown = [seconds(value) for value in (1402.3, 99.96, 12.34, 9.996, 1.234, 0.9996, 0.1234, -3.0)]
    assert shown == [
        "1,402 s",
        "100 s",
        "12.3 s",
        "10.0 s",
        "1.23 s",
        "1.00 s",
        "0.123 s",
        "−3.00 s",
    ]
    assert [percent(value) for value in (0.391, 0.0391, -0.0391, 0.0, 0.00001, -0.5)] == [
        "39 %",
        "3.9 %",
        "−3.9 %",
        "0 %",
        "0 %",
        "−50 %",
    ]


def test_strangers_texts_are_short_and_on_one_line() -> None:
    assert plain("a\nb\x1b[31m\u202e") == "a\ufffdb\ufffd[31m\ufffd"
    assert plain("x" * 100, 10) == "x" * 9 + "…"


def test_every_policy_of_a_run_has_an_answer(tmp_path: Path) -> None:
    for name in POLICIES:
        found = estimate_savings(read_record(a_run(tmp_path / name, steady(30), strategy=name)), 2)
        assert found.recorded_s > 0


def test_policies_that_take_just_as_long_are_said_to(tmp_path: Path) -> None:
    rounds = [a_round(n, {0: 0.2, 1: 0.3}, num_arms=2) for n in range(1, 30)]
    run = a_run(tmp_path / "run", rounds, names=("a", "b"))
    found = estimate_savings(read_record(run), 20)
    assert found.sentence.endswith("would have taken just as long for as many rounds.")
    assert "0 % to 0 %" not in reported(run).text
