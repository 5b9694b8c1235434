"""All that is private in Flower and that we touch; no other module does (flwr 1.39 to 1.42).

Public are ``flwr.app``, ``flwr.serverapp``, ``flwr.serverapp.strategy`` and ``flwr.clientapp``.
What is taken from elsewhere in Flower may move with any minor version, and then this file follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from flwr import __version__
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.message.message import make_message
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common.config import flatten_dict, parse_config_args
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import (
    config_record_from_proto,
    config_record_to_proto,
    message_to_proto,
    metric_record_from_proto,
    metric_record_to_proto,
    recorddict_from_proto,
    recorddict_to_proto,
)
from flwr.common.serde_utils import error_from_proto, metadata_from_proto, metadata_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.recorddict_pb2 import ArrayRecord as ProtoArrayRecord
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

__all__ = [
    "GRPC_FLEET",
    "SUPERLINK_NODE_ID",
    "ClientAppCallable",
    "ErrorCode",
    "Mod",
    "NodeInfo",
    "ProtoArrayRecord",
    "ProtoMessage",
    "ProtoRecordDict",
    "Run",
    "array_as",
    "config_record_from_proto",
    "config_record_to_proto",
    "error_from_proto",
    "fill",
    "flatten_dict",
    "make_message",
    "message_to_proto",
    "metadata_from_proto",
    "metadata_to_proto",
    "metric_record_from_proto",
    "metric_record_to_proto",
    "new_array",
    "new_run",
    "parse_config_args",
    "recorddict_from_proto",
    "recorddict_to_proto",
    "set_message_id",
    "set_source",
    "take_identity",
]

GRPC_FLEET: Final = tuple(map(int, __version__.split(".")[:2])) < (1, 40)
"""Whether SuperNodes speak gRPC to a port of their own; later ones HTTP to that of all else."""
_Array = TypeVar("_Array", bound=Array)


def new_array(
    cls: type[_Array], *, dtype: str, shape: tuple[int, ...], stype: str, data: bytes
) -> _Array:
    """Make an ``Array`` from its parts; its own constructor sorts out five signatures first."""
    array = cls.__new__(cls)
    array.__dict__.update(dtype=dtype, shape=shape, stype=stype, data=data)
    return array


def fill(record: RecordDict | ArrayRecord, items: Mapping[str, Any]) -> None:
    """Set items of a record whose kinds are known; Flower's checks of each take microseconds."""
    record.__dict__["_data"].update(items)


def array_as(cls: type[_Array], array: Array) -> _Array:
    """Return an array of another class that shares all that ``array`` holds."""
    other = cls.__new__(cls)
    other.__dict__.update(array.__dict__)
    return other


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message its id, as Flower's own grids do when they push it."""
    message.metadata.__dict__["_message_id"] = message_id


def set_source(message: Message, node_id: int) -> None:
    """Set the node that a message came from, whatever the message claims."""
    message.metadata.__dict__["_src_node_id"] = node_id


def take_identity(run_id: int, node_id: int = SUPERLINK_NODE_ID) -> None:
    """Let the messages that this process creates be of a run and from a node."""
    TaskIdentity.run_id = run_id
    TaskIdentity.node_id = node_id
    TaskIdentity.task_id = 1


def new_run(run_id: int) -> Run:
    """Return what Flower knows of a run of which nothing but the id is known."""
    return Run.create_empty(run_id)
