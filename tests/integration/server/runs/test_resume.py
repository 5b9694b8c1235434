"""Checkpoints are whole or not there, and a resumed run is the run that was not interrupted."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from factories import round_record
from flwr.app import Array, ArrayRecord

from flower_scheduling.server.cli.main import main as server_main
from flower_scheduling.server.runs.checkpoint import CheckpointFolder
from flower_scheduling.server.runs.directory import RunDirectory, lock_run, written_rounds
from flower_scheduling.server.runs.resume import continued_settings, resumed_settings
from flower_scheduling.server.settings.fleet import FleetConfig
from flower_scheduling.simulation.cli import main
from flower_scheduling.simulation.engine.runner import Simulation
from flower_scheduling.simulation.settings import SCENARIOS, SimulationConfig
from flower_scheduling.strategies.flower import LOGGER, RoundRecord

# --- runs -----------------------------------------------------------------------------------------


class Stopped(Exception):
    """Stands for a crash."""


BY_SPEED = {"local-work": "equal-time", "local-steps": 4}


def config(run_dir: Path, **changes: Any) -> SimulationConfig:
    values = {
        **SCENARIOS["non-ideal"],
        "rounds": 60,
        "target-accuracy": 0.0,
        "eval-every": 10,
        "checkpoint-every": 7,
        "late": "busy",
        "failure-probability": "0.05",
        "tau-max-s": 0.4,
        "run-dir": str(run_dir),
    }
    return SimulationConfig.from_mapping({**values, **changes})


def record(number: int) -> RoundRecord:
    return round_record(number, [0], num_arms=1, available=[0])


def run_until(settings: SimulationConfig, last: int, *, resume: bool = False) -> None:
    def stop(record: RoundRecord, arrays: ArrayRecord) -> None:
        if record.round == last:
            raise Stopped

    with pytest.raises(Stopped):
        Simulation(settings).run([stop], resume=resume)


def rows(run_dir: Path) -> list[dict[str, Any]]:
    lines = (run_dir / "rounds.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "wall"} for line in lines]


@pytest.mark.usefixtures("mnist")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"strategy": "random", "aggregation": "fedadam", "aggregation-option": "eta=0.01"},
        pytest.param(
            {"strategy": "local-accuracy", "fairness": "none", "aggregation": "fedavgm"},
            marks=pytest.mark.slow,
        ),
        {"strategy": "round-robin", "joins": "3:20,4:31", "slowdowns": "1:25:3"},
        {"strategy": "cs-ucb-q-loss", "min-clients": 10, "wait-s": 7.3},
        {"tau-max-s": 0.5, "min-clients": 9, "wait-s": 30.0, "aggregation": "krum"},
        {"strategy": "random", "availability": "0.1", "wait-s": 30.0, "checkpoint-every": 1},
        {"compress": "up=int8,down=bfloat16", "payload-bits": "model", "tau-max-s": 20.0},
        {"mode": "buffered", "strategy": "cs-ucb-q-loss", "availability": "0.8"},
        {
            **{"mode": "buffered", "strategy": "e3cs", "buffer-size": 3, "wait-s": 30.0},
            **{"joins": "3:20,4:31", "aggregation": "fedadam", "aggregation-option": "eta=0.01"},
        },
        {"tau-max-s": "auto", "client-eval-every": 3},
        {"tau-max-s": "auto", "strategy": "cs-ucb"},
        {"num-spare": 2},
        {"num-spare": 1, "tau-max-s": "auto", "late": "busy", "strategy": "cs-ucb-q"},
        {"num-spare": 2, "late-updates": "use", "failure-probability": "0.1"},
        {
            **{"num-spare": 2, "late-updates": "use", "compress": "up=int8", "max-share": 0.9},
            **{"aggregation": "fedadam", "aggregation-option": "eta=0.01", "fairness": "none"},
        },
        {"mode": "buffered", "tau-max-s": "auto", "late": "busy"},
        {"mode": "buffered", "tau-max-s": "auto", "strategy": "cs-ucb", "joins": "3:20"},
        {**BY_SPEED, "num-spare": 2, "late-updates": "use", "tau-max-s": "auto"},
        {**BY_SPEED, "mode": "buffered", "strategy": "proportional-fair", "joins": "3:20"},
    ],
    ids=[
        *("cs-ucb-q", "random-fedadam", "local-accuracy-fedavgm", "late-joiners"),
        *("waiting", "waiting-krum", "nobody-there", "error-feedback"),
        *("buffered", "buffered-late-joiners"),
        *("found-deadline", "found-deadline-of-rewards", "spare-clients"),
        *("spare-clients-found-deadline", "late-updates", "late-updates-fedadam"),
        *("buffered-found-deadline", "buffered-rewards", "by-speed", "by-speed-buffered"),
    ],
)
def test_an_interrupted_run_ends_as_the_undisturbed_one(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    undisturbed = Simulation(config(whole, **changes)).run()
    run_until(config(parts, **changes), 5)  # before the first checkpoint
    run_until(config(parts, **changes), 17, resume=True)
    run_until(config(parts, **changes), 40, resume=True)
    assert len(rows(parts)) == 40
    resumed = Simulation(config(parts, **changes)).run(resume=True)
    assert rows(parts) == rows(whole)
    models = ("model.safetensors", "model-best.safetensors")
    truth = [] if changes.get("tau-max-s") == "auto" else ["truth.json"]
    for name in (*models, "arms.json", "summary.json", "scores.bin", *truth):
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name
    assert resumed.summary == undisturbed.summary
    assert resumed.records == undisturbed.records


@pytest.mark.usefixtures("mnist")
def test_resuming_takes_the_runs_own_settings_and_no_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir = tmp_path / "run"
    run_until(config(run_dir), 20)
    capsys.readouterr()

    def refused(arguments: str, message: str, run: Any = main) -> None:
        assert run(arguments.split()) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line

    refused(f"--resume {run_dir} --beta 0.5 --num-clients 9", "beta = 0.001, not 0.5; num-clients")
    refused(f"--resume {run_dir} --rounds 13", "at least 14, the rounds that were run")
    refused("--resume nowhere", "the folder of a run (it has no config.toml)")
    refused(f"--resume {run_dir} compare", "belongs behind compare")
    refused("--resume nowhere", "the folder of a run", server_main)
    other = lock_run(run_dir)
    who = f" (process {os.getpid()} does)" if Path("/proc/locks").exists() else ""
    refused(f"--resume {run_dir} --rounds 40", f"a run that no other process writes{who}")
    other.release()
    lines = (run_dir / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (run_dir / "rounds.jsonl").write_bytes(b"".join([*lines[:4], lines[4][:50]]))
    refused(f"--resume {run_dir} --rounds 40", "line 5 of its rounds.jsonl is damaged")
    (run_dir / "rounds.jsonl").write_bytes(b"".join(lines[:4]))
    refused(f"--resume {run_dir} --rounds 40", "a run with 14 rounds in rounds.jsonl")
    (run_dir / "rounds.jsonl").write_bytes(b"".join(lines))
    (run_dir / "config.toml").write_text("tau-max-s = [")
    refused(f"--resume {run_dir}", "the folder of a run")
    assert len(rows(run_dir)) == 20, "what is there stays as it was"


@pytest.mark.usefixtures("mnist")
def test_a_round_without_its_line_feed_gets_it(tmp_path: Path) -> None:
    whole, run_dir = tmp_path / "whole", tmp_path / "run"
    Simulation(config(whole)).run()
    run_until(config(run_dir), 14)
    data = (run_dir / "rounds.jsonl").read_bytes()
    (run_dir / "rounds.jsonl").write_bytes(data[:-1])
    Simulation(config(run_dir)).run(resume=True)
    assert rows(run_dir) == rows(whole)


@pytest.mark.usefixtures("mnist")
def test_a_checkpoint_belongs_to_its_rounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    run_until(config(one), 14)
    run_until(config(other), 14)
    shutil.rmtree(one / "checkpoint")
    shutil.copytree(other / "checkpoint", one / "checkpoint")
    data = (one / "rounds.jsonl").read_bytes()
    capsys.readouterr()
    assert main(["--resume", str(one)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "its checkpoint was made after other rounds than those in its rounds.jsonl" in line
    assert (one / "rounds.jsonl").read_bytes() == data


@pytest.mark.usefixtures("mnist")
def test_a_resumed_run_needs_no_initial_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, run_dir = tmp_path / "first", tmp_path / "run"
    Simulation(config(first, rounds=5)).run()
    shutil.copy(first / "model.safetensors", "start.safetensors")
    changes = {"initial-model": "start.safetensors"}
    run_until(config(run_dir, **changes), 14)
    Path("start.safetensors").unlink()
    assert main(["--resume", str(run_dir), "--rounds", "20"]) == 0
    assert len(rows(run_dir)) == 20


def test_rounds_that_somebody_else_has_changed_stop_the_run(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", {})
    arrays = ArrayRecord({"w": Array(np.zeros(1, dtype=np.float32))})
    directory.write_round(record(1), arrays)
    directory.sync()
    with (tmp_path / "run" / "rounds.jsonl").open("rb+") as lines:
        lines.truncate(30)
    with pytest.raises(OSError, match="another process has changed it"):
        directory.write_round(record(2), arrays)
    directory.close()
    assert (tmp_path / "run" / "rounds.jsonl").stat().st_size == 30, "half a line stays half"


@pytest.mark.usefixtures("mnist")
def test_an_orderly_stop_costs_no_round(tmp_path: Path) -> None:
    def stop(record: RoundRecord, arrays: ArrayRecord) -> None:
        if record.round in (19, 20, 33):
            raise KeyboardInterrupt

    undisturbed, stopped = tmp_path / "undisturbed", tmp_path / "stopped"
    Simulation(config(undisturbed)).run()
    for times, last in enumerate((19, 20, 33)):
        with pytest.raises(KeyboardInterrupt):
            Simulation(config(stopped)).run([stop], resume=times > 0)
        saved = CheckpointFolder(stopped / "checkpoint").load()
        assert saved is not None
        assert saved.round == last
    Simulation(config(stopped)).run(resume=True)
    assert rows(stopped) == rows(undisturbed)
    for name in ("model.safetensors", "summary.json", "arms.json"):
        assert (stopped / name).read_bytes() == (undisturbed / name).read_bytes()


@pytest.mark.usefixtures("mnist")
def test_a_run_that_was_killed_before_its_results_gets_them(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    Simulation(config(run_dir)).run()
    results = {
        name: (run_dir / name).read_bytes() for name in ("model.safetensors", "summary.json")
    }
    for name in results:
        (run_dir / name).unlink()
    Simulation(config(run_dir)).run(resume=True)
    assert {name: (run_dir / name).read_bytes() for name in results} == results
    assert len(rows(run_dir)) == 60

    reached = tmp_path / "reached"
    settings = config(reached, **{"target-accuracy": 0.2})
    rounds = Simulation(settings).run().summary["rounds"]
    assert rounds < 60
    assert Simulation(settings).run(resume=True).summary["rounds"] == rounds, "it has its target"


@pytest.mark.usefixtures("mnist")
def test_rounds_without_a_checkpoint_are_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    run_until(config(run_dir), 20)
    for file in (run_dir / "checkpoint").iterdir():
        file.write_bytes(b"damaged")
    before = (run_dir / "rounds.jsonl").read_bytes()
    for how in ("damaged", "gone", "a file"):
        capsys.readouterr()
        assert main(["--resume", str(run_dir)]) == 2
        assert "has 20 rounds, and no checkpoint" in capsys.readouterr().err, how
        if how == "damaged":
            shutil.rmtree(run_dir / "checkpoint")
        elif how == "gone":
            (run_dir / "checkpoint").write_text("in the way")
    assert (run_dir / "rounds.jsonl").read_bytes() == before

    early = tmp_path / "early"
    run_until(config(early), 5)  # before the first checkpoint, as its settings allow
    assert Simulation(config(early)).run(resume=True).summary["rounds"] == 60


@pytest.mark.usefixtures("mnist")
def test_what_was_changed_on_resuming_stays_changed(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_until(config(run_dir), 20)
    assert main(["--resume", str(run_dir), "--rounds", "25"]) == 0
    assert tomllib.loads((run_dir / "config.toml").read_text())["rounds"] == 25
    assert main(["--resume", str(run_dir)]) == 0
    assert len(rows(run_dir)) == 25


def test_rounds_wait_in_memory_for_room_on_the_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory(tmp_path / "run", {}, disk_required=False)
    file = tmp_path / "run" / "rounds.jsonl"
    model = ArrayRecord({"w": Array(np.ones(2))})

    def write(number: int) -> None:
        directory.write_round(record(number), model)

    class Full:
        """A disk that takes ten more bytes."""

        def __init__(self, real: Any) -> None:
            self._real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def write(self, data: bytes) -> int:
            if self._real.write(data[:10]) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return len(data)

    write(1)
    whole = file.read_bytes()
    real = directory._rounds
    monkeypatch.setattr(directory, "_rounds", Full(real))
    with caplog.at_level(logging.WARNING, logger=LOGGER.name):
        write(2)
        write(3)
    assert file.read_bytes() == whole, "no half lines"
    assert directory.count_rounds() == 3
    (said,) = [r.getMessage() for r in caplog.records]
    assert said == f"no record of the rounds: {file}: No space left on device; the run goes on"
    monkeypatch.setattr(directory, "_rounds", real)
    write(4)
    assert [row["round"] for row in rows(tmp_path / "run")] == [1, 2, 3, 4]
    file.unlink()
    with pytest.raises(OSError, match=r"rounds.jsonl"):
        directory.sync()
    directory.close()


@pytest.mark.usefixtures("mnist")
def test_without_room_for_checkpoints_a_run_stops_or_goes_on_as_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def block(run_dir: Path) -> Any:
        def hook(record: RoundRecord, arrays: ArrayRecord) -> None:
            if record.round == 20:  # no more checkpoints from here on: a file is in their place
                (run_dir / "checkpoint").rename(run_dir / "kept")
                (run_dir / "checkpoint").write_text("in the way")

        return hook

    stopped, going = tmp_path / "stopped", tmp_path / "going"
    with pytest.raises(OSError, match="File exists"):
        Simulation(config(stopped)).run([block(stopped)])
    assert len(rows(stopped)) == 21
    assert json.loads((stopped / "summary.json").read_text())["rounds"] == 21
    kept = CheckpointFolder(stopped / "kept").load()
    assert kept is not None
    assert kept.round == 14

    with caplog.at_level(logging.WARNING, logger=LOGGER.name):
        Simulation(config(going, **{"checkpoint-required": False})).run([block(going)])
    assert len(rows(going)) == 60
    said = [r for r in caplog.records if "no checkpoint: " in r.getMessage()]
    assert len(said) == 1, "once, not every seven rounds"


@pytest.mark.usefixtures("mnist")
@pytest.mark.slow
def test_a_full_disk_is_one_line_and_the_run_goes_on_later(tmp_path: Path) -> None:
    arguments = (
        "--rounds 2000 --eval-every 2000 --target-accuracy 0 --checkpoint-every 50 "
        f"--run-dir {tmp_path / 'run'}"
    )
    program = "import sys; "
    program += (
        f"from flower_scheduling.simulation.cli import main; sys.exit(main({arguments.split()!r}))"
    )
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, -1))\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", limited + program], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert line == f"error: {tmp_path / 'run' / 'rounds.jsonl'}: File too large"
    assert "Traceback" not in done.stderr
    saved = CheckpointFolder(tmp_path / "run" / "checkpoint").load()
    assert saved is not None
    assert saved.round >= 50
    assert main(["--resume", str(tmp_path / "run"), "--rounds", str(saved.round + 10)]) == 0
    assert [r["round"] for r in rows(tmp_path / "run")] == list(range(1, saved.round + 11))


@pytest.mark.usefixtures("mnist")
@pytest.mark.parametrize("flags", ["", "--no-explain"])
def test_a_run_of_a_version_that_knew_fewer_settings_goes_on(tmp_path: Path, flags: str) -> None:
    run_dir = tmp_path / "run"
    run_until(config(run_dir), 20)
    folder = CheckpointFolder(run_dir / "checkpoint")
    saved = folder.load()
    assert saved is not None
    shutil.rmtree(folder.path)
    lines = (run_dir / "config.toml").read_text().splitlines(keepends=True)
    for key in ("explain", "tracker"):
        del saved.state["settings"][key]
        lines = [line for line in lines if not line.startswith(key)]
    folder.save(saved.round, saved.state)
    (run_dir / "config.toml").write_text("".join(lines))
    assert main(f"--resume {run_dir} {flags}".split()) == 0
    found = written_rounds(run_dir)
    assert len(found) == config(run_dir).rounds
    assert (found[-1]["scores"] is None) == bool(flags)


def test_addresses_may_differ_when_a_run_goes_on(tmp_path: Path) -> None:
    text = tomli_w.dumps(FleetConfig(run_dir=str(tmp_path)).to_mapping())
    (tmp_path / "config.toml").write_text(text)
    for given in ({"page": "127.0.0.1:8501"}, {"metrics": "127.0.0.1:1"}, {"explain": False}):
        found = resumed_settings(tmp_path, given, FleetConfig)
        assert FleetConfig.from_mapping(found).to_mapping()[next(iter(given))] in given.values()
        now = {**FleetConfig(run_dir=str(tmp_path)).to_mapping(), **given}
        assert continued_settings(tmp_path, now) == now
