"""Models of gigabytes, and a slow link beside a quick one.

    python benchmarks/bench_large.py            # four minutes, 20 GB of memory
    python benchmarks/bench_large.py --quick    # a tenth of both models

First a round of FedAvg with a model of 2.5 GB and two clients that send back what they get:
flower-server and two flower-clients, processes of their own on loopback. Then a client whose reply
of 500 MB comes in over 20 Mbit/s, through a proxy that passes no more, beside one that is asked one
question after the other: its round trip meanwhile against the one before, and how long the server
takes to end when it is terminated in the middle of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import signal
import socket
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Final

from bench_modes import Processes, processes

MODEL_MB, REPLY_MB = 2500, 500
LINK_BYTES_A_S: Final = 20e6 / 8
BESIDE_S: Final = 30.0
LONGEST_DELAY_MS: Final = 2.0
LONGEST_END_S: Final = 10.0
PIECE: Final = 16 * 2**10
JOIN_S: Final = 60.0

APP: Final = """
import json, os, time
from pathlib import Path
from statistics import median

import numpy as np
from flower_scheduling import ScheduledStrategy
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

SIZE = int(os.environ["LARGE_BYTES"])
client, round_of_two, slow_and_quick = ClientApp(), ServerApp(), ServerApp()


@client.train()
def train(message, context):
    arrays = message.content["arrays"]
    if context.node_config.get("slow"):
        arrays = ArrayRecord({"w": Array(np.ones(SIZE // 4, dtype=np.float32))})
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@client.query()
def query(message, context):
    found = MetricRecord({"slow": int(context.node_config.get("slow", 0))})
    return Message(RecordDict({"found": found}), reply_to=message)


@round_of_two.main()
def main(grid, context):
    each = SIZE // 5 // 4
    arrays = ArrayRecord({str(i): Array(np.full(each, i, np.float32)) for i in range(5)})
    strategy = ScheduledStrategy(FedAvg(fraction_evaluate=0.0), num_selected=2, min_clients=2)
    strategy.start(grid, arrays, num_rounds=1, timeout=3600)


@slow_and_quick.main()
def main(grid, context):
    def ask(node):
        content = RecordDict({"config": ConfigRecord({"n": 1})})
        return Message(content, dst_node_id=node, message_type="query")

    while len(nodes := list(grid.get_node_ids())) < 2:
        time.sleep(0.1)
    replies = list(grid.send_and_receive([ask(node) for node in nodes]))
    slow = {r.metadata.src_node_id: r.content["found"]["slow"] for r in replies}
    nodes.sort(key=slow.get)

    def round_trips_ms(seconds):
        end, found = time.monotonic() + seconds, []
        while time.monotonic() < end:
            begin = time.perf_counter()
            list(grid.send_and_receive([ask(nodes[0])]))
            found.append(1000 * (time.perf_counter() - begin))
            time.sleep(0.01)
        return median(found), len(found)

    before = round_trips_ms(10.0)
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(4, dtype=np.float32))})})
    grid.push_messages([Message(content, dst_node_id=nodes[1], message_type="train")])
    time.sleep(3.0)
    beside = round_trips_ms(float(os.environ["BESIDE_S"]))
    Path("round_trips.json").write_text(json.dumps([before, beside]))
    time.sleep(3600)
