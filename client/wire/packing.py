"""Flower's messages as they travel: the outline in protobuf, the bytes of arrays as they are.

Protobuf would copy each array into a message of its own, and again when it is serialised and when
it is parsed: 20 ms of processor time per megabyte at each end, and no message beyond 2 GiB.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from flower_scheduling._flwr import (
    ProtoArrayRecord,
    ProtoConfigRecord,
    ProtoMessage,
    ProtoMetricRecord,
    ProtoRecordDict,
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
    new_message,
    new_record,
)

from .arrays import FastArray
from .compression import Encoder, SentModel, plain_bytes, restore
from .frames import NO_LIMIT, Buffer, Packed

__all__ = ["pack", "pack_content", "unpack"]

_Fields: TypeAlias = dict[int, "_Fields | int"]
_Layout: TypeAlias = tuple[tuple[str, str, tuple[int, ...], str], ...]
"""Of each array its key, dtype, shape and stype, as Flower's records have them."""
_Part: TypeAlias = tuple[str, str, tuple[int, ...], str, bytes]
"""The same of one array, and what data it has within the outline."""

# A run's messages repeat a few layouts. What a client may let the server keep of them is bounded.
_LAYOUTS: Final = 16
_LAYOUT_BYTES: Final = 2**16
_FIELDS: Final = {bool: "bool", float: "double", str: "string", bytes: "bytes"}  # int has two
_MAX_SINT64: Final = 2**63 - 1


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
    outline = b"".join((head, content.outline))
    return Packed(outline, content.arrays, content.codes, content.saved)


def pack_content(content: RecordDict, encoder: Encoder | None = None) -> Packed:
    """Return the content of a message as it travels."""
    outline: list[bytes] = [_NO_RECORDS]
    arrays: list[Buffer] = []
    codes = bytearray()
    saved = 0
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            layout = []
            for key, array in record.items():
                layout.append((key, array.dtype, tuple(array.shape), array.stype))
                found = encoder(name, key, array) if encoder else None
                code, data = found or (0, array.data)
                arrays.append(data)
                codes.append(code)
                if code:
                    saved += plain_bytes(array) - len(data)
            outline.append(_array_outline(name, tuple(layout)))
        else:
            outline.append(_value_outline(name, record))
    coded = bytes(codes) if any(codes) else b""
    # Here too: each is a message with one record more, and they are merged.
    return Packed(b"".join(outline), tuple(arrays), coded, saved)


@functools.lru_cache(_LAYOUTS)
def _array_outline(name: str, layout: _Layout) -> bytes:
    """Return a record of arrays, without their data, as part of a serialised message."""
    proto = ProtoMessage()
    record = proto.content.items.add(key=name).array_record
    record.SetInParent()
    for key, dtype, shape, stype in layout:
        value = record.items.add(key=key).value
        value.dtype, value.stype = dtype, stype
        value.shape.extend(shape)
    outline: bytes = proto.SerializeToString()
    return outline


def _value_outline(name: str, record: MetricRecord | ConfigRecord) -> bytes:
    """Return a record of values as part of a serialised message."""
    proto = ProtoMessage()
    item = proto.content.items.add(key=name)
    target: ProtoMetricRecord | ProtoConfigRecord
    convert: Callable[[Any], Any] = config_record_to_proto
    if isinstance(record, MetricRecord):
        target, convert = item.metric_record, metric_record_to_proto
    else:
        target = item.config_record
    target.SetInParent()
    for key, value in record.items():
        field = _FIELDS.get(type(value)) or _int_field(value)
        if field is None:  # a list, or a subclass: Flower knows how
            target.CopyFrom(convert(record))
            break
        setattr(target.items.add(key=key).value, field, value)
    outline: bytes = proto.SerializeToString()
    return outline


