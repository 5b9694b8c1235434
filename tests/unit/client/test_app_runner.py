"""The work of a client: what its app raises is answered, and logged in text that any log takes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from apps import echo_app
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict, UserConfig
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto

from flower_scheduling.client.app_runner import LOGGER, AppRunner, encodable
from flower_scheduling.client.stream import StreamClient
from flower_scheduling.client.wire import frames as wire
from flower_scheduling.client.wire.compression import WIRE_SHARE, value_encoder
from flower_scheduling.client.wire.packing import pack, unpack
from flower_scheduling.errors import ClientConfigError, ConnectionRefused, DataUnavailableError

WELCOME = wire.Welcome(node_id=7, run_id=1, run_config={})


class StrictFile(logging.FileHandler):
    """A log file in UTF-8, such as a service's: a line that it cannot take fails the test."""

    def handleError(self, record: logging.LogRecord) -> None:
        raise AssertionError("a line was not taken")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    handler = StrictFile(tmp_path / "log", encoding="utf-8")
    LOGGER.addHandler(handler)
    yield tmp_path / "log"
    LOGGER.removeHandler(handler)
    handler.close()


def answer(runner: AppRunner, welcome: wire.Welcome = WELCOME) -> Message:
    metadata = Metadata(1, "m-1", 1, 7, "", "", 0.0, 60.0, "train")
    data = message_to_proto(make_message(metadata, RecordDict())).SerializeToString()
    reply = runner.answer(wire.Work("m-1", payload=wire.Packed(data)), welcome)
    assert reply is not None
    return unpack(reply)


def runner_of(error: BaseException) -> AppRunner:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raise error

    return AppRunner(app, {}, 2**20)


def test_error_with_a_lone_surrogate_is_answered_and_logged(log: Path) -> None:
    runner = runner_of(ValueError("odd \udcff text"))
    assert answer(runner).error.reason == "ValueError: odd ? text"
    first, *trace = log.read_text(encoding="utf-8").splitlines()
    assert first == "the ClientApp raised ValueError: odd ? text"
    assert trace[0] == "Traceback (most recent call last):"
    assert trace[-1] == "ValueError: odd ? text"


def test_same_error_again_is_one_line(log: Path) -> None:
    runner = runner_of(ValueError("no data"))
    answer(runner)
    lines = log.read_text().splitlines()
    answer(runner)
    assert log.read_text().splitlines()[len(lines) :] == [
        "the ClientApp raised ValueError: no data"
    ]


def test_error_of_the_set_up_has_no_traceback(log: Path) -> None:
    answer(runner_of(ClientConfigError("no such folder")))
    assert log.read_text() == "the ClientApp raised ClientConfigError: no such folder\n"


def test_a_client_without_data_says_so_to_its_server_and_its_owner(log: Path) -> None:
    runner = runner_of(error := DataUnavailableError("no source is reachable"))
    assert answer(runner).error.reason == "DataUnavailableError: no source is reachable"
    assert runner.fault is error
    assert not log.read_text(), "its owner prints it"


def test_message_that_cannot_be_read_has_no_answer(log: Path) -> None:
    work = wire.Work("m-1", payload=wire.Packed(b"\xff\xff"))
    assert runner_of(ValueError()).answer(work, WELCOME) is None
    assert log.read_text().startswith("unreadable message from the server: ")


def test_refusal_of_a_server_is_text_that_any_log_takes() -> None:
    client = StreamClient("127.0.0.1:1", "a", ClientApp())
    frame = wire.decode(wire.encode(wire.Refused(wire.Refusal.DENIED, "odd \ud800 reason")))
    assert isinstance(frame, wire.Refused)
    with pytest.raises(ConnectionRefused) as caught:
        client._raise_refused(frame)
    assert str(caught.value).encode().endswith(b"refuses 'a': odd ? reason")
    assert encodable("küche") == "küche"


class Odd(BaseException):
    def __str__(self) -> str:
        raise ValueError("an error without a text")


def too_deep() -> None:
    too_deep()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (SystemExit(3), "SystemExit: 3"),
        (GeneratorExit(), "GeneratorExit"),
        (MemoryError("all of it"), "MemoryError: all of it"),
        (Odd(), "Odd"),
    ],
)
def test_whatever_an_app_raises_is_answered(error: BaseException, reason: str) -> None:
    runner = runner_of(error)
    assert answer(runner).error.reason == reason
    assert answer(runner).error.reason == reason


def test_endless_recursion_is_answered() -> None:
    runner = AppRunner(echo_app(lambda message, context: too_deep()), {}, 2**20)
    assert answer(runner).error.reason.startswith("RecursionError: ")


@pytest.mark.parametrize("rubbish", [7, "text", [], RecordDict()])
def test_rubbish_is_answered(rubbish: object) -> None:
    reply = answer(AppRunner(echo_app(lambda message, context: rubbish), {}, 2**20))
    assert reply.error.reason == (
        f"TypeError: the ClientApp returned {type(rubbish).__name__}, not a Message"
    )


def test_app_that_spoils_its_message_is_answered() -> None:
    def spoil(message: Message, context: Context) -> None:
        message.__dict__.clear()
        raise ValueError("spoilt")

    reply = answer(AppRunner(echo_app(spoil), {}, 2**20))
    assert reply.error.reason == "ValueError: spoilt"
    assert reply.metadata.reply_to_message_id == "m-1"


