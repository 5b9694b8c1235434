"""Trackers get what was recorded, once, and never harm the run."""

from __future__ import annotations

import json
import logging
import math
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from factories import round_record
from flwr.app import ArrayRecord
from paths import ROOT
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
from waiting import PATIENCE_S, until

from flower_scheduling.errors import ConfigError, TrackerError
from flower_scheduling.server.callbacks import RunEnd
from flower_scheduling.server.cli.main import main as server_main
from flower_scheduling.server.monitoring import trackers
from flower_scheduling.server.monitoring.trackers import Trackers, tracker_thread
from flower_scheduling.server.monitoring.trackers.base import RoundPoint, TrackedRun, Tracker
from flower_scheduling.server.monitoring.trackers.catalog import require_trackers
from flower_scheduling.server.monitoring.trackers.metrics import (
    METRICS,
    RoundMetrics,
    summary_metrics,
)
from flower_scheduling.server.monitoring.trackers.mlflow import MlflowTracker
from flower_scheduling.server.runs.directory import written_rounds
from flower_scheduling.server.runs.totals import RunTotals
from flower_scheduling.simulation.cli import main
from flower_scheduling.simulation.engine.runner import Simulation
from flower_scheduling.simulation.settings import SCENARIOS, SimulationConfig
from flower_scheduling.strategies.flower import LOGGER, RoundRecord, failure_kind

PAGE = (ROOT / "docs/how-to/trackers.md").read_text(encoding="utf-8")
# mlflow-skinny 3.17 uses a loader that SQLAlchemy 2.1 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader")


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    handlers, propagate, level = LOGGER.handlers, LOGGER.propagate, LOGGER.level
    LOGGER.handlers, LOGGER.propagate = [], True
    LOGGER.setLevel(logging.INFO)
    yield
    LOGGER.handlers, LOGGER.propagate = handlers, propagate
    LOGGER.setLevel(level)


def record(number: int = 1, **changes: Any) -> RoundRecord:
    values: dict[str, Any] = {
        "time_s": 2.0 * number,
        "round_s": 1.5,
        "selected": [0, 2],
        "rtt_s": [1.0, None],
        "reason": [None, "timeout"],
        "compute_s": [0.75, None],
        "link_s": [0.25, None],
    }
    return round_record(number, **{**values, **changes})


def metrics(floors: list[float] | None = None, queues: list[float] | None = None) -> RoundMetrics:
    return RoundMetrics(RunTotals(), lambda: floors, lambda: queues)


def counted(found: RoundMetrics, record: RoundRecord) -> dict[str, float]:
    found.totals.count(record)
    return found(record)


def log_round(run: Trackers, record: RoundRecord) -> None:
    """Count a round and report it, as a run does."""
    run._metrics.totals.count(record)
    run.on_round(record, ArrayRecord())


def config(run_dir: Path, **changes: Any) -> SimulationConfig:
    settings = {
        **SCENARIOS["non-ideal"],
        "run-dir": str(run_dir),
        "rounds": 30,
        "eval-every": 10,
        "failure-probability": "0.2",
        "checkpoint-every": 7,
        "tracker": "tensorboard,mlflow",
    }
    return SimulationConfig.from_mapping({**settings, **changes})


def stop_at(last: int, error: type[BaseException]) -> Any:
    def stop(record: RoundRecord, arrays: ArrayRecord) -> None:
        if record.round == last:
            raise error

    return stop


def board(run_dir: Path) -> EventAccumulator:
    found = EventAccumulator(
        str(run_dir / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}
    )
    return found.Reload()


def scalars(run_dir: Path) -> dict[str, dict[int, float]]:
    """Series by tag; a step that is there twice is an error."""
    found = board(run_dir)
    series = {}
    for tag in found.Tags()["scalars"]:
        events = found.Scalars(tag)
        series[tag] = {event.step: event.value for event in events}
        assert len(series[tag]) == len(events), tag
    return series


