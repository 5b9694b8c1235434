"""What the page shows of a run directory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_runs import CONFIG, MODEL, NAMES, Run, pick, record, step

from flower_scheduling.server.page.run_view import RunView
from flower_scheduling.server.runs.directory import RunDirectory
from flower_scheduling.strategies import Explanation
from flower_scheduling.strategies.flower import Arm, ArmResult


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "run")
    yield run
    run.directory.close()


def look(run: Run) -> dict[str, Any]:
    view = RunView(run.path)
    assert view.refresh()
    return view.state()


def test_clients_are_counted_as_the_rounds_say(run: Run) -> None:
    run.write(
        record(1),
        record(2),
        record(3, rtt_s=[3.0, None], reason=[None, "timeout"]),
        record(4, selected=[0], names=["a"], rtt_s=[1.0], reason=["error: x"],
               compute_s=[None], link_s=[None], absent=[1]),
    )  # fmt: skip
    clients = look(run)["clients"]
    assert clients["name"] == NAMES
    assert clients["num_examples"] == [10, 20, 30]
    assert clients["selected"] == [4, 3, 0]
    assert clients["share"] == [1.0, 1.0, 0.0], "of the rounds while they were there: 4, 3, 4"
    assert clients["mean_s"] == [1.5, 2.0, None]
    assert clients["deviation_s"] == [1.08012, 0.0, None]
    assert clients["compute_s"][:2] == [0.25, 1.5]
    assert clients["network_s"] == [1.125, 0.25, None]
    assert clients["failures"] == [{"error": 1}, {"timeout": 1}, {}]
    assert clients["floor"] == [0.5, 0.25, 0.0]
    assert clients["owed"] == [0.5, 0.25, 0.125]
    assert clients["last_round"] == [3, 2, 0]


def test_late_updates_count_for_shares_and_are_told_of_their_round(run: Run) -> None:
    late = [ArmResult(2, "c", 9.0, staleness=1), ArmResult(0, "a", None, "timeout", staleness=1)]
    run.write(record(1, late=[2]), record(2, late_updates=late))
    state = look(run)
    assert state["clients"]["share"] == [1.0, 1.0, 0.5]
    assert state["clients"]["selected"] == [3, 2, 1], "late ones have been asked too"
    assert state["clients"]["mean_s"][2] == 9.0
    view = RunView(run.path)
    view.refresh()
    first, second = view.round(1), view.round(2)
    assert first is not None
    assert second is not None
    assert (first["late"], first["late_updates"]) == ([2], [])
    assert [(each["arm"], each["reason"]) for each in second["late_updates"]] == [
        (2, None),
        (0, "timeout"),
    ]


def test_the_top_has_progress_accuracy_and_the_rest(run: Run) -> None:
    run.write(record(1, accuracy=0.5, loss=1.0), record(2), record(3, accuracy=0.25, loss=2.0))
    top = look(run)["top"]
    assert (top["round"], top["time_s"], top["rest_s"], top["steps"]) == (3, 6.0, 14.0, 3)
    assert (top["accuracy"], top["best_accuracy"], top["best_round"]) == (0.25, 0.5, 1)
    assert (top["connected"], top["available"], top["busy"]) == (None, 2, None)


def test_a_round_has_scores_cut_and_ties(run: Run) -> None:
    same = Explanation("smallest", "s", {"mean": np.ones(3), "bonus": np.array([0.0, 0, -np.inf])})
    run.write(record(1), record(2, explanation=same, available=[0, 1, 2], selected=[0, 2],
                                names=["a", "c"]))  # fmt: skip
    view = RunView(run.path)
    view.refresh()
    first, second = view.round(1), view.round(2)
    assert view.round(0) is None
    assert view.round(3) is None
    assert first is not None
    assert second is not None
    assert first["names"] == NAMES
    scores = first["scores"]
    assert (scores["rule"], scores["cut"], scores["tied"]) == ("largest", 0.5, [])
    assert scores["score"] == [1.0, 0.5, 0.25]
    assert scores["parts"] == {"mean": [0.5, 0.25, 0.125], "queue": [0.5, 0.25, 0.125]}
    assert scores["available"] == [True, True, False]
    scores = second["scores"]
    assert scores["score"] == [1.0, 1.0, "-inf"]
    assert (scores["cut"], scores["tied"]) == (1.0, [0, 1]), "one of two that were equal"


def test_scores_that_were_equal_before_they_were_recorded_are_tied(run: Run) -> None:
    mean = np.array([0.1, 0.7, 0.3])
    equal = Explanation("largest", "", {"mean": mean, "bonus": 0.9 - mean})
    run.write(record(1, explanation=equal, available=[0, 1, 2], selected=[1], names=["x"],
                     rtt_s=[1.0], reason=[None], compute_s=[None],
                     link_s=[None]))  # fmt: skip
    view = RunView(run.path)
    view.refresh()
    found = view.round(1)
    assert found is not None
    assert found["scores"]["tied"] == [0, 1, 2]
    assert found["scores"]["drawn"] == [0, 1, 2]


def test_a_lot_decides_among_those_alone_whom_the_tie_break_leaves_equal(run: Run) -> None:
    score = np.array([1.0, 1.0, 1.0])
    for number, (tie_break, selected, drawn) in enumerate(
        (([3.0, 2.0, 1.0], [0, 1], []), ([3.0, 2.0, 2.0], [0, 1], [1, 2])), start=1
    ):
        explanation = Explanation("largest", "", {"mean": score}, np.array(tie_break))
        run.write(record(number, explanation=explanation, available=[0, 1, 2], selected=selected))
        view = RunView(run.path)
        view.refresh()
        found = view.round(number)
        assert found is not None
        assert found["scores"]["tied"] == [0, 1, 2]
        assert found["scores"]["drawn"] == drawn


def test_parts_that_cancel_leave_no_rest(run: Run) -> None:
    third = np.array([1.0, 1.0, 1.0]) / 3
    explanation = Explanation("drawn", "", {"mean": third, "chance": -third * (1 + 1e-9)})
    run.write(record(1, explanation=explanation))
    view = RunView(run.path)
    view.refresh()
    found = view.round(1)
    assert found is not None
    assert found["scores"]["score"] == [0.0, 0.0, 0.0]


def test_a_run_directory_that_vanishes_is_told_and_one_that_comes_back_is_shown(run: Run) -> None:
    run.write(record(1))
    view = RunView(run.path)
    view.refresh()
    elsewhere = run.path.with_name("elsewhere")
    run.path.rename(elsewhere)
    assert view.refresh()
    assert view.state()["run"]["state"] == "gone"
    elsewhere.rename(run.path)
    assert view.refresh()
    assert view.state()["top"]["round"] == 1


def test_checkpoints_that_cannot_be_read_are_stale(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    directory = RunDirectory(run_dir, {**CONFIG, "checkpoint-every": 2})
    for number in range(1, 6):
        directory.write_round(record(number), MODEL)
    (run_dir / "checkpoint").write_text("no folder")
    view = RunView(run_dir)
    view.refresh()
    assert [alarm["kind"] for alarm in view.state()["alarms"]] == ["checkpoint-stale"]
    directory.close()


def test_a_checkpoint_that_is_being_written_hides_nothing(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with RunDirectory(run_dir, {**CONFIG, "checkpoint-every": 2}) as directory:
        for number in range(1, 8):
            directory.write_round(record(number), MODEL)
        (run_dir / "checkpoint").mkdir()
        (run_dir / "checkpoint" / "00000006.new").touch()
        view = RunView(run_dir)
        view.refresh()
        assert [alarm["kind"] for alarm in view.state()["alarms"]] == ["checkpoint-stale"]
        (run_dir / "checkpoint" / "00000006-0cbb7f35.safetensors").touch()
        assert view.state()["alarms"] == []


def test_it_follows_a_run_as_it_grows_and_sees_no_half_line(run: Run) -> None:
    view = RunView(run.path)
    view.refresh()
    assert view.state()["top"]["round"] == 0
    run.write(record(1))
    assert view.refresh()
    assert view.num_rounds == 1
    assert not view.refresh()
    with (run.path / "rounds.jsonl").open("ab") as file:
        file.write(b'{"schema":1,"round":2')
    view.refresh()
    assert view.num_rounds == 1
    assert view.state()["run"]["damaged_line"] is None


def test_rounds_that_a_resumption_took_back_are_taken_back(run: Run) -> None:
    run.write(*map(record, range(1, 6)))
    view = RunView(run.path)
    view.refresh()
    run.directory.close()
    run.directory = RunDirectory.reopen(run.path, CONFIG, 3)
    run.write(*(record(number, rtt_s=[9.0, 9.0]) for number in range(4, 8)))
    view.refresh()
    assert view.num_rounds == 7
    assert view.state()["clients"]["selected"] == [7, 7, 0]
    assert view.state()["clients"]["mean_s"][1] == pytest.approx((3 * 2 + 4 * 9) / 7, rel=1e-5)


def test_a_damaged_line_ends_what_is_shown_and_is_told(run: Run) -> None:
    run.write(record(1))
    with (run.path / "rounds.jsonl").open("ab") as file:
        file.write(b"rubbish\n")
    state = look(run)
    assert (state["top"]["round"], state["run"]["damaged_line"]) == (1, 2)


def test_who_is_there_comes_from_the_server(run: Run) -> None:
    run.write(record(1))
    live = {"time": time.time(), "connected": [0, 1], "busy": [1], "opted_out": [],
            "newcomers": ["new"], "last_seen": {"2": 12.5}, "refused": 3}  # fmt: skip
    (run.path / "live.json").write_text(json.dumps(live))
    state = look(run)
    assert state["run"]["state"] == "running"
    assert state["clients"]["state"] == ["free", "busy", "away"]
    assert state["clients"]["last_seen"] == [None, None, 12.5]
    top = state["top"]
    assert (top["connected"], top["available"], top["busy"]) == (2, 1, 1)
    live["time"] = time.time() - 60
    (run.path / "live.json").write_text(json.dumps(live))
    assert look(run)["run"]["state"] == "silent"


def test_the_last_evaluation_on_clients_is_shown(run: Run) -> None:
    run.write(record(1), record(2, client_metrics={"eval-acc": 0.5}), record(3))
    top = look(run)["top"]
    assert (top["client_metrics"], top["client_metrics_round"]) == ({"eval-acc": 0.5}, 2)


def test_a_run_has_ended_when_it_has_its_results_and_not_if_it_was_resumed(run: Run) -> None:
    run.write(record(1))
    assert look(run)["run"]["state"] == "running"
    os.utime(run.path / "rounds.jsonl", (1, 1))
    assert look(run)["run"]["state"] == "silent"
    run.directory.write_summary({"suggested_tau_max_s": 7.0})
    state = look(run)
    assert (state["run"]["state"], state["top"]["suggested_tau_max_s"]) == ("ended", 7.0)
    os.utime(run.path / "config.toml", (time.time() + 5, time.time() + 5))
    assert look(run)["run"]["state"] == "silent"


def test_clients_that_are_there_before_their_first_round_are_listed(run: Run) -> None:
    live = {"time": time.time(), "connected": [0, 1, 3], "busy": [], "opted_out": []}
    (run.path / "live.json").write_text(json.dumps(live))
    assert look(run)["clients"]["state"] == ["free", "free", "away", "free"]
    (run.path / "live.json").write_text(json.dumps({**live, "left_out": [1]}))
    state = look(run)
    assert state["clients"]["state"] == ["free", "left out", "away", "free"]
    assert (state["top"]["available"], state["top"]["left_out"]) == (2, 1)


def test_regret_is_what_the_slowest_selected_costs_in_expectation(run: Run) -> None:
    truth = [
        {"since_round": 1, "expected_time_s": {"c": 2.0, NAMES[1]: 3.0, "a": 1.0}},
        {"since_round": 3, "expected_time_s": {"c": 2.0, NAMES[1]: 8.0, "a": 1.0}},
    ]
    (run.path / "truth.json").write_text(json.dumps(truth))
    everybody = {"available": [0, 1, 2]}
    run.write(record(1), record(2, **everybody), record(3, **everybody))
    regret = look(run)["regret"]
    assert regret == {"round": [1, 2, 3], "time_s": [2.0, 4.0, 6.0], "regret_s": [0.0, 1.0, 7.0]}


def test_buffered_steps_wait_for_no_client_and_have_no_regret(run: Run) -> None:
    truth = [{"since_round": 1, "expected_time_s": {"c": 2.0, NAMES[1]: 3.0, "a": 1.0}}]
    (run.path / "truth.json").write_text(json.dumps(truth))
    run.write(step(1, ended=[], picks=[]))
    assert look(run)["regret"] is None


def test_many_rounds_share_points_and_columns(run: Run) -> None:
    lengths = np.random.default_rng(0).random(1500)
    run.write(
        *(
            record(
                number, round_s=length, selected=[number % 2], names=["x"], rtt_s=[length],
                reason=[None], compute_s=[None], link_s=[None],
            )
            for number, length in enumerate(lengths.tolist(), start=1)
        )
    )  # fmt: skip
    state = look(run)
    series = state["rounds"]
    assert len(series["round"]) == 500
    assert series["round"][:2] == [3, 6]
    assert series["mean_s"][0] == pytest.approx(lengths[:3].mean(), rel=1e-5)
    longest = int(lengths[:3].argmax())
    assert series["longest_round"][0] == longest + 1
    assert series["slowest"][0] == (longest + 1) % 2
    heat = state["heat"]
    assert (heat["width"], len(heat["round"]), heat["round"][:2]) == (16, 94, [1, 17])
    percent = {row[0]: values for row, values in zip(heat["rows"], heat["percent"], strict=True)}
    assert percent[2] == [0] * 94
    assert set(percent[0][:93]) == {50}


def test_a_thousand_clients_are_grouped_in_the_heat_map_from_fast_to_slow(run: Run) -> None:
    arms = list(range(1000))
    run.write(
        record(1, num_arms=1000, available=arms, selected=arms, names=["x"] * 1000,
               rtt_s=[1 + arm / 1000 for arm in reversed(arms)] * 1000,
               reason=[None] * 1000, compute_s=[None] * 1000, link_s=[None] * 1000,
               explanation=None, queue=None)
    )  # fmt: skip
    heat = look(run)["heat"]
    assert len(heat["rows"]) == 100
    assert heat["rows"][0] == list(range(999, 989, -1))


def test_nothing_yet_is_no_fault(tmp_path: Path) -> None:
    view = RunView(tmp_path / "not-yet")
    view.refresh()
    state = view.state()
    assert (state["run"]["exists"], state["top"]["round"]) == (False, 0)


def test_a_floor_by_a_name_that_no_client_has_is_an_alarm(tmp_path: Path) -> None:
    settings = CONFIG | {"fairness": "A=0.5,c=0.1"}
    with RunDirectory(tmp_path / "run", settings) as directory:
        for number in range(1, 11):
            directory.write_round(record(number), MODEL)
        directory.note_arms([Arm(i, f"k{i}", i, n) for i, n in enumerate("abc")], [0.0, 0.0, 0.1])
    view = RunView(tmp_path / "run")
    view.refresh()
    (alarm,) = view.state()["alarms"]
    assert alarm["kind"] == "floor-unknown"
    assert alarm["text"].startswith("no client is called A (did you mean a?)")


def test_a_deadline_that_is_found_is_shown_as_it_is_now(run: Run) -> None:
    config = run.path / "config.toml"
    config.write_text(config.read_text().replace("tau-max-s = 5.0", 'tau-max-s = "auto"'))
    state = look(run)["run"]
    assert (state["finds_deadline"], state["tau_max_s"]) == (True, None)
    run.write(record(1, deadline_s=60.0), record(2, deadline_s=2.5))
    state = look(run)["run"]
    assert (state["finds_deadline"], state["tau_max_s"]) == (True, 2.5)
    view = RunView(run.path)
    view.refresh()
    shown = view.round(1)
    assert shown is not None
    assert shown["deadline_s"] == 60.0


def test_a_buffered_step_tells_why_each_of_its_channels_was_given_away(run: Run) -> None:
    picks = [pick(0, 0.0, [4.0, 5.0, 6.0]), pick(2, 0.5, [4.0, 3.0, 2.0], idle=[1, 2])]
    run.write(step(1, ended=[(0, 0.0, 1.0)], picks=picks))
    view = RunView(run.path)
    view.refresh()
    found = view.round(1)
    assert found is not None
    assert found["buffered"]
    assert found["scores"] is None, "those whose work has ended were not picked by them"
    assert (found["staleness"], found["begin_s"]) == ([0], [0.0])
    first, last = found["picks"]
    assert (first["arm"], first["begin_s"], first["scores"]["cut"]) == (0, 0.0, 4.0)
    assert (last["arm"], last["scores"]["cut"]) == (2, 2.0)
    assert last["scores"]["available"] == [False, True, True]
    assert last["scores"]["score"] == [4.0, 3.0, 2.0]


def test_clients_at_work_on_a_channel_are_busy_and_not_away(run: Run) -> None:
    run.directory.close()
    run.directory = RunDirectory(
        run.path.with_name("b"), {**CONFIG, "num-clients": 3, "mode": "buffered"}
    )
    run.path = run.path.with_name("b")
    picks = [pick(0, 0.0, [1.0, 2.0, 3.0]), pick(1, 0.0, [1.0, 2.0, 3.0])]
    run.write(step(1, ended=[(0, 0.0, 1.0)], picks=picks, available=[0]))
    state = look(run)
    assert state["clients"]["state"] == ["free", "busy", "away"]
    assert (state["top"]["available"], state["top"]["busy"]) == (1, 1)
    assert state["run"]["buffered"]


def test_a_range_of_rounds_has_points_of_its_own(run: Run) -> None:
    lengths = np.random.default_rng(0).random(1500).tolist()
    run.write(*(record(i, round_s=s, time_s=float(i)) for i, s in enumerate(lengths, start=1)))
    view = RunView(run.path)
    view.refresh()
    assert view.state()["rounds"]["width"] == 3
    found = view.curves(1000, 1100)["rounds"]
    assert found["width"] == 1
    assert found["round"] == list(range(1000, 1101))
    assert found["longest_s"] == pytest.approx(lengths[999:1100], rel=1e-5)
    assert view.curves(1400, 10**9)["rounds"]["round"][-1] == 1500
    assert view.curves(1501, 1600)["rounds"]["round"] == []


def test_settings_and_log_are_there_and_secrets_are_not(run: Run) -> None:
    config = run.path / "config.toml"
    config.write_text(config.read_text() + 'tracker-token = "s3cret"\nlisted = ["a", "b"]\n')
    (run.path / "log.txt").write_text("first\n" + "x" * 70_000 + "\nlast\n")
    view = RunView(run.path)
    view.refresh()
    about = view.about()
    assert "s3cret" not in json.dumps(about)
    assert about["settings"]["strategy"] == "cs-ucb-q"
    assert about["settings"]["listed"] == "['a', 'b']"
    assert about["log"] == "last\n", "whole lines of its end"
    assert view.about(log=False)["log"] == ""


def test_the_table_of_all_rounds_is_one_for_spreadsheets(run: Run) -> None:
    run.write(record(1, accuracy=0.5, loss=1.25), record(2, rtt_s=[0.5, None],
                                                         reason=[None, "timeout"]))  # fmt: skip
    view = RunView(run.path)
    view.refresh()
    assert "".join(view.rounds_csv()).split("\r\n") == [
        "round,time_s,round_s,selected,completed,slowest,accuracy,loss",
        "1,2.0,2.0,2,2,<script>alert(1)</script>,0.5,1.25",
        "2,4.0,2.0,2,1,<script>alert(1)</script>,,",
        "",
    ]


def test_a_run_at_random_is_compared_with_nothing(run: Run) -> None:
    run.write(*(record(number) for number in range(1, 31)))
    found = look(run)["random"]
    assert found["ours_s"] == 60.0
    config = run.path / "config.toml"
    config.write_text(config.read_text().replace('"cs-ucb-q"', '"random"'))
    state = look(run)
    assert (state["random"], state["random_why"]) == (None, "random")


def test_buffered_time_with_pauses_of_the_server_is_not_compared(run: Run) -> None:
    for number in range(1, 31):
        begin_s = 2.0 * number
        ended = [(0, begin_s, 1.0)]
        run.write(step(number, ended, [pick(0, begin_s, [1.0, 2.0, 3.0])], time_s=begin_s + 1.0))
    state = look(run)
    assert (state["random"], state["random_why"]) == (None, "pauses")
