"""The compatibility suite: its verdicts, and runs of it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from paths import ROOT

PROGRAM: Final = Path(__file__).with_name("suite.py")


@pytest.fixture(scope="module")
def suite() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compatibility_suite", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def outcome(**changes: Any) -> dict[str, Any]:
    """Return the record of a run of two rounds."""
    record = {
        "scheduled": True,
        "changed": True,
        "arrays": {"w": ["float32", [3]], "count": ["int64", []]},
        "train": {"1": ["loss"], "2": ["loss"]},
        "clients": {"1": ["accuracy"], "2": ["accuracy"]},
        "server": {},
    }
    return record | changes


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({}, ""),
        ({"arrays": {"w": ["float32", [3]]}}, "the model's count"),
        (
            {"arrays": {"w": ["float64", [3]], "count": ["int64", [1]]}},
            "the model's count, w",
        ),
        (
            {"clients": {"2": ["accuracy"]}, "train": {}},
            "training metrics of round 1, 2; evaluation on clients of round 1",
        ),
        ({"server": {"0": ["loss"]}}, ""),  # more than stock Flower has
    ],
)
def test_what_is_lost_is_named(suite: ModuleType, changes: dict[str, Any], missing: str) -> None:
    stock, cell = suite.Cell([outcome()]), suite.Cell([outcome(**changes)])
    assert suite.lost(cell, stock) == missing


def test_a_model_that_keeps_its_type_is_no_loss(suite: ModuleType) -> None:
    wider = outcome(arrays={"w": ["float64", [3]], "count": ["int64", []]})
    assert suite.lost(suite.Cell([outcome()]), suite.Cell([wider])) == ""
    assert suite.lost(suite.Cell([wider]), suite.Cell([outcome()])) == "the model's w"


def test_a_run_less_is_a_loss(suite: ModuleType) -> None:
    stock = suite.Cell([outcome(), outcome()])
    assert suite.lost(suite.Cell([outcome()]), stock) == "1 of 2 runs"


def test_a_run_without_a_step_is_a_fault(suite: ModuleType) -> None:
    cell = suite.Cell.run("", lambda: [outcome(changed=False)])
    assert cell.fault == "no round changed the model"


def test_the_last_error_is_the_reason(suite: ModuleType) -> None:
    lines = ["KeyError: 'a'", "\x1b[91mERROR \x1b[0m:   flwr.some.OtherError: b", "goodbye"]
    assert suite.reason(lines) == "flwr.some.OtherError: b"


def test_known_cells_are_those_of_an_earlier_run(
    suite: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cells.json"
    first = suite.KnownCells(file)
    cell = first.put("wind streams", suite.Cell([outcome()], "late"))
    assert first.get("wind streams") == cell
    assert not first.reused
    again = suite.KnownCells(file)
    assert again.get("wind ray") is None
    assert not again.reused
    assert again.get("wind streams") == cell
    assert again.reused
    assert suite.KnownCells(None).get("wind streams") is None
    assert "measured in more than one run" in suite.render([], reused=True)
    assert "measured in more than one run" not in suite.render([])
    monkeypatch.setattr(suite, "packages", lambda: "others")
    assert suite.KnownCells(file).get("wind streams") is None, "of other packages"


def test_the_table_has_no_path_of_the_machine(suite: ModuleType, tmp_path: Path) -> None:
    fault = f"ImportError: cannot import name 'x' from 'y' ({tmp_path}/y.py)"
    row = suite.Row(suite.App(tmp_path / "mine"), suite.Cell([], fault))
    table = suite.render([row])
    assert "| mine | cannot: ImportError: cannot import name 'x' from 'y' | – | – | – |" in table
    assert not row.failed, "what stock Flower cannot run is no failure"
    row = suite.Row(row.app, suite.Cell([outcome()]), {"ray": suite.Cell([], "error: no")})
    assert row.failed
    refused = suite.Cell([], "error: mode = 'buffered': trees have no difference (use mode=...)")
    row = suite.Row(row.app, suite.Cell([outcome()]), {"buffered": refused})
    assert not row.failed, "refused by name, which the table says"
    assert "mode = 'buffered': trees" in suite.render([row])


WRAPPED: Final = """\
import sys