def _int_field(value: object) -> str | None:
    if type(value) is not int:
        return None
    return "uint64" if value > _MAX_SINT64 else "sint64"


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
    small = len(data) <= _LAYOUT_BYTES
    if len(data) > _UNCOUNTED_BYTES:
        _count(memoryview(data), 0, len(data), _PARTS, _MAX_PARTS)
    proto = ProtoMessage.FromString(data)
    content = None
    arrays = _Arrays(packed, model, max_bytes)
    if proto.HasField("content"):
        records: dict[str, ArrayRecord | MetricRecord | ConfigRecord] = {}
        for item in proto.content.items:
            if item.HasField("array_record"):
                records[item.key] = _array_record(item.key, item.array_record, arrays, small)
            elif item.HasField("metric_record"):
                records[item.key] = _metric_record(item.metric_record)
            elif item.HasField("config_record"):
                records[item.key] = _config_record(item.config_record)
            else:
                raise ValueError(f"record {item.key!r} is of no known kind")
        content = new_record(RecordDict, records)
    arrays.require_none_left()
    metadata = metadata_from_proto(proto.metadata)
    if content is not None and not proto.HasField("error"):
        metadata.delivered_at = ""  # as Flower's constructor has it
        return new_message(metadata, content)
    error = error_from_proto(proto.error) if proto.HasField("error") else None
    return make_message(metadata, content, error)


def _metric_record(proto: ProtoMetricRecord) -> MetricRecord:
    if (values := _scalars(proto)) is None:
        return metric_record_from_proto(proto)
    return new_record(MetricRecord, values)


def _config_record(proto: ProtoConfigRecord) -> ConfigRecord:
    if (values := _scalars(proto)) is None:
        return config_record_from_proto(proto)
    return new_record(ConfigRecord, values)


def _scalars(proto: ProtoMetricRecord | ProtoConfigRecord) -> dict[str, Any] | None:
    """Return a record's values, or nothing if one is a list or lacks."""
    values = {}
    for item in proto.items:
        value = item.value
        field = value.WhichOneof("value")
        if field is None or field.endswith("list"):
            return None
        values[item.key] = getattr(value, field)
    return values


def _array_record(name: str, proto: ProtoArrayRecord, arrays: _Arrays, small: bool) -> ArrayRecord:
    parts = _known_parts(proto.SerializeToString()) if small else _parts(proto)
    found: dict[str, FastArray] = {}
    for key, dtype, shape, stype, inner in parts:
        found[key] = new_array(
            FastArray,
            dtype=dtype,
            shape=shape,
            stype=stype,
            data=arrays.next_data(name, key, dtype, shape, inner),
        )
    return new_record(ArrayRecord, found)


@functools.lru_cache(_LAYOUTS)
def _known_parts(record: bytes) -> list[_Part]:
    return _parts(ProtoArrayRecord.FromString(record))


def _parts(record: ProtoArrayRecord) -> list[_Part]:
    """Return the arrays of a record: key, dtype, shape, stype, and data within the outline."""
    return [
        (item.key, value.dtype, tuple(value.shape), value.stype, value.data)
        for item in record.items
        for value in (item.value,)
    ]


class _Arrays:
    """The arrays of a message, in their order. Parameters are those of :func:`unpack`."""

    def __init__(self, packed: Packed, model: SentModel | None, max_bytes: int) -> None:
        self._arrays = iter(packed.arrays)
        self._codes = iter(packed.codes)
        self._came_apart = bool(packed.arrays)
        self._model = model
        self._left = max_bytes

    def next_data(
        self, record: str, key: str, dtype: str, shape: tuple[int, ...], inner: bytes
    ) -> bytes:
        """Return Flower's bytes of the next array; ``inner`` are those within the outline."""
        data: Buffer | None = inner
        if self._came_apart and (data or (data := next(self._arrays, None)) is None):
            raise ValueError(f"no bytes came for the array {key[:100]!r}")
        if code := next(self._codes, 0):
            found = None if self._model is None else self._model.find(record, key)
            base = None if found is None else found[0]
            restored = restore(code, data or b"", dtype, shape, base, self._left)
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


# Of a content that has no records.
_NO_RECORDS: Final = ProtoMessage(content=ProtoRecordDict()).SerializeToString()
_PARTS: Final = _fields(ProtoMessage.DESCRIPTOR)
_UNCOUNTED_BYTES: Final = 2**16  # a message of so few cannot take long
_MAX_PARTS: Final = 100_000  # of one message
_NUMBERS_A_PART: Final = 10  # numbers of a list that cost as much as a part
