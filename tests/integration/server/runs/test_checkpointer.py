"""Large checkpoints are written beside the rounds: whole, in order, and the last one always."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apps import echo_app
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAdam
from waiting import until

from flower_scheduling.server.callbacks import RoundCallback, Run
from flower_scheduling.server.runs import resume
from flower_scheduling.server.runs.checkpoint import CheckpointFolder, PackedState
from flower_scheduling.server.runs.directory import count_rounds, written_rounds
from flower_scheduling.server.runs.recording import record_app
from flower_scheduling.server.settings.fleet import FleetConfig
from flower_scheduling.simulation.engine.virtual_grid import VirtualGrid
from flower_scheduling.simulation.environments.paper import Environment
from flower_scheduling.strategies.flower import LOGGER, RoundRecord, ScheduledStrategy, followed_by

ROUNDS = 6


class Follower(RoundCallback):
    """Does something after each round, with the run at hand."""

    def __init__(self, act: Callable[[int, Run], None]) -> None:
        self._act = act

    def on_start(self, run: Run) -> None:
        self._run = run

    def on_round(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        self._act(record.round, self._run)


def start(
    path: Path,
    act: Callable[[int, Run], None] = lambda number, run: None,
    *,
    size: int = 2,
    num_rounds: int = ROUNDS,
    resume: bool = False,
    **settings: Any,
) -> None:
    """Run rounds of FedAdam, which has more to save than a model."""
    config = FleetConfig.from_mapping({"run-dir": str(path), "app": "some:app", **settings})
    nodes: list[dict[str, Any]] = [{"name": f"dev-{arm}"} for arm in range(4)]
    grid = VirtualGrid(echo_app(), Environment(num_arms=4, seed=1), nodes, {})
    strategy = ScheduledStrategy(
        FedAdam(eta=0.1), num_selected=2, tau_max_s=5.0, wait_s=0.0, min_clients=1
    )
    model = ArrayRecord({"w": Array(np.zeros(size, np.float32))})
    with followed_by(record_app(config, {}, lambda: [Follower(act)], resume=resume)):
        strategy.start(grid, model, num_rounds=num_rounds)


def results(path: Path) -> tuple[list[dict[str, Any]], bytes]:
    rounds = [{**line, "wall": None} for line in written_rounds(path)]
    return rounds, (path / "model.safetensors").read_bytes()


def saved(path: Path) -> int:
    found = CheckpointFolder(path / "checkpoint").load()
    assert found is not None
    return found.round


@pytest.fixture
def threaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the smallest state be a large one."""
    monkeypatch.setattr(resume, "_AT_ONCE_BYTES", -1)