def test_state_is_for_the_run_and_no_longer() -> None:
    seen: list[tuple[int, int, UserConfig]] = []

    def count(message: Message, context: Context) -> Message:
        number = len(context.state) + 1
        context.state[f"k{number}"] = MetricRecord({"n": number})
        seen.append((context.run_id, number, dict(context.node_config)))
        context.node_config["own"] = number
        return Message(RecordDict(), reply_to=message)

    runner = AppRunner(echo_app(count), {"place": "roof"}, 2**20)
    first, second = ({"place": "roof"}, {"place": "roof", "own": 1})
    for run_id in (2**63, 2**63, 9):
        answer(runner, wire.Welcome(node_id=7, run_id=run_id, run_config={}))
    assert seen == [(2**63, 1, first), (2**63, 2, second), (9, 1, first)]


def test_state_outlives_a_restart_in_its_run() -> None:
    def count(message: Message, context: Context) -> Message:
        context.state[f"k{len(context.state)}"] = MetricRecord({"n": 0.5})
        seen.append(len(context.state))
        return Message(RecordDict(), reply_to=message)

    seen: list[int] = []
    before = AppRunner(echo_app(count), {}, 2**20)
    answer(before)
    kept = AppRunner(echo_app(count), {}, 2**20, before.kept_state()).kept_state()  # without work
    for run_id in (1, 2):
        after = AppRunner(echo_app(count), {}, 2**20, kept)
        answer(after, wire.Welcome(node_id=7, run_id=run_id, run_config={}))
    assert seen == [1, 2, 1]


BFLOAT16 = "which numpy does not have: send float32, e.g. model.float().state_dict()"


def test_arrays_that_numpy_cannot_read_are_named() -> None:
    foreign = Array(dtype="bfloat16", shape=(2,), stype="numpy.ndarray", data=b"\x93NUMPY")

    def send(message: Message, context: Context) -> Message:
        content = RecordDict({"arrays": ArrayRecord({"w": foreign})})
        return Message(content, reply_to=message)

    runner = AppRunner(echo_app(send), {}, 2**20)
    assert answer(runner).error.reason == f"TypeError: array 'w' is bfloat16, {BFLOAT16}"


def test_a_state_of_bfloat16_says_what_to_send() -> None:
    def send(message: Message, context: Context) -> Message:
        state = torch.nn.Linear(2, 2).bfloat16().state_dict()
        return Message(RecordDict({"arrays": ArrayRecord(state)}), reply_to=message)

    reason = answer(AppRunner(echo_app(send), {}, 2**20)).error.reason
    assert reason.startswith("TypeError: ")
    assert reason.endswith(BFLOAT16)


def test_other_arrays_pass() -> None:
    values = [np.zeros((), np.int64), np.array([True]), np.zeros(2, np.float16), np.array(["a"])]
    values.append(np.zeros(1, [("x", np.float32)]))

    def send(message: Message, context: Context) -> Message:
        record = ArrayRecord({str(number): Array(value) for number, value in enumerate(values)})
        return Message(RecordDict({"arrays": record}), reply_to=message)

    assert answer(AppRunner(echo_app(send), {}, 2**20)).has_content()


def compressed(runner: AppRunner, kind: str, model: ArrayRecord, run_id: int = 1) -> wire.Packed:
    """Return the reply to a rounded model."""
    metadata = Metadata(run_id, "m-1", 1, 7, "", "", 0.0, 60.0, "train")
    message = make_message(metadata, RecordDict({"arrays": model}))
    packed = pack(message, encoder=value_encoder("bfloat16"))
    welcome = wire.Welcome(node_id=7, run_id=run_id, run_config={}, compress=kind)
    reply = runner.answer(wire.Work("m-1", payload=packed), welcome)
    assert reply is not None
    return reply


def test_error_feedback_is_of_a_run_and_emulated_links_know_the_shares() -> None:
    shares: list[tuple[float, float]] = []
    model = ArrayRecord({"w": Array(np.linspace(1, 2, 5000, dtype=np.float32))})

    def scale(message: Message, context: Context) -> Message:
        shares.append(WIRE_SHARE.get())
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        new = ArrayRecord({"w": Array(1.01 * arrays["w"].numpy())})
        return Message(RecordDict({"arrays": new}), reply_to=message)

    runner = AppRunner(echo_app(scale), {}, 2**20)
    first, second = (bytes(compressed(runner, "int8", model).arrays[0]) for _ in range(2))
    assert first != second
    assert bytes(compressed(runner, "int8", model, run_id=2).arrays[0]) == first
    assert shares[0] == pytest.approx((0.5, 0.25), rel=0.02)


def test_compression_without_effect_is_logged_once(log: Path) -> None:
    def gradients(message: Message, context: Context) -> Message:
        arrays = ArrayRecord({"w": Array(np.full(5000, 1e-3, dtype=np.float32))})
        return Message(RecordDict({"arrays": arrays}), reply_to=message)

    model = ArrayRecord({"w": Array(np.linspace(1, 2, 5000, dtype=np.float32))})
    runner = AppRunner(echo_app(gradients), {}, 2**20)
    for _ in range(2):
        compressed(runner, "int8", model)
    lines = [line for line in log.read_text().splitlines() if "saves nothing" in line]
    assert lines == ["up=int8 saves nothing of this app's replies: they go as they are"]
