"""Compression over real streams: each kind, negotiated, and invisible to app and strategy."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from raw_client import RawClient
from waiting import PATIENCE_S, until

import flower_scheduling.client.stream
from flower_scheduling.client.stream import StreamClient
from flower_scheduling.client.wire import frames as wire
from flower_scheduling.client.wire.compression import known_kinds
from flower_scheduling.client.wire.packing import pack
from flower_scheduling.reasons import UNREADABLE
from flower_scheduling.server.transport import messages
from flower_scheduling.server.transport.connection import node_id_of
from flower_scheduling.server.transport.grid import StreamGrid
from flower_scheduling.strategies.flower import RoundRecord, ScheduledStrategy

MODEL = (0.05 * np.random.default_rng(0).standard_normal((300, 100))).astype(np.float32)
STEP = (0.001 * np.random.default_rng(1).standard_normal((300, 100))).astype(np.float32)
WHOLE = MODEL.nbytes


def learner() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        new = arrays.copy()
        values = arrays["w"].numpy()
        new["w"] = Array(values + STEP[: len(values)])
        arrays.clear()  # a client may do with its records what it likes
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": new, "metrics": metrics}), reply_to=message)

    return app


def model() -> ArrayRecord:
    return ArrayRecord({"w": Array(MODEL), "frozen": Array(MODEL.T.copy())})


def small_model() -> ArrayRecord:
    """Make one that a raw client gets in one chunk."""
    return ArrayRecord({"w": Array(MODEL[:50])})


Serve = Callable[..., StreamGrid]


@pytest.fixture
def serve() -> Iterator[Serve]:
    ends: list[Callable[[], object]] = []

    def start(compress: str, *names: str, **settings: Any) -> StreamGrid:
        grid = StreamGrid("127.0.0.1:0", compress=compress, **settings)
        grid.start()
        ends.append(grid.stop)
        for name in names:
            client = StreamClient(f"127.0.0.1:{grid.port}", name, learner(), stay=False)
            thread = threading.Thread(target=client.run)
            ends.append(thread.join)
            ends.append(client.stop)
            thread.start()
        until(lambda: {node_id_of(name) for name in names} <= set(grid.get_node_ids()))
        return grid

    yield start
    for end in reversed(ends):
        end()


@pytest.mark.parametrize(
    ("compress", "down", "up", "tolerance"),
    [
        ("", 2.0, 2.0, 1e-7),
        ("bfloat16", 1.0, 0.5, 3e-5),
        ("up=int8", 2.0, 0.251, 1e-4),
        ("up=int8,down=bfloat16", 1.0, 0.251, 1e-4),
        ("down=bfloat16", 1.0, 1.0, 1e-7),
        ("zstd", 1.85, 0.8, 1e-7),
        ("down=bfloat16,up=zstd", 1.0, 0.9, 1e-7),
    ],
)
def test_rounds_of_a_foreign_strategy(
    serve: Serve, compress: str, down: float, up: float, tolerance: float
) -> None:
    grid = serve(compress, "a", "b")
    records: list[RoundRecord] = []
    strategy = ScheduledStrategy(FedAvg(), "random", num_selected=2, tau_max_s=PATIENCE_S)
    strategy.add_hook(lambda record, arrays: records.append(record))
    result = strategy.start(grid, model(), num_rounds=3)
    assert result.arrays is not None
    found, frozen = result.arrays["w"].numpy(), result.arrays["frozen"].numpy()
    assert found.dtype == np.float32
    assert np.abs(found - (MODEL + 3 * STEP)).max() <= tolerance + 3e-8
    assert np.array_equal(frozen, MODEL.T)
    assert [record.completed for record in records] == [[True, True]] * 3
    for record in records:
        assert record.sent_bytes is not None
        assert record.received_bytes is not None
        assert record.sent_bytes <= 2 * (down * WHOLE + 1500)
        assert record.received_bytes <= 2 * (up * WHOLE + 1500)


def test_clients_that_cannot_are_sent_plain_arrays(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_scheduling.client.stream, "known_kinds", lambda: ["bfloat16"])
    with caplog.at_level(logging.WARNING):
        grid = serve("up=int8,down=bfloat16", "half")
        raw = RawClient(f"127.0.0.1:{grid.port}")
        raw.send(wire.Hello("old", "s"))  # as a client that does not know the word
        welcome = raw.read()
        assert isinstance(welcome, wire.Welcome)
        assert welcome.compress == ""
        until(lambda: len(list(grid.get_node_ids())) == 2)
        content = RecordDict({"arrays": small_model(), "config": ConfigRecord()})
        asked = [Message(content, node_id_of(name), "train") for name in ("half", "old")]
        ids = list(grid.push_messages(asked))
        work, message = raw.read_work()
        assert work.payload.codes == b""
        raw.send(wire.Reply(work.message_id, pack(Message(message.content, reply_to=message))))
        replies: list[Message] = []
        until(lambda: replies.extend(grid.pull_messages(ids)) or len(replies) == 2)
        raw.close()
    for reply in replies:
        arrays = reply.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        assert np.abs(arrays["w"].numpy() - MODEL[:50]).max() < 0.01
    lines = [line for line in caplog.messages if "cannot" in line]
    assert sorted(lines) == [
        "half cannot int8: its arrays go as they are",
        "old cannot bfloat16 and int8: its arrays go as they are",
    ]


def test_a_broadcast_is_encoded_once(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = messages.pack_content

    def count(content: RecordDict, *more: Any) -> wire.Packed:
        calls.append(content)
        return real(content, *more)

    monkeypatch.setattr(messages, "pack_content", count)
    grid = serve("bfloat16", *"abc")
    content = RecordDict({"arrays": model()})
    exchanges = grid.exchange([Message(content, node_id_of(n), "train") for n in "abc"], PATIENCE_S)
    assert all(exchange.reply is not None for exchange in exchanges)
    assert len(calls) == 1


def test_hostile_replies_fail_alone(serve: Serve) -> None:
    grid = serve("up=int8", "good", max_message_bytes=2**20)
    raw = RawClient(f"127.0.0.1:{grid.port}")
    raw.send(wire.Hello("bad", "s", codecs=known_kinds()))
    welcome = raw.read()
    assert isinstance(welcome, wire.Welcome)
    assert welcome.compress == "int8"
    until(lambda: len(list(grid.get_node_ids())) == 2)
    content = RecordDict({"arrays": small_model()})
    for code, shape, text in [
        (0x12, (2**15, 2**15, 2**15), "at most"),
        (0x01, (2**19,), "at most"),
        (0x12, (7,), "was not sent"),
        (0x3E, (50, 100), "unknown code"),
        (0x03, (50, 100), "cannot be read"),
    ]:
        asked = [Message(content, node_id_of(name), "train") for name in ("good", "bad")]
        ids = list(grid.push_messages(asked))
        work, message = raw.read_work()
        claim = Array(dtype="float32", shape=shape, stype="numpy.ndarray", data=b"")
        reply = Message(RecordDict({"arrays": ArrayRecord({"w": claim})}), reply_to=message)
        lie = wire.Packed(pack(reply).outline, (bytes(20_000),), bytes([code]))
        raw.send(wire.Reply(work.message_id, lie))
        replies: dict[int, Message] = {}

        def pull() -> bool:
            for reply in grid.pull_messages(ids):  # noqa: B023
                replies[reply.metadata.src_node_id] = reply  # noqa: B023
            return len(replies) == 2  # noqa: B023

        until(pull)
        assert replies.pop(node_id_of("good")).has_content()
        (bad,) = replies.values()
        assert bad.error.reason.startswith(UNREADABLE)
        assert text in bad.error.reason
    raw.close()


def test_encoding_is_not_the_clients_time(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server takes to encode and restore lies outside of a client's round trip."""
    now_s = [0.0]
    grid = serve("bfloat16", "a", clock=lambda: now_s[0])
    real_pack, real_unpack = messages.pack_content, messages.unpack

    def slow_pack(*arguments: Any) -> wire.Packed:
        now_s[0] += 1000
        return real_pack(*arguments)

    def slow_unpack(*arguments: Any) -> Message:
        now_s[0] += 1000
        return real_unpack(*arguments)

    monkeypatch.setattr(messages, "pack_content", slow_pack)
    monkeypatch.setattr(messages, "unpack", slow_unpack)
    content = RecordDict({"arrays": model()})
    (exchange,) = grid.exchange([Message(content, node_id_of("a"), "train")], PATIENCE_S)
    assert now_s[0] == 2000
    assert exchange.reply is not None
    assert exchange.rtt_s == 0
