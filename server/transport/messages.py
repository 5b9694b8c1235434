"""Flower's messages as streams carry them, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from flwr.app import Array, Error, Message

from flower_scheduling._flwr import ErrorCode, set_message_id, set_source
from flower_scheduling.client.wire.compression import (
    NO_COMPRESSION,
    Compression,
    Encoder,
    SentModel,
    value_encoder,
)
from flower_scheduling.client.wire.frames import Buffer, Packed
from flower_scheduling.client.wire.packing import pack, pack_content, unpack
from flower_scheduling.reasons import TIMEOUT, UNREADABLE
from flower_scheduling.strategies.flower import Exchange

from .requests import Request

_MAX_REASON_LENGTH: Final = 200  # of what is wrong with an unreadable reply


def pack_all(
    messages: Iterable[Message],
    message_ids: Iterator[str],
    compression: Compression = NO_COMPRESSION,
    can: Callable[[int, str], bool] = lambda node_id, kind: False,
) -> Iterator[tuple[Message, Packed, SentModel | None]]:
    """Give messages their ids and pack them; equal content is packed, and encoded, once.

    ``can`` tells whether a node takes a kind of compression. With compression the arrays are
    returned too: replies are updates of them.
    """
    contents: dict[tuple[int, str], Packed] = {}
    encoders: dict[str, Encoder | None] = {}
    models: dict[int, SentModel] = {}
    for message in messages:
        set_message_id(message, next(message_ids))
        content = model = None
        if message.has_content():
            kind = compression.down if can(message.metadata.dst_node_id, compression.down) else ""
            place = id(message.content), kind
            if (content := contents.get(place)) is None:
                if kind not in encoders:  # unlike contents may have the same arrays
                    encoders[kind] = _encoding_once(value_encoder(kind))
                content = contents[place] = pack_content(message.content, encoders[kind])
            if compression and (model := models.get(place[0])) is None:
                model = models[place[0]] = SentModel(message.content)
        yield message, pack(message, content), model


def _encoding_once(encoder: Encoder | None) -> Encoder | None:
    """Return an encoder that encodes each array once, however often it is asked for it."""
    if encoder is None:
        return None
    found: dict[int, tuple[int, Buffer] | None] = {}

    def encode(name: str, key: str, array: Array) -> tuple[int, Buffer] | None:
        if id(array) not in found:
            found[id(array)] = encoder(name, key, array)
        return found[id(array)]

    return encode


def exchange_of(request: Request) -> Exchange:
    """Return what became of a request; a timeout as long as it is not settled."""
    if not request.settled:
        return Exchange(request.node_id, None, None, TIMEOUT, *_bytes_of(request))
    reply, failure = _read(request)
    rtt_s = None if reply is None else request.arrived_s - request.sent_s
    return Exchange(request.node_id, reply, rtt_s, failure, *_bytes_of(request))


def _bytes_of(request: Request) -> tuple[int, int]:
    """Return what was sent and received."""
    sent = 0 if math.isnan(request.sent_s) else request.sent_bytes
    return sent, 0 if request.reply is None else len(request.reply)


def pulled_reply(request: Request) -> Message:
    """Return the reply to a settled request, as Flower's ``pull_messages`` does."""
    assert request.message is not None
    reply, failure = _read(request)
    return error_reply(request.message, failure) if reply is None else reply


def error_reply(message: Message, failure: str | None) -> Message:
    """Return Flower's error reply to a message that has failed."""
    code = ErrorCode.NODE_UNAVAILABLE
    if failure == TIMEOUT:
        code = ErrorCode.REPLY_MESSAGE_UNAVAILABLE
    elif failure is not None and failure.startswith(UNREADABLE):
        code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    error = Message(Error(code, failure), reply_to=message)
    set_message_id(error, f"error-{message.metadata.message_id}")
    return error


def _read(request: Request) -> tuple[Message | None, str | None]:
    """Return the reply of a settled request, or why there is none."""
    if request.reply is None:
        return None, request.failure
    try:
        reply = unpack(request.reply, request.model, request.max_reply_bytes)
    except Exception as error:  # protobuf and Flower raise many kinds over what a client may send
        text = " ".join(str(error).split())[:_MAX_REASON_LENGTH]
        return None, f"{UNREADABLE}: {text}"
    if reply.metadata.reply_to_message_id != request.message_id:
        return None, f"{UNREADABLE}: it answers another message"
    set_message_id(reply, f"reply-{request.message_id}")
    set_source(reply, request.node_id)  # the client's own word for it does not count
    return reply, None
