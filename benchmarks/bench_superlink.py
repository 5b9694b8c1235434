"""A round trip in which the client does nothing: our streams against Flower's own runtime.

    python benchmarks/bench_superlink.py

Both sides carry the same query with the 31 kB logistic model to one client on loopback, whose
ClientApp answers with what it got, one query after the other. Ours is StreamGrid and StreamClient.
Theirs is a SuperLink and one stock SuperNode, asked from a ServerApp by TimedGrid, which looks for
the reply every 0.1 s: Flower's own ``send_and_receive`` looks every 3 s. Then the same with a model
of 100 MB. Clients are processes of their own on both sides. What starts only once is over before
the first measured query. Takes three to four minutes; all processes are stopped at the end.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SEED = 1
LARGE_BYTES = 100 * 2**20
OUR_QUERIES, OUR_LARGE_QUERIES, OUR_WARM_UP = 500, 10, 20
THEIR_QUERIES, THEIR_LARGE_QUERIES, THEIR_WARM_UP = 12, 3, 1
TIMEOUT_S = 300.0
POLL_S = 0.1
TARGET_RATIO, LARGE_TARGET_RATIO = 500, 10
STOP_S = 15

PROJECT = """
[project]
name = "nothing"
version = "1.0.0"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "somebody"
fab-include = ["/nothing/*.py"]

[tool.flwr.app.components]
serverapp = "nothing.app:server_app"
clientapp = "nothing.app:client_app"
"""

APP = """
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    from bench_superlink import ask_superlink

    ask_superlink(grid)


@client_app.query()
def query(message: Message, context: Context) -> Message:
    return Message(message.content, reply_to=message)
