"""Settings, aggregation by name, history and run directory of the server."""

from __future__ import annotations

import json
import logging
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from factories import round_record, small_model, three_arms
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, MultiKrum

from flower_scheduling.errors import ConfigError
from flower_scheduling.server.monitoring.console import ConsoleLog
from flower_scheduling.server.runs.directory import (
    RunDirectory,
    count_rounds,
    load_model,
    written_rounds,
)
from flower_scheduling.server.runs.totals import RunTotals
from flower_scheduling.server.settings.aggregation import AGGREGATIONS, build_aggregation
from flower_scheduling.server.settings.run import ServerConfig
from flower_scheduling.strategies.flower import LOGGER, RoundRecord


def record(**changes: Any) -> RoundRecord:
    values: dict[str, Any] = {
        "time_s": 1.5,
        "round_s": 1.5,
        "selected": [0, 2],
        "rtt_s": [1.5, None],
        "reason": [None, "timeout"],
        "compute_s": [1.0, None],
        "link_s": [0.5, None],
    }
    return round_record(**{**values, **changes})


# --- settings ---------------------------------------------------------------------------------


def test_settings_know_their_keys_and_go_there_and_back() -> None:
    config = ServerConfig.from_mapping({"num-selected": 3, "tau-max-s": 7, "strategy": "random"})
    assert (config.num_selected, config.tau_max_s, config.strategy) == (3, 7.0, "random")
    assert type(config.tau_max_s) is float, "whole numbers become floats where a float is due"
    assert ServerConfig.from_mapping(config.to_mapping()) == config
    assert all(isinstance(v, int | float | bool | str) for v in config.to_mapping().values())


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num-select", 3, "did you mean num-selected"),
        ("num-selected", 2.5, "num-selected = 2.5: must be a whole number"),
        ("num-selected", True, "num-selected = True: must be a whole number"),
        ("num-selected", "3", "num-selected = '3': must be a whole number"),
        ("tau-max-s", "fast", "tau-max-s = 'fast': must be a number"),
        ("tau-max-s", float("nan"), "tau-max-s = nan: must be a finite number"),
        ("truncate", 1, "truncate = 1: must be true or false"),
        ("strategy", 7, "strategy = 7: must be a text"),
        ("wait-s", -1.0, "must be at least 0 and at most 604800"),
    ],
)
def test_wrong_settings_are_refused_by_key(key: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServerConfig.from_mapping({key: value})


# --- aggregation ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_every_aggregation_can_be_built(name: str) -> None:
    options = "client-learning-rate=0.1" if name == "qfedavg" else ""
    assert type(build_aggregation(name, options)) is AGGREGATIONS[name]


def test_option_that_has_no_default_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="lacks client-learning-rate=VALUE, which qfedavg needs"):
        build_aggregation("qfedavg")


def test_options_reach_the_strategy() -> None:
    strategy = build_aggregation("fedadam", "eta=0.01, beta-1=0.5")
    assert isinstance(strategy, FedAdam)
    assert (strategy.eta, strategy.beta_1) == (0.01, 0.5)
    krum = build_aggregation("multikrum", "num-malicious-nodes=1")
    assert isinstance(krum, MultiKrum)
    assert krum.num_malicious_nodes == 1
    assert type(build_aggregation("fedavg")) is FedAvg


@pytest.mark.parametrize("option", ["fraction-train=0.5", "min-available-nodes=3", "eta", "x=1"])
def test_options_that_are_not_the_users_are_refused(option: str) -> None:
    with pytest.raises(ConfigError, match="aggregation-option"):
        build_aggregation("fedadam", option)


class Stringed(FedAvg):
    """Written in a module that imports ``annotations`` from ``__future__``, as this one does."""

    def __init__(
        self,
        rate: float,
        steps: int = 3,
        hook: OnlyForTypeCheckers | None = None,  # type: ignore[name-defined]  # noqa: F821
        train_loss_key: str = "loss",
    ) -> None:
        super().__init__()
        self.rate, self.steps = rate, steps


