"""The frames of the stream between a fleet server and its clients; both ends import this.

A frame begins with a byte for its kind and the lengths of its two parts. The first part is a
header in JSON; the second, of :class:`Work` and :class:`Reply` alone, is a Flower message
(:class:`Packed`): a table of lengths, Flower's protobuf without the bytes of its arrays, and the
bytes of each array. Ids are in the header, so that neither end has to parse a model to know what a
frame is about, and arrays are neither copied nor parsed on their way. :mod:`.chunks` says how a
large frame travels.

    client                          server
    HELLO      ------------------>             its name, and the work it has in hand
               <------------------  WELCOME    the run's settings (or REFUSED, and why)
               <------------------  WORK       a Flower message
    REPLY      ------------------>             the answer, kept until it is acknowledged
               <------------------  ACK        of a reply, if no WORK or WELCOME brings it
    AVAILABILITY ---------------->             takes work, or does not
    PROGRESS   ------------------>  or <-----  of a large frame, which goes on
    GOODBYE    ------------------>  or <-----  ends the connection on purpose
"""

from __future__ import annotations

import functools
import itertools
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from importlib.metadata import PackageNotFoundError, version
from json.encoder import encode_basestring_ascii as quote
from typing import Any, Final, TypeAlias

from flower_scheduling.errors import WireError

PROTOCOL_VERSION: Final = 2  # of the frames: ends that differ in it do not talk to each other

SERVICE: Final = "flower.scheduling.Fleet"  # gRPC's name of the service
CONNECT: Final = "Connect"  # its method for clients, a bidirectional stream of frames
METHOD: Final = f"/{SERVICE}/{CONNECT}"
STATUS: Final = "Status"  # its method for operators: anything in, the server's state as JSON out

NO_LIMIT: Final = 2**63 - 1  # bytes of a message
MEGABYTE: Final = 10**6  # bytes: the MB of settings, logs and records
MAX_ARRAYS: Final = 100_000  # of one message
MAX_NAME_LENGTH: Final = 64  # characters of a client's name
MAX_ID_LENGTH: Final = 64  # characters of a message's or session's id
MAX_IDS: Final = 1024  # in one frame: a client's work in hand, or a server's acknowledgements


