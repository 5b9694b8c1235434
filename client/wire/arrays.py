"""Fast conversion between numpy arrays, Flower's ``Array`` and serialised messages.

``Array`` holds the bytes of an ``.npy`` file. Writing and parsing its header takes numpy about
20 us per array, a fifth of a small client's whole round, though all messages of a model carry
the same few headers. They are cached here; the bytes on the wire stay exactly Flower's.
"""

from __future__ import annotations

import functools
import io
import math
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from numpy.typing import NDArray

from flower_scheduling._flwr import (
    ProtoArrayRecord,
    ProtoMessage,
    array_as,
    config_record_from_proto,
    error_from_proto,
    make_message,
    metadata_from_proto,
    metric_record_from_proto,
    new_array,
)

__all__ = ["FastArray", "decode_array", "encode_array", "fast_record", "read_message"]

AnyArray: TypeAlias = NDArray[Any]
_Fields: TypeAlias = dict[int, "_Fields | int"]

_STYPE: Final = "numpy.ndarray"  # Flower's name for .npy content
_MAGIC: Final = b"\x93NUMPY\x01\x00"  # of .npy 1.0, which numpy writes for plain dtypes


class FastArray(Array):
    """Flower's ``Array``, decoded without parsing its header again."""

    @classmethod
    def of(cls, array: Array) -> FastArray:
        """Return an array like this one that shares its bytes."""
        if isinstance(array, FastArray):
            return array
        return array_as(cls, array)

    def deflate(self) -> bytes:
        """Return the bytes of a plain ``Array``.

        They name the class (flwr 1.42), and a SuperLink refuses objects of unknown classes.
        """
        self.slice_array()  # cached in this object, so that no chunk is hashed twice
        return array_as(Array, self).deflate()

    def numpy(self) -> NDArray[Any]:
        """Return a copy that the caller may change, like Flower's method."""
        return decode_array(self).copy()


def fast_record(record: ArrayRecord) -> ArrayRecord:
    """Return a copy of a record whose arrays are fast to decode.

    Both share the arrays' bytes, which cannot change.
    """
    copy = record.copy()
    for key, array in record.items():
        if not isinstance(array, FastArray):
            copy[key] = FastArray.of(array)
    return copy


def read_message(data: bytes | memoryview) -> Message:
    """Read a serialised message, like Flower's ``message_from_proto`` but faster.

    Flower makes every array twice, each time through a constructor with five signatures: three
    quarters of the time that a small model's message takes.

    Parameters
    ----------
    data : bytes or memoryview
        ``flwr.proto.message_pb2.Message``, serialised.

    Raises
    ------
    Exception
        If the bytes are no message, or one of too many parts; of any kind that protobuf and Flower
        raise.
    """
    if len(data) > _UNCOUNTED_BYTES:
        _count(memoryview(data), 0, len(data), _PARTS, _MAX_PARTS)
    proto = ProtoMessage.FromString(data)
    content = None
    if proto.HasField("content"):
        content = RecordDict()
        for item in proto.content.items:
            if item.HasField("array_record"):
                content[item.key] = _array_record(item.array_record)
            elif item.HasField("metric_record"):
                content[item.key] = metric_record_from_proto(item.metric_record)
            elif item.HasField("config_record"):
                content[item.key] = config_record_from_proto(item.config_record)
            else:
                raise ValueError(f"record {item.key!r} is of no known kind")
    error = error_from_proto(proto.error) if proto.HasField("error") else None
    return make_message(metadata_from_proto(proto.metadata), content, error)


def _array_record(proto: ProtoArrayRecord) -> ArrayRecord:
    record = ArrayRecord()
    for item in proto.items:
        value = item.value
        record[item.key] = new_array(
            FastArray,
            dtype=value.dtype,
            shape=tuple(value.shape),
            stype=value.stype,
            data=value.data,
        )
    return record


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


def encode_array(values: AnyArray) -> FastArray:
    """Convert an array to Flower's ``Array``, like ``Array(values)`` but faster.

    Parameters
    ----------
    values : (...) array of a plain dtype
        Copied, so that it may change afterwards.

    Returns
    -------
    Array
        In C order, whatever the order of ``values``.
    """
    header, dtype = _header(values.dtype, values.shape)
    data = header + values.tobytes()
    return new_array(FastArray, dtype=dtype, shape=values.shape, stype=_STYPE, data=data)


def decode_array(array: Array) -> AnyArray:
    """Convert Flower's ``Array`` to numpy, like ``array.numpy()`` but faster and without a copy.

    ``array.numpy()`` parses the header every time, which takes 20 us, and allocates what a hostile
    header claims. Headers repeat, so their parsed form is cached, and the size is checked against
    the bytes that are there.

    Parameters
    ----------
    array : Array
        As numpy writes it (npy format 1.0).

    Returns
    -------
    (...) array
        A read-only view of the message's bytes.

    Raises
    ------
    ValueError
        If the bytes are not those of exactly one plain array.
    """
    data = array.data
    if array.stype != _STYPE or data[:8] != _MAGIC:
        raise ValueError("not an array in npy format 1.0")
    start = 10 + int.from_bytes(data[8:10], "little")
    dtype, shape, order = _layout(data[:start])
    size = math.prod(shape) * dtype.itemsize
    if len(data) - start != size:
        raise ValueError(f"the header promises {size} bytes, there are {len(data) - start}")
    return np.frombuffer(data, dtype, offset=start).reshape(shape, order=order)


@functools.lru_cache(maxsize=1024)
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[bytes, str]:
    """Return the start of the file, and the dtype's name."""
    stream = io.BytesIO()
    description = np.lib.format.dtype_to_descr(dtype)
    fields = {"descr": description, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue(), str(dtype)


@functools.lru_cache(maxsize=1024)
def _layout(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], Literal["C", "F"]]:
    """Parse a header."""
    stream = io.BytesIO(header[8:])
    try:
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
    except Exception:  # numpy lets errors of Python's tokenizer and parser through
        raise ValueError("the header cannot be read") from None
    if dtype.hasobject:
        raise ValueError("arrays of Python objects are refused")
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"its shape cannot be {shape}")  # True counts as 1, but not to numpy
    return dtype, shape, "F" if fortran_order else "C"
