"""The ServerApp's life on a grid of virtual time: runs do not meet, nothing stays locked."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from apps import echo_app
from factories import small_model
from flwr.app import ArrayRecord, Context, RecordDict

from flower_scheduling.errors import ConfigError, NoStepError
from flower_scheduling.server import app as app_module
from flower_scheduling.server.app import app, create_app, prepare_run
from flower_scheduling.server.callbacks import RoundCallback, Run
from flower_scheduling.server.runs.directory import RunDirectory, lock_run, written_rounds
from flower_scheduling.server.runs.recorder import RunRecorder
from flower_scheduling.server.settings.run import ServerConfig
from flower_scheduling.simulation.engine.virtual_grid import VirtualGrid
from flower_scheduling.simulation.environments.paper import Environment
from flower_scheduling.strategies.flower import LOGGER, RoundRecord, ScheduledStrategy


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "evaluator", lambda config: None)


def config(run_dir: Path | None, **changes: Any) -> ServerConfig:
    values = {"strategy": "random", "fairness": "none", "num-selected": 3, "rounds": 12}
    values |= {"run-dir": str(run_dir) if run_dir else "", "wait-s": 0.0, "min-clients": 1}
    return ServerConfig.from_mapping({**values, **changes})


def run_on(server_app: Any, settings: ServerConfig, num_clients: int, *, fail: bool) -> None:
    """Run an app with clients of whom, if they do not fail, each returns the model."""
    environment = Environment(
        num_arms=num_clients, seed=1, failure_probability=1.0 if fail else 0.0
    )
    nodes: list[dict[str, Any]] = [{"partition-id": arm} for arm in range(num_clients)]
    grid = VirtualGrid(echo_app(), environment, nodes, {})
    run_config = settings.to_mapping()
    server_app(grid, Context(1, 0, {}, RecordDict(), dict(run_config)))


def test_a_second_run_of_the_same_app_knows_nothing_of_the_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        with pytest.raises(NoStepError, match="the model, the last: no-replies"):
            run_on(app, config(tmp_path / "large"), 8, fail=True)
        assert len(written_rounds(tmp_path / "large")) == 12, "and its results are written"
        assert (tmp_path / "large" / "summary.json").exists()
        assert "alarm always-fails" in caplog.text
        caplog.clear()
        run_on(app, config(tmp_path / "small"), 2, fail=False)
    assert "alarm" not in caplog.text
    assert "[ROUND 1/12] " in caplog.text, "also said of the second run"
    assert len(written_rounds(tmp_path / "small")) == 12


class Broken(RoundCallback):
    """Raises at the start of a run."""

    def on_start(self, run: Run) -> None:
        raise OSError(28, "No space left on device")


def test_a_run_that_cannot_start_leaves_its_directory_unlocked(tmp_path: Path) -> None:
    handlers = list(LOGGER.handlers)
    with pytest.raises(OSError, match="No space left"):
        run_on(create_app(lambda: [Broken()]), config(tmp_path / "run"), 3, fail=False)
    lock_run(tmp_path / "run").release()
    assert LOGGER.handlers == handlers
    assert not (tmp_path / "run" / "summary.json").exists(), "there was no run"


@pytest.mark.parametrize("name", ["config.toml", "rounds.jsonl", "log.txt", "scores.bin"])
def test_a_directory_that_cannot_be_opened_is_left_unlocked(tmp_path: Path, name: str) -> None:
    RunDirectory(tmp_path, {}).close()
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises((OSError, ConfigError)):
        RunDirectory.reopen(tmp_path, {}, 0)
    lock_run(tmp_path).release()
    assert not any(isinstance(h, logging.FileHandler) for h in LOGGER.handlers)


def test_strategies_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    init = ScheduledStrategy.__init__

    def counting(self: ScheduledStrategy, *arguments: Any, **more: Any) -> None:
        built.append(self)
        init(self, *arguments, **more)

    monkeypatch.setattr(ScheduledStrategy, "__init__", counting)
    settings = config(None)
    run_on(create_app(prepared=prepare_run(settings)), settings, 3, fail=False)
    assert len(built) == 1


def test_an_interrupt_between_writing_and_counting_loses_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = RunDirectory.write_round

    def interrupted(self: RunDirectory, record: RoundRecord, arrays: ArrayRecord) -> None:
        write(self, record, arrays)
        if record.round == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunDirectory, "write_round", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_on(create_app(), config(tmp_path / "run"), 3, fail=False)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["rounds"] == len(written_rounds(tmp_path / "run")) == 5
    assert any((tmp_path / "run" / "checkpoint").glob("00000005-*"))


def test_an_interrupt_before_writing_takes_the_round_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_round = RunRecorder.on_round

    def interrupted(self: RunRecorder, record: RoundRecord, arrays: ArrayRecord) -> None:
        if record.round == 5:
            self._latest = record, small_model()
            raise KeyboardInterrupt
        on_round(self, record, arrays)

    monkeypatch.setattr(RunRecorder, "on_round", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_on(create_app(), config(tmp_path / "run"), 3, fail=False)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["rounds"] == len(written_rounds(tmp_path / "run")) == 4
