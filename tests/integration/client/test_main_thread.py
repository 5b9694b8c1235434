"""flower-client and apps that own their process: its main thread, its signals, its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from paths import ROOT
from waiting import PATIENCE_S, until

from flower_scheduling.reasons import LOST
from flower_scheduling.server.transport.connection import node_id_of
from flower_scheduling.server.transport.grid import StreamGrid
from flower_scheduling.strategies.flower import Exchange

LONG_S = 300.0  # a deadline that nobody is meant to meet
START = "from flower_scheduling.client.entry import client; client()"
# Stands for every import that a client must not do unless its app does.
BLOCKED = "import sys; sys.modules.update(dict.fromkeys({names!r}, None)); "
HEAVY = ("torch", "torchvision", "scipy", "matplotlib")

APP = """
import asyncio, multiprocessing, os, signal, sqlite3, subprocess, sys, threading, time
from concurrent.futures import ProcessPoolExecutor
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
database = sqlite3.connect(":memory:")
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)


def double(x):
    return 2 * x


def nap(seconds):
    time.sleep(seconds)


def main_thread():
    assert threading.current_thread() is threading.main_thread()
    assert database.execute("select 1").fetchone() == (1,)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(1)
    signal.pause()
    assert asyncio.get_event_loop().run_until_complete(asyncio.sleep(0, 7)) == 7

async def true():
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, print)
    assert await (await asyncio.create_subprocess_exec("true")).wait() == 0

def children():
    asyncio.Runner().run(true())
    assert subprocess.run(["echo", "x"], capture_output=True).stdout == b"x\\n"
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(double, range(3)) == [0, 2, 4]
    with ProcessPoolExecutor(2) as pool:
        assert list(pool.map(double, range(3))) == [0, 2, 4]
    if (pid := os.fork()) == 0:
        sys.exit(3)  # not as a second client
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    for _ in range(30):
        if (pid := os.fork()) == 0:
            time.sleep(600)
        os.kill(pid, signal.SIGTERM)  # perhaps before it has run at all
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
    child = multiprocessing.get_context("fork").Process(target=nap, args=(600,))
    child.start()
    time.sleep(0.1)
    child.terminate()  # dies of it, and the client does not
    child.join()
    assert child.exitcode == -signal.SIGTERM

def loader():
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.zeros(64, 3))
    for keep in (False, True):
        batches = DataLoader(data, batch_size=8, num_workers=2, persistent_workers=keep)
        assert [sum(len(batch) for batch, in batches) for _ in range(2)] == [64, 64]

def mess():
    multiprocessing.set_start_method("spawn")  # a second time is an error
    asyncio.get_event_loop().run_until_complete(asyncio.sleep(0))
    asyncio.get_event_loop().close()
    os.chdir("..")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.alarm(1)
    assert os.path.exists("folder/app.py"), os.getcwd()
    assert "" in sys.path or os.getcwd() in sys.path
    asyncio.run(asyncio.sleep(0))
    asyncio.set_event_loop(None)
    print("still open", flush=True)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()
    sys.path = None

def handlers():
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, lambda *_: print("the app's own", flush=True))
    hang()

def hang():
    print("begun", flush=True)
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        time.sleep(600)

def leave():
    os._exit(7)

def leftovers():
    multiprocessing.Process(target=nap, args=(600,)).start()
    threading.Thread(target=nap, args=(600,)).start()

def process_id():
    return os.getpid()

def interrupt():
    raise KeyboardInterrupt


@app.train()
def train(message, context):
    result = globals()[message.content["config"]["do"]]()
    context.state[f"{len(context.state)}"] = ConfigRecord({"x": 1})
    known = {"known": len(context.state), **context.node_config}
    answer = ConfigRecord({"result": result or 0, **known})
    return Message(RecordDict({"answer": answer}), reply_to=message)
