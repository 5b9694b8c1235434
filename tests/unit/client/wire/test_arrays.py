"""Messages and arrays off the wire: what would unfold, or lies about its size, is refused."""

from __future__ import annotations

import time

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from hostile import peak_mb, proto_field

from flower_scheduling.client.wire.arrays import decode_array, read_message
from flower_scheduling.strategies.flower.replies import (
    error_text,
)

EMPTY = b"\x0a\x00" * 2**20
BOMBS = {
    "records": proto_field(2, EMPTY),
    "arrays": proto_field(2, proto_field(1, proto_field(2, EMPTY))),
    "shape": proto_field(
        2,
        proto_field(
            1, proto_field(2, proto_field(1, proto_field(2, proto_field(2, b"\x01" * 2**20))))
        ),
    ),
    "metrics": proto_field(2, proto_field(1, proto_field(3, EMPTY))),
    "list": proto_field(
        2,
        proto_field(
            1,
            proto_field(
                3, proto_field(1, proto_field(2, proto_field(22, proto_field(1, b"\1" * 2**20))))
            ),
        ),
    ),
    "truncated": proto_field(2, EMPTY)[:-1],
    "endless number": b"\xff" * 2**17,
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_message_that_would_unfold_is_refused_in_time_and_memory(bomb: str) -> None:
    before, begin = peak_mb(), time.thread_time()
    with pytest.raises(ValueError, match=r"parts|protobuf"):
        read_message(BOMBS[bomb])
    assert time.thread_time() - begin < 1.0
    assert peak_mb() - before < 10


def test_honest_message_of_many_parts_is_read() -> None:
    arrays = ArrayRecord({f"layer-{i}": Array(np.zeros(100, "f4")) for i in range(3000)})
    metrics = MetricRecord({"losses": [0.5] * 50_000, "counts": [1] * 50_000})
    content = RecordDict({"arrays": arrays, "metrics": metrics})
    metadata = Metadata(1, "m", 1, 7, "", "", 0.0, 60.0, "train")
    data = message_to_proto(make_message(metadata, content)).SerializeToString()
    again = read_message(data)
    assert list(again.content["arrays"]) == list(arrays)
    assert again.content["metrics"] == metrics


@pytest.mark.parametrize("deep", [b"\x0b" * 100_000, b"\x12\x80\x80\x04" * 500])
def test_deep_nesting_is_refused(deep: bytes) -> None:
    with pytest.raises(Exception, match=r"."):
        read_message(deep)


def npy(header: str, data: bytes = b"") -> Array:
    text = header.encode("latin1") + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data
    return Array("float32", (2,), "numpy.ndarray", content)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr':'<f4','fortran_order':False,'shape':(True,)}",
        "{'descr':'<f4','fortran_order':False,'shape':(-1,-1)}",
        f"{{'descr':'<f4','fortran_order':False,'shape':(0,{10**30})}}",
        f"{{'descr':'<f4','fortran_order':False,'shape':{(1,) * 70}}}",
        "{'descr':'V0','fortran_order':False,'shape':(3,)}",
        "{'descr':'|O','fortran_order':False,'shape':(1,)}",
        "{'descr':" + "(" * 5000 + "}",
        "{'descr':'<f4','fortran_order':False,'shape':(999999999999,)}",
        "-" * 60_000,
    ],
)
def test_array_whose_header_lies_cannot_be_read(header: str) -> None:
    before = peak_mb()
    for data in (b"", bytes(4)):
        with pytest.raises(ValueError, match=r"."):
            decode_array(npy(header, data))
    assert peak_mb() - before < 10


# Reasons as Flower 1.42 and Ray 2.55 write them.
SUPERNODE = (
    "<class 'flwr.clientapp.client_app.ClientAppException'>:<'\nException ClientAppException "
    "occurred. Message: No query function registered with name 'default''>"
)
RAY = (
    "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'\x1b[36mray::ClientAppActor.run()"
    "\x1b[39m (pid=1, ip=172.16.0.2, actor_id=d6, repr=<flwr.ClientAppActor object at 0x7f>)\n"
    '  File "/flwr/simulation/ray_transport/ray_actor.py", line 56, in run\n'
    "    out_message = app(message=message, context=context)\n"
    '  File "/app/client_app.py", line 9, in train\n'
    '    raise ValueError("no data on this device")\n'
    "ValueError: no data on this device\n\n"
    "The above exception was the direct cause of the following exception:\n\n"
    "\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=1, ip=172.16.0.2, actor_id=d6)\n"
    '  File "/flwr/simulation/ray_transport/ray_actor.py", line 63, in run\n'
    "    raise ClientAppException(str(ex)) from ex\n"
    "flwr.clientapp.client_app.ClientAppException: \n"
    "Exception ClientAppException occurred. Message: no data on this device'>"
)


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("\x1b[2Jgone", "?[2Jgone"),
        ("Traceback (most recent call last):\n" + "  x\n" * 10**6 + "E: y", "E: y"),
        ("a" * 10**6, "a" * 200),
        ("\n" * 10**6 + "late", "no reason given, code 3"),
        ("a‮b\x00c", "a?b?c"),
        ("Traceback (most recent call last):\n  x\nValueError: no\nsecond", "ValueError: no"),
        (SUPERNODE, "No query function registered with name 'default'"),
        ("<class 'builtins.KeyError'>:<''w''>", "KeyError: 'w'"),
        (RAY, "ValueError: no data on this device"),
    ],
)
def test_reason_of_an_error_is_one_printable_line(reason: str, text: str) -> None:
    proto = ProtoMessage()
    proto.metadata.message_type = "train"
    proto.metadata.ttl = 1.0
    proto.error.code = 3
    proto.error.reason = reason
    assert error_text(read_message(proto.SerializeToString())) == text
