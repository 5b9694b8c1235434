"""The frames of the stream between a fleet server and its clients; both ends import this.

A frame begins with a byte for its kind and the lengths of its two parts. The first part is a
header in JSON; the second, of :class:`Work` and :class:`Reply` alone, is Flower's own protobuf
message. Ids are in the header, so that neither end has to parse a model to know what a frame is
about. :mod:`.chunks` says how a large frame travels.

    client                          server
    HELLO      ------------------>             its name, and the work it has in hand
               <------------------  WELCOME    the run's settings (or REFUSED, and why)
               <------------------  WORK       a Flower message
    REPLY      ------------------>             the answer, kept until it is acknowledged
               <------------------  ACK        of a reply, if no WORK or WELCOME brings it
    AVAILABILITY ---------------->             takes work, or does not
    GOODBYE    ------------------>  or <-----  ends the connection on purpose
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, TypeAlias

from flower_scheduling.errors import WireError

PROTOCOL_VERSION: Final = 1  # of the frames: ends that differ in it do not talk to each other

SERVICE: Final = "flower.scheduling.Fleet"  # gRPC's name of the service
CONNECT: Final = "Connect"  # its method for clients, a bidirectional stream of frames
METHOD: Final = f"/{SERVICE}/{CONNECT}"
STATUS: Final = "Status"  # its method for operators: anything in, the server's state as JSON out

DEFAULT_MAX_MESSAGE_BYTES: Final = 512 * 2**20  # of one frame
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


class Refusal:
    """Why a client is refused (:attr:`Refused.code`)."""

    VERSION: Final = "version"
    NAME_IN_USE: Final = "name-in-use"
    NOT_YOUR_NAME: Final = "not-your-name"
    DENIED: Final = "denied"
    REPLACED: Final = "replaced"
    BAD_FRAME: Final = "bad-frame"
    FULL: Final = "full"


def package_version() -> str:
    """Return the installed version of this package, or ``unknown`` when run from a checkout."""
    try:
        return version("flower-client-scheduling")
    except PackageNotFoundError:
        return "unknown"


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
        Largest frame that the client takes [bytes].
    protocol : int
        The client's :data:`PROTOCOL_VERSION`.
    package : str
        The client's :func:`package_version`.
    """

    name: str
    session: str
    work: list[str] = field(default_factory=list)
    available: bool = True
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    protocol: int = PROTOCOL_VERSION
    package: str = field(default_factory=package_version)


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
        Largest frame that the server takes [bytes].
    package : str
        The server's :func:`package_version`.
    """

    node_id: int
    run_id: int
    run_config: Mapping[str, int | float | bool | str]
    acks: list[str] = field(default_factory=list)
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    package: str = field(default_factory=package_version)


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
    payload : bytes or memoryview
        ``flwr.proto.message_pb2.Message``, serialised.
    """

    message_id: str
    acks: list[str] = field(default_factory=list)
    payload: bytes | memoryview = b""


@dataclass(frozen=True, slots=True)
class Reply:
    """A client's answer to a Flower message.

    Attributes
    ----------
    message_id : str
        Id of the message that it answers.
    payload : bytes or memoryview
        ``flwr.proto.message_pb2.Message``, serialised.
    """

    message_id: str
    payload: bytes | memoryview = b""


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
class Goodbye:
    """The end of a connection on purpose; without it, a stream that ends was interrupted."""


Frame: TypeAlias = Hello | Welcome | Refused | Work | Reply | Ack | Availability | Goodbye

_KINDS: Final[dict[type, Kind]] = {
    Hello: Kind.HELLO,
    Welcome: Kind.WELCOME,
    Refused: Kind.REFUSED,
    Work: Kind.WORK,
    Reply: Kind.REPLY,
    Ack: Kind.ACK,
    Availability: Kind.AVAILABILITY,
    Goodbye: Kind.GOODBYE,
}
_FRAMES: Final = {kind: frame for frame, kind in _KINDS.items()}
_BY_NUMBER: Final = {int(kind): kind for kind in Kind}
_WITH_PAYLOAD: Final = frozenset((Kind.WORK, Kind.REPLY))
_TYPES: Final = {
    "int": int,
    "str": str,
    "bool": bool,
    "list[str]": list,
    "Mapping[str, int | float | bool | str]": dict,
}
_PAYLOAD: Final = "payload"
_IDS: Final = frozenset(("message_id", "session"))
# Looked up per frame in a busy round, so worked out once. Annotations are texts in this module.
_HEADER: Final = {
    cls: {item.name: str(item.type) for item in fields(cls) if item.name != _PAYLOAD}
    for cls in _KINDS
}
_to_json: Final = json.JSONEncoder(separators=(",", ":")).encode
_from_json: Final = json.JSONDecoder().decode
_PREFIX: Final = struct.Struct(">BIQ")  # kind, bytes of the header, bytes of the payload
_MAX_HEADER_BYTES: Final = {  # of what clients send
    Kind.HELLO: 128 * 2**10,  # room for MAX_IDS ids
    Kind.REPLY: 2**10,
    Kind.AVAILABILITY: 2**10,
    Kind.GOODBYE: 2**10,
}
_MAX_SERVER_HEADER_BYTES: Final = 2**20  # room for a run's settings
_MAX_INT: Final = 2**63 - 1

