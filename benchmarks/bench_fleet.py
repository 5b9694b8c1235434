"""What a fleet of thousands of connected clients costs the server.

    python benchmarks/bench_fleet.py [NUM_CLIENTS ...]

Clients that do nothing, in a process of their own, join a server that schedules as flower-server
does by default: floors, run directory with scores, a checkpoint after each round, status and
alarms. Of each size of fleet this measures

- joining: from the first attempt to the last client that is connected, and until all have told
  their name and size;
- a round with 50 of them against the bare stream of :mod:`bench_stream` with as many connected
  clients, by turns;
- the time between two rounds, from the last reply of one to the first message of the next;
- the server's memory.

Of the largest fleet also how long it takes until all are there again when half of it leaves and
comes back at once while rounds go on, and after a restart of the server, and whether a client is
left out for ever after that. Takes two minutes.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import IO, Any

import grpc
import numpy as np
from bench_stream import (
    ROOT,
    SEED,
    SMALL,
    BareEcho,
    Ours,
    bare_client,
    memory_mb,
    model,
    time_each,
)

SIZES = (1000, 5000, 10_000)
NUM_SELECTED = 50
TURNS, ROUNDS = 5, 20  # against the bare stream
MEASURED, WARM_UP = 60, 10  # rounds, of which the pauses are measured
TARGET_RATIO, TARGET_BACK_S = 2.5, 60
PATIENCE_S = 300.0


# --- the other processes --------------------------------------------------------------------------


def serve_clients(port: str, count: str) -> None:
    """Run clients; a line ``join N`` or ``leave N`` of standard input is about the first N."""
    asyncio.run(our_clients(f"127.0.0.1:{port}", int(count)))


async def our_clients(address: str, count: int) -> None:
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    from flower_scheduling.client.stream import StreamClient, Worker

    app, worker = ClientApp(), Worker("clients")

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        metrics = MetricRecord({"num-examples": 10})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        info = ConfigRecord({"num-examples": 10})
        return Message(RecordDict({"client-info": info}), reply_to=message)

    clients: dict[int, tuple[StreamClient, asyncio.Task[None]]] = {}

    def join(number: int) -> None:
        client = StreamClient(address, f"client-{number}", app, worker=worker)
        clients[number] = client, asyncio.create_task(client.serve())

    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        word, _, number = line.partition(" ")
        first = range(min(int(number), count))
        if word == "join":
            for each in first:
                join(each)
        else:
            leaving = [clients.pop(each) for each in first]
            for client, _ in leaving:
                client.stop()
            await asyncio.gather(*(task for _, task in leaving))
            print("left", flush=True)
    os._exit(0)


def serve_bare_clients(port: str, count: str) -> None:
    parent = os.getppid()

    async def one(number: int) -> None:
        await asyncio.sleep(number / 1000)  # the bare server is no match for thousands at once
        while os.getppid() == parent:
            with suppress(grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
                await bare_client(f"127.0.0.1:{port}", number)

    async def run() -> None:
        await asyncio.gather(*map(one, range(int(count))))

    asyncio.run(run())


def serve_bare(count: str) -> None:
    """Echo, for each line of client numbers, a round with these; print how long it took."""
    _, pieces = model(SMALL)
    bare = BareEcho()
    clients = start("--bare-clients", str(bare.port), count)
    while bare.num_clients < int(count):
        time.sleep(0.05)
    print("ready", flush=True)
    for line in sys.stdin:
        numbers = json.loads(line)
        print(time_each(lambda n=numbers: bare.exchange(pieces, n), 1)[0], flush=True)  # type: ignore[misc]
    clients.kill()
    os._exit(0)


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "FLWR_TELEMETRY_ENABLED": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("VERBOSE") else subprocess.DEVNULL,
        text=True,
    )


class Helper:
    """One of these processes, and its lines."""

    def __init__(self, *arguments: str) -> None:
        self._process = start(*arguments)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to: IO[str] = self._process.stdin
        self._from: IO[str] = self._process.stdout
        self.answer()

    def tell(self, line: str) -> None:
        print(line, file=self._to, flush=True)

    def answer(self) -> str:
        line = self._from.readline()
        assert line, "a helper has ended"
        return line

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


# --- the server -----------------------------------------------------------------------------------


class Fleet:
    """Our server with its scheduler, and the process of the clients."""

    def __init__(self, count: int, folder: Path) -> None:
        self.count, self._folder = count, folder
        self.server = Ours()
        self.port = self.server.port
        self.pauses_s: list[float] = []
        self.cpu_s: list[float] = []  # the scheduler's, of each pause
        self.selected: set[int] = set()
        self._stop = False
        self._thread: threading.Thread | None = None

    @property
    def grid(self) -> Any:
        return self.server.grid

    def wait_for(self, count: int) -> float:
        begin_s = time.perf_counter()
        while self.server.num_clients != count:
            assert time.perf_counter() - begin_s < PATIENCE_S, f"{self.server.num_clients}"
            time.sleep(0.05)
        return time.perf_counter() - begin_s

    def begin_rounds(self) -> None:
        self._stop = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end_rounds(self) -> None:
        self._stop = True
        assert self._thread is not None
        self._thread.join()

    def measure(self, rounds: int) -> float:
        """Return the median pause of so many rounds from now on [s]."""
        known = len(self.pauses_s)
        begin_s = time.perf_counter()
        while len(self.pauses_s) < known + rounds:
            assert time.perf_counter() - begin_s < PATIENCE_S
            time.sleep(0.05)
        return median(self.pauses_s[known:])

    def restart(self) -> None:
        """Stop the server, and start another one on its port."""
        from flower_scheduling.server.transport.grid import StreamGrid

        self.grid.stop()
        self.server.grid = StreamGrid(f"127.0.0.1:{self.port}")
        self.grid.start()

    def _run(self) -> None:
        from flwr.app import ArrayRecord
        from flwr.serverapp.strategy import FedAvg

        from flower_scheduling.server.monitoring.alarms import AlarmLog
        from flower_scheduling.server.monitoring.live_file import LiveFile
        from flower_scheduling.server.monitoring.status import ServerStatus
        from flower_scheduling.server.runs.recording import record_app
        from flower_scheduling.strategies.flower import ScheduledStrategy, followed_by

        alarms = AlarmLog()
        status = ServerStatus(None, alarms)
        live = LiveFile(lambda: status.connections(self.grid))
        grid, exchange, ended_s, cpu_s = self.grid, self.grid.exchange, 0.0, 0.0

        def timed_exchange(messages: Any, timeout_s: float) -> Any:
            nonlocal ended_s, cpu_s
            if ended_s:
                self.cpu_s.append(time.thread_time() - cpu_s)
                self.pauses_s.append(time.perf_counter() - ended_s)
            found = exchange(messages, timeout_s)
            ended_s, cpu_s = time.perf_counter(), time.thread_time()
            return found

        grid.exchange = timed_exchange
        content, _ = model(SMALL)
        arrays = content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        strategy = ScheduledStrategy(
            FedAvg(fraction_evaluate=0.0),
            num_selected=NUM_SELECTED,
            tau_max_s=30.0,
            min_clients=self.count,
            wait_s=PATIENCE_S,
            log_every_s=10.0,
            explain=True,
            hooks=[lambda record, _: self.selected.update(record.selected)],
            stop_when=lambda record: self._stop,
            run_dir=tempfile.mkdtemp(dir=self._folder),
        )
        try:
            with followed_by(record_app(callbacks=lambda: [live, status, alarms])):
                strategy.start(grid, arrays, num_rounds=10**6)
        finally:
            grid.exchange = exchange


def fleet_rows(
    count: int, folder: Path, *, largest: bool
) -> Iterator[tuple[str, float, float | None]]:
    """Yield label, value and target of everything that is measured of a fleet."""
    rng = np.random.default_rng(SEED)
    content, _ = model(SMALL)
    gc.collect()
    empty_mb = memory_mb("VmRSS")
    fleet = Fleet(count, folder)
    clients = Helper("--clients", str(fleet.port), str(count))
    clients.tell(f"join {count}")
    begin_s = time.perf_counter()
    fleet.wait_for(count)
    yield "joining [s]", time.perf_counter() - begin_s, None
    fleet.begin_rounds()
    begin_s = time.perf_counter()
    fleet.measure(1)
    yield "name and size of all [s]", time.perf_counter() - begin_s, None
    fleet.measure(WARM_UP)
    yield "between two rounds [ms]", 1000 * fleet.measure(MEASURED), None
    yield "  CPU of the scheduler [ms]", 1000 * median(fleet.cpu_s[-MEASURED:]), None
    yield "server memory [MB]", memory_mb("VmRSS") - empty_mb, None
    if largest:
        clients.tell(f"leave {count // 2}")
        clients.answer()
        clients.tell(f"join {count // 2}")
        begin_s, known = time.perf_counter(), len(fleet.pauses_s)
        fleet.wait_for(count)
        yield "half of it back [s]", time.perf_counter() - begin_s, TARGET_BACK_S
        fleet.measure(1)
        slowest_s = max(fleet.pauses_s[known:])
        yield "  longest between two rounds [ms]", 1000 * slowest_s, None
    fleet.end_rounds()

    bare = Helper("--bare", str(count))

    def select() -> list[int]:
        return rng.choice(count, NUM_SELECTED, replace=False).tolist()

    bare_s: list[float] = []
    ours_s: list[float] = []
    for turn in range(TURNS + 1):  # the first to warm up
        for _ in range(ROUNDS):
            bare.tell(json.dumps(select()))
            bare_s.append(float(bare.answer()))
        ours_s += time_each(lambda: fleet.server.exchange(content, select()), ROUNDS)
        if not turn:
            bare_s, ours_s = [], []
    bare.end()
    yield f"round of {NUM_SELECTED}, bare [ms]", 1000 * median(bare_s), None
    yield f"round of {NUM_SELECTED}, ours [ms]", 1000 * median(ours_s), None
    yield "  ratio", median(ours_s) / median(bare_s), TARGET_RATIO

    if largest:
        fleet.restart()
        begin_s = time.perf_counter()
        fleet.wait_for(count)
        yield "all back after a restart [s]", time.perf_counter() - begin_s, TARGET_BACK_S
        fleet.selected.clear()
        fleet.begin_rounds()
        fleet.measure(2 * count // NUM_SELECTED)
        fleet.end_rounds()
        yield "  never selected since then", count - len(fleet.selected), 0
    fleet.server.stop()
    clients.end()


def main(sizes: list[int]) -> None:
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"flwr {version('flwr')}, grpcio {version('grpcio')}"
    )
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for count in sizes:
            print(f"{f'{count} clients':<40}{'':>10}{'target':>10}")
            for label, value, target in fleet_rows(
                count, Path(folder), largest=count == max(sizes)
            ):
                failed |= target is not None and value > target
                bound = "" if target is None else f"<= {target:g}"
                print(f"  {label:<38}{value:>10.2f}{bound:>10}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    kinds = {"--clients": serve_clients, "--bare-clients": serve_bare_clients, "--bare": serve_bare}
    sys.path.insert(0, str(ROOT))
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    logging.getLogger("flwr").setLevel(logging.WARNING)
    if sys.argv[1:] and sys.argv[1] in kinds:
        kinds[sys.argv[1]](*sys.argv[2:])
    else:
        main([int(each) for each in sys.argv[1:]] or list(SIZES))
