"""StreamGrid with clients in processes of their own: killed, stopped, with a wrong clock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.app import Message, MessageType, RecordDict
from paths import ROOT
from waiting import PATIENCE_S, until

from flower_scheduling.reasons import LOST
from flower_scheduling.server.transport.connection import node_id_of
from flower_scheduling.server.transport.grid import StreamGrid
from flower_scheduling.strategies.flower import TIMEOUT, Exchange

pytestmark = pytest.mark.e2e

LONG_S = 300.0  # a deadline that nobody is meant to meet

CLIENT = """
import sys, time

name, port, delay_s, shift_s = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
if shift_s:
    import datetime
    real_time, real_datetime = time.time, datetime.datetime
    time.time = lambda: real_time() + shift_s

    class Shifted(real_datetime):
        @classmethod
        def now(cls, tz=None):
            return real_datetime.now(tz) + datetime.timedelta(seconds=shift_s)

    datetime.datetime = Shifted

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flower_scheduling.client.stream import StreamClient

app = ClientApp()

@app.train()
def train(message, context):
    print("begun", flush=True)
    begin_s = time.monotonic()
    time.sleep(delay_s)
    taken = {"wall-s": time.time(), "work-s": time.monotonic() - begin_s}
    content = RecordDict({"clock": ConfigRecord(taken)})
    return Message(content, reply_to=message)

