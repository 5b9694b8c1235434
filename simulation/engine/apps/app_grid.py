"""The grid of a simulated app: scheduled rounds, or those that the app samples by itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from flwr.app import Message, MessageType

from flower_scheduling.client.wire.protocol import TIMING
from flower_scheduling.strategies.flower import UNDELIVERABLE, Exchange

from ..virtual_grid import VirtualGrid
from .clients import ClientCalls


class AppGrid(VirtualGrid):
    """A virtual grid that can tell whether the rounds are scheduled.

    An app whose strategy is not wrapped begins no rounds here: for it a round begins when a client
    is asked to train again. Clients that are not available then cannot be reached.

    Parameters
    ----------
    calls : ClientCalls
        The app that every client runs.
    *args, **kwargs
        What :class:`.VirtualGrid` takes beside it.
    on_unscheduled : callable
        Called with the first messages to train that are not scheduled.

    Attributes
    ----------
    own_rounds : int
        Rounds of the app's own sampling.
    own_updates : int
        Updates that it got.
    """

    def __init__(
        self,
        calls: ClientCalls,
        *args: Any,
        on_unscheduled: Callable[[Sequence[Message]], None],
        **kwargs: Any,
    ) -> None:
        self._calls = calls
        self._on_unscheduled = on_unscheduled
        self._scheduled = False
        self._trained: set[int] = set()
        self.own_rounds = self.own_updates = 0
        super().__init__(calls, *args, **kwargs)
        self._scheduled = False  # the first draw was no round

    def begin_round(self, server_round: int) -> None:
        """Draw, see :meth:`.VirtualGrid.begin_round`; the rounds are scheduled."""
        self._scheduled = True
        super().begin_round(server_round)

    def exchange(
        self,
        messages: Sequence[Message],
        timeout_s: float,
        enough: int | None = None,
        awaited: Collection[int] = (),
    ) -> list[Exchange]:
        """Exchange messages, see :meth:`.VirtualGrid.exchange`."""
        exchanges = super().exchange(messages, timeout_s, enough, awaited)
        if not self._scheduled:
            replies = (each.reply for each in exchanges)
            self.own_updates += sum(reply is not None and reply.has_content() for reply in replies)
        return exchanges

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send and receive; an app's own sampling begins a round of its own."""
        messages = list(messages)
        self._begin_own_round(messages)
        return super().send_and_receive(messages, timeout=timeout)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages, likewise."""
        messages = list(messages)
        self._begin_own_round(messages)
        ids = super().push_messages(messages)
        if not self._scheduled:
            self.own_updates += sum(self._mailbox[each][1].has_content() for each in ids)
        return ids

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next round depends on, see :meth:`.VirtualGrid.state_dict`."""
        return {**super().state_dict(), "calls": self._calls.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` left off."""
        super().load_state_dict(state)
        self._calls.load_state_dict(state["calls"])

    def _begin_own_round(self, messages: Sequence[Message]) -> None:
        """Begin a round of the app's own, if these messages are of one."""
        nodes = {
            each.metadata.dst_node_id
            for each in messages
            if each.metadata.message_type.startswith(MessageType.TRAIN)
        }
        if self._scheduled or not nodes:
            return
        if not self.own_rounds:
            self._on_unscheduled(messages)
        if not self.own_rounds or nodes & self._trained:
            self.own_rounds += 1
            self._trained.clear()
            super().begin_round(self.own_rounds)
        self._trained |= nodes

    def _one_exchange(self, message: Message, timeout_s: float) -> Exchange:
        node = message.metadata.dst_node_id
        if not self._scheduled and node in self._opted_out:
            return Exchange(node, None, None, UNDELIVERABLE)
        exchange = super()._one_exchange(message, timeout_s)
        if not self._scheduled and exchange.reply is not None and exchange.reply.has_content():
            del exchange.reply.content[TIMING]  # nothing of ours would take it out
        return exchange
