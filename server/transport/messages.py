"""Flower's messages as the bytes that streams carry, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from flwr.app import Error, Message

from flower_scheduling._flwr import (
    ErrorCode,
    ProtoMessage,
    message_to_proto,
    metadata_to_proto,
    recorddict_to_proto,
    set_message_id,
    set_source,
)
from flower_scheduling.client.wire.arrays import read_message
from flower_scheduling.strategies.flower import TIMEOUT, Exchange

from .requests import Request

UNREADABLE: Final = "unreadable reply"
"""Failure of a message whose answer is not Flower's."""

_MAX_REASON_LENGTH: Final = 200  # of what is wrong with an unreadable reply

Payload: TypeAlias = tuple[bytes, bytes]
"""A serialised message in two parts, of which the second may belong to several messages."""


def serialise(
    messages: Iterable[Message], message_ids: Iterator[str]
) -> Iterator[tuple[Message, Payload]]:
    """Give messages their ids and serialise them; equal content is serialised once."""
    contents: dict[int, bytes] = {}
    for message in messages:
        set_message_id(message, next(message_ids))
        if not message.has_content():
            yield message, (message_to_proto(message).SerializeToString(), b"")
            continue
        content = contents.get(id(message.content))
        if content is None:
            proto = ProtoMessage(content=recorddict_to_proto(message.content))
            contents[id(message.content)] = content = proto.SerializeToString()
        head = ProtoMessage(metadata=metadata_to_proto(message.metadata))
        yield message, (head.SerializeToString(), content)


def exchange_of(request: Request) -> Exchange:
    """Return what became of a request; a timeout as long as it is not settled."""
    if not request.settled:
        return Exchange(request.node_id, None, None, TIMEOUT)
    reply, failure = _read(request)
    rtt_s = None if reply is None else request.arrived_s - request.sent_s
    return Exchange(request.node_id, reply, rtt_s, failure)


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
        reply = read_message(request.reply)
    except Exception as error:  # protobuf and Flower raise many kinds over what a client may send
        text = " ".join(str(error).split())[:_MAX_REASON_LENGTH]
        return None, f"{UNREADABLE}: {text}"
    if reply.metadata.reply_to_message_id != request.message_id:
        return None, f"{UNREADABLE}: it answers another message"
    set_message_id(reply, f"reply-{request.message_id}")
    set_source(reply, request.node_id)  # the client's own word for it does not count
    return reply, None