StreamClient(f"127.0.0.1:{port}", name, app, max_backoff_s=0.2).run()
"""


class Processes:
    def __init__(self, folder: Path) -> None:
        self.clock = time.monotonic
        self.grid = StreamGrid(
            "127.0.0.1:0", keepalive_s=2.0, lost_after_s=1.0, clock=lambda: self.clock()
        )
        self.grid.start()
        self._folder = folder
        self._children: list[subprocess.Popen[str]] = []

    def start(self, name: str, delay_s: float = 0.0, shift_s: float = 0.0) -> subprocess.Popen[str]:
        log = (self._folder / f"{name}-{len(self._children)}.log").open("w")
        child = subprocess.Popen(
            [sys.executable, "-c", CLIENT, name, str(self.grid.port), str(delay_s), str(shift_s)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        log.close()
        self._children.append(child)
        return child

    def wait_for(self, *names: str) -> None:
        wanted = {node_id_of(name) for name in names}
        until(lambda: wanted <= set(self.grid.get_node_ids()))

    def exchange(self, *names: str, timeout_s: float = LONG_S) -> list[Exchange]:
        messages = [
            Message(RecordDict(), node_id_of(name), MessageType.TRAIN, ttl=LONG_S) for name in names
        ]
        return self.grid.exchange(messages, timeout_s)

    def close(self) -> None:
        for child in self._children:
            child.send_signal(signal.SIGCONT)
            child.kill()
            child.communicate()
        self.grid.stop()


def line_of(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path)
    yield processes
    processes.close()


def test_measures_sleeping_clients_whatever_their_clocks_say(processes: Processes) -> None:
    delays_s = {"right": 0.05, "ahead": 0.1, "behind": 0.02}
    hours = 3600.0
    processes.start("right", delays_s["right"])
    processes.start("ahead", delays_s["ahead"], shift_s=5 * hours)
    processes.start("behind", delays_s["behind"], shift_s=-30 * hours)
    processes.wait_for(*delays_s)
    for _ in range(9):
        begin_s = time.monotonic()
        exchanges = processes.exchange(*delays_s)
        most_s = time.monotonic() - begin_s
        for name, exchange in zip(delays_s, exchanges, strict=True):
            assert exchange.reply is not None
            assert exchange.rtt_s is not None
            told = exchange.reply.content["clock"]
            assert delays_s[name] <= told["work-s"] < exchange.rtt_s < most_s, name  # type: ignore[index, operator, call-overload]
    wall_s = float(told["wall-s"])  # type: ignore[arg-type, call-overload, index]
    assert wall_s - time.time() == pytest.approx(-30 * hours, abs=hours)


def test_a_client_killed_in_mid_round_fails_alone(processes: Processes) -> None:
    dies = processes.start("dies", delay_s=LONG_S)
    processes.start("lives")
    processes.wait_for("dies", "lives")
    processes.exchange("lives")
    messages = [
        Message(RecordDict(), node_id_of(name), MessageType.TRAIN, ttl=LONG_S)
        for name in ("dies", "lives")
    ]
    ids = list(processes.grid.push_messages(messages))
    assert line_of(dies) == "begun"
    dies.send_signal(signal.SIGKILL)
    replies: list[Message] = []
    until(lambda: replies.extend(processes.grid.pull_messages(ids)) or len(replies) == 2)
    by_id = {reply.metadata.reply_to_message_id: reply for reply in replies}
    assert by_id[ids[0]].error.reason == LOST
    assert by_id[ids[1]].has_content()
    assert set(processes.grid.get_node_ids()) == {node_id_of("lives")}
    assert processes.grid.busy() == set()

    processes.start("dies")  # the device starts again, as the same node
    processes.wait_for("dies", "lives")
    assert all(e.reply is not None for e in processes.exchange("dies", "lives"))


def test_a_client_that_hangs_costs_the_deadline_and_comes_back(processes: Processes) -> None:
    hangs = processes.start("hangs", delay_s=0.2)
    processes.start("lives")
    processes.wait_for("hangs", "lives")
    assert processes.exchange("hangs")[0].reply is not None
    assert line_of(hangs) == "begun"
    hangs.send_signal(signal.SIGSTOP)
    now_s = [time.monotonic()]
    processes.clock = lambda: now_s[0]
    both: list[Exchange] = []
    ask = threading.Thread(
        target=lambda: both.extend(processes.exchange("hangs", "lives", timeout_s=0.4))
    )
    ask.start()
    until(lambda: processes.grid.busy() == {node_id_of("hangs")})
    now_s[0] += 0.4
    ask.join(PATIENCE_S)
    stopped, lives = both
    assert stopped.failure == TIMEOUT
    assert lives.reply is not None
    assert processes.grid.busy() == {node_id_of("hangs")}
    # Nobody closed the connection: it is the keepalive that notices.
    until(lambda: set(processes.grid.get_node_ids()) == {node_id_of("lives")})
    hangs.send_signal(signal.SIGCONT)
    processes.wait_for("hangs")
    until(lambda: processes.grid.busy() == set())
    (exchange,) = processes.exchange("hangs")
    assert exchange.reply is not None


def test_a_client_that_is_interrupted_says_goodbye(processes: Processes) -> None:
    child = processes.start("a")
    processes.wait_for("a")
    child.send_signal(signal.SIGINT)
    until(lambda: list(processes.grid.get_node_ids()) == [])
    assert child.wait(PATIENCE_S) != 0  # KeyboardInterrupt, as the library says
    assert processes.exchange("a", timeout_s=0.1)[0].reply is None


def test_a_large_fleet_joins_and_answers(processes: Processes) -> None:
    """The file descriptors and the memory of 300 connections are ordinary."""
    script = CLIENT.split("StreamClient(f")[0] + (
        "import asyncio\n"
        "from flower_scheduling.client.stream import Worker\n"
        "async def everybody():\n"
        "    worker = Worker('all')\n"
        "    await asyncio.gather(*(StreamClient(f'127.0.0.1:{port}', f'{name}-{i}', app,\n"
        "        worker=worker, stay=False).serve() for i in range(300)))\n"
        "asyncio.run(everybody())\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, "many", str(processes.grid.port), "0", "0"],
        cwd=ROOT,
        env={**os.environ},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    names = [f"many-{i}" for i in range(300)]
    processes.wait_for(*names)
    assert all(e.reply is not None for e in processes.exchange(*names[::6]))
    processes.grid.stop()
    assert child.wait(PATIENCE_S) == 0
