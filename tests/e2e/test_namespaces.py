"""A fleet on a network of its own: limited links between namespaces, one of them cut in mid-run.

Nothing is emulated in the clients here. What the server measures is what the kernel's token
buckets let through, and a link that is cut takes the packets with it, without a word to anybody.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT
from waiting import RUN_S, until

from flower_scheduling.server.runs.directory import written_rounds

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.usefixtures("mnist")]

RATES_MBIT = (2.0, 0.5, 8.0)
"""Rate of each client's link, both ways. Not in order, so that no order of arms explains it."""
FAST = 2
MODEL_BITS = 8 * 31_400
# A bucket of 4 kB holds two packets, a tenth of the model, and so lets little of it through at
# more than the rate. The queue holds the whole model at every rate: nothing is dropped. A sign of
# life behind a model comes half a second late at the lowest rate, 10 s are waited for it.
BUCKET = "burst 4kb latency 2s"


class Network:
    """A namespace for the server, one for each client, and a link of its own between them.

    The links are made inside the namespaces: the machine's own network never sees them. They end
    with the namespaces.
    """

    def __init__(self) -> None:
        self.server = f"fleet-{os.getpid()}-server"
        self.clients = [f"fleet-{os.getpid()}-{number}" for number in range(len(RATES_MBIT))]

    def require(self) -> None:
        """Skip the test where the machine does not let us make such a network."""
        if os.geteuid() != 0:
            pytest.skip("network namespaces need root")
        for program in ("ip", "tc"):
            if shutil.which(program) is None:
                pytest.skip(f"{program} of iproute2 is missing")
        try:
            run(f"ip netns add {self.server}")
            run(f"ip -n {self.server} link add probe type veth peer name eborp")
            run(f"tc -n {self.server} qdisc add dev probe root tbf rate 1mbit {BUCKET}")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no limited links between namespaces here: {error.stderr.strip()}")
        finally:
            self.delete()

    def create(self) -> None:
        for namespace in (self.server, *self.clients):
            run(f"ip netns add {namespace}")
            run(f"ip -n {namespace} link set lo up")
        for number, (client, rate) in enumerate(zip(self.clients, RATES_MBIT, strict=True)):
            run(
                f"ip -n {self.server} link add link-{number} type veth "
                f"peer name uplink netns {client}"
            )
            for namespace, device, host in (
                (self.server, f"link-{number}", 1),
                (client, "uplink", 2),
            ):
                run(f"ip -n {namespace} address add 10.77.{number}.{host}/24 dev {device}")
                run(f"tc -n {namespace} qdisc add dev {device} root tbf rate {rate}mbit {BUCKET}")
                run(f"ip -n {namespace} link set {device} up")

    def set_link(self, number: int, state: str) -> None:
        """Set the server's end of a link ``up`` or ``down``."""
        run(f"ip -n {self.server} link set link-{number} {state}")

    def delete(self) -> None:
        for namespace in (self.server, *self.clients):
            with suppress(subprocess.CalledProcessError):  # it never came to be
                run(f"ip netns delete {namespace}")


def run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True, timeout=20)


