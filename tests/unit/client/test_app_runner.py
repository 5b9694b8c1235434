"""The work of a client: what its app raises is answered, and logged in text that any log takes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto

from flower_scheduling.client.app_runner import LOGGER, AppRunner, encodable
from flower_scheduling.client.stream import StreamClient
from flower_scheduling.client.wire import frames as wire
from flower_scheduling.client.wire.arrays import read_message
from flower_scheduling.errors import ClientConfigError, ConnectionRefused

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


def answer(runner: AppRunner) -> Message:
    metadata = Metadata(1, "m-1", 1, 7, "", "", 0.0, 60.0, "train")
    data = message_to_proto(make_message(metadata, RecordDict())).SerializeToString()
    frame = runner.answer(wire.Work("m-1", payload=data), WELCOME)
    assert frame is not None
    reply = wire.decode(frame)
    assert isinstance(reply, wire.Reply)
    return read_message(reply.payload)


def runner_of(error: Exception) -> AppRunner:
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


def test_message_that_cannot_be_read_has_no_answer(log: Path) -> None:
    work = wire.Work("m-1", payload=b"\xff\xff")
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
