"""The project of `flower-server new` runs as it is, in a fleet of processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_processes import Fleet
from waiting import until

from flower_scheduling.server.cli.project.new import create_project

pytestmark = pytest.mark.e2e


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    create_project(tmp_path / "my-fleet")
    started = Fleet(tmp_path / "my-fleet")
    yield started
    started.end()


def test_a_fleet_of_one_server_and_two_clients(fleet: Fleet) -> None:
    config = "--run-config num-server-rounds=6 --run-config num-selected=1"
    port = fleet.server(f"--app server_app:app --run-dir run {config}")
    for number in range(2):
        fleet.client(port, number, 2, "--app client_app:app")
    assert until(lambda: fleet.processes["server"].poll() is not None)
    assert fleet.processes["server"].returncode == 0, fleet.log("server")
    summary = json.loads((fleet.folder / "run" / "summary.json").read_text())
    assert summary["rounds"] == 6
    assert summary["failures"] == 0
    first = fleet.rounds()[0]["accuracy"]
    assert summary["accuracy"] > first
    assert {arm["name"] for arm in summary["arms"]} == {"dev-0", "dev-1"}