def mlflow_run(run_dir: Path) -> tuple[Any, dict[str, dict[int, float]]]:
    from mlflow import MlflowClient  # not before the tracker has turned its telemetry off

    client = MlflowClient(tracking_uri=f"sqlite:///{run_dir / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("flower-client-scheduling")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    series = {}
    for key in run.data.metrics:
        points = client.get_metric_history(run.info.run_id, key)
        series[key] = {point.step: point.value for point in points}
        assert len(series[key]) == len(points), key
    return run, series


def expected(run_dir: Path) -> dict[str, dict[int, float]]:
    """What the run directory says, under the trackers' names."""
    names = [arm["name"] for arm in json.loads((run_dir / "arms.json").read_text())]
    floors = [arm["floor"] for arm in json.loads((run_dir / "arms.json").read_text())]
    series: dict[str, dict[int, float]] = {}
    selections = [0] * len(names)
    failures: dict[str, int] = {}
    for line in written_rounds(run_dir):
        rtt = [r for r, done in zip(line["rtt_s"], line["completed"], strict=True) if done]
        waited = [line["round_s"] if r is None else r for r in line["rtt_s"]]
        for arm, reason in zip(line["selected"], line["reason"], strict=True):
            selections[arm] += 1
            if reason:
                failures[failure_kind(reason)] = failures.get(failure_kind(reason), 0) + 1
        number = line["round"]
        values = {
            "round/time_s": line["time_s"],
            "round/length_s": line["round_s"],
            "round/clients": line["num_arms"],
            "round/available": line["num_available"],
            "round/selected": len(line["selected"]),
            "round/completed": sum(line["completed"]),
            "round/failures": len(line["selected"]) - sum(line["completed"]),
            "round/stepped": line["stepped"],
            "round/rtt_mean_s": fmean(rtt) if rtt else None,
            "round/rtt_max_s": max(rtt, default=None),
            "round/compute_mean_s": mean(line["compute_s"]),
            "round/link_mean_s": mean(line["link_s"]),
            "round/slowest_arm": line["selected"][int(np.argmax(waited))],
            "model/accuracy": line["accuracy"],
            "model/loss": line["loss"],
            "floors/worst_shortfall": (
                max(0.0, *(f - s / number for f, s in zip(floors, selections, strict=True)))
                if number > 1  # when sizes are not yet known
                else None
            ),
            **{f"failures/{kind}": count for kind, count in failures.items()},
            **{
                f"client/{names[arm]}/rtt_s": rtt_s
                for arm, rtt_s, done in zip(
                    line["selected"], line["rtt_s"], line["completed"], strict=True
                )
                if done
            },
        }
        for key, value in values.items():
            if value is not None:
                series.setdefault(key, {})[number] = float(value)
    summary = json.loads((run_dir / "summary.json").read_text())
    for key, value in summary_metrics(summary).items():
        series[key] = {summary["rounds"]: value}
    return series


def comparable(series: dict[str, dict[int, float]], run_dir: Path) -> dict[str, dict[int, float]]:
    """Leave out what the run directory does not say: queues, and the floors of the first round."""
    found = {key: dict(values) for key, values in series.items()}
    rounds = {line["round"] for line in written_rounds(run_dir)}
    assert set(found.pop("floors/most_owed")) == rounds
    del found["floors/worst_shortfall"][1]
    return found


def mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


# --- the numbers ----------------------------------------------------------------------------------


def test_numbers_of_a_round_by_hand() -> None:
    found = metrics([0.5, 0.25, 0.0], [0.0, 0.25, -1.0])
    assert counted(found, record(accuracy=0.5, loss=math.inf)) == {
        "round/time_s": 2.0,
        "round/length_s": 1.5,
        "round/clients": 3.0,
        "round/available": 3.0,
        "round/selected": 2.0,
        "round/completed": 1.0,
        "round/failures": 1.0,
        "round/stepped": 1.0,
        "round/rtt_mean_s": 1.0,
        "round/rtt_max_s": 1.0,
        "round/compute_mean_s": 0.75,
        "round/link_mean_s": 0.25,
        "round/slowest_arm": 2.0,
        "model/accuracy": 0.5,
        "floors/worst_shortfall": 0.25,
        "floors/most_owed": 0.25,
        "failures/timeout": 1.0,
        "client/a/rtt_s": 1.0,
    }
    nobody = record(2, selected=[], names=[], rtt_s=[], reason=[], compute_s=[], link_s=[])
    second = counted(found, nobody)
    assert second["failures/timeout"] == 1.0, "kinds are counted from the first one on"
    assert "round/rtt_mean_s" not in second
    assert second["floors/worst_shortfall"] == 0.25


def test_metrics_of_an_app_have_series_of_their_own() -> None:
    on_clients = {"accuracy": 0.25, "f1@5": 0.5, "perplexity": math.nan}
    on_server = {"perplexity": 7.5}
    found = counted(metrics(), record(client_metrics=on_clients, server_metrics=on_server))
    assert {k: v for k, v in found.items() if k.startswith(("clients/", "model/"))} == {
        "clients/accuracy": 0.25,
        "clients/f1_5-1": 0.5,
        "model/perplexity": 7.5,
    }


def test_only_small_fleets_have_a_series_for_each_client() -> None:
    found = metrics()
    assert "client/a/rtt_s" in counted(found, record(num_arms=50))
    assert not [key for key in counted(found, record(2, num_arms=51)) if key.startswith("client/")]


def test_names_of_clients_that_mlflow_would_refuse_are_changed_and_stay_apart() -> None:
    found = counted(
        metrics(),
        record(
            selected=[0, 1, 2],
            names=["a/b", "..", "ä" * 300],
            rtt_s=[1.0, 2.0, 3.0],
            compute_s=[None] * 3,
            link_s=[None] * 3,
            reason=[None] * 3,
        ),
    )
    keys = [key for key in found if key.startswith("client/")]
    assert keys == ["client/a_b-0/rtt_s", "client/-1/rtt_s", f"client/{'_' * 100}-2/rtt_s"]


def test_table_of_the_documentation_has_all_names() -> None:
    rows = dict(re.findall(r"^\| `([a-z]+/[a-z_/<>]+)` \| (.*?) \|$", PAGE, re.MULTILINE))
    assert rows == METRICS


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("tensorbord", "must be tensorboard, mlflow, wandb, or several, separated by commas (did"),
        ("mlflow,mlflow", "names one twice"),
        ("mlflow,", "separated by commas"),
        ("tensorboard,wandb", "pip install 'flower-client-scheduling[wandb]'"),
        ("mlflow,wandb", "pip install 'flower-client-scheduling[mlflow,wandb]'"),
    ],
)
@pytest.mark.usefixtures("mnist")
def test_what_cannot_be_used_is_one_line_before_any_work(
    value: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    absent = {"wandb", "mlflow"} if value.startswith("mlflow") else {"wandb"}
    monkeypatch.setattr(
        "flower_scheduling.server.monitoring.trackers.catalog.importlib.util.find_spec",
        lambda name: None if name in absent else SimpleNamespace(),
    )
    port = ["--address", "127.0.0.1:0"]
    for run in (
        lambda: main(["--tracker", value]),
        lambda: main(["compare", "--tracker", value]),
        lambda: server_main(["--tracker", value, *port]),
        lambda: server_main(["--tracker", value, "--runtime", "superlink", *port]),
    ):
        assert run() == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: tracker = '{value}': ")
        assert message in line
    assert list(tmp_path.iterdir()) == []


def test_trackers_need_a_run_directory() -> None:
    with pytest.raises(ConfigError, match="needs run-dir"):
        require_trackers("tensorboard", "")


# --- the real libraries ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("mnist")
def test_both_have_what_the_run_directory_has(tmp_path: Path) -> None:
    run_dir = tmp_path / "a run"
    settings = config(run_dir)
    Simulation(settings).run()
    want = expected(run_dir)
    assert want["failures/timeout"], "some failed"

    found = comparable(scalars(run_dir), run_dir)
    assert found.keys() == want.keys()
    for tag, series in want.items():
        assert found[tag] == pytest.approx(series, rel=1e-6), tag  # single precision
    accumulated = board(run_dir)
    settings_text, status = (
        accumulated.Tensors(tag)[0].tensor_proto.string_val[0] for tag in ("settings", "status")
    )
    assert b"| tau-max-s | 5.0 |" in settings_text
    assert status == b"finished"
    hparams = accumulated.PluginTagToContent("hparams")
    begun, ended = (
        plugin_data_pb2.HParamsPluginData.FromString(hparams[f"_hparams_/session_{which}_info"])
        for which in ("start", "end")
    )
    assert begun.session_start_info.hparams["scenario"].string_value == "non-ideal"
    assert ended.session_end_info.status == api_pb2.STATUS_SUCCESS

    run, tracked = mlflow_run(run_dir)
    assert comparable(tracked, run_dir) == want
    assert run.data.params == {key: str(value) for key, value in settings.to_mapping().items()}
    assert (run.info.status, run.info.run_name) == ("FINISHED", "a run")
    assert "tracker" not in (run_dir / "log.txt").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a run"], "nothing beside it"


@pytest.mark.slow
@pytest.mark.usefixtures("mnist")
def test_a_resumed_run_goes_on_in_the_same_place_and_says_nothing_twice(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    for last, resume in ((5, False), (17, True)):  # before the first checkpoint, after the second
        with pytest.raises(RuntimeError):
            Simulation(config(run_dir)).run([stop_at(last, RuntimeError)], resume=resume)
        assert mlflow_run(run_dir)[0].info.status == "FAILED"
        assert set(scalars(run_dir)["round/time_s"]) == set(range(1, last + 1))
    Simulation(config(run_dir, rounds=25)).run(resume=True)
    want = expected(run_dir)
    run, tracked = mlflow_run(run_dir)
    tracked = comparable(tracked, run_dir)
    assert {key: tracked[key] for key in want if not key.startswith("summary/")} == {
        key: series for key, series in want.items() if not key.startswith("summary/")
    }
    assert tracked["summary/rounds"][25] == 25
    assert run.info.status == "FINISHED"
    assert (run.data.params["rounds"], run.data.tags["resumed.rounds"]) == ("30", "25")
    found = comparable(scalars(run_dir), run_dir)
    assert found.keys() == want.keys()
    for tag, series in want.items():
        assert found[tag] == pytest.approx(series, rel=1e-6), tag


def run_and_kill(settings: SimulationConfig, last: int, *, resume: bool) -> None:
    """Run in a process that is killed after a round, whatever its trackers have yet to say."""
    code = f"""
import os, signal
from flower_scheduling.simulation.engine.runner import Simulation
from flower_scheduling.simulation.settings import SimulationConfig

def kill(record, arrays):
    if record.round == {last}:
        os.kill(os.getpid(), signal.SIGKILL)

Simulation(SimulationConfig.from_mapping({settings.to_mapping()!r})).run([kill], resume={resume})
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.usefixtures("mnist")
def test_what_a_kill_has_cut_off_is_sent_after_the_resumption(tmp_path: Path) -> None:
    run_dir, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    Simulation(config(undisturbed, rounds=25)).run()
    run_and_kill(config(run_dir, tracker="mlflow"), 17, resume=False)
    assert len(mlflow_run(run_dir)[1]["round/time_s"]) < 14, (
        "some before the checkpoint are missing"
    )
    run_and_kill(config(run_dir), 24, resume=True)  # TensorBoard is added
    Simulation(config(run_dir, rounds=25)).run(resume=True)
    assert set(scalars(run_dir)["round/time_s"]) == set(range(1, 26))
    for read in (scalars, lambda path: mlflow_run(path)[1]):
        found, want = read(run_dir), read(undisturbed)
        assert found.keys() == want.keys()
        for key in want:
            if key == "floors/worst_shortfall":  # the first round's floors are not known any more
                del found[key][1], want[key][1]
            assert found[key] == want[key], key


@pytest.mark.slow
@pytest.mark.usefixtures("mnist")
def test_a_run_that_was_stopped_says_so(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        Simulation(config(run_dir)).run([stop_at(3, KeyboardInterrupt)])
    run, series = mlflow_run(run_dir)
    assert run.info.status == "KILLED"
    assert set(series["round/time_s"]) == {1, 2, 3}
    assert board(run_dir).Tensors("status")[0].tensor_proto.string_val == [b"killed"]


@pytest.mark.slow
@pytest.mark.usefixtures("mnist")
def test_compare_reports_each_policy_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = "compare --strategies random,cs-ucb --rounds 4 --run-dir out --tracker tensorboard"
    assert main(arguments.split()) == 0
    for name in ("random", "cs-ucb"):
        assert set(scalars(tmp_path / "out" / name)["round/time_s"]) == {1, 2, 3, 4}


@pytest.mark.usefixtures("mnist")
def test_a_server_that_is_not_there_costs_a_line_and_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@127.0.0.1:{port}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        Simulation(config(tmp_path / "run", tracker="mlflow")).run()
    told = [r.getMessage() for r in caplog.records if "tracker" in r.getMessage()]
    assert [line.rpartition("; ")[2] for line in told[:2]] == ["trying again", "not used any more"]
    assert told[2:] == ["tracker mlflow: rounds missing: 30"]
    assert "secret" not in caplog.text
    assert len(written_rounds(tmp_path / "run")) == 30


def test_a_full_disk_ends_the_tracker_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    real = Path.open

    def full(path: Path, *arguments: Any, **more: Any) -> Any:
        return real(Path("/dev/full") if "tfevents" in path.name else path, *arguments, **more)

    monkeypatch.setattr(Path, "open", full)
    run = Trackers(["tensorboard"])
    run.begin(TrackedRun(tmp_path, {"seed": 0}), metrics())
    log_round(run, record())
    run.on_end(RunEnd.FAILED, {})
    assert [r.getMessage() for r in caplog.records] == [
        "tracker tensorboard: [Errno 28] No space left on device; not used any more",
        "tracker tensorboard: rounds missing: 1",
    ]


# --- the seam -------------------------------------------------------------------------------------


class Recorder(Tracker):
    """Keeps what it is told, or fails as told."""

    package = "json"

    def __init__(self, *, remote: bool = False, fails: Mapping[str, Exception] | None = None):
        self._remote = remote
        self.fails = dict(fails or {})
        self.open = threading.Event()
        self.open.set()
        self.met: list[str] = []
        self.steps: list[int] = []
        self.ended: tuple[RunEnd, int, dict[str, float]] | None = None

    @property
    def remote(self) -> bool:
        return self._remote

    def begin(self, run: TrackedRun) -> None:
        self._meet("begin")

    def log_rounds(self, points: Sequence[RoundPoint]) -> None:
        self._meet("log_rounds")
        self.steps += [point.step for point in points]

    def end(self, status: RunEnd, step: int, summary: Mapping[str, float]) -> None:
        self._meet("end")
        self.ended = status, step, dict(summary)

    def _meet(self, call: str) -> None:
        self.met.append(call)
        self.open.wait(PATIENCE_S)
        if call in self.fails:
            raise self.fails[call]


def follow(
    monkeypatch: pytest.MonkeyPatch, run_dir: Path, *recorders: Recorder, first: int = 1
) -> Trackers:
    names = [f"r{index}" for index in range(len(recorders))]
    made = {name: lambda each=each: each for name, each in zip(names, recorders, strict=True)}
    monkeypatch.setattr(trackers, "TRACKERS", made)
    run_dir.mkdir(exist_ok=True)
    run = Trackers(names)
    run.begin(TrackedRun(run_dir, {"seed": 0}), metrics())
    return run


@pytest.mark.parametrize("call", ["begin", "log_rounds", "end"])
def test_a_tracker_that_fails_is_dropped_and_the_others_go_on(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = Recorder(fails={call: OSError(28, "No space left\non device")}), Recorder()
    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        run = follow(monkeypatch, tmp_path / "run", bad, good)
        for number in range(1, 4):
            log_round(run, record(number))
        run.on_end(RunEnd.FINISHED, {"rounds": 3, "arms": [], "loss": None})
    assert good.steps == [1, 2, 3]
    assert good.ended == (RunEnd.FINISHED, 3, {"summary/rounds": 3.0})
    assert bad.ended is None
    first, *rest = (r.getMessage() for r in caplog.records)
    assert first == "tracker r0: [Errno 28] No space left on device; not used any more"
    assert rest == ([] if call == "end" else ["tracker r0: rounds missing: 3"])


def test_a_tracker_that_cannot_even_be_made_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Recorder:
        raise ImportError("libfoo.so is missing")

    monkeypatch.setattr(trackers, "TRACKERS", {"broken": broken})
    run = Trackers(["broken"])
    run.begin(TrackedRun(tmp_path, {}), metrics())
    log_round(run, record())
    run.on_end(RunEnd.FINISHED, {})
    assert "tracker broken: libfoo.so is missing; not used any more" in caplog.text


def test_a_remote_tracker_is_not_waited_for_and_gets_everything_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracker_thread, "_RETRY_S", 0.01)
    slow = Recorder(remote=True, fails={"begin": OSError("down")})
    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        run = follow(monkeypatch, tmp_path / "run", slow)
        for number in range(1, 101):
            log_round(run, record(number))
        assert slow.steps == []
        slow.fails["log_rounds"] = OSError("down again")
        del slow.fails["begin"]
        until(lambda: "log_rounds" in slow.met)
        del slow.fails["log_rounds"]
        slow.open.clear()
        log_round(run, record(101))  # while a request hangs
        slow.open.set()
        run.on_end(RunEnd.KILLED, {})
    assert slow.steps == list(range(1, 102))
    assert slow.ended == (RunEnd.KILLED, 101, {})
    told = [r.getMessage() for r in caplog.records]
    assert told[0] == "tracker r0: down; trying again"
    assert told[-1] == "tracker r0: works again"
    assert len(told) <= 4


def test_what_there_is_no_room_for_is_lost_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracker_thread, "_MOST_WAITING", 5)
    monkeypatch.setattr(tracker_thread, "DRAIN_S", 0.3)
    hung = Recorder(remote=True)
    hung.open.clear()
    run = follow(monkeypatch, tmp_path / "run", hung)
    for number in range(1, 11):
        log_round(run, record(number))
    run.on_end(RunEnd.FINISHED, {})
    hung.open.set()
    assert [r.getMessage() for r in caplog.records] == [
        "tracker r0: rounds from 6 on are lost",
        "tracker r0: has not ended after 0 s; not used any more",
        "tracker r0: rounds missing: 10",
    ]


def test_a_local_tracker_that_is_slow_is_waited_for_while_it_gets_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = [0.0]

    class Slow(Recorder):
        def log_rounds(self, points: Sequence[RoundPoint]) -> None:
            now_s[0] += 0.9 * PATIENCE_S
            super().log_rounds(points)

    clock = SimpleNamespace(**{**vars(time), "monotonic": lambda: now_s[0]})
    monkeypatch.setattr(tracker_thread, "time", clock)
    monkeypatch.setattr(tracker_thread, "_MOST_WAITING", 5)
    monkeypatch.setattr(tracker_thread, "_BATCH", 1)
    monkeypatch.setattr(tracker_thread, "DRAIN_S", PATIENCE_S)
    slow = Slow()
    run = follow(monkeypatch, tmp_path / "run", slow)
    for number in range(1, 16):
        log_round(run, record(number))
    run.on_end(RunEnd.FINISHED, {})
    assert slow.steps == list(range(1, 16))
    monkeypatch.setattr(tracker_thread, "time", time)
    monkeypatch.setattr(tracker_thread, "DRAIN_S", 0.4)
    hung = Recorder()
    run = follow(monkeypatch, tmp_path / "run", hung)
    hung.open.clear()
    for number in range(1, 11):
        log_round(run, record(number))
    run.on_end(RunEnd.FINISHED, {})
    hung.open.set()
    assert "tracker r0: has taken nothing for 0 s; not used any more" in caplog.text
    assert "tracker r0: rounds missing: 10" in caplog.text


def test_rounds_that_a_tracker_has_not_got_are_read_and_sent_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_thread, "_BATCH", 2)
    num_read = 0

    def read(first: int) -> Iterator[RoundRecord]:
        nonlocal num_read
        for number in range(1, 101):
            num_read += 1
            yield record(number)

    class Counter(Recorder):
        def log_rounds(self, points: Sequence[RoundPoint]) -> None:
            super().log_rounds(points)
            for point in points:
                assert point.time_s == begin_s + 2.0 * point.step
                assert point.metrics["failures/timeout"] == point.step, "all before are counted"

    some, new = Counter(remote=True), Counter(remote=True)
    made = {"some": lambda: some, "new": lambda: new}
    monkeypatch.setattr(trackers, "TRACKERS", made)
    before = TrackedRun(tmp_path, {"seed": 0})
    before.note_taken("some", 90)
    so_far = metrics()
    for number in range(1, 101):
        so_far.totals.count(record(number))
    run = Trackers(["some", "new"])
    some.open.clear()
    new.open.clear()
    tracked = TrackedRun(tmp_path, {"seed": 0}, 100, read)
    begin_s = tracked.begin_s
    run.begin(tracked, so_far)
    log_round(run, record(101))
    for recorder in (new, some):
        recorder.open.set()
    run.on_end(RunEnd.FINISHED, {})
    assert some.steps == list(range(91, 102))
    assert new.steps == list(range(1, 102))
    after = TrackedRun(tmp_path, {"seed": 0}, 101, read)
    assert (after.taken("some"), after.taken("new")) == (101, 101)
    assert num_read == 200
    run = Trackers(["some", "new"])
    run.begin(after, metrics())
    run.on_end(RunEnd.FINISHED, {})
    assert num_read == 200, "nothing is missing any more"


def test_what_was_lost_is_not_noted_as_taken_and_rounds_are_read_as_they_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_thread, "_BATCH", 2)
    monkeypatch.setattr(tracker_thread, "_MOST_WAITING", 3)
    monkeypatch.setattr(tracker_thread, "DRAIN_S", 0.3)
    num_read = 0

    def read(first: int) -> Iterator[RoundRecord]:
        nonlocal num_read
        for number in range(1, 11):
            num_read += 1
            yield record(number)

    slow = Recorder(remote=True)
    monkeypatch.setattr(trackers, "TRACKERS", {"slow": lambda: slow})
    run = Trackers(["slow"])
    began = TrackedRun(tmp_path, {"seed": 0}, 10, read)
    run.begin(began, metrics())
    until(lambda: slow.steps)
    slow.open.clear()
    for number in range(11, 21):
        log_round(run, record(number))
    time.sleep(0.1)
    seen = num_read
    assert seen <= 10
    slow.open.set()
    run.on_end(RunEnd.KILLED, {})
    assert slow.steps == list(range(1, 14)), "what there was room for"
    assert TrackedRun(tmp_path, {"seed": 0}, 20).taken("slow") == 13


def test_earlier_rounds_that_cannot_be_read_cost_only_the_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read(first: int) -> Iterator[RoundRecord]:
        yield record(1)
        raise OSError(5, "Input/output error")

    remote = Recorder(remote=True)
    monkeypatch.setattr(trackers, "TRACKERS", {"remote": lambda: remote})
    run = Trackers(["remote"])
    run.begin(TrackedRun(tmp_path, {"seed": 0}, 2, read), metrics())
    run.on_end(RunEnd.FINISHED, {})
    assert [r.getMessage() for r in caplog.records] == [
        "tracker remote: [Errno 5] Input/output error; not used any more",
        "tracker remote: rounds missing: 2",
    ]
    assert TrackedRun(tmp_path, {"seed": 0}, 2).taken("remote") == 0


def test_what_is_of_no_use_to_repeat_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = follow(
        monkeypatch,
        tmp_path / "run",
        Recorder(remote=True, fails={"begin": TrackerError("not logged in")}),
    )
    run.on_end(RunEnd.FINISHED, {})
    assert [r.getMessage() for r in caplog.records] == [
        "tracker r0: not logged in; not used any more"
    ]


@pytest.mark.slow
def test_mlflow_starts_anew_in_a_store_that_has_not_got_the_run(tmp_path: Path) -> None:
    (tmp_path / "trackers.json").write_text('{"begin_s": 1.5, "mlflow_run_id": "elsewhere"}')
    run = TrackedRun(tmp_path, {"seed": 0}, done=2)
    run.note_taken("mlflow", 2)
    tracker = MlflowTracker()
    assert not tracker.remote
    tracker.begin(run)
    assert run.taken("mlflow") == 0, "it has none of the rounds"
    tracker.log_rounds([RoundPoint(3, 1.5 + 4.0, {"round/time_s": 4.0})])
    tracker.end(RunEnd.FINISHED, 3, {})
    assert mlflow_run(tmp_path)[1] == {"round/time_s": {3: 4.0}}
    assert TrackedRun(tmp_path, {}).noted("mlflow_run_id") != "elsewhere"
    assert TrackedRun(tmp_path, {}).begin_s == 1.5


# --- Weights & Biases -----------------------------------------------------------------------------


class FakeWandb:
    """As much of the module as we use."""

    def __init__(self, *, logged_in: bool = True) -> None:
        self._logged_in = logged_in
        self.inits: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.summary: dict[str, Any] = {}
        self.exit_codes: list[int] = []
        self.id = "abc"

    Settings = staticmethod(lambda **settings: SimpleNamespace(**settings))

    def setup(self, settings: Any) -> Any:
        return SimpleNamespace(settings=SimpleNamespace(mode="online"))

    def login(self, *, prompt: bool) -> bool:
        assert not prompt
        return self._logged_in

    def init(self, **arguments: Any) -> FakeWandb:
        self.inits.append(arguments)
        return self

    def log(self, values: dict[str, float], *, step: int) -> None:
        self.logged.append((step, values))

    def finish(self, *, exit_code: int) -> None:
        self.exit_codes.append(exit_code)


def test_wandb_gets_the_same_and_goes_on_with_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    for done, status in ((0, RunEnd.KILLED), (2, RunEnd.FINISHED)):
        run = Trackers(["wandb"])
        run.begin(TrackedRun(tmp_path, {"seed": 0}, done), metrics())
        log_round(run, record(done + 1))
        log_round(run, record(done + 2))
        run.on_end(status, {"rounds": done + 2})
    assert [step for step, _ in wandb.logged] == [1, 2, 3, 4]
    assert wandb.logged[0][1] == counted(metrics(), record(1))
    assert wandb.exit_codes == [255, 0]
    assert wandb.summary == {"summary/rounds": 4.0, "status": "finished"}
    first, second = wandb.inits
    assert (first["id"], first["resume"]) == (None, None)
    assert (second["id"], second["resume"]) == ("abc", "allow")
    assert first["config"] == {"seed": 0}
    assert first["dir"] == str(tmp_path)


def test_wandb_never_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wandb = FakeWandb(logged_in=False)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    run = Trackers(["wandb"])
    run.begin(TrackedRun(tmp_path, {}), metrics())
    run.on_end(RunEnd.FINISHED, {})
    assert wandb.inits == []
    assert "WANDB_API_KEY" in caplog.text


def test_wandb_itself_takes_it_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = Trackers(["wandb"])
    run.begin(TrackedRun(tmp_path, {"seed": 0}), metrics())
    log_round(run, record(1))
    run.on_end(RunEnd.FINISHED, {"rounds": 1})
    (written,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    data = written.read_bytes()
    assert b"floors/" not in data
    for text in (b"round/rtt_mean_s", b"summary/rounds", b"finished"):
        assert text in data
    assert caplog.text == ""