class Kind(IntEnum):
    """First byte of a frame."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    WORK = 4
    REPLY = 5
    ACK = 6
    AVAILABILITY = 7
    GOODBYE = 8
    PROGRESS = 9


class Refusal:
    """Why a client is refused (:attr:`Refused.code`)."""

    VERSION: Final = "version"
    NAME_IN_USE: Final = "name-in-use"
    NOT_YOUR_NAME: Final = "not-your-name"
    DENIED: Final = "denied"
    REPLACED: Final = "replaced"
    BAD_FRAME: Final = "bad-frame"
    FULL: Final = "full"


@functools.cache  # asked for every hello and welcome
def package_version() -> str:
    """Return the installed version of this package, or ``unknown`` when run from a checkout."""
    try:
        return version("flower-client-scheduling")
    except PackageNotFoundError:
        return "unknown"


def megabytes(size: int) -> str:
    """Return a number of bytes in megabytes, millions of bytes, as text."""
    return f"{size / MEGABYTE:.4g}"


def check_name(name: str) -> None:
    """Refuse a text that cannot be a client's name.

    Raises
    ------
    WireError
        If it is empty, too long, not printable, or begins or ends with a space.
    """
    if not (0 < len(name) <= MAX_NAME_LENGTH and name.isprintable() and name == name.strip()):
        raise WireError(
            f"client name {name[:MAX_NAME_LENGTH]!r}: must have 1 to {MAX_NAME_LENGTH} printable "
            "characters, none of them a space at either end"
        )


# --- frames ---------------------------------------------------------------------------------------

Buffer: TypeAlias = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Packed:
    """A Flower message on its way (:mod:`.packing`).

    Attributes
    ----------
    outline : bytes or memoryview
        ``flwr.proto.message_pb2.Message``, serialised, whose arrays lack their data.
    arrays : tuple of bytes or memoryview
        The data of each array, in their order in the outline. If there are none, the outline is
        the whole message.
    codes : bytes
        How each array is encoded (:mod:`.compression`); empty if none is.
    saved : int
        How many bytes its sender has saved by encoding [bytes].
    """

    outline: Buffer = b""
    arrays: tuple[Buffer, ...] = ()
    codes: bytes = b""
    saved: int = field(default=0, compare=False)

    def __len__(self) -> int:
        """Return the number of bytes."""
        return len(self.outline) + sum(map(len, self.arrays))


@dataclass(frozen=True, slots=True)
class Hello:
    """A client's first frame.

    Attributes
    ----------
    name : str
        The client's name, 1 to 64 printable characters.
    session : str
        Random, kept as long as the client's process lives: tells a reconnect from a namesake.
    work : list of str
        Ids of the messages that the client works on, or whose replies were not acknowledged; at
        most :data:`MAX_IDS`.
    available : bool
        Whether the client takes work at present.
    max_message_bytes : int
        Largest message that the client takes [bytes].
    protocol : int
        The client's :data:`PROTOCOL_VERSION`.
    package : str
        The client's :func:`package_version`.
    codecs : list of str
        Kinds of compression that it can do (:func:`.known_kinds`).
    """

    name: str
    session: str
    work: list[str] = field(default_factory=list)
    available: bool = True
    max_message_bytes: int = NO_LIMIT
    protocol: int = PROTOCOL_VERSION
    package: str = field(default_factory=package_version)
    codecs: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The server's answer to a hello: the run as the ClientApp's context shows it.

    Attributes
    ----------
    node_id : int
        The client's Flower node id.
    run_id : int
        Flower's run id.
    run_config : mapping
        Flower's run configuration: int, float, bool or str by key.
    acks : list of str
        Acknowledges the replies to these messages, as :class:`Ack` does.
    max_message_bytes : int
        Largest message that the server takes, whatever it sent [bytes].
    package : str
        The server's :func:`package_version`.
    compress : str
        The kind of compression that it wants of replies; empty for none.
    """

    node_id: int
    run_id: int
    run_config: Mapping[str, int | float | bool | str]
    acks: list[str] = field(default_factory=list)
    max_message_bytes: int = NO_LIMIT
    package: str = field(default_factory=package_version)
    compress: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The server's last frame to a client that it does not serve, or no longer.

    Attributes
    ----------
    code : str
        One of :class:`Refusal`.
    reason : str
        One line for the user.
    """

    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Work:
    """A Flower message for the client.

    Attributes
    ----------
    message_id : str
        The message's id, unique over servers and their restarts.
    acks : list of str
        Acknowledges the replies to these messages, as :class:`Ack` does.
    max_reply_bytes : int
        Largest reply that the server takes [bytes].
    payload : Packed
        The message.
    """

    message_id: str
    acks: list[str] = field(default_factory=list)
    max_reply_bytes: int = NO_LIMIT
    payload: Packed = Packed()


@dataclass(frozen=True, slots=True)
class Reply:
    """A client's answer to a Flower message.

    Attributes
    ----------
    message_id : str
        Id of the message that it answers.
    payload : Packed
        The answer; empty if it was given up.
    """

    message_id: str
    payload: Packed = Packed()


@dataclass(frozen=True, slots=True)
class Ack:
    """The server has taken note of the replies to these messages: the client may forget them.

    Attributes
    ----------
    acks : list of str
        Ids of the messages.
    """

    acks: list[str]


@dataclass(frozen=True, slots=True)
class Availability:
    """The client takes work from now on, or does not."""

    available: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """Chunks of a large frame have come whose acknowledgement was asked for.

    Attributes
    ----------
    chunks : int
        Their number since the last such frame.
    """

    chunks: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The end of a connection on purpose; without it, a stream that ends was interrupted."""


Frame: TypeAlias = (
    Hello | Welcome | Refused | Work | Reply | Ack | Availability | Progress | Goodbye
)

_KINDS: Final[dict[type, Kind]] = {
    Hello: Kind.HELLO,
    Welcome: Kind.WELCOME,
    Refused: Kind.REFUSED,
    Work: Kind.WORK,
    Reply: Kind.REPLY,
    Ack: Kind.ACK,
    Availability: Kind.AVAILABILITY,
    Goodbye: Kind.GOODBYE,
    Progress: Kind.PROGRESS,
}
_FRAMES: Final = {kind: frame for frame, kind in _KINDS.items()}
_BY_NUMBER: Final = {int(kind): kind for kind in Kind}
WITH_PAYLOAD: Final = frozenset((Kind.WORK, Kind.REPLY))
"""Kinds of frames that carry a message."""
_TYPES: Final = {
    "int": int,
    "str": str,
    "bool": bool,
    "list[str]": list,
    "Mapping[str, int | float | bool | str]": dict,
}
_STRINGS: Final = frozenset((str,))
_PAYLOAD: Final = "payload"
_IDS: Final = frozenset(("message_id", "session"))
_LIMITS: Final = frozenset(("max_message_bytes", "max_reply_bytes", "chunks"))
_OPTIONAL: Final = frozenset(("codecs", "compress"))  # ends that do not compress do not know them
# Looked up per frame in a busy round, so worked out once. Annotations are texts in this module.
_HEADER: Final = {
    cls: {item.name: str(item.type) for item in fields(cls) if item.name != _PAYLOAD}
    for cls in _KINDS
}
_to_json: Final = json.JSONEncoder(separators=(",", ":")).encode
_from_json: Final = json.JSONDecoder().decode
_PREFIX: Final = struct.Struct(">BIQ")  # kind, bytes of the header, bytes of the payload
PREFIX_BYTES: Final = _PREFIX.size
_COUNTS: Final = struct.Struct(">II")  # of a payload: number of arrays, bytes of the outline
COUNTS_BYTES: Final = _COUNTS.size
SIZE_BYTES: Final = 8  # of code and length of an array, behind the counts
_CODE_BIT: Final = 56  # from here on it is the code
_LARGEST_CODE: Final = 0x3F  # of those that :mod:`.compression` knows
_MAX_HEADER_BYTES: Final = {  # of what clients send
    Kind.HELLO: 128 * 2**10,  # room for MAX_IDS ids
    Kind.REPLY: 2**10,
    Kind.AVAILABILITY: 2**10,
    Kind.GOODBYE: 2**10,
    Kind.PROGRESS: 2**10,
}
_MAX_SERVER_HEADER_BYTES: Final = 2**20  # room for a run's settings

