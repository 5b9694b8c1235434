"""A grid of scripted clients, without time of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from grids import BareGrid

from flower_scheduling._flwr import take_identity
from flower_scheduling.client.wire.protocol import CLIENT_INFO, NAME, NUM_EXAMPLES
from flower_scheduling.strategies.flower import TIMEOUT, Exchange

Client = Callable[[Message], Message | None]


def erring(message: Message) -> Message:
    return Message(Error(2, "Traceback ...\nRuntimeError: out of memory"), reply_to=message)


def info(message: Message, name: str, size: int) -> Message:
    record = ConfigRecord({NAME: name, NUM_EXAMPLES: size})
    return Message(RecordDict({CLIENT_INFO: record}), reply_to=message)


class ScriptedGrid(BareGrid):
    """Node ``100 + k`` behaves as ``clients[k]`` says and takes ``k / 10`` seconds."""

    def __init__(self, clients: Sequence[Client], *, answers_query: bool = True) -> None:
        take_identity(1)  # so that messages can be made
        self.clients = {100 + k: client for k, client in enumerate(clients)}
        self.connected = set(self.clients)
        self.away: set[int] = set()
        self.leave: set[int] = set()
        self.answers_query = answers_query
        self.mute: set[int] = set()  # do not even answer queries
        self.mailbox: dict[str, Message] = {}
        self.sent: list[Message] = []
        self.deadlines: list[float] = []
        self.on_begin: Callable[[int], None] = lambda server_round: None
        self.now_s = 0.0
        self.under_way: dict[int, tuple[float, Exchange]] = {}  # by node

    def begin_round(self, server_round: int) -> None:
        self.on_begin(server_round)

    def exchange(self, messages: Sequence[Message], timeout_s: float) -> list[Exchange]:
        exchanges = [self._exchange(message, timeout_s) for message in messages]
        self.now_s += max((timeout_s if e.rtt_s is None else e.rtt_s for e in exchanges), default=0)
        return exchanges[::-1]  # replies come in any order

    def dispatch(self, messages: Sequence[Message], timeout_s: float) -> None:
        for message in messages:
            found = self._exchange(message, timeout_s)
            assert found.node_id not in self.under_way
            length_s = timeout_s if found.rtt_s is None else found.rtt_s
            self.under_way[found.node_id] = self.now_s + length_s, found

    def next_ended(self, wait_s: float) -> list[Exchange]:
        if not self.under_way:
            return []
        node = min(self.under_way, key=lambda node: (self.under_way[node][0], node))
        end_s, found = self.under_way.pop(node)
        self.now_s = max(self.now_s, end_s)
        return [found]

    def _exchange(self, message: Message, timeout_s: float) -> Exchange:
        node = message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = f"m{len(self.sent)}"
        self.sent.append(message)
        self.deadlines.append(timeout_s)
        answer = self.clients[node](message)
        rtt_s = None if answer is None else (node - 100) / 10
        return Exchange(node, answer, rtt_s, TIMEOUT if answer is None else None)

    def busy(self) -> set[int]:
        return set(self.under_way)

    def opted_out(self) -> set[int]:
        return self.away | self.leave

    def on_leave(self) -> set[int]:
        return set(self.leave)

    def now(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds

    def get_node_ids(self) -> Iterable[int]:
        return set(self.connected)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=n, public_key=f"key{n}".encode()) for n in self.connected]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            node, message_id = message.metadata.dst_node_id, f"m{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = message_id
            self.sent.append(message)
            assert message.metadata.message_type == MessageType.QUERY
            answer = erring(message)
            if self.answers_query:
                answer = info(message, f"dev-{node - 100}", 100 * (node - 99))
            if node not in self.mute:
                self.mailbox[message_id] = answer
            yield message_id

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.mailbox.pop(i) for i in message_ids if i in self.mailbox]

    def trained(self) -> list[int]:
        """Return which clients were asked to train, in the order of messages."""
        kind = MessageType.TRAIN
        return [m.metadata.dst_node_id - 100 for m in self.sent if m.metadata.message_type == kind]