"""


class SlowLink:
    """A proxy on loopback that passes so many bytes a second upwards, in a thread of its own."""

    def __init__(self, port: int, bytes_a_s: float) -> None:
        self._target, self._bytes_a_s = port, bytes_a_s
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * PIECE)
        self.port = self._socket.getsockname()[1]
        self.passed = 0
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connect, sock=self._socket, limit=PIECE)
        await server.serve_forever()

    async def _connect(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # one of the two is gone
            far, onward = await asyncio.open_connection("127.0.0.1", self._target)
            down = asyncio.create_task(_pass(far, back))
            while data := await near.read(PIECE):
                onward.write(data)
                await onward.drain()
                self.passed += len(data)
                await asyncio.sleep(len(data) / self._bytes_a_s)
            down.cancel()
            onward.close()
        back.close()


async def _pass(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(PIECE):
            target.write(data)
            await target.drain()
    target.close()


def peaks_gb(fleet: Processes, names: tuple[str, ...]) -> dict[str, float]:
    """Return the peak of resident memory of each process until the server has ended [GB]."""
    peaks = dict.fromkeys(names, 0.0)
    while fleet.running(names[0]):
        for name in names:
            try:
                text = Path(f"/proc/{fleet.pid(name)}/status").read_text()
            except OSError:
                continue
            lines = [line for line in text.splitlines() if line.startswith("VmHWM")]
            peaks[name] = max([peaks[name], *(int(each.split()[1]) * 1024e-9 for each in lines)])
        time.sleep(0.1)
    return peaks


def round_of_two(folder: Path, model_mb: int) -> bool:
    os.environ["LARGE_BYTES"] = str(model_mb * 10**6)
    names = ("server", "one", "two")
    with processes(folder) as fleet:
        start(fleet, "large:round_of_two", {"one": "", "two": ""})
        begin = time.monotonic()
        peaks = peaks_gb(fleet, names)
        fleet.wait("server")
        seconds = time.monotonic() - begin
    line = json.loads((folder / "run" / "rounds.jsonl").read_text().splitlines()[0])
    done = line["completed"] == [True, True] and line["stepped"]
    print(f"{model_mb / 1000:g} GB, a round with two clients")
    print(f"  updates in the model           {line['completed'].count(True):>8} of 2")
    print(f"  from start to end [s]          {seconds:>8.1f}")
    print(f"  round [s]                      {line['round_s']:>8.1f}")
    for name in names:
        print(f"  peak of the {name + ' [models]':<19}{1000 * peaks[name] / model_mb:>8.1f}")
    return done


def slow_and_quick(folder: Path, reply_mb: int, beside_s: float) -> bool:
    os.environ["LARGE_BYTES"] = str(reply_mb * 10**6)
    os.environ["BESIDE_S"] = str(beside_s)
    with processes(folder) as fleet:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        link = SlowLink(port, LINK_BYTES_A_S)
        clients = {"quick": "", "slow": "--node-config slow=1"}
        start(fleet, "large:slow_and_quick", clients, port, {"slow": link.port})
        found = folder / "round_trips.json"
        end = time.monotonic() + JOIN_S + beside_s + 30.0
        while not found.exists():
            if time.monotonic() > end or not fleet.running("server"):
                raise SystemExit(f"no round trips:\n{fleet.log('server')[-4000:]}")
            time.sleep(0.2)
        (before_ms, count), (beside_ms, count_beside) = json.loads(found.read_text())
        share = link.passed / (reply_mb * 10**6)
        begin = time.monotonic()
        os.kill(fleet.pid("server"), signal.SIGTERM)
        while fleet.running("server"):
            time.sleep(0.02)
        ended_s = time.monotonic() - begin
    print(f"a reply of {reply_mb} MB over 20 Mbit/s, {share:.0%} of which came")
    print(f"  round trip of another client before [ms]{before_ms:>8.2f}   {count} questions")
    print(f"  the same beside it [ms]                 {beside_ms:>8.2f}   {count_beside} questions")
    print(f"  from SIGTERM to the server's end [s]    {ended_s:>8.2f}")
    return beside_ms <= before_ms + LONGEST_DELAY_MS and ended_s <= LONGEST_END_S and share < 1.0


def start(
    fleet: Processes,
    app: str,
    clients: dict[str, str],
    port: int | None = None,
    through: dict[str, int] | None = None,
) -> None:
    """Start a server and its clients, some of them through another port."""
    if port is None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
    (fleet.folder / "large.py").write_text(APP)
    flags = f"--app {app} --address 127.0.0.1:{port} --run-dir run"
    fleet.start("server", "server.cli.main", flags)
    for name, more in clients.items():
        to = (through or {}).get(name, port)
        flags = f"--app large:client --server 127.0.0.1:{to} --name {name} {more}"
        fleet.start(name, "client.cli", flags)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of both models")
    part = 10 if parser.parse_args().quick else 1
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"flwr {version('flwr')}, grpcio {version('grpcio')}"
    )
    good = True
    with tempfile.TemporaryDirectory() as folder:
        good &= round_of_two(Path(folder), MODEL_MB // part)
    with tempfile.TemporaryDirectory() as folder:
        good &= slow_and_quick(Path(folder), REPLY_MB // part, BESIDE_S / part)
    print("all targets met" if good else "missed")
    sys.exit(not good)


if __name__ == "__main__":
    main()
