"""All that is private in Flower and that we touch; no other module does (flwr 1.39 to 1.42).

Public are ``flwr.app``, ``flwr.serverapp``, ``flwr.serverapp.strategy`` and ``flwr.clientapp``.
What is taken from elsewhere in Flower may move with any minor version, and then this file follows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import flwr
from flwr import __version__
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message.message import make_message
from flwr.app.message.recorddict import _SyncedDict
from flwr.app.message.typeddict import TypedDict
from flwr.app.metadata import Metadata
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common.config import flatten_dict, parse_config_args
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import (
    config_record_from_proto,
    config_record_to_proto,
    message_from_proto,
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
from flwr.proto.recorddict_pb2 import ConfigRecord as ProtoConfigRecord
from flwr.proto.recorddict_pb2 import MetricRecord as ProtoMetricRecord
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

__all__ = [
    "FLOWER_FOLDER",
    "GRPC_FLEET",
    "SUPERLINK_NODE_ID",
    "ClientAppCallable",
    "ErrorCode",
    "FastRecordDict",
    "Mod",
    "NodeInfo",
    "ProtoArrayRecord",
    "ProtoConfigRecord",
    "ProtoMessage",
    "ProtoMetricRecord",
    "ProtoRecordDict",
    "Run",
    "array_as",
    "config_record_from_proto",
    "config_record_to_proto",
    "error_from_proto",
    "flatten_dict",
    "make_message",
    "message_from_proto",
    "message_to_proto",
    "metadata_from_proto",
    "metadata_to_proto",
    "metric_record_from_proto",
    "metric_record_to_proto",
    "new_array",
    "new_message",
    "new_record",
    "new_reply",
    "new_run",
    "only_averages",
    "parse_config_args",
    "recorddict_from_proto",
    "recorddict_to_proto",
    "set_message_id",
    "set_source",
    "take_identity",
]

GRPC_FLEET: Final = tuple(map(int, __version__.split(".")[:2])) < (1, 40)
"""Whether SuperNodes speak gRPC to a port of their own; later ones HTTP to that of all else."""
FLOWER_FOLDER: Final = os.path.join(os.path.dirname(flwr.__file__), "")
"""Where the code of Flower is that logs a line."""
_Array = TypeVar("_Array", bound=Array)
_Record = TypeVar("_Record", bound=TypedDict[Any, Any])
_Kind = TypeVar("_Kind", ArrayRecord, ConfigRecord, MetricRecord)


def new_array(
    cls: type[_Array], *, dtype: str, shape: tuple[int, ...], stype: str, data: bytes
) -> _Array:
    """Make an ``Array`` from its parts; its own constructor sorts out five signatures first."""
    array = cls.__new__(cls)
    array.__dict__.update(dtype=dtype, shape=shape, stype=stype, data=data)
    return array


def new_record(cls: type[_Record], data: dict[str, Any]) -> _Record:
    """Make a record of this dict, which it holds: its own constructor checks item by item.

    For keys and values that are known to be of the right types.
    """
    checks = _CHECKS.get(cls)
    if checks is None:
        checks = _CHECKS[cls] = cls().__dict__  # type: ignore[call-arg]  # its subclasses take none
    record = cls.__new__(cls)
    record.__dict__.update(checks, _data=data)
    return record


_CHECKS: dict[type[Any], dict[str, Any]] = {}  # what all records of a class hold alike


def new_message(metadata: Metadata, content: RecordDict) -> Message:
    """Make a message of its parts; its own constructor sorts out three signatures first."""
    message = Message.__new__(Message)
    message.__dict__.update(_metadata=metadata, _content=content, _error=None)
    return message


def new_reply(message: Message, content: RecordDict) -> Message:
    """Make the reply to a message, like ``Message(content, reply_to=message)`` but faster."""
    asked, now_s = message.metadata.__dict__, time.time()
    metadata = Metadata.__new__(Metadata)
    metadata.__dict__.update(
        asked,
        _message_id="",
        _src_node_id=asked["_dst_node_id"],
        _dst_node_id=asked["_src_node_id"],
        _src_task_id=asked["_dst_task_id"],
        _dst_task_id=asked["_src_task_id"],
        _reply_to_message_id=asked["_message_id"],
        _created_at=now_s,
        _ttl=asked["_created_at"] + asked["_ttl"] - now_s,
        _delivered_at="",
    )
    return new_message(metadata, content)


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


class FastRecordDict(RecordDict):
    """Flower's ``RecordDict``, whose views by kind are not part of a cycle.

    Each view of Flower's own refers to itself and to all records (flwr 1.42): arrays that nothing
    needs any more stay until the garbage collector comes, which may be rounds later.
    """

    @property
    def array_records(self) -> TypedDict[str, ArrayRecord]:
        """Dictionary of the ArrayRecords."""
        return self._view(ArrayRecord)

    @property
    def metric_records(self) -> TypedDict[str, MetricRecord]:
        """Dictionary of the MetricRecords."""
        return self._view(MetricRecord)

    @property
    def config_records(self) -> TypedDict[str, ConfigRecord]:
        """Dictionary of the ConfigRecords."""
        return self._view(ConfigRecord)

    def deflate(self) -> bytes:
        """Return the bytes of a plain ``RecordDict``: they name the class (flwr 1.42)."""
        return RecordDict(dict(self)).deflate()

    def __setitem__(self, key: str, value: Any) -> None:
        self.__dict__.pop("_by_kind", None)
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self.__dict__.pop("_by_kind", None)
        super().__delitem__(key)

    def _view(self, kind: type[_Kind]) -> TypedDict[str, _Kind]:
        # Kept for the next view: Flower's strategies ask for six in a round.
        by_kind = self.__dict__.setdefault("_by_kind", {})
        if kind not in by_kind:
            by_kind[kind] = {name: each for name, each in self.items() if isinstance(each, kind)}
        view: _SyncedDict[_Kind] = _SyncedDict.__new__(_SyncedDict)
        view.__dict__.update(_VIEW[kind], _data=by_kind[kind].copy(), recorddict=self)
        return view


def _require(kind: type[object], value: object) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} is no {kind.__name__}")


_VIEW: dict[type[Any], dict[str, Any]] = {  # what all views of a kind hold alike
    kind: {
        "_check_key_fn": RecordDict().__dict__["_check_key_fn"],
        "_check_value_fn": partial(_require, kind),
        "allowed_type": kind,
    }
    for kind in (ArrayRecord, ConfigRecord, MetricRecord)
}


def only_averages(aggregate_train: Callable[..., Any]) -> bool:
    """Tell whether this method of a strategy is Flower's weighted mean and nothing else.

    What is the app's own in it, such as a function for metrics, may look at the replies' arrays.
    """
    # Clients import this module, and none of that.
    from flwr.serverapp.strategy import FedAvg
    from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

    strategy = getattr(aggregate_train, "__self__", None)
    check = getattr(strategy, "_check_and_log_replies", None)
    return (
        getattr(aggregate_train, "__func__", None) is FedAvg.aggregate_train
        and getattr(check, "__func__", None) is FedAvg._check_and_log_replies
        and getattr(strategy, "train_metrics_aggr_fn", None) is aggregate_metricrecords
    )


def take_identity(run_id: int, node_id: int = SUPERLINK_NODE_ID) -> None:
    """Let the messages that this process creates be of a run and from a node."""
    TaskIdentity.run_id = run_id
    TaskIdentity.node_id = node_id
    TaskIdentity.task_id = 1


def new_run(run_id: int) -> Run:
    """Return what Flower knows of a run of which nothing but the id is known."""
    return Run.create_empty(run_id)
