"""A real fleet on loopback: server and clients as processes, emulated links, real MNIST."""

from __future__ import annotations

import json
import re
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import grpc
import numpy as np
import pytest
from fleet_processes import Fleet
from paths import ROOT
from waiting import PATIENCE_S, RUN_S, until

from flower_scheduling.client.cli import main as client_main
from flower_scheduling.client.wire.credentials import channel_credentials
from flower_scheduling.server.cli.main import main as server_main
from flower_scheduling.server.runs.checkpoint import CheckpointFolder

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("mnist")]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.end()


def test_fleet_learns_measures_and_keeps_floors(fleet: Fleet) -> None:
    distances_m = [60, 180, 480]
    port = fleet.server(
        "--strategy cs-ucb-q --beta 0.1 --num-selected 2 --min-clients 3 --rounds 50 --run-dir run "
        "--fairness equal:0.2 --local-steps 10 --learning-rate 0.01 --eval-every 50 --tau-max-s 60"
    )
    for number, distance_m in enumerate(distances_m):
        fleet.client(port, number, 3, f"--link rayleigh --distance-m {distance_m} --compute 2000")
    assert fleet.processes["server"].wait(RUN_S) == 0, fleet.log("server")

    summary = json.loads((fleet.folder / "run" / "summary.json").read_text())
    assert summary["rounds"] == 50
    assert summary["accuracy"] > 0.65
    assert {arm["num_examples"] for arm in summary["arms"]} == {20000}
    assert all(arm["share"] >= 0.18 for arm in summary["arms"]), summary["arms"]
    names = [arm["name"] for arm in summary["arms"]]
    assert sorted(names) == ["dev-0", "dev-1", "dev-2"]
    links_s: dict[str, list[float]] = {name: [] for name in names}
    for r in fleet.rounds():
        for arm, rtt_s, compute_s, link_s in zip(
            r["selected"], r["rtt_s"], r["compute_s"], r["link_s"], strict=True
        ):
            assert rtt_s > compute_s + link_s, "the server's time holds what the client waited"
            links_s[names[arm]].append(link_s)
    # The farthest client is the slowest: its link takes several times what the nearest's takes.
    assert mean(links_s["dev-2"]) > 1.5 * mean(links_s["dev-0"])


@pytest.mark.slow
def test_killed_client_fails_its_round_and_a_late_joiner_is_a_new_arm(fleet: Fleet) -> None:
    port = fleet.server(
        "--strategy random --num-selected 3 --min-clients 3 --rounds 100000 --run-dir run "
        "--eval-every 100000 --tau-max-s 5"
    )
    for number in range(3):
        fleet.client(port, number, 4, "--link rayleigh --distance-m 100 --compute 20")
    fleet.wait_for_rounds(3)
    assert client_main(["health", "--server", f"127.0.0.1:{port}"]) == 0
    assert server_main(["health", "--address", f"127.0.0.1:{port}"]) == 0
    assert client_main(["health", "--server", "127.0.0.1:1", "--timeout-s", "2"]) == 1
    fleet.processes["dev-1"].kill()
    arms = json.loads((fleet.folder / "run" / "arms.json").read_text())
    (lost,) = (arm["index"] for arm in arms if arm["name"] == "dev-1")
    until(lambda: sorted({0, 1, 2} - {lost}) == fleet.rounds()[-1]["available"])
    rounds = fleet.rounds()
    assert any(
        arm == lost and not ok
        for r in rounds
        for arm, ok in zip(r["selected"], r["completed"], strict=True)
    )
    assert all(r["stepped"] for r in rounds), "the run goes on with what is there"
    fleet.client(port, 3, 4)
    until(lambda: 3 in fleet.rounds()[-1]["available"])
    server = fleet.processes["server"]
    server.send_signal(signal.SIGTERM)
    assert server.wait(RUN_S) == 0
    assert "stopped" in fleet.log("server")
    assert (fleet.folder / "run" / "model.safetensors").exists()
    summary = json.loads((fleet.folder / "run" / "summary.json").read_text())
    assert summary["rounds"] == len(fleet.rounds())
    until(lambda: "said goodbye" in fleet.log("dev-0"))
    fleet.processes["dev-0"].send_signal(signal.SIGTERM)
    assert fleet.processes["dev-0"].wait(RUN_S) == 0