def test_options_are_known_however_flower_writes_its_annotations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(AGGREGATIONS, "stringed", Stringed)
    strategy = build_aggregation("stringed", "rate=0.5,steps=4")
    assert isinstance(strategy, Stringed)
    assert (strategy.rate, strategy.steps) == (0.5, 4)
    with pytest.raises(ConfigError, match="steps must be a finite int"):
        build_aggregation("stringed", "rate=0.5,steps=4.5")
    with pytest.raises(ConfigError, match="which takes rate, steps, train-loss-key"):
        build_aggregation("stringed", "hook=1")


# --- history ----------------------------------------------------------------------------------


def test_summary_by_hand() -> None:
    totals = RunTotals(target_accuracy=0.8)
    totals.count(record(accuracy=0.5, loss=2.0))
    totals.count(
        record(
            round=2,
            time_s=4.0,
            selected=[0, 1],
            rtt_s=[2.5, 0.5],
            reason=[None, None],
            accuracy=0.9,
            loss=1.0,
        )
    )
    totals.count(
        record(round=3, time_s=9.0, stepped=False, reason=["client error: code 2, x", "timeout"])
    )
    summary = totals.summary(three_arms(), [0.5, 0.25, 0.0], tau_max_s=5.0)
    assert (summary["rounds"], summary["time_s"]) == (3, 9.0)
    assert (summary["accuracy"], summary["best_accuracy"], summary["loss"]) == (0.9, 0.9, 1.0)
    assert (summary["target_round"], summary["target_time_s"]) == (2, 4.0)
    assert summary["rounds_without_step"] == 1
    assert summary["failures"] == 3
    assert summary["failure_reasons"] == {"timeout": 2, "client error": 1}
    a, b, c = summary["arms"]
    assert a == {
        "index": 0,
        "name": "a",
        "num_examples": 10,
        "floor": 0.5,
        "share": 1.0,
        "mean_rtt_s": 2.0,
        "failures": 1,
    }
    assert (b["share"], b["mean_rtt_s"]) == (pytest.approx(1 / 3), 0.5)
    assert (c["share"], c["mean_rtt_s"], c["failures"]) == (pytest.approx(2 / 3), None, 2)
    assert summary["suggested_tau_max_s"] == 10.0, "half of the answers are cut off: allow more"


def test_deadline_far_above_the_answers_is_suggested_down() -> None:
    totals = RunTotals()
    for t in range(200):
        totals.count(record(round=t + 1, selected=[0], rtt_s=[0.2], reason=[None]))
    summary = totals.summary(three_arms(), None, tau_max_s=5.0)
    assert summary["suggested_tau_max_s"] == pytest.approx(0.3, rel=0.01)
    empty = RunTotals().summary(three_arms(), None, tau_max_s=5.0)
    assert empty["suggested_tau_max_s"] is None


# --- run directory ----------------------------------------------------------------------------


