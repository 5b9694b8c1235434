"""What StreamGrid costs on top of a bare gRPC stream.

    python benchmarks/bench_stream.py [--huge]

Both sides carry the same bytes over the same kind of stream with the same options: a model of one
to four arrays, answered by one of the same size. The bare side is a ``grpc.aio`` server that writes
the bytes to a stream, in pieces of 1 MiB, and a ``grpc.aio`` client that sends them back once it
has them all, nothing else. Ours is StreamGrid, StreamClient and a ClientApp that returns what it
gets: packing, reading, checking and matching included. Clients are processes of their own.

One client: a round trip, timed by the caller; ten of twenty, in one helper process: a round. A
thousand clients, in one helper process: rounds with 50 of them, selected anew each time. The sides
take turns, so that a noisy machine is noisy for both. Memory is the peak of resident memory above
that of the same process before, in models; with a thousand clients, what is resident after rounds
above that of the same server without clients. Takes about three minutes; ``--huge`` adds a model of
1 GB.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SEED = 1
NUM_CLIENTS, NUM_SELECTED = 1000, 50
TURNS = 5
ROUND_TRIPS, ROUNDS = 300, 40  # per turn
WARM_UP = 20
SMALL = 31_400  # bytes of the 784 x 10 logistic model
MB = 10**6
# Bytes of the model, clients, selected, round trips per turn, largest ratio.
ROWS = [
    (SMALL, NUM_CLIENTS, NUM_SELECTED, ROUNDS, 2.5),
    (SMALL, 1, 1, ROUND_TRIPS, 2.0),
    (MB, 1, 1, 40, 2.0),
    (10 * MB, 1, 1, 10, 2.0),
    (100 * MB, 1, 1, 2, 2.0),
    (MB, 20, 10, 10, 2.0),
    (10 * MB, 20, 10, 3, 2.0),
    (50 * MB, 20, 10, 1, 2.0),
]
HUGE = (10**9, 1, 1, 1, 2.0)
PIECE = 2**20
TARGET_MEMORY_MB = 300
BARE = "/bare/Echo"
JOIN_S = 60


# --- the clients, in a process of their own -------------------------------------------------------


def serve_clients(side: str, port: str, num_clients: str) -> None:
    """Run this many clients of one side until their server goes away."""
    from flower_scheduling.allocator import keep_heaps

    keep_heaps()
    run = {"ours": our_clients, "bare": bare_clients}[side]
    asyncio.run(run(f"127.0.0.1:{port}", range(int(num_clients))))


async def our_clients(address: str, numbers: range) -> None:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

    from flower_scheduling.client.stream import StreamClient, Worker

    app = ClientApp()
    worker = Worker("clients")

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(message.content, reply_to=message)

    clients = [
        StreamClient(address, f"client-{i}", app, stay=False, worker=worker) for i in numbers
    ]
    await asyncio.gather(*(client.serve() for client in clients))


async def bare_clients(address: str, numbers: range) -> None:
    await asyncio.gather(*(bare_client(address, i) for i in numbers))


async def bare_client(address: str, number: int) -> None:
    from flower_scheduling.client.wire.calls import channel_options

    async with grpc.aio.insecure_channel(address, options=channel_options()) as channel:
        stream = channel.stream_stream(BARE)()
        await stream.write(b"%d" % number)
        while (data := await stream.read()) is not grpc.aio.EOF:
            pieces = [data]
            while len(pieces) < int.from_bytes(data[:4]):
                pieces.append(await stream.read())
            for piece in pieces:
                await stream.write(piece)
            del data, pieces


class Clients:
    """The helper process with the clients of one side."""

    def __init__(self, side: str, port: int, num_clients: int) -> None:
        arguments = ["--clients", side, str(port), str(num_clients)]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), "FLWR_TELEMETRY_ENABLED": "0"},
            stderr=subprocess.DEVNULL,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> None:
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


# --- the servers ----------------------------------------------------------------------------------


class BareEcho:
    """A grpc.aio server that exchanges bytes with streams, called from another thread."""

    def __init__(self) -> None:
        self._contexts: dict[int, Any] = {}
        started: Future[int] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(started)))
        self._thread.start()
        self.port = started.result()

    @property
    def num_clients(self) -> int:
        return len(self._contexts)

    def exchange(self, pieces: list[bytes], clients: list[int]) -> None:
        asyncio.run_coroutine_threadsafe(self._exchange(pieces, clients), self._loop).result()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _main(self, started: Future[int]) -> None:
        from flower_scheduling.client.wire.calls import server_options

        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = grpc.aio.server(options=server_options())
        method = grpc.stream_stream_rpc_method_handler(self._serve)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("bare", {"Echo": method}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        started.set_result(port)
        await self._stop.wait()
        await server.stop(1)

    async def _serve(self, _: object, context: grpc.aio.ServicerContext) -> None:
        number = int(await context.read())
        self._contexts[number] = context
        await self._stop.wait()

    async def _exchange(self, pieces: list[bytes], clients: list[int]) -> None:
        async def one(context: grpc.aio.ServicerContext) -> None:
            for piece in pieces:
                await context.write(piece)
            for piece in pieces:
                assert len(await context.read()) == len(piece)

        await asyncio.gather(*(one(self._contexts[number]) for number in clients))


class Ours:
    """StreamGrid behind the same interface."""

    def __init__(self) -> None:
        from flower_scheduling.server.transport.grid import StreamGrid

        self.grid = StreamGrid("127.0.0.1:0")
        self.grid.start()
        self.port = self.grid.port
        self.rtt_s: list[float] = []

    @property
    def num_clients(self) -> int:
        return len(list(self.grid.get_node_ids()))

    def exchange(self, content: Any, clients: list[int]) -> None:
        from flwr.app import Message

        from flower_scheduling.server.transport.connection import node_id_of

        messages = [Message(content, node_id_of(f"client-{i}"), "train") for i in clients]
        for exchange in self.grid.exchange(messages, 300.0):
            assert exchange.reply is not None, exchange.failure
            assert exchange.rtt_s is not None
            self.rtt_s.append(exchange.rtt_s)

    def stop(self) -> None:
        self.grid.stop()


# --- measuring ------------------------------------------------------------------------------------


def model(size: int) -> tuple[Any, list[bytes]]:
    """Return the content of a training message, and as many bytes in pieces."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    rng = np.random.default_rng(SEED)
    num_arrays = 2 if size == SMALL else 4
    arrays = ArrayRecord()
    for i in range(num_arrays):
        arrays[str(i)] = Array(rng.random(size // 4 // num_arrays, dtype=np.float32))
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1})})
    count = -(-size // PIECE)
    head = count.to_bytes(4)
    pieces = [head + bytes(min(PIECE, size - i * PIECE) - 4) for i in range(count)]
    return content, pieces


def wait_for(server: BareEcho | Ours, num_clients: int) -> None:
    deadline = time.monotonic() + JOIN_S
    while server.num_clients < num_clients:
        assert time.monotonic() < deadline, f"{server.num_clients} of {num_clients} clients came"
        time.sleep(0.05)


def time_each(call: Callable[[], None], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return times


@dataclass
class Comparison:
    """Median seconds, and peaks of memory in models, or growth with all clients [MB]."""

    bare_s: float
    ours_s: float
    rtt_s: float
    server_peak: float
    client_peak: float
    growth_mb: float


def compare(size: int, num_clients: int, num_selected: int, repeats: int) -> Comparison:
    content, pieces = model(size)
    rng = np.random.default_rng(SEED)
    ours = Ours()
    empty_mb = memory_mb("VmRSS")
    our_clients = Clients("ours", ours.port, num_clients)
    wait_for(ours, num_clients)
    client_mb = memory_mb("VmRSS", our_clients.pid)

    def select() -> list[int]:
        return rng.choice(num_clients, num_selected, replace=False).tolist()

    for pid in ("self", our_clients.pid):
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # VmHWM begins anew
    warm_up = WARM_UP if size == SMALL else 1
    time_each(lambda: ours.exchange(content, select()), warm_up)
    peaks_mb = memory_mb("VmHWM") - empty_mb, memory_mb("VmHWM", our_clients.pid) - client_mb
    growth_mb = memory_mb("VmRSS") - empty_mb
    bare = BareEcho()
    bare_clients = Clients("bare", bare.port, num_clients)
    wait_for(bare, num_clients)
    time_each(lambda: bare.exchange(pieces, select()), warm_up)
    ours.rtt_s.clear()
    bare_s: list[float] = []
    ours_s: list[float] = []
    for _ in range(TURNS):
        bare_s += time_each(lambda: bare.exchange(pieces, select()), repeats)
        ours_s += time_each(lambda: ours.exchange(content, select()), repeats)
    bare.stop()
    bare_clients.end()
    ours.stop()
    our_clients.end()
    # The model itself was there before.
    server_peak, client_peak = (peak_mb * MB / size for peak_mb in peaks_mb)
    return Comparison(
        median(bare_s),
        median(ours_s),
        median(ours.rtt_s),
        1 + server_peak,
        client_peak,
        max(growth_mb, 0.0),
    )


def memory_mb(what: str, pid: int | str = "self") -> float:
    """Return a figure of a process's memory [MB]: VmRSS now, VmHWM at its peak."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / MB for line in lines if line.startswith(what))


def main() -> None:
    from flwr.supercore.task_identity import TaskIdentity

    from flower_scheduling.allocator import keep_heaps

    keep_heaps()  # as flower-server and flower-client do, here for both sides
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"flwr {version('flwr')}, grpcio {version('grpcio')}"
    )
    print(f"{'':<28}{'median [ms]':>27}{'':>19}{'peak [models]':>18}")
    print(
        f"{'model, selected of clients':<28}{'bare':>9}{'ours':>9}{'rtt_s':>9}{'ratio':>9}"
        f"{'target':>10}{'server':>9}{'client':>9}"
    )
    failed = False
    for size, num_clients, num_selected, repeats, target in [
        *ROWS,
        *([HUGE] if "--huge" in sys.argv else []),
    ]:
        found = compare(size, num_clients, num_selected, repeats)
        ratio = found.ours_s / found.bare_s
        failed |= ratio > target
        name = "31 kB" if size == SMALL else f"{size / MB:.0f} MB"
        label = f"{name}, {num_selected} of {num_clients}"
        peaks = f"{found.server_peak:>9.1f}{found.client_peak:>9.1f}" if size > 2**22 else ""
        print(
            f"{label:<28}{1000 * found.bare_s:>9.2f}{1000 * found.ours_s:>9.2f}"
            f"{1000 * found.rtt_s:>9.2f}{ratio:>9.2f}{f'<= {target}':>10}{peaks}",
            flush=True,
        )
        if num_clients == NUM_CLIENTS:
            failed |= found.growth_mb > TARGET_MEMORY_MB
            label = f"server memory for {NUM_CLIENTS} clients [MB]"
            print(f"{label:<55}{found.growth_mb:>9.0f}{f'<= {TARGET_MEMORY_MB}':>10}")
    sys.exit(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--clients"]:
        serve_clients(*sys.argv[2:])
    else:
        sys.path.insert(0, str(ROOT))
        main()