@pytest.mark.slow
def test_status_metrics_and_a_client_that_opts_out(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    port = fleet.server(
        "--strategy cs-ucb-q --num-selected 1 --min-clients 2 --rounds 100000 --run-dir run "
        "--metrics 127.0.0.1:0 --eval-every 100000 --tau-max-s 60"
    )
    for number in range(2):
        fleet.client(port, number, 2, "--link rayleigh --distance-m 100")
    fleet.wait_for_rounds(5)

    def status() -> dict[str, Any]:
        assert server_main(["status", "--address", f"127.0.0.1:{port}", "--json"]) == 0
        told: dict[str, Any] = json.loads(capsys.readouterr().out)
        return told

    def wait_for_opted_out(count: int) -> None:
        until(lambda: status()["opted_out"] == count)

    told = status()
    assert told["connected"] == 2
    assert told["rounds"] == 100000
    arms = {arm["name"]: arm for arm in told["arms"]}
    assert sorted(arms) == ["dev-0", "dev-1"]
    assert sum(arm["selections"] for arm in arms.values()) == told["round"] >= 5
    assert all(0 < arm["mean_rtt_s"] < 60 for arm in arms.values() if arm["completed"])
    assert all(arm["floor"] == 0.25 and arm["queue"] >= 0 for arm in arms.values())

    found = re.search(r"metrics at (http://127\.0\.0\.1:\d+/metrics)", fleet.log("server"))
    assert found is not None
    with urllib.request.urlopen(found[1]) as answer:
        text = answer.read().decode()
    assert 'flower_scheduling_clients{state="connected"} 2.0' in text
    assert 'flower_scheduling_client_selections_total{client="dev-1"}' in text

    fleet.processes["dev-1"].send_signal(signal.SIGUSR1)
    wait_for_opted_out(1)
    fleet.wait_for_rounds(len(fleet.rounds()) + 2)  # one may have begun before
    (arm,) = (arm["index"] for arm in status()["arms"] if arm["opted_out"])
    begin = len(fleet.rounds())
    fleet.wait_for_rounds(begin + 5)
    without = fleet.rounds()[begin:]
    assert all(r["available"] == [1 - arm] and r["selected"] == [1 - arm] for r in without)
    assert all(r["completed"] == [True] for r in without)
    fleet.processes["dev-1"].send_signal(signal.SIGUSR1)
    wait_for_opted_out(0)
    begin = len(fleet.rounds())
    until(lambda: any(r["selected"] == [arm] for r in fleet.rounds()[begin:]))
    assert server_main(["status", "--address", f"127.0.0.1:{port}"]) == 0
    assert "2 connected" in capsys.readouterr().out
    fleet.processes["server"].send_signal(signal.SIGINT)
    assert fleet.processes["server"].wait(RUN_S) == 0
    assert server_main(["status", "--address", f"127.0.0.1:{port}", "--timeout-s", "1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: no flower-server answers at 127.0.0.1:{port}")


@pytest.mark.slow
def test_run_without_a_step_fails_and_a_killed_server_leaves_its_arms(fleet: Fleet) -> None:
    (fleet.folder / "broken.py").write_text(
        "from flwr.clientapp import ClientApp\n"
        "app = ClientApp()\n"
        "@app.train()\n"
        "def train(message, context):\n"
        "    raise ValueError('no\\nsecond line')\n"
    )
    arguments = "--num-selected 1 --min-clients 1 --eval-every 100000 --fairness dev-0=0.5"
    port = fleet.server(f"--rounds 12 --run-dir broken {arguments}")
    fleet.start(
        "dev-0",
        "client.cli",
        f"--server 127.0.0.1:{port} --name dev-0 --app broken:app",
    )
    assert fleet.processes["server"].wait(RUN_S) == 1
    log = fleet.log("server")
    assert "error: no round has changed the model" in log
    assert "no update from dev-0: client error: ValueError: no" in log
    assert "the model has not changed for 10 rounds" in log
    assert "Traceback" not in log

    fleet.end()
    port = fleet.server(f"--rounds 100000 --run-dir run {arguments}")
    fleet.client(port, 0, 1)
    fleet.wait_for_rounds(2)
    fleet.processes["server"].kill()
    (arm,) = json.loads((fleet.folder / "run" / "arms.json").read_text())
    assert (arm["name"], arm["floor"]) == ("dev-0", 0.5)


@pytest.mark.slow
def test_a_killed_server_goes_on_where_it_was(fleet: Fleet) -> None:
    settings = (
        "--strategy cs-ucb-q --num-selected 2 --min-clients 3 --rounds 60 --eval-every 20 "
        "--fairness equal:0.2 --aggregation fedadam --aggregation-option eta=0.01 --tau-max-s 60"
    )
    port = fleet.server(f"{settings} --run-dir run")
    for number in range(3):
        # Round trips of a quarter of a second: the server is killed in the midst of them.
        fleet.client(port, number, 3, "--compute 8")
    last = 0
    for _ in range(3):
        fleet.wait_for_rounds(last + 4)
        fleet.processes["server"].kill()
        fleet.processes["server"].wait()
        last = len(fleet.rounds())
        fleet.start(
            "server",
            "server.cli.main",
            f"--resume run --address 127.0.0.1:{port} --rounds {last + 12}",
        )
    assert fleet.processes["server"].wait(RUN_S) == 0, fleet.log("server")

    rounds = fleet.rounds()
    assert [r["round"] for r in rounds] == list(range(1, last + 13)), "none twice, none missing"
    assert all(a["time_s"] < b["time_s"] for a, b in pairwise(rounds))
    arms = json.loads((fleet.folder / "run" / "arms.json").read_text())
    assert sorted(arm["name"] for arm in arms) == ["dev-0", "dev-1", "dev-2"]

    # What the policy remembers is what the recorded rounds imply.
    saved = CheckpointFolder(fleet.folder / "run" / "checkpoint").load()
    assert saved is not None
    assert saved.round == len(rounds)
    policy = saved.state["strategy"]["policy"]
    selected = [np.isin(np.arange(3), r["selected"]) for r in rounds]
    assert policy["play_count"].tolist() == np.sum(selected, axis=0).tolist()
    queue = np.zeros(3)
    for round_, mask in zip(rounds, selected, strict=True):
        member = np.isin(np.arange(3), round_["available"])  # nobody is busy between rounds
        queue = np.where(member, np.maximum(queue + 0.2 - mask, 0.0), queue)
    assert policy["virtual_queue"] == pytest.approx(queue)
    summary = json.loads((fleet.folder / "run" / "summary.json").read_text())
    assert summary["rounds"] == len(rounds)
    assert summary["failures"] == 0


@pytest.mark.slow
def test_tls_fleet_takes_only_its_own(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    from flower_scheduling.server.cli.certificates import CertificateFolder

    certs = CertificateFolder(fleet.folder / "certs")
    certs.create(["127.0.0.1"])
    certs.issue_client("dev-0")
    stranger = CertificateFolder(fleet.folder / "other")
    stranger.create(["127.0.0.1"])
    stranger.issue_client("dev-1")
    port = fleet.server(
        "--tls certs --strategy random --num-selected 1 --min-clients 1 --rounds 5 --run-dir run "
        "--eval-every 5 --tau-max-s 60"
    )
    # Health and status answer who has the server's files; a client's do for its own health.
    ask = f"--address 127.0.0.1:{port} --tls {fleet.folder / 'certs'}"
    assert server_main(["health", *ask.split()]) == 0
    assert server_main(["status", "--json", *ask.split()]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["connected"] == 0
    assert server_main(["status", "--address", f"127.0.0.1:{port}", "--timeout-s", "2"]) == 1
    server = f"--server 127.0.0.1:{port} --name dev-0 --tls {fleet.folder / 'certs'}"
    assert client_main(["health", *server.split()]) == 0
    with (
        grpc.secure_channel(
            f"127.0.0.1:{port}", channel_credentials(fleet.folder / "certs", "dev-0")
        ) as channel,
        pytest.raises(grpc.RpcError, match="only the server's certificate may ask"),
    ):
        channel.unary_unary("/flower.scheduling.Fleet/Status")(b"", timeout=PATIENCE_S)
    fleet.client(port, 1, 2, "--tls other")  # another authority's: refused in the handshake
    fleet.client(port, 2, 3)  # no certificate at all
    fleet.client(port, 0, 2, "--tls certs")
    assert fleet.processes["server"].wait(RUN_S) == 0, fleet.log("server")
    summary = json.loads((fleet.folder / "run" / "summary.json").read_text())
    assert [arm["name"] for arm in summary["arms"]] == ["dev-0"]
    assert summary["failures"] == 0
    for name in ("dev-1", "dev-2"):
        assert "still trying" in fleet.log(name)


@pytest.mark.slow
def test_somebody_elses_app_runs_on_our_streams_unchanged(fleet: Fleet) -> None:
    shutil.copytree(ROOT / "examples" / "foreign-app", fleet.folder, dirs_exist_ok=True)
    port = fleet.server("--app wind.server_app:app")
    for number in range(3):
        fleet.client(port, number, 3, "--app wind.client_app:app")
    assert fleet.processes["server"].wait(RUN_S) == 0, fleet.log("server")
    losses = [float(x) for x in re.findall(r"round \d+: loss ([0-9.]+)", fleet.log("server"))]
    assert len(losses) == 11  # before the first round, and after each of the ten
    assert losses[-1] < 0.2 * losses[0]
    assert "[ROUND 10/10] selected dev-" in fleet.log("server")
    assert "shares of rounds against their floors, rounds 1 to 10: dev-" in fleet.log("server")


@pytest.mark.slow
def test_somebody_elses_app_is_watched_killed_and_continued_like_ours(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "examples" / "foreign-app", fleet.folder, dirs_exist_ok=True)
    settings = fleet.folder / "pyproject.toml"
    settings.write_text(settings.read_text().replace("num-rounds = 10", "num-rounds = 100000"))
    arguments = "--app wind.server_app:app --run-dir run --page 127.0.0.1:0 --metrics 127.0.0.1:0"
    port = fleet.server(arguments)
    for number in range(3):
        fleet.client(port, number, 3, "--app wind.client_app:app")
    fleet.wait_for_rounds(3)
    assert server_main(["status", "--address", f"127.0.0.1:{port}", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rounds"] == 100000
    assert told["round"] >= 3
    assert "page at http://127.0.0.1:" in fleet.log("server")
    fleet.processes["server"].kill()
    fleet.processes["server"].wait(RUN_S)
    before = len(fleet.rounds())
    settings.write_text(settings.read_text().replace("100000", str(before + 5)))
    again = f"--address 127.0.0.1:{port} {arguments} --continue"
    fleet.start("server", "server.cli.main", again)
    assert fleet.processes["server"].wait(RUN_S) == 0, fleet.log("server")
    assert [line["round"] for line in fleet.rounds()] == list(range(1, before + 6))
    assert "another run configuration: num-rounds" in fleet.log("server")


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("server.cli.main", "--address 0.0.0.0:9092", "or with --insecure"),
        ("server.cli.main", "--address nowhere", "HOST:PORT"),
        ("server.cli.main", "--tls missing", "No such file"),
        ("server.cli.main", "--deny-list missing", "deny-list"),
        ("server.cli.main", "--metrics 9095", "HOST:PORT"),
        (
            "server.cli.main",
            "--metrics 0.0.0.0:9095 --tls certs",
            "on loopback, or with --insecure",
        ),
        ("server.cli.main", "--page 8501", "HOST:PORT"),
        ("server.cli.main", "--app wind:app --learning-rate 1", "[tool.flwr.app.config]"),
        ("server.cli.main", "--app wind:app --num-selected 2", "ScheduledStrategy(..., num_s"),
        ("server.cli.main", "--fairness 0.6,0.5", "dev-1=0.6"),
        ("server.cli.main", "--partitioner foo", "partitioner"),
        ("server.cli.main", "--partitioner dirichlet:foo", "dirichlet:ALPHA"),
        ("server.cli.main", "--model foo", "model"),
        ("server.cli.main", "--aggregation foo", "aggregation"),
        ("server.cli.main", "--initial-model nope", "No such file"),
        ("server.cli.main", "--run-dir ..", "does not exist yet"),
        (
            "server.cli.main",
            "--app wind.server_app:app --rounds 1",
            "has no effect with --app",
        ),
        (
            "server.cli.main",
            "--metrics 127.0.0.1:9095 --runtime superlink",
            "has no effect on the SuperLink runtime",
        ),
        ("server.cli.main", "status --tls missing", "No such file"),
        ("server.cli.main", "status --timeout-s 0", "above 0"),
        ("server.cli.main", "--app nothing:here", "No module named 'nothing'"),
        ("server.cli.main", "--num-selected 0", "at least 1"),
        (
            "client.cli",
            "--server 10.1.2.3:9092 --partition-id 0 --num-partitions 1",
            "--insecure",
        ),
        ("client.cli", "--server nowhere", "must be HOST:PORT"),
        ("client.cli", "", "--partition-id"),
        (
            "client.cli",
            "--partition-id 0 --num-partitions 1 --link fm",
            "must be rayleigh",
        ),
        (
            "client.cli",
            "--partition-id 0 --num-partitions 1 --tls missing",
            "No such file",
        ),
        (
            "client.cli",
            "--app flower_scheduling.client.learning.models:MODELS",
            "must be a ClientApp, not a dict",
        ),
        (
            "client.cli",
            "--partition-id 2 --num-partitions 2",
            "below num-partitions",
        ),
        (
            "client.cli",
            "--partition-id 0 --num-partitions 2 --distance-m 80",
            "needs link",
        ),
        (
            "server.cli.certs",
            "init --host bad!host",
            "a host name or an IP address",
        ),
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
    assert import_module(f"flower_scheduling.{module}").main(arguments.split()) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.strip().splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert list(tmp_path.iterdir()) == []
