"""Studies on clusters of two local nodes: the same results as in processes here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from paths import ROOT
from ray_nodes import two_ray_nodes
from waiting import until

from flower_scheduling.errors import ClusterError, ConfigError
from flower_scheduling.simulation.cli import main
from flower_scheduling.simulation.cluster import Cluster
from flower_scheduling.simulation.jobs import Job, run_jobs

SCHEDULER = "import sys; from distributed.cli.dask_scheduler import main; sys.exit(main())"
WORKER = "import sys; from distributed.cli.dask_worker import main; sys.exit(main())"
FLAGS = ("--scenario", "identical", "--policy", "random", "--policy", "cs-ucb", "--seeds", "3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dusk:host:1", "must begin with dask: or ray: (did you mean dask?)"),
        ("dask:host", "must read dask:HOST:PORT"),
        ("ray:host:x", "must read ray:HOST:PORT"),
    ],
)
def test_what_is_no_address_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Cluster.parse(text)
    assert message in str(caught.value)


@pytest.mark.slow
def test_a_scheduler_that_is_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flower_scheduling.simulation.cluster._CONNECT_S", 0.5)
    assert main(["league", *FLAGS, "--cluster", "dask:127.0.0.1:9", "--out", str(tmp_path)]) == 1
    assert "error: no Dask scheduler answers at 127.0.0.1:9: " in capsys.readouterr().err


@contextmanager
def dask_nodes(folder: Path) -> Iterator[str]:
    """Run a scheduler and two workers; yield its address."""
    file = folder / "scheduler.json"
    options = ["--scheduler-file", str(file)]
    alone = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(folder)]
    commands = [
        [SCHEDULER, "--host", "127.0.0.1", "--port", "0", "--no-dashboard", *options],
        *[[WORKER, *options, *alone]] * 2,
    ]
    processes = []
    try:
        for command in commands:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", *command], cwd=ROOT, stderr=subprocess.DEVNULL
                )
            )
            until(file.exists)  # before the workers read it

        found = json.loads(file.read_text())["address"]
        yield "dask:" + found.removeprefix("tcp://")
    finally:
        for process in processes:
            process.kill()  # a worker may wait long for a scheduler that is gone
        for process in processes:
            process.wait()


@contextmanager
def ray_nodes(folder: Path) -> Iterator[str]:
    """Run a cluster of two nodes; yield the address of its head."""
    with two_ray_nodes() as address:
        yield f"ray:{address}"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("nodes", [dask_nodes, ray_nodes])
def test_two_nodes_find_what_this_machine_finds(
    nodes: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(nodes)
    assert main(["league", *FLAGS, "--out", str(tmp_path / "here")]) == 0
    with nodes(tmp_path) as address:
        there = tmp_path / "there"
        assert main(["league", *FLAGS, "--cluster", address, "--out", str(there)]) == 0
        cluster = Cluster.parse(address)
        monkeypatch.setattr("flower_scheduling.simulation.cluster.code_digest", lambda: "another")
        job = Job("job", partial(np.zeros, 3), 1.0)
        with pytest.raises(ClusterError, match="other code than this process"):
            run_jobs([job], there / "jobs", num_processes=1, compute=cluster.compute)
    for file in ("league.csv", "league.json"):
        assert (there / file).read_bytes() == (tmp_path / "here" / file).read_bytes()