def test_who_reads_while_a_line_is_written_sees_whole_rounds_only(tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert written_rounds(path) == []
    directory = RunDirectory(path, {})
    directory.write_round(record(), small_model())
    directory.write_round(record(round=2), small_model())
    directory.close()
    data = (path / "rounds.jsonl").read_bytes()
    first = data.index(b"\n") + 1
    for end in (first, first + 1, len(data) - 1):
        (path / "rounds.jsonl").write_bytes(data[:end])
        assert [line["round"] for line in written_rounds(path)] == [1]
        assert count_rounds(path) == 1


def test_run_directory_holds_whole_lines_as_the_run_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER.name)
    directory = RunDirectory(tmp_path / "runs" / "x", {"rounds": 2, "strategy": "random"})
    path = directory.path
    assert tomllib.loads((path / "config.toml").read_text()) == {"rounds": 2, "strategy": "random"}
    directory.write_round(record(accuracy=0.5), small_model(1.0))
    line = json.loads((path / "rounds.jsonl").read_text())  # readable before the run ends
    assert line["schema"] == 1
    assert line["available"] == [0, 1, 2]
    assert line["num_available"] == 3
    assert line["reason"] == [None, "timeout"]
    assert set(line["wall"]) == {"time_s"}
    directory.write_round(record(round=2, accuracy=0.4, num_arms=201), small_model(2.0))
    second = (path / "rounds.jsonl").read_text().splitlines()[1]
    assert "available" not in json.loads(second), "not listed above 200 arms"
    directory.note_arms(three_arms(), [0.5, 0.25, 0.0])
    assert json.loads((path / "arms.json").read_text())[1] == {
        "index": 1,
        "name": "b",
        "num_examples": 20,
        "floor": 0.25,
    }
    directory.write_model("last", small_model(2.0))
    best = safetensors.numpy.load_file(path / "model-best.safetensors")
    last = safetensors.numpy.load_file(path / "model.safetensors")
    assert (best["w"][0], last["w"][0]) == (1.0, 2.0)
    LOGGER.warning("something happened")
    directory.close()
    LOGGER.warning("after the end")
    log = (path / "log.txt").read_text()
    assert "something happened" in log
    assert "after the end" not in log
    assert not any(isinstance(h, logging.FileHandler) for h in LOGGER.handlers)


def test_run_directory_is_never_reused(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "x", {}).close()
    for name in ("config.toml", "rounds.jsonl", "log.txt"):  # whatever is left of it
        with pytest.raises(ConfigError, match="does not exist yet"):
            RunDirectory(tmp_path / "x", {})
        (tmp_path / "x" / name).unlink()
    (tmp_path / "x" / "scores.bin").unlink()
    assert [file.name for file in (tmp_path / "x").iterdir()] == [".lock"]
    RunDirectory(tmp_path / "x", {}).close()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="can be created"):
        RunDirectory(tmp_path / "file" / "x", {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "x"]


def test_model_is_read_back_and_another_kind_is_refused(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "x", {})
    directory.write_model("last", small_model(2.0))
    directory.close()
    path = directory.path / "model.safetensors"
    assert load_model(path, like=small_model())["w"].numpy() == pytest.approx([2.0, 2.0])
    other = ArrayRecord({"w": Array(np.zeros(3, dtype=np.float32))})
    with pytest.raises(ConfigError, match="a model with the arrays"):
        load_model(path, like=other)
    path.write_bytes(b"garbage")
    with pytest.raises(ConfigError, match="a readable safetensors file"):
        load_model(path, like=small_model())


def test_only_answers_that_were_late_raise_the_suggested_deadline() -> None:
    def suggested(reason: str) -> float:
        totals = RunTotals()
        for number in range(1, 11):
            totals.count(record(round=number, rtt_s=[1.0, None], reason=[None, reason]))
        return float(totals.summary(three_arms(), None, tau_max_s=4.0)["suggested_tau_max_s"])

    assert suggested("client error: ValueError: no") == 1.5
    assert suggested("connection lost") == 1.5
    assert suggested("timeout") == 8.0


def test_round_log_speaks_of_evaluated_rounds_and_breaks_long_silences(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(
        "flower_scheduling.server.monitoring.console.time.monotonic", lambda: now_s[0]
    )
    log = ConsoleLog()
    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        log.on_round(record(round=1), small_model())
        log.on_round(record(round=2), small_model())
        log.on_round(record(round=3, accuracy=0.5), small_model())
        now_s[0] += 10.0
        log.on_round(record(round=4, rtt_s=[None, None], reason=["timeout"] * 2), small_model())
    assert [r.getMessage() for r in caplog.records] == [
        "round 1: 1.5 s, 3 clients available, slowest a 1.500 s, 1 of 2 failed",
        "round 3: 1.5 s, 3 clients available, accuracy 0.5000, slowest a 1.500 s, 1 of 2 failed",
        "round 4: 1.5 s, 3 clients available, 2 of 2 failed",
    ]