class Fleet:
    """A server and its clients, each in its namespace; all are killed and waited for."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network = network
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, arguments: str) -> subprocess.Popen[bytes]:
        """Start a server and a client on each link; return the server."""
        server = self._start(
            "server",
            self.network.server,
            f"--address 0.0.0.0:0 --insecure --num-selected 1 --min-clients {len(RATES_MBIT)} "
            f"--run-dir run {arguments}",
        )
        self.wait_for(lambda: "listening on" in self.log("server"))
        found = re.search(r"listening on 0\.0\.0\.0:(\d+)", self.log("server"))
        assert found, self.log("server")
        for number, namespace in enumerate(self.network.clients):
            self._start(
                "client",
                namespace,
                f"--server 10.77.{number}.1:{found[1]} --insecure --name dev-{number} "
                f"--partition-id {number} --num-partitions {len(RATES_MBIT)}",
            )
        return server

    def _start(self, role: str, namespace: str, arguments: str) -> subprocess.Popen[bytes]:
        module = f"flower_scheduling.{'server.cli.main' if role == 'server' else 'client.cli'}"
        code = f"import sys; from {module} import main; sys.exit(main())"
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        environment = {
            name: value for name, value in os.environ.items() if "proxy" not in name.lower()
        }
        name = "server" if role == "server" else namespace
        with (self.folder / f"{name}.log").open("wb") as log:
            # `ip netns exec` becomes the program: to kill the one is to kill the other.
            process = subprocess.Popen(
                ["ip", "netns", "exec", namespace, sys.executable, "-c", code, *arguments.split()],
                cwd=self.folder,
                env={**environment, "PYTHONPATH": path, "COLUMNS": "200"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def logs(self) -> str:
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {file.name}\n{file.read_text()}" for file in files)

    def rounds(self) -> list[dict[str, Any]]:
        return written_rounds(self.folder / "run")

    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.folder / "run" / "summary.json").read_text())
        return summary

    def wait_for_rounds(self, more: int) -> None:
        count = len(self.rounds()) + more
        self.wait_for(lambda: len(self.rounds()) >= count)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        def is_so() -> bool:
            assert all(process.poll() is None for process in self.processes), self.logs()
            return condition()

        until(is_so)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    network.require()
    try:
        network.create()
        yield network
    finally:
        network.delete()


@pytest.fixture
def fleet(network: Network, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(network, tmp_path)
    try:
        yield fleet
    finally:
        fleet.end()


def test_round_trips_follow_the_links_and_the_fast_ones_are_preferred(fleet: Fleet) -> None:
    # A model there and back takes 0.06, 0.24 and 0.94 s. The index of CS-UCB adds
    # sqrt(2 ln t / z) to a mean reward of 1 - rtt / tau_max: 0.4 even for an arm that was played
    # in 60 of 100 rounds, 1 for one that was played in 10. The rewards must be as far apart, so
    # the deadline is not far above what the slowest link needs: rewards of 0.96, 0.84 and 0.37,
    # equal indices at about 56, 34 and 10 plays. With a deadline of 30 s they would be 1, 0.99 and
    # 0.97, and 100 rounds too few to prefer anybody.
    server = fleet.start("--strategy cs-ucb --rounds 100 --eval-every 100 --tau-max-s 1.5")
    assert server.wait(RUN_S) == 0, fleet.logs()
    summary = fleet.summary()
    print(summary["arms"])
    arms = {arm["name"]: arm for arm in summary["arms"]}
    by_rate = [
        arms[f"dev-{number}"]
        for number in sorted(range(len(RATES_MBIT)), key=lambda number: -RATES_MBIT[number])
    ]
    fast, middle, slow = by_rate
    assert fast["mean_rtt_s"] < middle["mean_rtt_s"] < slow["mean_rtt_s"]
    for arm, rate in zip(by_rate, sorted(RATES_MBIT, reverse=True), strict=True):
        # Two models cannot pass faster than the link lets them, but for the two full buckets.
        assert arm["mean_rtt_s"] > 2 * (MODEL_BITS - 8 * 4096) / (1e6 * rate)
    assert fast["share"] > middle["share"] > slow["share"]
    assert fast["share"] > 2 * slow["share"]


def test_client_behind_a_cut_link_is_missed_and_comes_back(fleet: Fleet) -> None:
    server = fleet.start("--strategy random --rounds 100000 --eval-every 100000 --tau-max-s 3")
    fleet.wait_for_rounds(10)
    fleet.wait_for(lambda: fleet.rounds()[-1]["num_available"] == len(RATES_MBIT))

    fleet.network.set_link(FAST, "down")
    lost = f"lost the connection: dev-{FAST}"
    fleet.wait_for(lambda: lost in fleet.log("server"))
    fleet.wait_for_rounds(2)
    (arm,) = {0, 1, 2} - set(fleet.rounds()[-1]["available"])

    fleet.network.set_link(FAST, "up")
    fleet.wait_for(lambda: arm in fleet.rounds()[-1]["available"])
    known = len(fleet.rounds())
    fleet.wait_for(
        lambda: any(
            r["selected"] == [arm] and r["completed"] == [True] for r in fleet.rounds()[known:]
        )
    )
    server.send_signal(signal.SIGTERM)
    assert server.wait(RUN_S) == 0, fleet.logs()
    arms = {arm["name"]: arm["index"] for arm in fleet.summary()["arms"]}
    assert len(fleet.summary()["arms"]) == len(arms) == len(RATES_MBIT)
    assert arms[f"dev-{FAST}"] == arm