# The most that is read of a stream that has not said hello.
MAX_HELLO_BYTES: Final = PREFIX_BYTES + _MAX_HEADER_BYTES[Kind.HELLO]


def encode(frame: Frame) -> bytes:
    """Return the bytes of a frame."""
    return b"".join(buffers(frame))


def buffers(frame: Frame) -> tuple[Buffer, ...]:
    """Return the bytes of a frame in parts: all but the arrays, then each array as it is."""
    cls = type(frame)
    values = [f'"{name}":{_json(getattr(frame, name))}' for name in _HEADER[cls]]
    header = f"{{{','.join(values)}}}".encode()
    parts: tuple[Buffer, ...] = ()
    arrays: tuple[Buffer, ...] = ()
    if isinstance(frame, Work | Reply) and (frame.payload.outline or frame.payload.arrays):
        outline, arrays = frame.payload.outline, frame.payload.arrays
        table: Iterable[int] = map(len, arrays)
        if codes := frame.payload.codes:
            pairs = zip(table, codes, strict=True)
            table = (size | code << _CODE_BIT for size, code in pairs)
        sizes = struct.pack(f">{len(arrays)}Q", *table)
        parts = (_COUNTS.pack(len(arrays), len(outline)), sizes, outline)
    size = sum(map(len, parts)) + sum(map(len, arrays))
    prefix = _PREFIX.pack(_KINDS[cls], len(header), size)
    return (b"".join((prefix, header, *parts)), *arrays)


def _json(value: Any) -> str:
    """Return a value of a header in JSON.

    Python's encoder makes itself anew for each header, which takes longer than all else about a
    small frame.
    """
    if type(value) is str:
        return quote(value)
    if type(value) is int:
        return str(value)
    if type(value) is list:
        return f"[{','.join(map(quote, value))}]"
    return _to_json(value)


def read_prefix(data: bytes) -> tuple[Kind, int, int]:
    """Return a frame's kind, the bytes of its header and all its bytes.

    Parameters
    ----------
    data : bytes
        The frame or its beginning.

    Raises
    ------
    WireError
        If no frame begins so.
    """
    if len(data) < PREFIX_BYTES:
        raise WireError(f"frame of {len(data)} bytes: must have {PREFIX_BYTES} at least")
    number, header_bytes, payload_bytes = _PREFIX.unpack_from(data)
    kind = _BY_NUMBER.get(number)
    if kind is None:
        raise WireError(f"unknown kind of frame: {number}")
    if header_bytes > _MAX_HEADER_BYTES.get(kind, _MAX_SERVER_HEADER_BYTES):
        raise WireError(f"{kind.name} frame: a header of {header_bytes} bytes is too long")
    if payload_bytes and kind not in WITH_PAYLOAD:
        raise WireError(f"{kind.name} frame: a payload of {payload_bytes} bytes, must have none")
    return kind, header_bytes, PREFIX_BYTES + header_bytes + payload_bytes


def read_counts(counts: Buffer, payload_bytes: int) -> tuple[int, int]:
    """Return the number of arrays, and the bytes of the outline, from the payload's first bytes.

    Raises
    ------
    WireError
        If no payload of so many bytes begins so.
    """
    if len(counts) < COUNTS_BYTES:
        raise WireError(f"a payload of {len(counts)} bytes is no message")
    num_arrays, outline_bytes = _COUNTS.unpack_from(counts)
    if num_arrays > MAX_ARRAYS:
        raise WireError(f"a message of {num_arrays} arrays, {MAX_ARRAYS} at most")
    if COUNTS_BYTES + SIZE_BYTES * num_arrays + outline_bytes > payload_bytes:
        raise WireError(f"a payload of {payload_bytes} bytes is no message")
    return num_arrays, outline_bytes


