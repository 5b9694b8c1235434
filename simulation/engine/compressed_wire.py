"""What compression does to the messages of a simulation: what it does to those of a fleet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import Message, RecordDict

from flower_scheduling.client.wire.compression import (
    Compression,
    SentModel,
    UpdateEncoder,
    value_encoder,
)
from flower_scheduling.client.wire.frames import Packed
from flower_scheduling.client.wire.packing import pack, pack_content, unpack


class CompressedWire:
    """The way of messages to clients and back, encoded and restored as streams do it.

    Parameters
    ----------
    compression : Compression
        The kinds.
    """

    def __init__(self, compression: Compression) -> None:
        self._compression = compression
        self._encoder = value_encoder(compression.down)
        self._updates: dict[int, UpdateEncoder] = {}  # by node
        self._content: RecordDict | None = None
        self._packed = Packed()
        self._model = SentModel(RecordDict())

    def begin_exchange(self) -> None:
        """Forget what was sent: its records may be other ones by now."""
        self._content = None

    def sent_bytes(self, message: Message) -> int:
        """Return the size of a message as it travels [bytes]."""
        if message.content is not self._content:  # one content goes to many
            self._content = message.content
            self._packed = pack_content(message.content, self._encoder)
            self._model = SentModel(message.content)
        return len(self._packed)

    def received(self, message: Message) -> Message:
        """Return a message as the client gets it."""
        self.sent_bytes(message)
        return unpack(pack(message, self._packed))

    def model_at_client(self, message: Message) -> SentModel:
        """Return the arrays of a message that :meth:`received` has returned last."""
        return SentModel(message.content, self._packed.codes)

    def returned(self, node: int, reply: Message, model: SentModel) -> tuple[Message, int]:
        """Return a reply as the server gets it, and its size on the way [bytes]."""
        updates = self._updates.setdefault(node, UpdateEncoder())
        packed = pack(reply, encoder=updates.encoder(self._compression.up, model))
        return unpack(packed, self._model), len(packed)

    def state_dict(self) -> dict[str, Any]:
        """Return what the clients' error feedback holds, by node."""
        states = {str(node): updates.state_dict() for node, updates in self._updates.items()}
        return {node: state for node, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` left off."""
        for node, lost in state.items():
            self._updates[int(node)] = UpdateEncoder()
            self._updates[int(node)].load_state_dict(lost)
