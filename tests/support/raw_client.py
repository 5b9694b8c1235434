"""A client of a stream server that says what a test wants."""

from __future__ import annotations

import queue
from typing import Any

import grpc
from flwr.app import Message, RecordDict
from waiting import PATIENCE_S

from flower_scheduling.client.wire import frames as wire
from flower_scheduling.client.wire.calls import channel_options
from flower_scheduling.client.wire.packing import pack, unpack


class RawClient:
    """A gRPC stream that carries the frames, or whatever bytes, of a test."""

    def __init__(self, address: str, **settings: Any) -> None:
        self._channel = grpc.insecure_channel(address, options=channel_options(), **settings)
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        stub = self._channel.stream_stream(wire.METHOD)
        self.call = stub(iter(self._outbox.get, None), timeout=2 * PATIENCE_S)

    def send(self, *frames: bytes | wire.Frame) -> None:
        for frame in frames:
            self._outbox.put(frame if isinstance(frame, bytes) else wire.encode(frame))

    def read(self) -> wire.Frame:
        return wire.decode(next(self.call))

    def read_work(self) -> tuple[wire.Work, Message]:
        frame = self.read()
        assert isinstance(frame, wire.Work)
        return frame, unpack(frame.payload)

    def refusal(self) -> wire.Refused:
        """Read until the server refuses."""
        frame = self.read()
        while not isinstance(frame, wire.Refused):
            frame = self.read()
        return frame

    def answer(self, frame_id: str, message: Message) -> None:
        reply = Message(RecordDict(), reply_to=message)
        self.send(wire.Reply(frame_id, pack(reply)))

    def close(self) -> None:
        self._outbox.put(None)
        self.call.cancel()
        self._channel.close()
