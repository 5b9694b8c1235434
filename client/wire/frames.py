"""The frames of the stream between a fleet server and its clients; both ends import this.

A frame begins with a byte that says what it is and the lengths of its two parts. The first part is
a header in JSON; the second, of :class:`Work` and :class:`Reply` alone, is Flower's own protobuf
message. Ids are in the header, so that neither end has to parse a model to know what it is about.

A frame travels as one message of the gRPC stream, or as several if it is large: pieces of
:data:`PIECE_BYTES` each, the last one excepted. Signs of life wait behind what is being sent:
behind a whole model they would be late on a slow link, and a client that is only slow would be
taken for dead. Smaller pieces, or none for a minute, are not slow but a waste of memory: refused.

    client                          server
    HELLO      ------------------>             who I am, what work I have in hand
               <------------------  WELCOME    the run's settings (or REFUSED, and why)
               <------------------  WORK       a Flower message
    REPLY      ------------------>             its answer, kept until it is acknowledged
               <------------------  ACK        by this, or by the next WORK or WELCOME
    AVAILABILITY ---------------->             takes work, or does not
    GOODBYE    ------------------>  or <-----  leaves on purpose
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, TypeAlias

from flower_scheduling.errors import WireError

PROTOCOL_VERSION: Final = 1
"""Version of the frames. Ends that differ in it do not talk to each other."""

SERVICE: Final = "flower.scheduling.Fleet"
"""Name of the gRPC service."""
CONNECT: Final = "Connect"
"""Name of its method for clients, a bidirectional stream of frames."""
METHOD: Final = f"/{SERVICE}/{CONNECT}"
"""Full name of that method."""
STATUS: Final = "Status"
"""Name of its method for operators: anything in, the server's state as JSON out."""

DEFAULT_MAX_MESSAGE_BYTES: Final = 512 * 2**20
"""Largest frame by default [bytes]."""
PIECE_BYTES: Final = 64 * 2**10
"""Largest message of the gRPC stream [bytes]: half a second on a link of 1 Mbit/s."""
PIECE_TIMEOUT_S: Final = 60.0
"""Longest wait for the next piece of a frame, and for the other end to take one [s]."""
DEFAULT_KEEPALIVE_S: Final = 5.0
"""Pause between two signs of life [s]; twice as long is waited for an answer."""
MAX_NAME_LENGTH: Final = 64
"""Longest name of a client [characters]."""
MAX_ID_LENGTH: Final = 64
"""Longest id of a message or session [characters]."""
MAX_IDS: Final = 1024
"""Most ids in one frame: what a client can have in hand, or a server acknowledge at once."""


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
    """Refuse what cannot be a client's name.

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
        Its name, 1 to 64 printable characters.
    session : str
        Random, kept as long as its process lives: tells a reconnect from a namesake.
    work : list of str
        Ids of the messages that it works on, or whose replies were not acknowledged; at most
        :data:`MAX_IDS`.
    available : bool
        Whether it takes work at present.
    max_message_bytes : int
        Largest frame that it takes [bytes].
    protocol : int
        Its :data:`PROTOCOL_VERSION`.
    package : str
        Its :func:`package_version`.
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
    """The server's answer: the run as the ClientApp's context shows it.

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
        Its :func:`package_version`.
    """

    node_id: int
    run_id: int
    run_config: Mapping[str, int | float | bool | str]
    acks: list[str] = field(default_factory=list)
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    package: str = field(default_factory=package_version)


@dataclass(frozen=True, slots=True)
class Refused:
    """The server's answer to a client it does not take, and its last frame.

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
        Its id, unique over servers and their restarts.
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
    """A client's answer.

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
    """The client may forget its replies to these messages: they are here, or nobody waits.

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
    """Whoever sends this leaves on purpose; without it, the end of a stream is an accident."""


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
_MAX_HEADER_BYTES: Final = {
    Kind.HELLO: 128 * 2**10,  # room for MAX_IDS ids
    Kind.REPLY: 2**10,
    Kind.AVAILABILITY: 2**10,
    Kind.GOODBYE: 2**10,
}
"""What clients may send; a server's headers carry a run's settings."""
_MAX_SERVER_HEADER_BYTES: Final = 2**20
_MAX_INT: Final = 2**63 - 1

MAX_HELLO_BYTES: Final = _PREFIX.size + _MAX_HEADER_BYTES[Kind.HELLO]
"""Largest hello [bytes]: all that is read from whoever has not said one yet."""


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


def pieces(data: bytes) -> Iterator[bytes]:
    """Cut a frame's bytes into what is sent at a time."""
    if len(data) <= PIECE_BYTES:
        yield data
        return
    for begin in range(0, len(data), PIECE_BYTES):
        yield data[begin : begin + PIECE_BYTES]


