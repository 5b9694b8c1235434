"""A real fleet on loopback: server and clients as processes, emulated links, real MNIST."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from client.cli import main as client_main
from server.cli import main as server_main

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("mnist")]

ROOT = Path(__file__).parents[2]


class Fleet:
    """Processes of one fleet; every one is ended and waited for at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, module: str, arguments: str) -> subprocess.Popen[str]:
        code = f"import sys; from {module} import main; sys.exit(main())"
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        with (self.folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", code, *arguments.split()],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.processes[name] = process
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def server(self, arguments: str) -> int:
        """Start a server; return its port."""
        process = self.start("server", "server.cli", f"--address 127.0.0.1:0 {arguments}")
        deadline = time.monotonic() + 60
        while not (found := re.search(r"listening on 127\.0\.0\.1:(\d+)", self.log("server"))):
            assert process.poll() is None, self.log("server")
            assert time.monotonic() < deadline, self.log("server")
            time.sleep(0.05)
        return int(found[1])

    def client(self, port: int, number: int, of: int, arguments: str = "") -> None:
        self.start(
            f"dev-{number}",
            "client.cli",
            f"--server 127.0.0.1:{port} --name dev-{number} --partition-id {number} "
            f"--num-partitions {of} {arguments}",
        )

    def rounds(self) -> list[dict[str, Any]]:
        file = self.folder / "run" / "rounds.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def wait_for_rounds(self, count: int, timeout_s: float = 90.0) -> None:
        deadline = time.monotonic() + timeout_s
        while len(self.rounds()) < count:
            assert self.processes["server"].poll() is None, self.log("server")
            assert time.monotonic() < deadline, self.log("server")
            time.sleep(0.05)

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.end()


def test_fleet_learns_measures_and_keeps_floors(fleet: Fleet) -> None:
    distances_m = [60, 120, 180, 480]
    port = fleet.server(
        "--strategy cs-ucb-q --beta 0.1 --num-selected 2 --min-clients 4 --rounds 50 --run-dir run "
        "--fairness equal:0.2 --local-steps 10 --learning-rate 0.01 --eval-every 50 --tau-max-s 2"
    )
    for number, distance_m in enumerate(distances_m):
        fleet.client(port, number, 4, f"--link rayleigh --distance-m {distance_m} --compute 2000")
    assert fleet.processes["server"].wait(timeout=150) == 0, fleet.log("server")

    summary = json.loads((fleet.folder / "run" / "summary.json").read_text())
    assert summary["rounds"] == 50
    assert summary["accuracy"] > 0.65
    assert {arm["num_examples"] for arm in summary["arms"]} == {15000}
    assert all(arm["share"] >= 0.18 for arm in summary["arms"]), summary["arms"]
    by_name = {arm["name"]: arm for arm in summary["arms"]}
    assert sorted(by_name) == ["dev-0", "dev-1", "dev-2", "dev-3"]
    # The farthest client is the slowest: its mean round trip is several times the nearest's.
    assert by_name["dev-3"]["mean_rtt_s"] > 1.5 * by_name["dev-0"]["mean_rtt_s"]
    # What the round trip holds beyond the client's own account is small: streams cost little.
    rests = [
        rtt - compute - link
        for r in fleet.rounds()
        for rtt, compute, link, done in zip(
            r["rtt_s"], r["compute_s"], r["link_s"], r["completed"], strict=True
        )
        if done
    ]
    assert min(rests) > 0
    assert mean(sorted(rests)[: len(rests) * 9 // 10]) < 0.05


def test_killed_client_fails_its_round_and_a_late_joiner_is_a_new_arm(fleet: Fleet) -> None:
    port = fleet.server(
        "--strategy random --num-selected 3 --min-clients 3 --rounds 1000 --run-dir run "
        "--eval-every 1000 --tau-max-s 2"
    )
    for number in range(3):
        fleet.client(port, number, 4, "--link rayleigh --distance-m 100 --compute 20")
    fleet.wait_for_rounds(3)
    assert client_main(["health", "--server", f"127.0.0.1:{port}"]) == 0
    assert server_main(["health", "--address", f"127.0.0.1:{port}"]) == 0
    assert client_main(["health", "--server", "127.0.0.1:1", "--timeout-s", "2"]) == 1
    fleet.processes["dev-1"].kill()
    known = len(fleet.rounds())
    fleet.wait_for_rounds(known + 3)
    rounds = fleet.rounds()
    (lost,) = {
        arm for r in rounds for arm, ok in zip(r["selected"], r["completed"], strict=True) if not ok
    }
    assert rounds[-1]["num_available"] == 2
    assert lost not in rounds[-1]["available"]
    assert all(r["stepped"] for r in rounds), "the run goes on with what is there"
    fleet.client(port, 3, 4)
    deadline = time.monotonic() + 60
    while 3 not in fleet.rounds()[-1]["available"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    server = fleet.processes["server"]
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=10) == 0
    assert "the clients were told" in fleet.log("server")
    assert (fleet.folder / "run" / "model.safetensors").exists()
    summary = json.loads((fleet.folder / "run" / "summary.json").read_text())
    assert summary["rounds"] == len(fleet.rounds())
    deadline = time.monotonic() + 10
    while "said goodbye" not in fleet.log("dev-0"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    fleet.processes["dev-0"].send_signal(signal.SIGTERM)
    assert fleet.processes["dev-0"].wait(timeout=10) == 0


def test_tls_fleet_takes_only_its_own(fleet: Fleet) -> None:
    from server.certificates import CertificateFolder

    certs = CertificateFolder(fleet.folder / "certs")
    certs.create(["127.0.0.1"])
    certs.issue_client("dev-0")
    stranger = CertificateFolder(fleet.folder / "other")
    stranger.create(["127.0.0.1"])
    stranger.issue_client("dev-1")
    port = fleet.server(
        "--tls certs --strategy random --num-selected 1 --min-clients 1 --rounds 5 --run-dir run "
        "--eval-every 5"
    )
    fleet.client(port, 1, 2, "--tls other")  # another authority's: refused in the handshake
    fleet.client(port, 2, 3)  # no certificate at all
    fleet.client(port, 0, 2, "--tls certs")
    assert fleet.processes["server"].wait(timeout=90) == 0, fleet.log("server")
    summary = json.loads((fleet.folder / "run" / "summary.json").read_text())
    assert [arm["name"] for arm in summary["arms"]] == ["dev-0"]
    assert summary["failures"] == 0
    for name in ("dev-1", "dev-2"):
        assert "still trying" in fleet.log(name)


def test_somebody_elses_app_runs_on_our_streams_unchanged(fleet: Fleet) -> None:
    shutil.copytree(ROOT / "examples" / "foreign-app", fleet.folder, dirs_exist_ok=True)
    port = fleet.server("--app wind.server_app:app")
    for number in range(3):
        fleet.client(port, number, 3, "--app wind.client_app:app")
    assert fleet.processes["server"].wait(timeout=90) == 0, fleet.log("server")
    losses = [float(x) for x in re.findall(r"round \d+: loss ([0-9.]+)", fleet.log("server"))]
    assert len(losses) == 11  # before the first round, and after each of the ten
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("server.cli", "--address 0.0.0.0:9092", "or with --insecure"),
        ("server.cli", "--address nowhere", "HOST:PORT"),
        ("server.cli", "--tls missing", "No such file"),
        ("server.cli", "--deny-list missing", "deny-list"),
        ("server.cli", "--app nothing:here", "No module named 'nothing'"),
        ("server.cli", "--num-selected 0", "at least 1"),
        ("client.cli", "--server 10.1.2.3:9092 --partition-id 0 --num-partitions 1", "--insecure"),
        ("client.cli", "--server nowhere", "must be HOST:PORT"),
        ("client.cli", "", "--partition-id"),
        ("client.cli", "--partition-id 0 --num-partitions 1 --link fm", "must be rayleigh"),
        ("client.cli", "--partition-id 0 --num-partitions 1 --tls missing", "No such file"),
        ("client.cli", "--app client.task:MODELS", "not a ClientApp"),
    ],
)
def test_bad_input_is_one_line(
    module: str,
    arguments: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from importlib import import_module

    monkeypatch.chdir(tmp_path)
    assert import_module(module).main(arguments.split()) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.strip().splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert list(tmp_path.iterdir()) == []