"""


def query_for(node_id: int, *, large: bool) -> Any:
    """Return a query with a training message's content."""
    from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

    rng = np.random.default_rng(SEED)
    weights = [rng.normal(size=(10, 784)).astype(np.float32), np.zeros(10, np.float32)]
    if large:
        weights = [rng.random(LARGE_BYTES // 16, dtype=np.float32) for _ in range(4)]
    config = ConfigRecord({"server-round": 1})
    return Message(RecordDict({"arrays": ArrayRecord(weights), "config": config}), node_id, "query")


def round_trips_s(timed_grid: Any, repeats: int, *, large: bool = False) -> list[float]:
    """Ask the one client of a grid again and again; return what the grid measured."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (nodes := list(timed_grid.get_node_ids())):
        assert time.monotonic() < deadline, "no client came"
        time.sleep(POLL_S)
    times = []
    for _ in range(repeats):
        (exchange,) = timed_grid.exchange([query_for(nodes[0], large=large)], TIMEOUT_S)
        assert exchange.reply is not None, exchange.failure
        assert exchange.reply.has_content(), exchange.reply.error
        assert exchange.rtt_s is not None
        times.append(exchange.rtt_s)
    return times


# --- ours -----------------------------------------------------------------------------------------


def serve_stream(port: str) -> None:
    """Be the client of StreamGrid until its server goes away."""
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

    from flower_scheduling.client.stream import StreamClient

    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(message.content, reply_to=message)

    StreamClient(f"127.0.0.1:{port}", "client", app, stay=False).run()


def measure_stream() -> tuple[list[float], list[float]]:
    """Return the seconds of small and of large queries."""
    from flwr.supercore.task_identity import TaskIdentity

    from flower_scheduling.server.transport.grid import StreamGrid

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    grid = StreamGrid("127.0.0.1:0")
    grid.start()
    with process([sys.executable, __file__, "--client", str(grid.port)], path=str(ROOT)):
        try:
            small_s = round_trips_s(grid, OUR_WARM_UP + OUR_QUERIES)[OUR_WARM_UP:]
            return small_s, round_trips_s(grid, 1 + OUR_LARGE_QUERIES, large=True)[1:]
        finally:
            grid.stop()


# --- Flower's -------------------------------------------------------------------------------------


def ask_superlink(grid: Any) -> None:
    """Measure and print, in the ServerApp."""
    from flower_scheduling.strategies.flower import TimedGrid

    timed_grid = TimedGrid(grid, poll_interval_s=POLL_S)
    for rtt_s in round_trips_s(timed_grid, THEIR_WARM_UP + THEIR_QUERIES):
        print(f"rtt_s={rtt_s:.4f}", flush=True)
    for rtt_s in round_trips_s(timed_grid, THEIR_LARGE_QUERIES, large=True):
        print(f"rtt_s={rtt_s:.4f}", flush=True)


def measure_superlink() -> tuple[list[float], list[float]]:
    """Return the seconds of small and of large queries."""
    from flower_scheduling.errors import SuperLinkError
    from flower_scheduling.server.runtimes.superlink import SuperLink, supernode_command

    lines: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        app = folder / "app"
        (app / "nothing").mkdir(parents=True)
        (app / "pyproject.toml").write_text(PROJECT)
        (app / "nothing" / "__init__.py").touch()
        (app / "nothing" / "app.py").write_text(APP)
        # The ServerApp imports us; the SuperNode has nothing but the app.
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
        with SuperLink(folder / "state", "127.0.0.1:0") as superlink:
            command = supernode_command(superlink.address, node_config={}, port=free_port())
            with process(command, path="", home=str(folder / "node")):
                try:
                    superlink.follow(superlink.submit(app, {}), lines.append)
                except SuperLinkError as error:
                    sys.exit("\n".join([*lines, f"error: {error}"]))
    times = [float(text) for text in re.findall(r"rtt_s=([\d.]+)", "\n".join(lines))]
    assert len(times) == THEIR_WARM_UP + THEIR_QUERIES + THEIR_LARGE_QUERIES, "\n".join(lines)
    return times[THEIR_WARM_UP:-THEIR_LARGE_QUERIES], times[-THEIR_LARGE_QUERIES:]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- both -----------------------------------------------------------------------------------------


@contextmanager
def process(command: list[str], *, path: str, home: str = "") -> Iterator[None]:
    """Run a process in a session of its own; end it, its children with it, and wait."""
    environment = {**os.environ, "PYTHONPATH": path, "FLWR_TELEMETRY_ENABLED": "0"}
    environment["FLWR_DISABLE_UPDATE_CHECK"] = "1"
    # A SuperNode starts Flower's other programs by name; a proxy does not know our loopback.
    environment["PATH"] = os.pathsep.join([str(Path(command[0]).parent), environment["PATH"]])
    environment["NO_PROXY"] = environment["no_proxy"] = "127.0.0.1"
    if home:
        environment["FLWR_HOME"] = home
    child = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def main() -> None:
    ours, theirs = measure_stream(), measure_superlink()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"flwr {version('flwr')}, grpcio {version('grpcio')}"
    )
    print(f"{'round trip [ms]':<36}{'median':>10}{'min':>10}{'max':>10}{'queries':>9}")
    missed = False
    for size, our_s, their_s, target in zip(
        ("31 kB", "100 MB"), ours, theirs, (TARGET_RATIO, LARGE_TARGET_RATIO), strict=True
    ):
        for label, times in (
            ("StreamGrid", our_s),
            (f"SuperLink, polled every {POLL_S} s", their_s),
        ):
            numbers = (median(times), min(times), max(times))
            columns = "".join(f"{1000 * seconds:>10.2f}" for seconds in numbers)
            print(f"{f'{size}, {label}':<36}{columns}{len(times):>9}")
        ratio = median(their_s) / median(our_s)
        missed |= ratio < target
        print(f"{'ratio of the medians':<36}{ratio:>10.0f}{f'>= {target}':>29}")
    sys.exit(missed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        serve_stream(*sys.argv[2:])
    else:
        sys.path.insert(0, str(ROOT))
        main()