async def read_frame(
    read: Callable[[], Awaitable[bytes | None]],
    max_message_bytes: int,
    piece_timeout_s: float = PIECE_TIMEOUT_S,
    is_wanted: Callable[[str], bool] = lambda message_id: True,
) -> bytes | None:
    """Return the bytes of the next frame, its pieces joined.

    Never are more bytes kept than have come, and never more than one frame's.

    Parameters
    ----------
    read : coroutine function
        Returns the next message of the stream, or nothing at its end.
    max_message_bytes : int
        Largest frame [bytes].
    piece_timeout_s : float
        Longest wait for the next piece of a frame that has begun [s].
    is_wanted : callable
        Tells whether anybody waits for the reply to a message of this id. The payload of one that
        is not, if it comes in pieces, is thrown away as it comes.

    Returns
    -------
    bytes or None
        For :func:`decode`; nothing if the stream ended.

    Raises
    ------
    WireError
        If a frame is larger, stops halfway or comes in crumbs, or no frame begins here.
    """
    data = await read()
    if data is None:
        return None
    kind, header_bytes, length = _prefix(data)
    if length > max_message_bytes:
        raise WireError(f"frame of {length} bytes: must have {max_message_bytes} at most")
    if len(data) >= length:
        return data
    head: bytes | None = None  # of a frame whose payload nobody wants
    if kind is Kind.REPLY and len(data) >= PIECE_BYTES:  # its header is here in any case
        end = _PREFIX.size + header_bytes
        head = _PREFIX.pack(kind, header_bytes, 0) + data[_PREFIX.size : end]
        reply = decode(head)
        if isinstance(reply, Reply) and is_wanted(reply.message_id):
            head = None
    parts, missing = [data], length - len(data)
    while missing > 0:
        # Crumbs would take many times their size, and empty ones would never make a frame.
        if len(data) < PIECE_BYTES:
            raise WireError(
                f"{kind.name} frame: a piece of {len(data)} bytes, must have {PIECE_BYTES}"
            )
        try:
            async with asyncio.timeout(piece_timeout_s):
                data = await read()
        except TimeoutError:
            raise WireError(
                f"{kind.name} frame: {missing} bytes are missing, and none came for "
                f"{piece_timeout_s:.0f} s"
            ) from None
        if data is None:
            return None
        missing -= len(data)
        if head is None:
            parts.append(data)
    return head or b"".join(parts)


def _prefix(data: bytes) -> tuple[Kind, int, int]:
    """Return a frame's kind, the bytes of its header and all its bytes."""
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


def decode(data: bytes) -> Frame:
    """Read a frame; the payload of :class:`Work` and :class:`Reply` is a view, not a copy.

    A :class:`Hello` of another protocol version is returned with what could be read of it, so
    that its sender can be told.

    Raises
    ------
    WireError
        If the bytes are no frame.
    """
    kind, header_bytes, length = _prefix(data)
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
    """Return what may go into a line of the log of something that a stranger says."""
    text = str(value)[:MAX_NAME_LENGTH] if isinstance(value, str | int | float) else "?"
    return "".join(letter if letter.isprintable() else "?" for letter in text)


# --- gRPC settings --------------------------------------------------------------------------------

Options: TypeAlias = list[tuple[str, int | str]]
"""Channel or server arguments of gRPC."""


def channel_options(keepalive_s: float = DEFAULT_KEEPALIVE_S) -> Options:
    """Return gRPC's channel options for a client.

    Parameters
    ----------
    keepalive_s : float
        Pause between two signs of life [s]; a dead peer shows within three times as long.
    """
    return [
        *_common_options(keepalive_s),
        # A connection of its own: gRPC would share one, and its pauses between attempts, among
        # all clients of a process.
        ("grpc.use_local_subchannel_pool", 1),
        # A connection attempt into the void takes 20 s by default.
        ("grpc.min_reconnect_backoff_ms", 10_000),
    ]


def server_options(keepalive_s: float = DEFAULT_KEEPALIVE_S) -> Options:
    """Return gRPC's server options; parameters as for :func:`channel_options`."""
    return [
        *_common_options(keepalive_s),
        ("grpc.so_reuseport", 0),  # else a second server on the same port gets half of the clients
        # Nothing larger is sent, and gRPC keeps a message of every stream until it is read; it
        # holds for what a compressed message unfolds to as well (grpcio 1.85).
        ("grpc.max_receive_message_length", PIECE_BYTES),
        # A client has one stream per connection. Whoever connects and opens none is sent away.
        ("grpc.max_concurrent_streams", 16),
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.max_connection_idle_ms", 60_000),
        # The server would take its clients' pings for an attack and close the connection.
        ("grpc.http2.min_ping_interval_without_data_ms", _ms(keepalive_s) // 2),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def _common_options(keepalive_s: float) -> Options:
    return [
        ("grpc.keepalive_time_ms", _ms(keepalive_s)),
        ("grpc.keepalive_timeout_ms", _ms(2 * keepalive_s)),
        # Without it a dead peer is noticed after 62 s, whatever the two above say (grpcio 1.85).
        ("grpc.http2.ping_timeout_ms", _ms(2 * keepalive_s)),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


def _ms(seconds: float) -> int:
    return max(1, round(1000 * seconds))
