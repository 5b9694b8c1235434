"""A client that says everything twice: each reply again, and an old one after it."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import flower_scheduling.client.stream
from flower_scheduling.client.cli import main
from flower_scheduling.client.wire import frames as wire

__all__ = ["main"]

_write = flower_scheduling.client.stream._Stream.write
_said: deque[wire.Frame] = deque(maxlen=20)


async def _write_again(self: Any, frame: wire.Frame) -> None:
    await _write(self, frame)
    if isinstance(frame, wire.Reply):
        _said.append(frame)
        await _write(self, frame)
        await _write(self, random.choice(_said))


flower_scheduling.client.stream._Stream.write = _write_again  # type: ignore[method-assign]