import numpy as np
from compatibility_wrap import wrap
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from scripted_grid import ScriptedGrid


def trains(message):
    metrics = MetricRecord({"num-examples": 10, "loss": 0.5})
    content = {"arrays": ArrayRecord([np.ones(2, np.float32)]), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)


wrap(sys.argv[1], 1, 300, sys.argv[2])
for _ in range(2):  # an app may train more than once
    initial = ArrayRecord([np.zeros(2, np.float32)])
    FedAvg(fraction_evaluate=0.0).start(ScriptedGrid([trains] * 2), initial, num_rounds=2)
"""


@pytest.mark.parametrize("mode", ["rounds", "buffered"])
def test_a_wrapped_strategy_runs_in_either_mode(mode: str, tmp_path: Path) -> None:
    folders = [PROGRAM.with_name("on_path"), ROOT / "tests" / "support", ROOT]
    result = tmp_path / "result.jsonl"
    done = subprocess.run(  # of its own: wrapping changes Flower's classes
        [sys.executable, "-c", WRAPPED, str(result), mode],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in result.read_text().splitlines()]
    assert [(each["scheduled"], each["changed"]) for each in records] == [(True, True)] * 2


def run(folder: Path, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.e2e
def test_an_app_of_a_folder_is_wrapped_and_compared(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    shutil.copytree(ROOT / "examples" / "foreign-app", tmp_path / "apps" / "wind")
    server = tmp_path / "apps" / "wind" / "wind" / "server_app.py"
    plain, count = re.subn(r"ScheduledStrategy\((\w+),.*?\)", r"\1", server.read_text())
    assert count == 1
    server.write_text(plain)
    table = run(tmp_path / "apps", "--runtime", "streams", "--runtime", "buffered")
    assert "| wind | works | works | works | – | – |" in table


OLD_APP: Final = """\
import numpy as np
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.compat.server import ServerAppComponents
from flwr.server import ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp


class Client(NumPyClient):
    def fit(self, parameters, config):
        return [each + np.float32(1) for each in parameters], 10, {"train_loss": 0.5}

    def evaluate(self, parameters, config):
        return float(parameters[0].sum()), 10, {"accuracy": 0.5}


def server_fn(context):
    initial = ndarrays_to_parameters([np.zeros(3, np.float32)])
    strategy = FedAvg(
        initial_parameters=initial,
        fit_metrics_aggregation_fn=lambda found: {"train_loss": found[0][1]["train_loss"]},
        evaluate_metrics_aggregation_fn=lambda found: {"accuracy": found[0][1]["accuracy"]},
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=2))


client = ClientApp(client_fn=lambda context: Client().to_client())
server = ServerApp(server_fn=server_fn)
"""


@pytest.mark.slow
@pytest.mark.e2e
def test_an_app_of_flowers_old_api_is_wrapped_and_compared(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    folder = tmp_path / "apps" / "old"
    folder.mkdir(parents=True)
    (folder / "old_app.py").write_text(OLD_APP)
    (folder / "pyproject.toml").write_text(
        "[project]\nname = 'old'\nversion = '1.0.0'\nlicense = 'Apache-2.0'\ndependencies = []\n"
        "[tool.flwr.app]\npublisher = 'somebody'\n"
        "[tool.flwr.app.components]\nserverapp = 'old_app:server'\nclientapp = 'old_app:client'\n"
    )
    table = run(tmp_path / "apps", "--runtime", "streams", "--runtime", "buffered")
    assert "| old | works | works | works | – | – |" in table


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(3600)
def test_public_apps_run_scheduled() -> None:
    folder = os.environ.get("FLOWER_APPS")
    if not folder:
        pytest.skip("FLOWER_APPS names no folder of Flower apps")
    print(run(Path(folder)))
