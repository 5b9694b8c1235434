"""A client that says everything twice: each reply again, and an old one after it."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import client.stream
from client import wire
from client.cli import main

__all__ = ["main"]

_write = client.stream._Stream.write
_said: deque[bytes] = deque(maxlen=20)


async def _write_again(self: Any, frame: bytes) -> None:
    await _write(self, frame)
    if frame[0] == wire.Kind.REPLY:
        _said.append(frame)
        await _write(self, frame)
        await _write(self, random.choice(_said))


client.stream._Stream.write = _write_again  # type: ignore[method-assign]
