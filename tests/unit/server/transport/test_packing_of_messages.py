"""Messages are packed: what many of them have in common once."""

from __future__ import annotations

from itertools import count

import pytest
from factories import small_model
from flwr.app import Array, ConfigRecord, Message, MessageType, RecordDict

from flower_scheduling._flwr import take_identity
from flower_scheduling.client.wire.compression import Compression
from flower_scheduling.server.transport import messages as module
from flower_scheduling.server.transport.messages import pack_all


def test_arrays_of_unlike_contents_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    take_identity(1)
    encoded: list[str] = []

    def encode(name: str, key: str, array: Array) -> None:
        encoded.append(key)

    monkeypatch.setattr(module, "value_encoder", lambda kind: encode if kind else None)
    model = small_model()
    contents = [
        RecordDict({"arrays": model, "scheduling": ConfigRecord({"local-steps": n})})
        for n in (3, 4, 5)
    ]
    asked = [Message(each, 7, MessageType.TRAIN) for each in contents]
    compression = Compression.parse("down=bfloat16")
    packed = list(pack_all(asked, map(str, count()), compression, lambda node, kind: True))
    assert encoded == list(model)
    assert len({bytes(each.outline) for _, each, _ in packed}) == 3, "each has its own steps"
