"""Who is asked for name and size, and how many nodes an app without an answer is asked on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity
from grids import BareGrid

from flower_scheduling.client.wire.protocol import CLIENT_INFO, NAME, NUM_EXAMPLES
from flower_scheduling.strategies.flower import LOGGER
from flower_scheduling.strategies.flower.membership import Membership

Answer = Callable[[Message], Message | None]
NO_FUNCTION = (
    "<class 'flwr.clientapp.client_app.ClientAppException'>:<'\nException ClientAppException "
    "occurred. Message: No query function registered with name 'default''>"
)


@pytest.fixture(autouse=True)
def _identity() -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def unknown(message: Message) -> Message:
    return Message(Error(code=2, reason=NO_FUNCTION), reply_to=message)


def fails(message: Message) -> Message:
    return Message(Error(code=2, reason="ValueError: no data"), reply_to=message)


def answers(message: Message) -> Message:
    node = message.metadata.dst_node_id
    record = ConfigRecord({NAME: f"dev-{node}", NUM_EXAMPLES: 10 * node})
    return Message(RecordDict({CLIENT_INFO: record}), reply_to=message)


@pytest.fixture(autouse=True)
def no_filters() -> Iterator[None]:
    """Take away what is left on Flower's logger where a client has never answered."""
    yield
    logging.getLogger("flwr").filters.clear()


class AskedGrid(BareGrid):
    """Nodes 1, 2, ... that answer queries each in its way, at once or never."""

    def __init__(self, ways: list[Answer], *, asks_one_first: bool) -> None:
        self.ways = dict(enumerate(ways, start=1))
        self.asks_one_first = asks_one_first
        self.asked: list[int] = []
        self.now_s = 0.0
        self._mail: dict[str, Message] = {}

    def begin_round(self, server_round: int) -> None: ...

    def exchange(self, messages: object, timeout_s: float) -> list[object]:
        raise AssertionError

    def busy(self) -> set[int]:
        return set()

    opted_out = on_leave = busy

    def now(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def get_node_ids(self) -> Iterable[int]:
        return set(self.ways)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node) for node in self.ways]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            node = message.metadata.dst_node_id
            message_id = message.metadata.__dict__["_message_id"] = f"m{len(self.asked)}"
            self.asked.append(node)
            if (reply := self.ways[node](message)) is not None:
                self._mail[message_id] = reply
            yield message_id

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._mail.pop(each) for each in message_ids if each in self._mail]


@pytest.mark.parametrize(
    ("way", "asks_one_first", "asked"),
    [
        (unknown, True, [1]),  # one traceback in the log of one node
        (fails, True, [1, 2, 3]),
        (answers, True, [1, 2, 3, 4, 5]),
        (unknown, False, [1, 2, 3, 4, 5]),
    ],
)
def test_how_many_are_asked(way: Answer, asks_one_first: bool, asked: list[int]) -> None:
    grid = AskedGrid([way] * 5, asks_one_first=asks_one_first)
    membership = Membership(5.0, 60.0)
    membership.wait_for(grid, 5, "round 1")  # type: ignore[arg-type]
    assert membership.table.num_available == 5
    assert grid.asked == asked
    assert not logging.getLogger("flwr").filters
    known = way is answers
    assert [arm.num_examples for arm in membership.arms] == [
        10 * node if known else None for node in range(1, 6)
    ]
    assert grid.now_s < 1.0, "nobody was waited for"


def test_the_traceback_of_a_simulation_in_this_process_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    flower = logging.getLogger("flwr")

    def logs(message: Message) -> Message:
        flower.error("An exception was raised when processing a message by %s", "RayBackend")
        flower.error(ValueError(NO_FUNCTION))
        flower.error("ValueError: no such file")
        return unknown(message)

    grid = AskedGrid([logs] * 2, asks_one_first=True)
    Membership(5.0, 60.0).wait_for(grid, 2, "round 1")  # type: ignore[arg-type]
    flower.error("An exception was raised when processing a message by %s", "RayBackend")
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 2, "another fault, and those after the answer, are there"


def test_a_first_node_that_is_silent_holds_up_the_others_for_a_while_only() -> None:
    grid = AskedGrid([lambda message: None, unknown, unknown], asks_one_first=True)
    membership = Membership(60.0, 60.0)
    membership.wait_for(grid, 2, "round 1")  # type: ignore[arg-type]
    assert membership.table.num_available == 2
    assert 30.0 <= grid.now_s < 31.0
    assert grid.asked == [1, 2]


def test_who_is_connected_and_silent_is_named(caplog: pytest.LogCaptureFixture) -> None:
    grid = AskedGrid([answers, lambda message: None], asks_one_first=False)
    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        Membership(5.0, 60.0).wait_for(grid, 2, "round 1")  # type: ignore[arg-type]
    assert caplog.records[0].getMessage() == (
        "waiting for clients for round 1: 1 of 2 available, 0 of 5 s; "
        "connected, but without an answer so far: node-2"
    )


def test_too_few_clients_are_filled_up_with_connected_ones_that_have_not_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = AskedGrid([answers, lambda message: None, lambda message: None], asks_one_first=True)
    membership = Membership(5.0, 60.0)
    membership.wait_for(grid, 1, "round 1")  # type: ignore[arg-type]
    assert membership.table.num_available == 1, "enough without them"
    membership.wait_for(grid, 2, "round 2")  # type: ignore[arg-type]
    assert grid.now_s >= 5.0, "they had all the time of the wait"
    assert membership.table.available.tolist() == [True] * 3
    assert membership.table.member.tolist() == [True] * 3
    assert [arm.num_examples for arm in membership.arms] == [10, None, None]
    assert "round 2: too few clients have sent their size" in caplog.text


def test_a_first_client_is_waited_for_ten_times_as_long_and_others_are_not() -> None:
    grid = AskedGrid([], asks_one_first=False)
    membership = Membership(5.0, 60.0)
    membership.wait_for(grid, 2, "round 1")  # type: ignore[arg-type]
    assert grid.now_s == pytest.approx(5.0)
    membership.wait_for_first(grid)  # type: ignore[arg-type]
    assert grid.now_s == pytest.approx(55.0)
    there = AskedGrid([lambda message: None], asks_one_first=False)
    membership.wait_for(there, 1, "round 1")  # type: ignore[arg-type]
    begin_s = there.now_s
    membership.wait_for_first(there)  # type: ignore[arg-type]
    assert there.now_s == begin_s
