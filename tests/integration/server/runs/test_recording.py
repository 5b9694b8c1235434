"""Runs of another app: recorded, continued, and several of them, as those of ours."""

from __future__ import annotations

import errno
import json
import logging
import os
import pickle
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apps import echo_app
from factories import small_model
from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, Result, Strategy
from full_disk import leave_no_room

from flower_scheduling.errors import ConfigError, NoStepError, NotSavedError
from flower_scheduling.server.callbacks import RoundCallback, Run, RunEnd
from flower_scheduling.server.monitoring.alarms import AlarmLog
from flower_scheduling.server.page.run_view import RunView
from flower_scheduling.server.runs.directory import ensure_empty, written_rounds
from flower_scheduling.server.runs.recording import record_app
from flower_scheduling.server.settings.fleet import FleetConfig
from flower_scheduling.simulation.cli import main as simulation_main
from flower_scheduling.simulation.engine.virtual_grid import VirtualGrid
from flower_scheduling.simulation.environments.paper import Environment
from flower_scheduling.simulation.environments.recorded import read_record
from flower_scheduling.strategies.flower import LOGGER, RoundRecord, ScheduledStrategy, followed_by


def grid(num_clients: int = 4, *, fail: bool = False) -> VirtualGrid:
    environment = Environment(
        num_arms=num_clients, seed=1, failure_probability=1.0 if fail else 0.0
    )
    nodes: list[dict[str, Any]] = [{"name": f"dev-{arm}"} for arm in range(num_clients)]
    return VirtualGrid(echo_app(), environment, nodes, {})


def schedule(strategy: Strategy | None = None, **changes: Any) -> ScheduledStrategy:
    settings = {"num_selected": 2, "tau_max_s": 5.0, "wait_s": 0.0, "min_clients": 1} | changes
    return ScheduledStrategy(strategy or FedAvg(), **settings)


