"""How the adapter keeps channels busy: messages sent one by one, answers as they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from flwr.app import Message

from ..timed_grid import Exchange, TimedExchange


@runtime_checkable
class ChannelGrid(TimedExchange, Protocol):
    """The timing protocol with messages that are not waited for.

    All grids of ours have it, and :class:`.TimedGrid` gives it to any other.
    """

    def dispatch(self, messages: Sequence[Message], timeout_s: float) -> None:
        """Send messages, each with a deadline of its own [s from when it begins to leave].

        A node has one message at most; it is busy until it has answered.
        """

    def next_ended(self, wait_s: float) -> list[Exchange]:
        """Return what became of dispatched messages, each once, in the order of their ends.

        Waits for the first end, ``wait_s`` [s] at most. A virtual clock moves on to it however
        long it takes; it stays where it is if no message is under way.
        """