# The most that is read of a stream that has not said hello.
MAX_HELLO_BYTES: Final = _PREFIX.size + _MAX_HEADER_BYTES[Kind.HELLO]


def encode(frame: Frame, *payload: bytes | memoryview) -> bytes:
    """Return the bytes of a frame.

    Parameters
    ----------
    frame : Frame
        Any frame.
    *payload : bytes or memoryview
        Put behind the frame's own payload. Two serialised protobuf messages one after the other
        are their merger: the content that goes to many clients is serialised once, and put
        behind each one's metadata.
    """
    cls = type(frame)
    header = _to_json({name: getattr(frame, name) for name in _HEADER[cls]}).encode()
    if isinstance(frame, Work | Reply):
        payload = (frame.payload, *payload)
    prefix = _PREFIX.pack(_KINDS[cls], len(header), sum(map(len, payload)))
    return b"".join((prefix, header, *payload))


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
    if len(data) < _PREFIX.size:
        raise WireError(f"frame of {len(data)} bytes: must have {_PREFIX.size} at least")
    number, header_bytes, payload_bytes = _PREFIX.unpack_from(data)
    kind = _BY_NUMBER.get(number)
    if kind is None:
        raise WireError(f"unknown kind of frame: {number}")
    if header_bytes > _MAX_HEADER_BYTES.get(kind, _MAX_SERVER_HEADER_BYTES):
        raise WireError(f"{kind.name} frame: a header of {header_bytes} bytes is too long")
    if payload_bytes and kind not in _WITH_PAYLOAD:
        raise WireError(f"{kind.name} frame: a payload of {payload_bytes} bytes, must have none")
    return kind, header_bytes, _PREFIX.size + header_bytes + payload_bytes


def without_payload(data: bytes) -> bytes:
    """Return the frame that begins with these bytes, header included, without its payload."""
    kind, header_bytes, _ = read_prefix(data)
    return _PREFIX.pack(kind, header_bytes, 0) + data[_PREFIX.size : _PREFIX.size + header_bytes]


def decode(data: bytes) -> Frame:
    """Read a frame; the payload of :class:`Work` and :class:`Reply` is a view, not a copy.

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
    end = _PREFIX.size + header_bytes
    try:
        values = _from_json(data[_PREFIX.size : end].decode())
    except (ValueError, RecursionError):
        raise WireError(f"{kind.name} frame: its header is no JSON") from None
    if not isinstance(values, dict):
        raise WireError(f"{kind.name} frame: its header is no JSON object")
    if kind == Kind.HELLO and values.get("protocol") != PROTOCOL_VERSION:
        return _foreign_hello(values)
    return _checked(kind, values, memoryview(data)[end:])


def _checked(kind: Kind, values: Mapping[str, Any], payload: memoryview) -> Frame:
    cls = _FRAMES[kind]
    known: dict[str, Any] = {}
    for name, annotation in _HEADER[cls].items():
        if name not in values:
            raise WireError(f"{kind.name} frame: lacks {name!r}")
        value = known[name] = values[name]
        if type(value) is not _TYPES[annotation] or (
            type(value) is list and not all(type(entry) is str for entry in value)
        ):
            raise WireError(f"{kind.name} frame: {name!r} is no {annotation}")
        if isinstance(value, list):
            if len(value) > MAX_IDS:
                raise WireError(f"{kind.name} frame: {len(value)} {name!r}, {MAX_IDS} at most")
            if any(len(entry) > MAX_ID_LENGTH for entry in value):
                raise WireError(f"{kind.name} frame: {name!r} has one beyond {MAX_ID_LENGTH}")
        elif isinstance(value, str) and name in _IDS and len(value) > MAX_ID_LENGTH:
            raise WireError(f"{kind.name} frame: {name!r} is longer than {MAX_ID_LENGTH}")
    if cls is Work or cls is Reply:
        known[_PAYLOAD] = payload
    frame: Frame = cls(**known)
    if isinstance(frame, Hello):
        check_name(frame.name)
        if not 0 < frame.max_message_bytes <= _MAX_INT:
            raise WireError("HELLO frame: 'max_message_bytes' is out of range")
        if frame.package != _printable(frame.package):
            raise WireError("HELLO frame: 'package' is no version")
    return frame


def _foreign_hello(values: Mapping[str, Any]) -> Hello:
    protocol = values.get("protocol")
    return Hello(
        name=_printable(values.get("name")),
        session="",
        protocol=protocol if type(protocol) is int and 0 <= protocol <= _MAX_INT else 0,
        package=_printable(values.get("package")),
    )


def _printable(value: object) -> str:
    """Return a value of an unchecked header as it may stand in a line of the log."""
    text = str(value)[:MAX_NAME_LENGTH] if isinstance(value, str | int | float) else "?"
    return "".join(letter if letter.isprintable() else "?" for letter in text)
