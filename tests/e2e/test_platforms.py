"""Programs on a platform without POSIX: they run, and only opting out by a signal is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_processes import Fleet
from waiting import PATIENCE_S, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.end()


def test_a_fleet_runs_without_signals_and_modules_of_posix(fleet: Fleet) -> None:
    certs = fleet.start("certs", "without_posix", "certs init")
    assert certs.wait(PATIENCE_S) == 0, fleet.log("certs")
    settings = "--num-selected 1 --rounds 3 --tau-max-s 60 --run-dir run --tls certs"
    metrics = "--metrics 127.0.0.1:0 --insecure"
    server = fleet.start(
        "server", "without_posix", f"server --address 127.0.0.1:0 {settings} {metrics}"
    )
    until(lambda: "listening on 127.0.0.1:" in fleet.log("server") or server.poll() is not None)
    assert "listening on 127.0.0.1:" in fleet.log("server"), fleet.log("server")
    port = fleet.log("server").partition("listening on 127.0.0.1:")[2].split()[0]
    made = fleet.start("made", "without_posix", "certs client dev-0")
    assert made.wait(PATIENCE_S) == 0, fleet.log("made")
    (fleet.folder / "certs" / "clients" / "ca.pem").write_bytes(
        (fleet.folder / "certs" / "ca.pem").read_bytes()
    )
    fleet.start(
        "client",
        "without_posix",
        f"client --server localhost:{port} --name dev-0 --tls certs/clients --partition-id 0 "
        "--num-partitions 2",
    )
    assert server.wait(PATIENCE_S) == 0, fleet.log("server") + fleet.log("client")
    assert len(fleet.rounds()) == 3
    for name in fleet.processes:
        assert "Traceback" not in fleet.log(name)


def test_a_simulation_runs_without_signals_and_modules_of_posix(fleet: Fleet) -> None:
    process = fleet.start("simulation", "without_posix", "simulation --rounds 3 --run-dir run")
    assert process.wait(PATIENCE_S) == 0, fleet.log("simulation")
    assert len(fleet.rounds()) == 3
