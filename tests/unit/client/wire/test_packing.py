"""Messages on their way: they come back as they were, and what would unfold is refused."""

from __future__ import annotations

import time

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from hostile import peak_mb, proto_field

from flower_scheduling.client.wire import frames as wire
from flower_scheduling.client.wire.frames import Packed
from flower_scheduling.client.wire.packing import pack, pack_content, unpack
from flower_scheduling.strategies.flower.replies import error_text


def message_of(content: RecordDict) -> Message:
    return make_message(Metadata(1, "m", 1, 7, "", "", 0.0, 60.0, "train"), content)


CONTENTS = {
    "nothing": RecordDict(),
    "metrics": RecordDict({"m": MetricRecord({"loss": 0.5}), "c": ConfigRecord({"raw": b"1"})}),
    "empty record": RecordDict({"arrays": ArrayRecord()}),
    "two records": RecordDict(
        {
            "control": ArrayRecord({"w": Array(np.ones((2, 3), "f4")), "n": Array(np.array(3))}),
            "metrics": MetricRecord({"num-examples": 1}),
            "arrays": ArrayRecord({"w": Array(np.zeros((0, 3)))}),
        }
    ),
    "values": RecordDict(
        {
            "m": MetricRecord({"n": 2**63 - 1, "more": 2**64 - 1, "less": -(2**62), "f": 1e-300}),
            "lists": MetricRecord({"of": [1.0, 2.5], "n": 1, "ints": [2**63, 1]}),
            "c": ConfigRecord({"on": True, "off": False, "text": "\u00e9", "raw": b"\x00", "i": 0}),
            "d": ConfigRecord({"names": ["a", "b"], "on": [True], "raw": [b""], "f": 0.0}),
            "numpy": ConfigRecord({"f": np.float64(0.5)}),
        }
    ),
    "no numpy": RecordDict({"trees": ArrayRecord({"0": Array("raw", (), "xgb", b"trees")})}),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_message_comes_back_as_it_was(name: str) -> None:
    message = message_of(CONTENTS[name])
    packed = pack(message)
    again = unpack(packed)
    assert message_to_proto(again) == message_to_proto(message)
    sent = wire.decode(wire.encode(wire.Reply("m-1", packed)))
    assert isinstance(sent, wire.Reply)
    assert message_to_proto(unpack(sent.payload)) == message_to_proto(message)
    assert list(again.content) == list(message.content)


def test_arrays_are_shared_not_copied() -> None:
    array = Array(np.ones(1000))
    content = RecordDict({"arrays": ArrayRecord({"w": array})})
    packed = pack(message_of(content), pack_content(content))
    assert packed.arrays[0] is array.data
    assert len(packed.outline) < 200
    assert unpack(packed).content["arrays"]["w"].data is array.data


def test_messages_of_one_layout_share_nothing_that_can_change() -> None:
    packed = pack(message_of(CONTENTS["two records"]))
    first, second = unpack(packed), unpack(packed)
    first.content["arrays"]["w"] = Array(np.ones(1))
    del first.content["control"]["n"]
    first.content["metrics"]["num-examples"] = 2
    expected = message_to_proto(message_of(CONTENTS["two records"]))
    assert message_to_proto(second) == expected
    assert message_to_proto(unpack(packed)) == expected


def test_value_that_is_none_is_refused() -> None:
    proto = message_to_proto(message_of(CONTENTS["metrics"]))
    proto.content.items[1].config_record.items[0].value.Clear()
    with pytest.raises(Exception):  # noqa: B017, PT011  # of Flower's choice
        unpack(Packed(proto.SerializeToString()))


def test_message_of_another_end_may_have_its_arrays_in_protobuf() -> None:
    message = message_of(CONTENTS["two records"])
    proto = message_to_proto(message)
    assert message_to_proto(unpack(Packed(proto.SerializeToString()))) == proto


def test_arrays_that_do_not_fit_the_outline_are_refused() -> None:
    packed = pack(message_of(CONTENTS["two records"]))
    with pytest.raises(ValueError, match="no bytes came for the array 'w'"):
        unpack(Packed(packed.outline, packed.arrays[:-1]))
    with pytest.raises(ValueError, match="more arrays than it has names for"):
        unpack(Packed(packed.outline, (*packed.arrays, b"")))
    whole = message_to_proto(message_of(CONTENTS["two records"])).SerializeToString()
    with pytest.raises(ValueError, match="no bytes came for the array 'w'"):
        unpack(Packed(whole, packed.arrays))


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
        unpack(Packed(BOMBS[bomb]))
    assert time.thread_time() - begin < 1.0
    assert peak_mb() - before < 10


def test_honest_message_of_many_parts_is_read() -> None:
    arrays = ArrayRecord({f"layer-{i}": Array(np.zeros(100, "f4")) for i in range(3000)})
    metrics = MetricRecord({"losses": [0.5] * 50_000, "counts": [1] * 50_000})
    content = RecordDict({"arrays": arrays, "metrics": metrics})
    metadata = Metadata(1, "m", 1, 7, "", "", 0.0, 60.0, "train")
    data = message_to_proto(make_message(metadata, content)).SerializeToString()
    again = unpack(Packed(data))
    assert list(again.content["arrays"]) == list(arrays)
    assert again.content["metrics"] == metrics


@pytest.mark.parametrize("deep", [b"\x0b" * 100_000, b"\x12\x80\x80\x04" * 500])
def test_deep_nesting_is_refused(deep: bytes) -> None:
    with pytest.raises(Exception, match=r"."):
        unpack(Packed(deep))


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
    assert error_text(unpack(Packed(proto.SerializeToString()))) == text
