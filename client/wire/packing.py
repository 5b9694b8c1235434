"""Flower's messages as they travel: the outline in protobuf, the bytes of arrays as they are.

Protobuf would copy each array into a message of its own, and again when it is serialised and when
it is parsed: 20 ms of processor time per megabyte at each end, and no message beyond 2 GiB.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, TypeAlias

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from flower_scheduling._flwr import (
    ProtoArray,
    ProtoArrayRecord,
    ProtoMessage,
    config_record_from_proto,
    config_record_to_proto,
    error_from_proto,
    make_message,
    message_to_proto,
    metadata_from_proto,
    metadata_to_proto,
    metric_record_from_proto,
    metric_record_to_proto,
    new_array,
    new_record,
)

from .arrays import FastArray
from .compression import Encoder, SentModel, plain_bytes, restore
from .frames import NO_LIMIT, Buffer, Packed

__all__ = ["pack", "pack_content", "unpack"]

_Fields: TypeAlias = dict[int, "_Fields | int"]


def pack(message: Message, content: Packed | None = None, encoder: Encoder | None = None) -> Packed:
    """Return a message as it travels; its arrays' bytes are shared, not copied.

    Parameters
    ----------
    message : Message
        With content or with an error.
    content : Packed, optional
        What :func:`pack_content` returned for its content: many messages may have the same.
    encoder : Encoder, optional
        Encodes the arrays of its content.
    """
    if not message.has_content():
        return Packed(message_to_proto(message).SerializeToString())
    if content is None:
        content = pack_content(message.content, encoder)
    head: bytes = ProtoMessage(metadata=metadata_to_proto(message.metadata)).SerializeToString()
    # Two serialised messages one after the other are their merger to protobuf.
    return replace(content, outline=b"".join((head, content.outline)))


def pack_content(content: RecordDict, encoder: Encoder | None = None) -> Packed:
    """Return the content of a message as it travels."""
    proto = ProtoMessage()
    proto.content.SetInParent()
    arrays: list[Buffer] = []
    codes = bytearray()
    saved = 0
    for name, record in content.items():
        item = proto.content.items.add(key=name)
        if isinstance(record, ArrayRecord):
            item.array_record.SetInParent()
            for key, array in record.items():
                outline = item.array_record.items.add(key=key).value
                outline.dtype, outline.stype = array.dtype, array.stype
                outline.shape.extend(array.shape)
                found = encoder(name, key, array) if encoder else None
                code, data = found or (0, array.data)
                arrays.append(data)
                codes.append(code)
                if code:
                    saved += plain_bytes(array) - len(data)
        elif isinstance(record, MetricRecord):
            item.metric_record.CopyFrom(metric_record_to_proto(record))
        else:
            item.config_record.CopyFrom(config_record_to_proto(record))
    return Packed(
        proto.SerializeToString(), tuple(arrays), bytes(codes) if any(codes) else b"", saved
    )


def unpack(packed: Packed, model: SentModel | None = None, max_bytes: int = NO_LIMIT) -> Message:
    """Read a message, like Flower's ``message_from_proto`` but faster.

    Flower makes every array twice, each time through a constructor with five signatures: three
    quarters of the time that a small model's message takes.

    Parameters
    ----------
    packed : Packed
        The message.
    model : SentModel, optional
        The arrays of the message that it answers.
    max_bytes : int
        Most that its encoded arrays may have together [bytes].

    Raises
    ------
    Exception
        If the bytes are no message, or one of too many parts, or its arrays are not those that
        came; of any kind that protobuf and Flower raise.
    """
    data = packed.outline
    if len(data) > _UNCOUNTED_BYTES:
        _count(memoryview(data), 0, len(data), _PARTS, _MAX_PARTS)
    proto = ProtoMessage.FromString(data)
    content = None
    arrays = _Arrays(packed, model, max_bytes)
    if proto.HasField("content"):
        records: dict[str, ArrayRecord | MetricRecord | ConfigRecord] = {}
        for item in proto.content.items:
            if item.HasField("array_record"):
                records[item.key] = _array_record(item.key, item.array_record, arrays)
            elif item.HasField("metric_record"):
                records[item.key] = metric_record_from_proto(item.metric_record)
            elif item.HasField("config_record"):
                records[item.key] = config_record_from_proto(item.config_record)
            else:
                raise ValueError(f"record {item.key!r} is of no known kind")
        content = new_record(RecordDict, records)
    arrays.require_none_left()
    error = error_from_proto(proto.error) if proto.HasField("error") else None
    return make_message(metadata_from_proto(proto.metadata), content, error)


def _array_record(name: str, proto: ProtoArrayRecord, arrays: _Arrays) -> ArrayRecord:
    found: dict[str, FastArray] = {}
    for item in proto.items:
        value = item.value
        found[item.key] = new_array(
            FastArray,
            dtype=value.dtype,
            shape=tuple(value.shape),
            stype=value.stype,
            data=arrays.next_data(name, item.key, value),
        )
    return new_record(ArrayRecord, found)


class _Arrays:
    """The arrays of a message, in their order. Parameters are those of :func:`unpack`."""

    def __init__(self, packed: Packed, model: SentModel | None, max_bytes: int) -> None:
        self._arrays = iter(packed.arrays)
        self._codes = iter(packed.codes)
        self._came_apart = bool(packed.arrays)
        self._model = model
        self._left = max_bytes

    def next_data(self, record: str, key: str, value: ProtoArray) -> bytes:
        """Return Flower's bytes of the next array."""
        data: Buffer | None = value.data
        if self._came_apart and (data or (data := next(self._arrays, None)) is None):
            raise ValueError(f"no bytes came for the array {key[:100]!r}")
        if code := next(self._codes, 0):
            found = None if self._model is None else self._model.find(record, key)
            base = None if found is None else found[0]
            shape = tuple(value.shape)
            restored = restore(code, data or b"", value.dtype, shape, base, self._left)
            self._left -= len(restored)
            return restored
        return data if isinstance(data, bytes) else bytes(data or b"")

    def require_none_left(self) -> None:
        """Refuse arrays without a name."""
        if next(self._arrays, None) is not None:
            raise ValueError("more arrays than it has names for")


