"""The limit of open files: floods of connections leave room for clients and for checkpoints."""

from __future__ import annotations

import logging
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from apps import echo_app
from waiting import PATIENCE_S

from flower_scheduling.client.stream import StreamClient
from flower_scheduling.server.transport import open_files
from flower_scheduling.strategies.flower import LOGGER

SERVER = """
import os, resource, sys, time
from flower_scheduling.server.transport.grid import StreamGrid

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
with StreamGrid("127.0.0.1:0") as grid:
    print(grid.port, flush=True)
    begin_s = time.process_time()
    while not grid.get_node_ids():
        for _ in range(8):  # as many as a checkpoint and a log need
            os.close(os.dup(0))
        time.sleep(0.05)
    print(*[node.name for node in grid.get_nodes()], time.process_time() - begin_s, flush=True)
    sys.stdin.read()
"""


@contextmanager
def limited_server() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_client_is_served_after_a_flood_of_silent_connections() -> None:
    with limited_server() as server, ExitStack() as flood:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        for _ in range(100):
            flood.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
        client = StreamClient(f"127.0.0.1:{port}", "real", echo_app())
        thread = threading.Thread(target=client.run)
        thread.start()
        try:
            name, cpu_s = server.stdout.readline().split()
        finally:
            client.stop()
            thread.join()
        assert name == "real"
        assert float(cpu_s) < 5.0, "it waits, and does not turn round and round"
        assert server.poll() is None


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the soft and the hard limit, which nothing but the tests sees."""
    found = [1024, 1 << 20]
    monkeypatch.setattr(resource, "getrlimit", lambda which: tuple(found))

    def change(which: int, new: tuple[int, int]) -> None:
        found[:] = new

    monkeypatch.setattr(resource, "setrlimit", change)
    return found


def test_the_limit_is_raised_as_far_as_clients_need_it(
    limits: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    assert open_files.max_connections() == 896
    open_files.raise_limit(400)
    assert limits[0] == 1024
    with caplog.at_level(logging.WARNING, logger=LOGGER.name):
        open_files.raise_limit(10_000)
    assert limits == [15_128, 1 << 20], "half of a fleet whose links have gone comes back at once"
    assert open_files.max_connections() == 15_000
    assert not caplog.messages


def test_a_limit_that_is_too_low_is_warned_of(
    limits: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    limits[:] = 64, 64
    with caplog.at_level(logging.WARNING, logger=LOGGER.name):
        open_files.raise_limit(32)
        assert not caplog.messages
        open_files.raise_limit(10_000)
    assert caplog.messages == [
        "the limit of 64 open files (ulimit -n) is enough for 32 clients at once: "
        "--max-clients 10000 needs 10128"
    ]
    limits[:] = resource.RLIM_INFINITY, resource.RLIM_INFINITY
    assert open_files.max_connections() is None
