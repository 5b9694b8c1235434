"""An app in Flower's simulation engine, on a Ray cluster of two local nodes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from app_folders import NUMPY_CLIENT, NUMPY_SERVER, write_app
from paths import ROOT
from ray_nodes import two_ray_nodes

from flower_scheduling.server.runtimes.superlink import SuperLink

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

NUM_CLIENTS = 5
OPTIONS = ("--simulation", "--disable-runtime-dependency-installation")
# Each client leaves a file called like the node of the cluster on which it works, long enough for
# the other client of its round to need another one.
CLIENT = NUMPY_CLIENT.replace(
    '    print("a client prints")\n',
    "    import pathlib, ray, time\n"
    '    nodes = pathlib.Path(context.run_config["nodes"])\n'
    "    (nodes / ray.get_runtime_context().get_node_id()).touch()\n"
    "    time.sleep(0.5)\n",
)
# What a policy at random selects does not depend on the times, which are those of real work here.
SERVER = NUMPY_SERVER.replace(
    '"cs-ucb-q", num_selected=2, tau_max_s=4, beta=0.01',
    '"random", num_selected=2, tau_max_s=300, min_clients=5, wait_s=300, '
    'run_dir=context.run_config["run-dir"]',
)


def simulate(folder: Path) -> tuple[list[Any], int]:
    """Run the app; return its rounds and how many nodes its clients were on."""
    app, nodes = write_app(folder, SERVER, CLIENT), folder / "nodes"
    nodes.mkdir()
    project = app / "pyproject.toml"
    project.write_text(project.read_text() + f"run-dir = '{folder / 'run'}'\nnodes = '{nodes}'\n")
    # What Flower asks of Ray must fit a node of one processor; two are its default.
    federation = f"num-supernodes={NUM_CLIENTS} client-resources-num-cpus=1"
    with SuperLink(folder / "link", "127.0.0.1:0", options=OPTIONS) as link:
        lines: list[str] = []
        run = link.submit(app, {}, ["--federation-config", federation])
        link.follow(run, lines.append)
    rounds = (folder / "run" / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in rounds], len(os.listdir(nodes))


def test_the_rounds_are_those_of_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    here, alone = simulate(tmp_path / "here")
    with two_ray_nodes() as address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        there, both = simulate(tmp_path / "there")
    assert (alone, both) == (1, 2)
    assert [line["selected"] for line in there] == [line["selected"] for line in here]
    for line in there:
        assert line["completed"] == [True, True]
        assert line["stepped"]
