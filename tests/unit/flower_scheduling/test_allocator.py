"""The C library's heaps: chunks that come and go are not taken from the system each time."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
import weakref

import pytest
from hostile import peak_mb

from flower_scheduling.allocator import collect, new_bytes

CODE = """
import resource, threading
from flower_scheduling import allocator
if {kept}:
    allocator.keep_heaps()
def work():
    kept = []
    for _ in range(500):
        kept.append(bytes(2**20))
        if len(kept) > 2:
            kept.clear()
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def faults(kept: bool) -> int:
    """Return how often a process that makes chunks takes a page from the system."""
    code = CODE.format(kept=kept)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")
def test_heaps_are_kept() -> None:
    num_pages = 500 * 2**20 // resource.getpagesize()
    assert faults(kept=True) < faults(kept=False) - num_pages // 4


@pytest.mark.parametrize("size", [1, 4095, 4096, 100_000, 9 * 2**20])
def test_bytes_are_what_they_were_filled_with(size: int) -> None:
    content = bytes(i % 251 for i in range(min(size, 1000))) * (size // 1000 + 1)
    made, view = new_bytes(size)
    view[: size // 2] = content[: size // 2]
    view[size // 2 :] = content[size // 2 : size]
    assert len(view) == size
    del view
    assert type(made) is bytes
    assert made == content[:size]
    assert hash(made) == hash(content[:size])


def test_bytes_take_no_memory_before_they_are_filled() -> None:
    before = peak_mb()
    made, view = new_bytes(2**33)
    view[: 2**20] = bytes(2**20)
    assert peak_mb() - before < 20
    del made, view
    with pytest.raises(MemoryError):
        new_bytes(2**60)


def test_garbage_that_refers_to_itself_is_freed_at_once() -> None:
    class Node:
        own: Node

    gc.disable()
    try:
        node = Node()
        node.own = node
        gone = weakref.ref(node)
        del node
        assert gone() is not None
        collect()
        assert gone() is None
    finally:
        gc.enable()