"""


class Client:
    """A ``flower-client`` with the app above, and a server for it in this process."""

    def __init__(self, folder: Path) -> None:
        self.grid = StreamGrid("127.0.0.1:0", lost_after_s=LONG_S)
        self.grid.start()
        self.folder = folder / "folder"
        self.folder.mkdir()
        (self.folder / "app.py").write_text(APP)
        self.process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str, block: tuple[str, ...] = (), **environment: str) -> None:
        code = BLOCKED.format(names=block) + START
        words = ["--app", "app:app", "--server", f"127.0.0.1:{self.grid.port}", "--name", "a"]
        with (self.folder.parent / "log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, *words, *arguments],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )
        self.wait()

    def wait(self) -> None:
        """Wait until the client is connected and takes work."""

        def is_there() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log()
            return node_id_of("a") in {*self.grid.get_node_ids()} - self.grid.opted_out()

        until(is_there)

    def messages(self, do: str) -> list[Message]:
        content = RecordDict({"config": ConfigRecord({"do": do})})
        return [Message(content, node_id_of("a"), MessageType.TRAIN, ttl=LONG_S)]

    def ask(self, do: str) -> Exchange:
        (exchange,) = self.grid.exchange(self.messages(do), LONG_S)
        return exchange

    def answer(self, do: str) -> ConfigRecord:
        reply = self.ask(do).reply
        assert reply is not None, self.log()
        assert reply.has_content(), reply.error
        record = reply.content["answer"]
        assert isinstance(record, ConfigRecord)
        return record

    def begin(self, do: str) -> str:
        """Have the client begin a work that takes for ever; return the message's id."""
        (message_id,) = self.grid.push_messages(self.messages(do))
        until(lambda: "begun" in self.log())
        return message_id

    def log(self) -> str:
        return (self.folder.parent / "log").read_text()

    def end(self, signum: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(signum)
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.grid.stop()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    client = Client(tmp_path)
    yield client
    client.close()


def test_app_meets_what_a_stock_supernode_gives_it(client: Client) -> None:
    client.start("--node-config", "dataset-path='part 1' n=3", block=HEAVY)
    found = client.answer("main_thread")
    assert dict(found) == {"result": 0, "known": 1, "dataset-path": "part 1", "n": 3, "name": "a"}
    for _ in range(3):
        client.answer("children")
    assert client.end() == 0


@pytest.mark.slow
def test_loaders_with_worker_processes(client: Client) -> None:
    client.start()
    for _ in range(20):
        client.answer("loader")
    assert client.end() == 0


def test_what_an_app_does_to_its_process_is_over_with_the_message(client: Client) -> None:
    client.start()
    for _ in range(3):
        client.answer("mess")
    reply = client.ask("interrupt").reply
    assert reply is not None
    assert reply.error.reason == "KeyboardInterrupt"
    assert client.log().count("still open") == 3
    assert client.end(signal.SIGINT) == 0
    assert client.log().count("stopped by SIGINT") == 1


@pytest.mark.parametrize(
    ("do", "signum"),
    [
        ("hang", signal.SIGTERM),
        ("handlers", signal.SIGINT),
        pytest.param("hang", signal.SIGHUP, marks=pytest.mark.slow),
        pytest.param("handlers", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_signals_are_heeded_at_work(client: Client, do: str, signum: int) -> None:
    client.start()
    message_id = client.begin(do)
    assert client.process is not None
    client.process.send_signal(signal.SIGUSR1)
    until(lambda: client.grid.opted_out() == {node_id_of("a")})
    assert client.end(signum) == 0
    (reply,) = client.grid.pull_messages([message_id])
    assert reply.error.reason == LOST, "it has said goodbye"
    assert "the ClientApp is still at work: the process ends without it" in client.log()
    assert ("the app's own" in client.log()) == (do == "handlers")


def test_app_that_ends_the_process_says_so_and_goodbye(client: Client) -> None:
    client.start()
    assert client.ask("leave").failure == LOST
    assert client.process is not None
    assert client.process.wait(PATIENCE_S) == 7
    assert "the ClientApp ends the process with os._exit(7)" in client.log()


@pytest.mark.slow
def test_what_an_app_left_running_does_not_hold_up_the_end(client: Client) -> None:
    client.start()
    client.answer("leftovers")
    assert client.end() == 0


def test_client_begins_anew_and_loses_no_message(client: Client) -> None:
    client.start("--restart-after", "2", "--node-config", "n=3")
    for part in range(2):
        for number in (1, 2):
            found = client.answer("process_id")
            assert client.process is not None
            assert found["result"] == client.process.pid
            assert found["n"] == 3
            assert found["known"] == 2 * part + number, "its state goes on"
        until(lambda: list(client.grid.get_node_ids()) == [])
        client.wait()
    assert client.log().count("a begins anew after 2 messages") == 2
    assert client.end() == 0


def test_loopback_never_takes_a_proxy(client: Client) -> None:
    client.start(http_proxy="http://127.0.0.1:9", https_proxy="http://127.0.0.1:9")
    client.answer("process_id")