def read_sizes(sizes: Buffer, arrays_bytes: int) -> tuple[tuple[int, ...], bytes]:
    """Return the bytes of each array, and their codes if one has any, from the table of them.

    Raises
    ------
    WireError
        If they are not ``arrays_bytes`` together.
    """
    each = struct.unpack(f">{len(sizes) // SIZE_BYTES}Q", sizes)
    codes = b""
    if 0 < max(each, default=0) >> _CODE_BIT <= _LARGEST_CODE:
        codes = bytes(size >> _CODE_BIT for size in each)
        each = tuple(size & ((1 << _CODE_BIT) - 1) for size in each)
    if sum(each) != arrays_bytes:
        raise WireError(f"arrays of {arrays_bytes} bytes, {sum(each)} promised")
    return each, codes


def decode(data: bytes) -> Frame:
    """Read a whole frame; the payload of :class:`Work` and :class:`Reply` has views, not copies.

    A :class:`Hello` of another protocol version is returned with what could be read of it, so
    that it can be answered.

    Raises
    ------
    WireError
        If the bytes are no frame.
    """
    kind, header_bytes, length = read_prefix(data)
    if length != len(data):
        raise WireError(f"{kind.name} frame: has {len(data)} bytes, not {length}")
    end = PREFIX_BYTES + header_bytes
    return decode_header(kind, data[PREFIX_BYTES:end], _packed(memoryview(data)[end:]))


def decode_header(kind: Kind, header: bytes, payload: Packed = Packed()) -> Frame:
    """Read a frame of which the payload was read already.

    Raises
    ------
    WireError
        If the bytes are no header of such a frame.
    """
    try:
        values = _from_json(header.decode())
    except (ValueError, RecursionError):
        raise WireError(f"{kind.name} frame: its header is no JSON") from None
    if not isinstance(values, dict):
        raise WireError(f"{kind.name} frame: its header is no JSON object")
    if kind == Kind.HELLO and values.get("protocol") != PROTOCOL_VERSION:
        return _foreign_hello(values)
    return _checked(kind, values, payload)


def _packed(payload: memoryview) -> Packed:
    if not payload:
        return Packed()
    num_arrays, outline_bytes = read_counts(payload, len(payload))
    start = COUNTS_BYTES + SIZE_BYTES * num_arrays
    end = start + outline_bytes
    sizes, codes = read_sizes(payload[COUNTS_BYTES:start], len(payload) - end)
    edges = itertools.accumulate(sizes, initial=end)
    arrays = tuple(payload[a:b] for a, b in itertools.pairwise(edges))
    return Packed(payload[start:end], arrays, codes)


def _checked(kind: Kind, values: Mapping[str, Any], payload: Packed) -> Frame:
    cls = _FRAMES[kind]
    known: dict[str, Any] = {}
    for name, annotation in _HEADER[cls].items():
        if name not in values:
            if name in _OPTIONAL:
                continue
            raise WireError(f"{kind.name} frame: lacks {name!r}")
        value = known[name] = values[name]
        if (found := type(value)) is not _TYPES[annotation]:
            raise WireError(f"{kind.name} frame: {name!r} is no {annotation}")
        if found is list:
            if not _STRINGS.issuperset(map(type, value)):
                raise WireError(f"{kind.name} frame: {name!r} is no {annotation}")
            if len(value) > MAX_IDS:
                raise WireError(f"{kind.name} frame: {len(value)} {name!r}, {MAX_IDS} at most")
            if max(map(len, value), default=0) > MAX_ID_LENGTH:
                raise WireError(f"{kind.name} frame: {name!r} has one beyond {MAX_ID_LENGTH}")
        elif name in _IDS and len(value) > MAX_ID_LENGTH:
            raise WireError(f"{kind.name} frame: {name!r} is longer than {MAX_ID_LENGTH}")
        elif name in _LIMITS and not 0 < value <= NO_LIMIT:
            raise WireError(f"{kind.name} frame: {name!r} is out of range")
    if cls is Work or cls is Reply:
        known[_PAYLOAD] = payload
    frame: Frame = cls(**known)
    if isinstance(frame, Hello):
        check_name(frame.name)
        if frame.package != _printable(frame.package):
            raise WireError("HELLO frame: 'package' is no version")
    return frame


def _foreign_hello(values: Mapping[str, Any]) -> Hello:
    protocol = values.get("protocol")
    return Hello(
        name=_printable(values.get("name")),
        session="",
        protocol=protocol if type(protocol) is int and 0 <= protocol <= NO_LIMIT else 0,
        package=_printable(values.get("package")),
    )


def _printable(value: object) -> str:
    """Return a value of an unchecked header as it may stand in a line of the log."""
    text = str(value)[:MAX_NAME_LENGTH] if isinstance(value, str | int | float) else "?"
    return "".join(letter if letter.isprintable() else "?" for letter in text)
