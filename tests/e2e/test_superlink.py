"""Flower's own runtime: a real SuperLink and stock SuperNodes on loopback."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from paths import ROOT
from waiting import PATIENCE_S, RUN_S, until

from flower_scheduling.client.learning.images import ImageData
from flower_scheduling.client.link.emulation import EmulatedDevice
from flower_scheduling.errors import SuperLinkError
from flower_scheduling.server.cli.certificates import CertificateFolder
from flower_scheduling.server.runtimes.superlink import SuperLink, supernode_command

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("mnist")]

NUM_NODES = 3
EMULATION = {"link": "rayleigh", "distance-m": 480, "compute": "0.5"}
"""What ``--node-config`` says of the first node: a link, and half an example a second."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class SuperNodes:
    """Stock SuperNodes, each in a session of its own; ended by group and waited for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        superlink: str,
        number: int,
        of: int,
        ca: Path | None = None,
        emulation: Mapping[str, int | str] = MappingProxyType({}),
    ) -> None:
        node_config = {"partition-id": number, "num-partitions": of, "name": f"node-{number}"}
        command = supernode_command(
            superlink,
            node_config={**node_config, **emulation},
            port=free_port(),
            root_certificates=ca,
        )
        environment = {
            **os.environ,
            "FLWR_HOME": str(self.folder / f"flower-{number}"),
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
        }
        environment["PATH"] = os.pathsep.join([str(Path(command[0]).parent), environment["PATH"]])
        environment.pop("PYTHONPATH", None)  # our code comes with the bundle, and from nowhere else
        with (self.folder / f"node-{number}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def logs(self) -> str:
        files = sorted(self.folder.glob("node-*.log"))
        return "\n".join(f"--- {file.name}\n{file.read_text()}" for file in files)

    def end(self) -> None:
        for process in self.processes:
            os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def superlink(
    tmp_path_factory: pytest.TempPathFactory, mnist: ImageData
) -> Iterator[tuple[SuperLink, SuperNodes]]:
    """One SuperLink with three SuperNodes, for several runs."""
    folder = tmp_path_factory.mktemp("superlink")
    nodes = SuperNodes(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # as if we were installed where the SuperLink runs
        try:
            with SuperLink(folder / "state", "127.0.0.1:0") as link:
                for number in range(NUM_NODES):
                    emulation = EMULATION if number == 0 else {}
                    nodes.start(link.address, number, NUM_NODES, emulation=emulation)
                yield link, nodes
        finally:
            nodes.end()


def follow(
    superlink: tuple[SuperLink, SuperNodes], app: Path, *options: str, **overrides: object
) -> str:
    """Run an app to its end and return its log; on failure show every log."""
    link, nodes = superlink
    lines: list[str] = []
    values = {key.replace("_", "-"): value for key, value in overrides.items()}
    try:
        run_id = link.submit(app, values, options)  # type: ignore[arg-type]
        link.follow(run_id, lines.append)
    except SuperLinkError as error:
        text = "\n".join([str(error), *lines, link.log_file.read_text(), nodes.logs()])
        pytest.fail(text)
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(lines))


@pytest.mark.slow
def test_our_app_runs_under_plain_flwr_run(
    superlink: tuple[SuperLink, SuperNodes], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    log = follow(
        superlink,
        ROOT,
        rounds=2,
        num_selected=2,
        min_clients=NUM_NODES,
        tau_max_s=600,  # a whole number where a float is due: Flower lets it through
        eval_every=2,
        run_dir=str(run_dir),
    )
    print(log)
    rounds = rows(run_dir / "rounds.jsonl")
    assert [r["selected"] for r in rounds] != []
    assert all(r["num_available"] == NUM_NODES and r["completed"] == [True] * 2 for r in rounds)
    assert all(r["stepped"] for r in rounds)
    arms = json.loads((run_dir / "arms.json").read_text())
    assert sorted(arm["name"] for arm in arms) == ["node-0", "node-1", "node-2"]
    assert {arm["num_examples"] for arm in arms} == {20_000}
    assert (run_dir / "model.safetensors").exists()
    # The floor is measured and said; it is seconds, of which our deadline is a multiple.
    (floor,) = re.findall(r"a client that does nothing takes (\d+\.\d) s \(median of 3", log)
    assert float(floor) > 0.3
    # The first node stands for a device with a link and a processor of its own, drawn by its name
    # and the round, as with our own client.
    device = EmulatedDevice.from_node_config({"name": "node-0", **EMULATION})
    assert device is not None
    told = {
        r["round"]: (r["link_s"][i], r["compute_s"][i], r["rtt_s"][i])
        for r in rounds
        for i, arm in enumerate(r["selected"])
        if arms[arm]["name"] == "node-0"
    }
    assert told, "node-0 was selected in one of two rounds"
    for number, (link_s, compute_s, rtt_s) in told.items():
        rng = device.rng(number)
        expected_s = device.link_s(rng, 1.0) + device.link_s(rng.spawn(1)[0], 1.0)
        assert link_s == pytest.approx(expected_s)
        # Two examples in the minibatch; a fresh process on a busy machine may take longer still.
        assert compute_s > 3.99
        assert rtt_s > link_s + compute_s
    others = [
        link_s
        for r in rounds
        for arm, link_s in zip(r["selected"], r["link_s"], strict=True)
        if arms[arm]["name"] != "node-0"
    ]
    assert not any(others), "no link is emulated where none is configured"
    print("round trips [s]:", [r["rtt_s"] for r in rounds], "floor", floor)


@pytest.mark.slow
def test_foreign_app_is_scheduled(superlink: tuple[SuperLink, SuperNodes]) -> None:
    log = follow(superlink, ROOT / "examples" / "foreign-app", num_rounds=3)
    assert_it_learns(log)


@pytest.mark.slow
def test_foreign_app_is_scheduled_in_flowers_simulation_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    options = ["--simulation", "--disable-runtime-dependency-installation"]
    with SuperLink(tmp_path / "state", "127.0.0.1:0", options=options) as link:
        app = ROOT / "examples" / "foreign-app"
        size = ("--federation-config", f"num-supernodes={NUM_NODES}")
        assert_it_learns(follow((link, SuperNodes(tmp_path)), app, *size, num_rounds=3))


def assert_it_learns(log: str) -> None:
    print(log)
    losses = [float(text) for text in re.findall(r"round \d: loss (\d+\.\d+)", log)]
    assert len(losses) == 4, log
    assert losses[-1] < 0.5 * losses[0], "three rounds of FedProx learn the curve"
    assert "Scheduling: cs-ucb-q, N = 2, deadline 60 s" in log


@pytest.mark.slow
def test_app_that_fails_is_one_line(superlink: tuple[SuperLink, SuperNodes]) -> None:
    link, _ = superlink
    lines: list[str] = []
    failed = r"the app failed \(finished:failed\).*num-selected"
    with pytest.raises(SuperLinkError, match=failed):
        link.follow(link.submit(ROOT, {"num-selected": 0}), lines.append)
    with pytest.raises(
        SuperLinkError, match=r"flwr run failed: .*Invalid run configuration"
    ) as caught:
        link.follow(link.submit(ROOT, {"unheard-of": 1}), lines.append)
    assert "\n" not in str(caught.value)


def start_runtime(folder: Path, log: Path, **settings: object) -> subprocess.Popen[bytes]:
    """Run the SuperLink runtime in a process of its own, from an empty folder."""
    code = (
        "import json, logging, sys\n"
        "from flower_scheduling.server.settings.fleet import FleetConfig\n"
        "from flower_scheduling.server.runtimes.superlink_run import run_superlink\n"
        "try:\n"
        f"    summary = run_superlink(FleetConfig(**{settings!r}))\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit('stopped')\n"
        "print('rounds:', summary['rounds'])\n"
    )
    with log.open("wb") as stream:
        return subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=stream,
            stderr=subprocess.STDOUT,
        )


@pytest.mark.slow
def test_runtime_over_tls_leaves_results_and_no_process(tmp_path: Path) -> None:
    certs = CertificateFolder(tmp_path / "certs")
    certs.create(["127.0.0.1"])
    port = free_port()
    log = tmp_path / "server.log"
    work = tmp_path / "empty"
    work.mkdir()
    nodes = SuperNodes(tmp_path)
    server = start_runtime(
        work,
        log,
        address=f"127.0.0.1:{port}",
        tls=str(tmp_path / "certs"),
        run_dir="run",
        rounds=1,
        num_selected=1,
        tau_max_s=600.0,
    )
    try:
        nodes.start(f"127.0.0.1:{port}", 0, 1, tmp_path / "certs" / "ca.pem")  # it waits
        code = server.wait(RUN_S)
    finally:
        server.kill()
        server.wait()
        nodes.end()
    said = log.read_text()
    assert code == 0, said + nodes.logs()
    assert "rounds: 1" in said
    assert list(work.iterdir()) == [work / "run"]
    assert len(rows(work / "run" / "rounds.jsonl")) == 1
    assert (work / "run" / "superlink" / "state.db").read_bytes().startswith(b"SQLite format 3")
    assert_nothing_left(port, work)


@pytest.mark.slow
def test_runtime_that_is_stopped_writes_what_it_has_and_stops_all(tmp_path: Path) -> None:
    port = free_port()
    log = tmp_path / "server.log"
    work = tmp_path / "empty"
    work.mkdir()
    with waiting_runtime(work, log, port) as server:
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE_S) == 1, log.read_text()
    assert log.read_text().strip().endswith("stopped")
    assert json.loads((work / "run" / "summary.json").read_text())["rounds"] == 0
    assert (work / "run" / "superlink" / "superlink.log").exists()
    assert_nothing_left(port, work)


@pytest.mark.slow
def test_runtime_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    port = free_port()
    with waiting_runtime(tmp_path, tmp_path / "server.log", port):
        pass  # it ends with SIGKILL
    until(lambda: not processes_of(tmp_path))
    assert_nothing_left(port, tmp_path)


@contextmanager
def waiting_runtime(folder: Path, log: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run the runtime until its ServerApp waits for clients; kill it at the end of the block."""
    server = start_runtime(folder, log, address=f"127.0.0.1:{port}", run_dir="run")
    try:

        def waits() -> bool:
            assert server.poll() is None, log.read_text()
            return "waiting for clients" in log.read_text()

        until(waits)
        yield server
    finally:
        server.kill()
        server.wait()


def assert_nothing_left(port: int, folder: Path) -> None:
    """Assert that the port is free and that no process knows the folder."""
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    assert processes_of(folder) == []


def processes_of(folder: Path) -> list[Path]:
    """Return the processes that know the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(folder).encode() in (entry / "environ").read_bytes():
                found.append(entry)
    return found
