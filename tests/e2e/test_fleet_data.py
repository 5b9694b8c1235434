"""A fleet of processes on another data set than MNIST, and clients whose data are others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_processes import Fleet
from image_files import write_idx_dataset
from waiting import until

pytestmark = pytest.mark.e2e


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    started = Fleet(tmp_path)
    yield started
    started.end()


def test_clients_get_the_data_set_from_the_server_and_others_are_refused(fleet: Fleet) -> None:
    write_idx_dataset(fleet.folder / "data")
    write_idx_dataset(fleet.folder / "other", seed=1)
    port = fleet.server(
        "--dataset fashion-mnist --model cnn --data-dir data --run-dir run --num-selected 2 "
        "--min-clients 1 --rounds 1000000 --learning-rate 0.01"
    )
    fleet.client(port, 0, 3, "--data-dir data")
    fleet.wait_for_rounds(1)
    fleet.client(port, 1, 3, "--data-dir data --dataset kmnist")
    fleet.client(port, 2, 3, "--data-dir other --dataset fashion-mnist")
    refused = {
        "dev-1": "cannot be fetched",  # at once: its own data are not there
        "dev-2": "the files of fashion-mnist on this client are not those of the server",
    }
    for name, reason in refused.items():
        process = fleet.processes[name]
        until(lambda process=process: process.poll() is not None)
        assert process.returncode == 1
        assert reason in fleet.log(name)
    until(lambda: refused["dev-2"] in fleet.log("server"))
    write_idx_dataset(fleet.folder / "data", "KMNIST")
    fleet.client(port, 1, 3, "--data-dir data --dataset kmnist")
    until(lambda: fleet.processes["dev-1"].poll() is not None)
    assert "the server trains on fashion-mnist" in fleet.log("dev-1")
    assert fleet.processes["server"].poll() is None
    note = json.loads((fleet.folder / "run" / "data.json").read_text())
    assert note["dataset"] == "fashion-mnist"