def run_app(start: Callable[[Grid], object], on: VirtualGrid) -> None:
    """Run somebody's ServerApp."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        start(grid)

    app(on, Context(1, 0, {}, RecordDict(), {}))


def start(run_dir: Path | None, num_rounds: int = 6, *, on: VirtualGrid | None = None, **more: Any):
    results: list[Result] = []
    strategy = schedule(run_dir=run_dir, **more)
    run_app(
        lambda g: results.append(strategy.start(g, small_model(), num_rounds=num_rounds)),
        on or grid(),
    )
    return results[0]


def settings_of(run_dir: Path) -> dict[str, Any]:
    return tomllib.loads((run_dir / "config.toml").read_text())


def rounds_of(run_dir: Path) -> list[dict[str, Any]]:
    return [{**line, "wall": None} for line in written_rounds(run_dir)]


def test_the_three_lines_with_a_run_dir_leave_what_ours_leave(tmp_path: Path) -> None:
    path = tmp_path / "run"
    start(path, policy="cs-ucb-q", beta=0.5, fairness="equal:0.2", seed=3)
    names = {file.name for file in path.iterdir()}
    assert names >= {
        *("config.toml", "rounds.jsonl", "arms.json", "summary.json", "model.safetensors"),
        *("checkpoint", "log.txt", "scores.bin"),
    }
    known = {"strategy": "cs-ucb-q", "num-selected": 2, "tau-max-s": 5.0, "beta": 0.5}
    known |= {"fairness": "equal:0.2", "seed": 3, "rounds": 6, "wrapped": "FedAvg"}
    found = settings_of(path)
    assert {key: found[key] for key in known} == known
    assert not found.keys() & {"learning-rate", "model", "partitioner", "address", "app"}
    assert json.loads((path / "summary.json").read_text())["rounds"] == 6
    assert "[ROUND 6/6] selected dev-" in (path / "log.txt").read_text()
    record = read_record(path)
    assert (record.num_rounds, record.policy, record.params["beta"]) == (6, "cs-ucb-q", 0.5)


@pytest.mark.parametrize(
    ("config", "command"),
    [
        (None, "ScheduledStrategy(FedAvg, &#39;cs-ucb-q-adaptive&#39;, num_selected=2"),
        (
            {"app": "some:app", "address": "127.0.0.1:9999"},
            "flower-server --address 127.0.0.1:9999 --app some:app",
        ),
    ],
)
def test_report_replay_and_page_read_it(
    tmp_path: Path, config: dict[str, Any] | None, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    if config is None:
        start(path, 12)
    else:
        fleet = FleetConfig.from_mapping({**config, "run-dir": str(path)})
        with followed_by(record_app(fleet, {"local-epochs": 3})):
            start(None, 12)
    assert simulation_main(["report", str(path), "--seeds", "2"]) == 0
    report = (path / "report.html").read_text()
    assert command in report
    assert config is None or "<code>app-config local-epochs</code></td><td>3" in report
    capsys.readouterr()
    assert simulation_main(["replay", str(path), "--seeds", "2", "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out)["replayed"]
    assert replayed[0]["policy"] == "recorded"
    assert simulation_main(["watch", str(path), "--save", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").exists()


def test_the_page_of_a_server_turns_to_the_next_run(tmp_path: Path) -> None:
    view, first = RunView(tmp_path, latest=True), RunView(tmp_path)
    start(tmp_path, 4)
    view.refresh()
    assert view.num_rounds == 4
    start(tmp_path, 2)
    for each in (view, first):
        each.refresh()
    assert [view.num_rounds, first.num_rounds] == [2, 4]
    assert view.state()["run"]["num_rounds"] == 2


def test_a_run_that_was_killed_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole = start(tmp_path / "whole", strategy=FedAdam(eta=0.1))
    dead = False

    def kill(record: Any, arrays: ArrayRecord) -> None:
        nonlocal dead
        if record.round == 4 and not dead:
            dead = True
            raise KeyboardInterrupt

    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        start(path, strategy=FedAdam(eta=0.1), resume=True, hooks=[kill])
    assert len(rounds_of(path)) == 4
    result = start(path, strategy=FedAdam(eta=0.1), resume=True, hooks=[kill])
    assert len(rounds_of(path)) == 6
    assert result.arrays["w"].numpy().tolist() == whole.arrays["w"].numpy().tolist()
    again = start(path, 6, strategy=FedAdam(eta=0.1), resume=True)  # of a finished run: the second
    assert (path / "start-2").is_dir()
    assert again.arrays["w"].numpy().tolist() == whole.arrays["w"].numpy().tolist()


def test_a_run_that_goes_on_is_judged_and_summed_up_as_a_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kinds: list[set[str]] = []

    class Judge(AlarmLog):
        def on_round(self, record: Any, arrays: ArrayRecord) -> None:
            super().on_round(record, arrays)
            kinds.append({alarm.kind for alarm in self.active})

    def part(rounds: int) -> None:
        caplog.clear()
        config = FleetConfig(run_dir=str(tmp_path), app="some:app")
        follower = record_app(config, callbacks=lambda: [Judge()], resume=rounds > 20)
        with followed_by(follower):
            start(None, rounds, tau_max_s=0.2, policy="random", on=grid())

    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        part(20)
        assert not any("deadline-tight" in found for found in kinds), "too few to judge"
        part(27)
    failed = [line["reason"].count("timeout") for line in rounds_of(tmp_path)]
    assert sum(failed) > 0.1 * 54
    assert "deadline-tight" in kinds[-1]
    (line,) = (text for text in caplog.messages if text.startswith("shares of rounds"))
    assert "rounds 1 to 27: " in line


def test_a_finished_run_that_is_continued_has_nothing_to_do(tmp_path: Path) -> None:
    whole, config = start(tmp_path), FleetConfig(run_dir=str(tmp_path), app="some:app")
    with followed_by(record_app(config, resume=True)):
        again = start(None)
    assert again.arrays["w"].numpy().tolist() == whole.arrays["w"].numpy().tolist()
    assert len(rounds_of(tmp_path)) == 6


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"num_selected": 3}, "num-selected = 2, not 3"), ({"num_rounds": 5}, "at least 6")],
)
def test_another_run_is_not_continued(
    tmp_path: Path, changes: Mapping[str, Any], text: str
) -> None:
    start(tmp_path)
    config = FleetConfig(run_dir=str(tmp_path), app="some:app")
    with followed_by(record_app(config, resume=True)), pytest.raises(ConfigError, match=text):
        start(None, **changes)
    assert len(rounds_of(tmp_path)) == 6


def test_another_model_is_not_continued(tmp_path: Path) -> None:
    start(tmp_path)
    other = ArrayRecord({"w": Array(np.zeros(5, np.float32))})
    config = FleetConfig(run_dir=str(tmp_path), app="some:app")
    with (
        followed_by(record_app(config, resume=True)),
        pytest.raises(ConfigError, match="must be a run whose model has the arrays"),
    ):
        run_app(lambda g: schedule().start(g, other, num_rounds=9), grid())


def test_a_second_run_of_an_app_has_a_folder_in_the_first(tmp_path: Path) -> None:
    config = FleetConfig(run_dir=str(tmp_path), app="some:app")

    def pretrain_and_tune(g: Grid) -> None:
        first = schedule().start(g, small_model(), num_rounds=4)
        schedule(num_selected=1).start(g, first.arrays, num_rounds=3)

    with followed_by(record_app(config, {"some-key": 1})):
        run_app(pretrain_and_tune, grid())
    assert [len(rounds_of(tmp_path)), len(rounds_of(tmp_path / "start-2"))] == [4, 3]
    assert settings_of(tmp_path)["num-selected"] == 2
    assert settings_of(tmp_path / "start-2")["num-selected"] == 1
    assert settings_of(tmp_path)["app"] == "some:app"
    assert settings_of(tmp_path)["app-config"] == {"some-key": 1}
    with followed_by(record_app(config, {"some-key": 2}, resume=True)):  # nothing is left to do
        run_app(pretrain_and_tune, grid())
    assert [len(rounds_of(tmp_path)), len(rounds_of(tmp_path / "start-2"))] == [4, 3]


@pytest.mark.parametrize("same_strategy", [True, False])
def test_an_app_of_two_runs_goes_on_in_the_second(tmp_path: Path, same_strategy: bool) -> None:
    def app(g: Grid, kill_in: int | None, results: list[Any]) -> None:
        def hook(record: Any, arrays: ArrayRecord) -> None:
            if run == 2 and record.round == kill_in:
                raise KeyboardInterrupt

        run, arrays = 1, small_model()
        strategy = schedule(FedAdam(eta=0.1), hooks=[hook])
        arrays = strategy.start(g, arrays, num_rounds=4).arrays
        run = 2
        if not same_strategy:
            strategy = schedule(FedAdam(eta=0.1), hooks=[hook])
        results.append(strategy.start(g, arrays, num_rounds=5).arrays["w"].numpy().tolist())

    found: list[Any] = []
    config = FleetConfig(run_dir=str(tmp_path / "whole"), app="some:app")
    with followed_by(record_app(config)):
        run_app(lambda g: app(g, None, found), grid())
    config = FleetConfig(run_dir=str(tmp_path / "run"), app="some:app")
    with pytest.raises(KeyboardInterrupt), followed_by(record_app(config)):
        run_app(lambda g: app(g, 3, found), grid())
    assert len(rounds_of(tmp_path / "run" / "start-2")) == 3
    with followed_by(record_app(config, resume=True)):
        run_app(lambda g: app(g, None, found), grid())
    for part in (Path(), Path("start-2")):
        assert rounds_of(tmp_path / "run" / part) == rounds_of(tmp_path / "whole" / part)
    assert found[0] == found[1]


def test_a_second_run_with_the_same_run_dir_loses_nothing(tmp_path: Path) -> None:
    start(tmp_path, 4)
    start(tmp_path, 3)
    assert [len(rounds_of(tmp_path)), len(rounds_of(tmp_path / "start-2"))] == [4, 3]


def test_a_folder_in_use_is_refused_before_the_first_round(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match="does not exist yet, or is empty"):
        start(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]
    (tmp_path / "rounds.jsonl").write_text("")
    with pytest.raises(ConfigError, match="it holds a run, which can be resumed"):
        ensure_empty(tmp_path)


@pytest.mark.parametrize("option", [{"tracker": "mlflow"}, {"resume": True}])
def test_what_needs_a_run_dir_says_so(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="needs run_dir"):
        start(None, **option)


def test_a_strategy_that_cannot_be_saved_runs_without_checkpoints(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Holding(FedAvg):
        def __init__(self) -> None:
            super().__init__()
            self.place = tmp_path

    with caplog.at_level(logging.WARNING, logger=LOGGER.name):
        start(tmp_path / "run", strategy=Holding())
    assert "no checkpoints, this run cannot be resumed: Holding.place" in caplog.text
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert settings_of(tmp_path / "run")["checkpoint-every"] == 0
    assert len(rounds_of(tmp_path / "run")) == 6


def test_a_strategy_with_a_start_of_its_own_is_recorded_without_checkpoints(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Mine(FedAvg):
        def start(self, *args: Any, **kwargs: Any) -> Result:
            return super().start(*args, **kwargs)

    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        start(tmp_path / "run", strategy=Mine())
    assert "no checkpoints, this run cannot be resumed: strategy = 'Mine': has a st" in caplog.text
    assert "[ROUND 6/6] selected dev-" in caplog.text
    assert len(rounds_of(tmp_path / "run")) == 6


def test_a_strategy_that_cannot_be_saved_any_more_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Getting(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            if server_round == 3:
                self.place = tmp_path
            return super().aggregate_train(server_round, replies)

    with caplog.at_level(logging.WARNING, logger=LOGGER.name):
        start(tmp_path / "run", strategy=Getting())
    assert caplog.text.count("no further checkpoints: Getting.place") == 1
    assert len(rounds_of(tmp_path / "run")) == 6


@pytest.mark.parametrize("num_rounds", [1, 3])
def test_a_run_that_trained_nothing_is_an_error_after_its_results(
    tmp_path: Path, num_rounds: int
) -> None:
    with pytest.raises(NoStepError, match=r"the last: no-replies \(dev-. timeout"):
        start(tmp_path, num_rounds, on=grid(fail=True))
    assert json.loads((tmp_path / "summary.json").read_text())["rounds"] == num_rounds
    assert (tmp_path / "model.safetensors").exists()


def test_an_app_goes_on_whose_results_cannot_be_saved_and_the_program_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_no_room(monkeypatch, "model.safetensors", "summary.json")
    config = FleetConfig(run_dir=str(tmp_path), app="some:app", checkpoint_required=False)
    recording = record_app(config)
    with followed_by(recording):
        assert len(start(None, 4).arrays) == 1, "the app has its model"
    reason = os.strerror(errno.ENOSPC)
    with pytest.raises(NotSavedError) as caught:
        recording.require_saved()
    assert str(caught.value) == (
        f"could not be saved: the summary ({tmp_path / 'summary.json'}: {reason}), "
        f"the final model ({tmp_path / 'model.safetensors'}: {reason})"
    )
    assert caught.value.summaries[str(tmp_path)]["rounds"] == 4
    assert len(rounds_of(tmp_path)) == 4
    travelled = pickle.loads(pickle.dumps(caught.value))
    assert (str(travelled), travelled.summaries) == (str(caught.value), caught.value.summaries)


def test_buffered_runs_have_steps_in_logs_and_errors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(record: RoundRecord, arrays: ArrayRecord) -> None:
        if record.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, on=grid(fail=True), mode="buffered", hooks=[stop])
    caplog.set_level(logging.INFO, logger=LOGGER.name)
    with pytest.raises(NoStepError, match="no step has changed the model, the last: "):
        start(tmp_path, 20, on=grid(fail=True), mode="buffered", resume=True)
    assert "goes on after step 3" in caplog.text
    assert re.search(r"step \d+: the model has not changed for \d+ steps", caplog.text)
    assert "round 20" not in caplog.text


@pytest.mark.parametrize(
    ("fault", "ends_with"), [(KeyboardInterrupt, NotSavedError), (ValueError,) * 2]
)
def test_a_run_that_ends_early_says_what_could_not_be_saved(
    fault: type[BaseException],
    ends_with: type[BaseException],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def stop(record: RoundRecord, arrays: ArrayRecord) -> None:
        raise fault

    leave_no_room(monkeypatch, "model.safetensors")
    config = FleetConfig(run_dir=str(tmp_path), app="some:app", checkpoint_required=False)
    with pytest.raises(ends_with), followed_by(record_app(config)):
        start(None, hooks=[stop])
    logged = "could not be saved: the final model" in caplog.text
    assert logged == (fault is ValueError), "it is no error of its own"


def test_all_that_can_be_is_saved_before_a_full_disk_ends_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_no_room(monkeypatch, "summary.json")
    with pytest.raises(OSError, match="No space left on device"):
        start(tmp_path)
    assert (tmp_path / "model.safetensors").exists()


def test_no_rounds_are_no_error(tmp_path: Path) -> None:
    start(tmp_path, 0)
    assert (tmp_path / "summary.json").exists()


class Following(RoundCallback):
    """Notes the life of runs."""

    def __init__(self) -> None:
        self.noted: list[Any] = []

    def on_start(self, run: Run) -> None:
        self.noted.append(run.num_rounds)

    def on_end(self, status: RunEnd, summary: Mapping[str, Any]) -> None:
        self.noted.append((status, summary["rounds"]))


def test_callbacks_follow_each_run_of_an_app_once(tmp_path: Path) -> None:
    following = Following()
    config = FleetConfig(run_dir=str(tmp_path), app="some:app", explain=False)
    with followed_by(record_app(config, {}, lambda: [following])):
        start(None, 4)
        start(None, 2)
    finished = RunEnd.FINISHED
    assert following.noted == [4, (finished, 4), 2, (finished, 2)]
    assert rounds_of(tmp_path)[0]["scores"] is None
    assert following.noted, "the app's own run_dir gives way"


def test_the_servers_folder_goes_before_the_apps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = FleetConfig(run_dir=str(tmp_path / "server"), app="some:app")
    with caplog.at_level(logging.WARNING, logger=LOGGER.name), followed_by(record_app(config)):
        start(tmp_path / "app")
    assert not (tmp_path / "app").exists()
    assert len(rounds_of(tmp_path / "server")) == 6
    assert "of the app has no effect" in caplog.text
