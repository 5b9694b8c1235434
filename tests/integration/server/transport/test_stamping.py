"""Nothing that blocks holds up the stamping of arrivals: neither the log nor the deny list."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from apps import echo_app
from blocking_handler import blocking_handler
from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict
from raw_client import RawClient
from waiting import PATIENCE_S, until

from flower_scheduling.client.stream import StreamClient
from flower_scheduling.server.transport import stream_server
from flower_scheduling.server.transport.connection import node_id_of
from flower_scheduling.server.transport.grid import StreamGrid

NAMES = ["a", "b", "c"]


@contextlib.contextmanager
def clients(grid: StreamGrid) -> Iterator[None]:
    """Run clients until they are connected and the test is over."""
    with contextlib.ExitStack() as stack:
        for name in NAMES:
            client = StreamClient(f"127.0.0.1:{grid.port}", name, echo_app())
            thread = threading.Thread(target=client.run)
            thread.start()
            stack.callback(thread.join)
            stack.callback(client.stop)
        until(lambda: len(list(grid.get_node_ids())) == len(NAMES))
        yield


def measures_round_trips(grid: StreamGrid) -> bool:
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(4, dtype=np.float32))})})
    messages = [Message(content, node_id_of(name), MessageType.TRAIN) for name in NAMES]
    return all(exchange.rtt_s is not None for exchange in grid.exchange(messages, PATIENCE_S))


def test_terminal_that_blocks_does_not_hold_up_a_round_trip() -> None:
    with blocking_handler() as handler:
        with contextlib.ExitStack() as stack:
            grid = stack.enter_context(StreamGrid("127.0.0.1:0"))
            stack.callback(handler.released.set)
            raw = RawClient(f"127.0.0.1:{grid.port}")
            stack.callback(raw.close)
            raw.send(b"no frame at all")
            assert raw.refusal()
            assert handler.blocked.wait(PATIENCE_S)
            with clients(grid):
                assert measures_round_trips(grid)
                assert handler.lines == [], "the first line is still blocked"
            until(lambda: not list(grid.get_node_ids()))
        first, *others = handler.lines  # written at the end of the server, if not before
        assert first.startswith("refused client ipv4:127.0.0.1: ")
        assert {name for line in others for name in NAMES if name in line} == set(NAMES)
        assert others[-1].startswith("left: ")


class WatchedList:
    """A deny list that notes when it is read and asked, and in which thread."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.threads: dict[str, set[int]] = {"refresh": set(), "ask": set()}
        self.blocked = threading.Event()
        self.released = threading.Event()
        self.released.set()

    def __call__(self, name: str) -> bool:
        self.calls.append(name)
        self.threads["ask"].add(threading.get_ident())
        return False

    def refresh(self) -> None:
        self.calls.append("refresh")
        self.threads["refresh"].add(threading.get_ident())
        if not self.released.is_set():
            self.blocked.set()
            assert self.released.wait(2 * PATIENCE_S)


@pytest.fixture
def denied() -> WatchedList:
    return WatchedList()


@pytest.fixture
def grid(denied: WatchedList, monkeypatch: pytest.MonkeyPatch) -> Iterator[StreamGrid]:
    monkeypatch.setattr(stream_server, "_REVIEW_S", 0.02)
    grid = StreamGrid("127.0.0.1:0", is_denied=denied, refresh_denied=denied.refresh)
    with grid, clients(grid):
        yield grid
        denied.released.set()


def test_deny_list_is_read_once_for_all_clients(grid: StreamGrid, denied: WatchedList) -> None:
    begin = len(denied.calls)
    until(lambda: denied.calls[begin:].count("refresh") >= 5)
    _, *reviews, _ = " ".join(denied.calls[begin:]).split("refresh")
    assert [sorted(review.split()) for review in reviews] == [NAMES] * len(reviews)
    assert grid._server._thread is not None
    assert grid._server._thread.ident not in denied.threads["refresh"], "not on the event loop"


def test_deny_list_that_blocks_does_not_hold_up_a_round_trip(
    grid: StreamGrid, denied: WatchedList
) -> None:
    denied.released.clear()
    assert denied.blocked.wait(PATIENCE_S)
    assert measures_round_trips(grid)
    assert not denied.released.is_set()