class Disk:
    """The writing of checkpoints: that of one round waits, those of some rounds fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = -1
        self.go = threading.Event()
        self.full: tuple[int, ...] = ()
        self.written: list[int] = []
        write = CheckpointFolder.write

        def controlled(folder: CheckpointFolder, packed: PackedState) -> None:
            if packed.round == self.held:
                assert self.go.wait(60.0)
            if packed.round in self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "some file")
            write(folder, packed)
            self.written.append(packed.round)

        monkeypatch.setattr(CheckpointFolder, "write", controlled)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, threaded: None) -> Disk:
    return Disk(monkeypatch)


def test_rounds_do_not_wait_and_the_last_state_is_written(tmp_path: Path, disk: Disk) -> None:
    def act(number: int, run: Run) -> None:
        if number == 4:  # checkpoints of rounds 2, 3 and 4 were due meanwhile
            assert run.saved_round == 0
            disk.go.set()
            until(lambda: run.saved_round == 1)

    disk.held = 1
    start(tmp_path, act)
    assert disk.written[:2] == [0, 1]
    assert set(disk.written[2:]) <= {5, 6}
    assert disk.written[-1] == saved(tmp_path) == ROUNDS


def test_a_state_is_that_of_its_round_whenever_it_is_written(tmp_path: Path, disk: Disk) -> None:
    whole, path = tmp_path / "whole", tmp_path / "run"
    start(whole)

    def act(number: int, run: Run) -> None:
        if number == 5:
            disk.go.set()
            raise RuntimeError("a fault")

    disk.held = 2
    with pytest.raises(RuntimeError):
        start(path, act, **{"checkpoint-every": 2})
    assert saved(path) == 2
    start(path, resume=True, **{"checkpoint-every": 2})
    assert results(path) == results(whole)


def test_a_kill_amid_the_writing_costs_no_more_than_the_rounds_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threaded: None
) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    whole, path, killed = tmp_path / "whole", tmp_path / "run", tmp_path / "killed"
    start(whole, num_rounds=30)
    writing, go = threading.Event(), threading.Event()
    fsync, begun = os.fsync, 0

    def slow(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        if name.startswith(".000000") and int(name[1:9]) >= 3:
            writing.set()
            assert go.wait(60.0)
        fsync(descriptor)

    def act(number: int, run: Run) -> None:
        nonlocal begun
        if number == 1:
            until(lambda: run.saved_round == 1)
        elif number > 2 and not begun:
            begun = number * writing.wait(0.1)
        elif begun and number == begun + 1:
            shutil.copytree(path, killed)  # what kill -9 would leave
            go.set()

    monkeypatch.setattr(os, "fsync", slow)
    start(path, act, num_rounds=30)
    assert len(written_rounds(killed)) == begun + 1
    assert list((killed / "checkpoint").glob(".*.tmp"))
    assert saved(killed) in (1, 2), "the last one before that which is being written"
    start(killed, num_rounds=30, resume=True)
    assert results(killed) == results(path) == results(whole)
    assert not list((killed / "checkpoint").glob(".*.tmp"))


def test_an_orderly_stop_waits_for_the_last_state(tmp_path: Path, disk: Disk) -> None:
    def act(number: int, run: Run) -> None:
        if number == 3:
            threading.Timer(0.05, disk.go.set).start()
            raise KeyboardInterrupt

    disk.held = 1
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, act)
    assert disk.written == [0, 1, 3]
    assert saved(tmp_path) == 3


def test_a_full_disk_ends_the_run_by_its_own_error(tmp_path: Path, disk: Disk) -> None:
    disk.full = tuple(range(3, ROUNDS + 1))
    with pytest.raises(OSError, match="No space left on device") as caught:
        start(tmp_path)
    assert caught.value.filename == "some file"
    assert saved(tmp_path) in (1, 2)
    disk.full = ()
    start(tmp_path, resume=True)
    assert [line["round"] for line in written_rounds(tmp_path)] == list(range(1, ROUNDS + 1))


def test_a_run_that_may_goes_on_until_there_is_room(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.full = (1, 2, 3, 4)
    with caplog.at_level(logging.WARNING, logger=LOGGER.name):
        start(tmp_path, **{"checkpoint-required": False})
    (said,) = [r.getMessage() for r in caplog.records if "no checkpoint: " in r.getMessage()]
    assert said == "no checkpoint: some file: No space left on device; the run goes on"
    assert saved(tmp_path) == ROUNDS


def test_a_small_state_is_on_the_disk_when_its_round_is_over(tmp_path: Path) -> None:
    def act(number: int, run: Run) -> None:
        assert saved(tmp_path) == run.saved_round == number

    start(tmp_path, act)


SIZE = 500_000  # values: 2 MB
SCRIPT = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from test_checkpointer import SIZE, start
start(Path({run!r}), size=SIZE, num_rounds=60, resume=True)
"""


@pytest.mark.slow
def test_a_large_run_that_is_killed_and_continued_is_the_undisturbed_one(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole", tmp_path / "run"
    start(whole, size=SIZE, num_rounds=60)
    here = str(Path(__file__).parent)
    script = SCRIPT.format(path=[here, *sys.path], run=str(path))
    for rounds in (5, 17, 30, 44):
        process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
        try:
            until(lambda: count_rounds(path) >= rounds or process.poll() is not None)  # noqa: B023
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    start(path, size=SIZE, num_rounds=60, resume=True)
    assert results(path) == results(whole)