def _count(data: memoryview, begin: int, end: int, fields: _Fields, left: int) -> int:
    """Count the parts of a serialised message; return how many more there may be.

    Two bytes make an empty part, for which the parser takes 50 bytes and microseconds: a message
    of 16 MB could take half a gigabyte and half a minute.

    Raises
    ------
    ValueError
        If there are too many.
    """
    while begin < end:
        tag, begin = _varint(data, begin)
        left -= 1
        match tag & 7:
            case 0:
                _, begin = _varint(data, begin)
            case 1:
                begin += 8
            case 5:
                begin += 4
            case 2:
                size, begin = _varint(data, begin)
                inner = fields.get(tag >> 3, 0)
                if isinstance(inner, dict):
                    left = _count(data, begin, min(begin + size, end), inner, left)
                elif inner:
                    left -= size // (inner * _NUMBERS_A_PART)
                begin += size
        if left < 0:
            raise ValueError(f"a message of more than {_MAX_PARTS} parts")
    return left


def _varint(data: memoryview, begin: int) -> tuple[int, int]:
    """Return a number of protobuf's variable length, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if begin == len(data):
            break
        byte = data[begin]
        begin += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, begin
    raise ValueError("not a message of protobuf")


def _fields(descriptor: Any) -> _Fields:
    """Return the content of fields by their number.

    A dict for parts, the least bytes of a number for numbers, 0 for text.
    """
    fields: _Fields = {}
    for field in descriptor.fields:
        sizes = {field.TYPE_DOUBLE: 8, field.TYPE_STRING: 0, field.TYPE_BYTES: 0}
        inner = field.message_type
        fields[field.number] = _fields(inner) if inner else sizes.get(field.type, 1)
    return fields


_PARTS: Final = _fields(ProtoMessage.DESCRIPTOR)
_UNCOUNTED_BYTES: Final = 2**16  # a message of so few cannot take long
_MAX_PARTS: Final = 100_000  # of one message
_NUMBERS_A_PART: Final = 10  # numbers of a list that cost as much as a part
