"""Flow control: as much is on its way as a link carries in about half a second."""

from __future__ import annotations

from collections import deque

import pytest

from flower_scheduling.client.wire.window import MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, Window

MB = 2**20


class Link:
    """A link of so many bytes a second, and so many seconds long, with endless buffers."""

    def __init__(self, bytes_a_s: float, length_s: float = 0.0) -> None:
        self.bytes_a_s = bytes_a_s
        self.length_s = length_s
        self.now_s = 0.0
        self.free_s = 0.0  # when the last byte has left
        self.window = Window(lambda: self.now_s)
        self.coming: deque[float] = deque()  # when reports arrive
        self.longest_queue_s = 0.0

    def send(self, size: int) -> None:
        """Send a frame; return when all of it was reported."""
        while size:
            chunk = min(self.window.chunk_bytes, size)
            while not self.window.admits(chunk):
                self._report()
            self.window.add(chunk)
            self.free_s = max(self.free_s, self.now_s) + chunk / self.bytes_a_s
            self.longest_queue_s = max(self.longest_queue_s, self.free_s - self.now_s)
            size -= chunk
            if self.window.mark(last=not size):
                self.coming.append(self.free_s + self.length_s)
        while self.coming:
            self._report()

    def _report(self) -> None:
        self.now_s = max(self.now_s, self.coming.popleft())
        assert self.window.acknowledge(1)


@pytest.mark.parametrize(
    ("mbit_a_s", "length_s", "size", "queue_s", "share"),
    [
        (0.05, 0.1, 0.5, 6.0, 0.9),  # a chunk alone takes 2.6 s
        (0.25, 0.1, 1.5, 3.0, 0.9),
        (1, 0.05, 6, 2.0, 0.9),
        (20, 0.05, 100, 2.0, 0.9),
        (20, 0.6, 100, 2.0, 0.7),  # by satellite
        (1000, 0.001, 1000, 2.0, 0.9),
        (1000, 0.05, 1000, 2.0, 0.8),
    ],
)
def test_queue_stays_short_and_the_link_busy(
    mbit_a_s: float, length_s: float, size: float, queue_s: float, share: float
) -> None:
    link = Link(mbit_a_s * 1e6 / 8, length_s)
    link.send(round(size * MB))
    assert link.longest_queue_s < queue_s
    assert size * MB / link.bytes_a_s > share * link.now_s


def test_link_that_fades_is_noticed() -> None:
    link = Link(20e6 / 8, 0.05)
    link.send(50 * MB)
    link.bytes_a_s /= 10
    link.send(5 * MB)
    link.longest_queue_s = 0.0
    link.send(10 * MB)
    assert link.longest_queue_s < 2.5
    link.bytes_a_s *= 10
    link.send(50 * MB)
    begin_s = link.now_s
    link.send(50 * MB)
    assert 50 * MB / link.bytes_a_s > 0.9 * (link.now_s - begin_s)


def test_frames_that_do_not_fill_the_window_teach_nothing() -> None:
    link = Link(1e9)
    for _ in range(1000):
        link.send(10_000)
    assert link.window.size == 2 * MIN_CHUNK_BYTES


def test_frames_go_whole_as_long_as_the_link_is_known_to_carry_them_at_once() -> None:
    link = Link(1e9)
    assert not link.window.takes_whole(MIN_CHUNK_BYTES), "nothing is known of it"
    link.send(50 * MB)
    assert link.window.takes_whole(MAX_CHUNK_BYTES)
    assert not link.window.takes_whole(MAX_CHUNK_BYTES + 1)
    link.now_s += 3.0
    assert not link.window.takes_whole(MAX_CHUNK_BYTES), "it may have faded"
    link.send(MB)
    assert link.window.takes_whole(MAX_CHUNK_BYTES)
    link.window.add(100)
    assert link.window.mark(last=True)
    assert not link.window.takes_whole(MAX_CHUNK_BYTES), "something is on its way"
    slow = Link(1e6 / 8)
    slow.send(5 * MB)
    assert not slow.window.takes_whole(MB)


@pytest.mark.parametrize("size", [40_000, 10**5, 3 * 10**5, 10**6, MB, MAX_CHUNK_BYTES])
def test_frames_of_one_size_go_whole_once_a_fast_link_has_carried_a_few(size: int) -> None:
    link = Link(1e9)
    for _ in range(10):
        link.send(size)
    assert link.window.takes_whole(size)


def test_chunks_are_bounded() -> None:
    link = Link(1e9)
    assert link.window.chunk_bytes == MIN_CHUNK_BYTES
    link.send(10**9)
    assert link.window.chunk_bytes == MAX_CHUNK_BYTES
    assert link.window.size == 64 * MB


def test_reports_that_are_not_due_change_nothing() -> None:
    window = Window()
    assert not window.acknowledge(10**9)
    window.add(100)
    assert window.mark(last=True)
    assert window.acknowledge(10**9)
    assert not window.acknowledge(1)
    assert window.size == 2 * MIN_CHUNK_BYTES
