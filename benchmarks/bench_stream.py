"""What StreamGrid costs on top of a bare gRPC stream.

    python benchmarks/bench_stream.py

Both sides carry the same bytes over the same kind of stream with the same options: a Flower
message with the 31 kB logistic model, answered by a message of the same size. The bare side is a
``grpc.aio`` server that writes the bytes to a stream and a ``grpc.aio`` client that sends them
back, nothing else. Ours is StreamGrid, StreamClient and a ClientApp that returns what it gets:
serialising, parsing and matching included. Clients are processes of their own.

One client: a round trip, timed by the caller. A thousand clients, in one helper process: rounds
with 50 of them, selected anew each time. The sides take turns, so that a noisy machine is noisy
for both. Memory is the server's resident set with a thousand clients, after rounds with them,
above that of the same server without clients. Takes about a minute.
"""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
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
TARGET_RATIO, TARGET_MEMORY_MB = 3, 300
BARE = "/bare/Echo"
JOIN_S = 60


# --- the clients, in a process of their own -------------------------------------------------------


def serve_clients(side: str, port: str, num_clients: str) -> None:
    """Run this many clients of one side until their server goes away."""
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
            await stream.write(data)


class Clients:
    """The helper process with the clients of one side."""

    def __init__(self, side: str, port: int, num_clients: int) -> None:
        arguments = ["--clients", side, str(port), str(num_clients)]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), "FLWR_TELEMETRY_ENABLED": "0"},
            stderr=subprocess.DEVNULL,
        )

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

    def exchange(self, payload: bytes, clients: list[int]) -> None:
        asyncio.run_coroutine_threadsafe(self._exchange(payload, clients), self._loop).result()

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

    async def _exchange(self, payload: bytes, clients: list[int]) -> None:
        async def one(context: grpc.aio.ServicerContext) -> None:
            await context.write(payload)
            assert len(await context.read()) == len(payload)

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
        for exchange in self.grid.exchange(messages, 30.0):
            assert exchange.reply is not None, exchange.failure
            assert exchange.rtt_s is not None
            self.rtt_s.append(exchange.rtt_s)

    def stop(self) -> None:
        self.grid.stop()


# --- measuring ------------------------------------------------------------------------------------


def model() -> tuple[Any, bytes]:
    """Return the content of a training message, and the same message as bytes."""
    from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
    from flwr.common.serde import message_to_proto

    rng = np.random.default_rng(SEED)
    weights = {
        "weight": rng.normal(size=(10, 784)).astype(np.float32),
        "bias": np.zeros(10, np.float32),
    }
    arrays = ArrayRecord(list(weights.values()))
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1})})
    return content, message_to_proto(Message(content, 2**62, "train")).SerializeToString()


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


def compare(num_clients: int, num_selected: int, repeats: int) -> tuple[float, float, float, float]:
    """Return the median seconds bare and ours, our median rtt_s, and our server's growth [MB]."""
    content, payload = model()
    rng = np.random.default_rng(SEED)
    ours = Ours()
    empty_mb = resident_mb()
    our_clients = Clients("ours", ours.port, num_clients)
    wait_for(ours, num_clients)

    def select() -> list[int]:
        return rng.choice(num_clients, num_selected, replace=False).tolist()

    time_each(lambda: ours.exchange(content, select()), WARM_UP)
    growth_mb = resident_mb() - empty_mb
    bare = BareEcho()
    bare_clients = Clients("bare", bare.port, num_clients)
    wait_for(bare, num_clients)
    time_each(lambda: bare.exchange(payload, select()), WARM_UP)
    ours.rtt_s.clear()
    bare_s: list[float] = []
    ours_s: list[float] = []
    for _ in range(TURNS):
        bare_s += time_each(lambda: bare.exchange(payload, select()), repeats)
        ours_s += time_each(lambda: ours.exchange(content, select()), repeats)
    growth_mb = max(growth_mb, 0.0)
    bare.stop()
    bare_clients.end()
    ours.stop()
    our_clients.end()
    return median(bare_s), median(ours_s), median(ours.rtt_s), growth_mb


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def main() -> None:
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    _, payload = model()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"flwr {version('flwr')}, grpcio {version('grpcio')}, message of {len(payload)} bytes"
    )
    print(f"{'median [ms]':<36}{'bare':>9}{'ours':>9}{'ratio':>9}{'target':>9}")
    failed = False
    for label, arguments in (
        ("one client, round trip", (1, 1, ROUND_TRIPS)),
        (f"{NUM_CLIENTS} clients, round of {NUM_SELECTED}", (NUM_CLIENTS, NUM_SELECTED, ROUNDS)),
    ):
        bare_s, ours_s, rtt_s, growth_mb = compare(*arguments)
        ratio = ours_s / bare_s
        failed |= ratio > TARGET_RATIO
        print(
            f"{label:<36}{1000 * bare_s:>9.2f}{1000 * ours_s:>9.2f}{ratio:>9.2f}"
            f"{f'<= {TARGET_RATIO}':>9}"
        )
        print(f"{'  measured rtt_s':<36}{'':>9}{1000 * rtt_s:>9.2f}")
    failed |= growth_mb > TARGET_MEMORY_MB
    print(f"{f'server memory for {NUM_CLIENTS} clients [MB]':<54}{growth_mb:>9.0f}", end="")
    print(f"{f'<= {TARGET_MEMORY_MB}':>9}")
    sys.exit(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--clients"]:
        serve_clients(*sys.argv[2:])
    else:
        sys.path.insert(0, str(ROOT))
        main()
