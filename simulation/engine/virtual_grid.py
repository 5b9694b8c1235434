"""Flower grid in one process and virtual time: real ClientApps, no waiting."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Literal, Protocol

import numpy as np
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    RecordDict,
    UserConfig,
)
from numpy.typing import NDArray

from flower_scheduling._flwr import (
    ClientAppCallable,
    ErrorCode,
    FastRecordDict,
    NodeInfo,
    ProtoMessage,
    ProtoRecordDict,
    message_from_proto,
    message_to_proto,
    new_message,
    new_record,
    recorddict_from_proto,
    recorddict_to_proto,
    set_message_id,
)
from flower_scheduling.client.app_runner import describe
from flower_scheduling.client.wire.arrays import fast_record
from flower_scheduling.client.wire.compression import Compression
from flower_scheduling.client.wire.protocol import (
    BASE_STEPS,
    COMPUTE_S,
    LINK_S,
    LOCAL_STEPS,
    REQUEST,
    TIMING,
)
from flower_scheduling.strategies.base import FloatArray
from flower_scheduling.strategies.flower import (
    LATE,
    TIMEOUT,
    UNDELIVERABLE,
    Exchange,
    OwnGrid,
    enough_are_in,
)
from flower_scheduling.strategies.flower.replies import client_steps

from ..environments.paper import RoundDraw
from .compressed_wire import CompressedWire

_FIRST_NODE_ID = 1000  # clear of the SuperLink's own id
_DRAWN = "failed, as in the recorded run"


class GridEnvironment(Protocol):
    """Interface that the grid needs of an environment, without batch axes."""

    def round(self, t: int) -> RoundDraw:
        """Return the draw of a round."""

    def slowdown(self, t: int) -> FloatArray:
        """Return the factor of each arm's time in round `t`, (num_arms,)."""


@dataclass(frozen=True)
class MeasuredCompute:
    """Computing times that are measured: the processor time of an answer, by client.

    Attributes
    ----------
    factor : (num_arms,) float64, > 0
        How many times as long as this machine each client takes.
    processor_s : callable
        Returns the processor time of this process so far [s].
    """

    factor: FloatArray
    processor_s: Callable[[], float] = time.process_time


class VirtualGrid(OwnGrid):
    """Grid over ClientApps in this process; round trips take the environment's virtual times.

    Time is virtual: an exchange costs what the clients compute, not what it would take to wait.
    Training takes download, local update and upload of the environment's draw for that round,
    evaluation takes download and local update, a query takes no time. An answer that would come
    after the deadline is not computed, but where clients are asked for work by their speed: a local
    update takes as many times the draw as the client has made times the base work. A client that
    fails does not answer, or with an error when the environment says that its failure is known.

    Parameters
    ----------
    client_app : callable
        The app that every client runs.
    environment : GridEnvironment
        Who is available and how long each arm takes, by round; without batch axes.
    node_configs : sequence of dict
        Node configuration of each client (``partition-id`` and the like), one per arm.
    run_config : dict
        Run configuration that the ClientApps see.
    late : {"abandon", "busy"}
        What a client does past the deadline: give up (the paper), or go on and be busy until its
        answer would have come.
    compression : Compression, optional
        What is done to messages on their way, as a fleet's streams would do it.
    measured : MeasuredCompute, optional
        Measures how long a client computes, in place of the environment's draw. What comes after
        the deadline has then been computed, and is dropped.
    run_id : int
        Id of the run, as both apps see it.
    """

    def __init__(
        self,
        client_app: ClientAppCallable,
        environment: GridEnvironment,
        node_configs: Sequence[Mapping[str, str | int | float | bool]],
        run_config: UserConfig,
        *,
        late: Literal["abandon", "busy"] = "abandon",
        compression: Compression | None = None,
        measured: MeasuredCompute | None = None,
        run_id: int = 1,
    ) -> None:
        self._client_app = client_app
        self._environment = environment
        self._late = late
        self._measured = measured
        self._wire = CompressedWire(compression) if compression else None
        super().__init__(run_id)
        self._contexts = {
            _FIRST_NODE_ID + arm: Context(
                run_id=run_id,
                node_id=_FIRST_NODE_ID + arm,
                node_config=dict(node_config),
                state=RecordDict(),
                run_config=run_config,
            )
            for arm, node_config in enumerate(node_configs)
        }
        self._now_s = 0.0
        self._num_messages = 0
        self._busy_until: dict[int, float] = {}
        self._late_exchanges: list[tuple[float, Exchange]] = []  # with when they will have ended
        self._mailbox: dict[str, tuple[float, Message]] = {}  # message id -> arrival, reply
        self._under_way: dict[int, tuple[float, Exchange]] = {}  # node -> end, what comes of it
        # The model of this exchange as it was sent, and ready for clients to copy.
        self._sent: ArrayRecord | None = None
        self._fast = ArrayRecord()
        self.begin_round(1)
        self._take_identity()

    # -- timing protocol ----------------------------------------------------------------------

    def set_environment(self, environment: GridEnvironment) -> None:
        """Take the draws of the rounds to come from another environment."""
        self._environment = environment

    def begin_round(self, server_round: int) -> None:
        """Draw which clients are available in this round and how long each would take."""
        draw = self._environment.round(server_round)
        nodes = list(self._contexts)
        joined = [True] * len(nodes) if draw.member is None else draw.member.tolist()
        self._joined = list(compress(nodes, joined))
        self._opted_out = set(compress(nodes, (~draw.available).tolist()))
        known_s = np.full(len(nodes), math.inf) if draw.failure_s is None else draw.failure_s
        failed = zip(nodes, known_s.tolist(), strict=True)
        self._failed = dict(compress(failed, draw.failed.tolist()))  # with when that is known
        self._download_s = draw.download_s.tolist()
        self._compute_s = draw.compute_s.tolist()
        self._upload_s = draw.upload_s.tolist()
        if self._measured is not None:
            slowdown = self._environment.slowdown(server_round)
            self._factor = (self._measured.factor * slowdown).tolist()
            self._compute_s = [0.0] * len(nodes)  # until it is measured

    def exchange(
        self,
        messages: Sequence[Message],
        timeout_s: float,
        enough: int | None = None,
        awaited: Collection[int] = (),
    ) -> list[Exchange]:
        """Exchange messages; virtual time moves on to the last answer, enough, or the deadline."""
        start_s = self._now_s
        self._forget_sent()
        exchanges = [self._one_exchange(message, timeout_s) for message in messages]
        self._sent, self._fast = None, ArrayRecord()  # the model is not held on to
        on_time = all(e.reply is not None or e.failure == UNDELIVERABLE for e in exchanges)
        last_s = max((e.rtt_s for e in exchanges if e.rtt_s is not None), default=0.0)
        length_s = last_s if on_time else timeout_s
        if enough is not None:
            ends_s = [_end_s(exchange, timeout_s) for exchange in exchanges]
            for end_s in sorted({*ends_s, 0.0}):
                there = (e for e, at_s in zip(exchanges, ends_s, strict=True) if at_s <= end_s)
                if end_s < length_s and enough_are_in(there, enough, awaited):
                    length_s = end_s
                    exchanges = [
                        exchange if at_s <= end_s else self._put_off(exchange, start_s + at_s)
                        for exchange, at_s in zip(exchanges, ends_s, strict=True)
                    ]
                    break
        self._now_s = start_s + length_s
        return exchanges

    def dispatch(self, messages: Sequence[Message], timeout_s: float) -> None:
        """Let the clients work at once; their answers are there when virtual time has come so far.

        What they learn from is what they were sent: it does not matter when they compute.
        """
        self._forget_sent()
        for message in messages:
            exchange = self._one_exchange(message, timeout_s)
            length_s = timeout_s if exchange.rtt_s is None else exchange.rtt_s
            if exchange.failure == UNDELIVERABLE:
                length_s = 0.0
            self._under_way[exchange.node_id] = self._now_s + length_s, exchange
        self._sent, self._fast = None, ArrayRecord()

    def next_ended(self, wait_s: float) -> list[Exchange]:
        """Return the next exchange to end; virtual time moves on to it, whatever ``wait_s`` is."""
        if not self._under_way:
            return []
        node = min(self._under_way, key=lambda node: self._under_way[node][0])
        end_s, exchange = self._under_way.pop(node)
        self._now_s = max(self._now_s, end_s)
        return [exchange]

    def late(self) -> list[Exchange]:
        """Return what has become of late messages since the last call, with true times [s]."""
        come = [(at_s, each) for at_s, each in self._late_exchanges if at_s <= self._now_s]
        self._late_exchanges = [
            (at_s, each) for at_s, each in self._late_exchanges if at_s > self._now_s
        ]
        # Flower's strategies send the messages of a round in an order that no seed determines.
        come.sort(key=lambda pair: (pair[0], pair[1].node_id))
        return [each for _, each in come]

    def _put_off(self, exchange: Exchange, at_s: float) -> Exchange:
        """Return what is known of an exchange at the end of a round that ends before it."""
        node = exchange.node_id
        self._late_exchanges.append((at_s, exchange))
        self._busy_until[node] = max(self._busy_until.get(node, 0.0), at_s)
        return Exchange(node, None, None, LATE, exchange.sent_bytes)

    def busy(self) -> set[int]:
        """Return the nodes at work, those that go on past a deadline that they missed included."""
        self._busy_until = {n: t for n, t in self._busy_until.items() if t > self._now_s}
        return self._busy_until.keys() | self._under_way.keys()

    def opted_out(self) -> set[int]:
        """Return the nodes that are connected but not available in this round."""
        return set(self._opted_out)

    def on_leave(self) -> set[int]:
        """Return the empty set: in the paper queues of unavailable clients grow all the same."""
        return set()

    def now(self) -> float:
        """Return virtual time [s]."""
        return self._now_s

    def wait(self, seconds: float) -> None:
        """Let virtual time pass until a busy client is free: within a round no other changes."""
        ends = [*self._busy_until.values(), *(end_s for end_s, _ in self._under_way.values())]
        free_s = min((t for t in ends if t > self._now_s), default=math.inf)
        self._now_s = min(self._now_s + seconds, free_s)

    # -- checkpoints ----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next round depends on: time, busy clients, the apps' own."""
        return {
            "now_s": self._now_s,
            "busy_until": {str(node): until_s for node, until_s in self._busy_until.items()},
            "late": [_exchange_state(at_s, each) for at_s, each in self._late_exchanges],
            "num_messages": self._num_messages,
            "contexts": {
                str(node): _bytes_of(context.state)
                for node, context in self._contexts.items()
                if len(context.state)
            },
            "compression": {} if self._wire is None else self._wire.state_dict(),
            "under_way": [
                _exchange_state(end_s, exchange) for end_s, exchange in self._under_way.values()
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` left off."""
        self._now_s = state["now_s"]
        self._busy_until = {int(node): until_s for node, until_s in state["busy_until"].items()}
        self._late_exchanges = [
            (each["end_s"], _restored_exchange(each)) for each in state.get("late", [])
        ]
        self._num_messages = state["num_messages"]
        for node, data in state["contexts"].items():
            proto = ProtoRecordDict.FromString(data.tobytes())
            self._contexts[int(node)].state = recorddict_from_proto(proto)
        if self._wire is not None:
            self._wire.load_state_dict(state.get("compression", {}))
        self._under_way = {}
        for each in state.get("under_way", []):
            exchange = _restored_exchange(each)
            self._under_way[exchange.node_id] = each["end_s"], exchange

    # -- Flower's grid ------------------------------------------------------------------------

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the clients that have joined."""
        return list(self._joined)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the clients that have joined."""
        return [
            NodeInfo(node_id=node, name=str(self._contexts[node].node_config.get("name", "")))
            for node in self._joined
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let the clients work; their replies can be pulled once virtual time has come so far."""
        message_ids = []
        self._forget_sent()
        for message in messages:
            exchange = self._one_exchange(message, message.metadata.ttl)
            message_id = message.metadata.message_id
            message_ids.append(message_id)
            reply = exchange.reply or _error(message, str(exchange.failure))
            rtt_s = message.metadata.ttl if exchange.rtt_s is None else exchange.rtt_s
            self._mailbox[message_id] = (self._now_s + rtt_s, reply)
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the next replies; virtual time moves on to the first of them."""
        waiting = [i for i in message_ids if i in self._mailbox]
        if not waiting:
            return []
        self._now_s = max(self._now_s, min(self._mailbox[i][0] for i in waiting))
        ready = [i for i in waiting if self._mailbox[i][0] <= self._now_s]
        return [self._mailbox.pop(i)[1] for i in ready]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Let the clients answer within ``timeout``; undeliverable messages give error replies."""
        messages = list(messages)
        limit = max((m.metadata.ttl for m in messages), default=0.0)
        exchanges = self.exchange(messages, limit if timeout is None else min(timeout, limit))
        replies = []
        for message, exchange in zip(messages, exchanges, strict=True):
            if exchange.reply is not None:
                replies.append(exchange.reply)
            elif exchange.failure == UNDELIVERABLE:
                replies.append(_error(message, UNDELIVERABLE))
        return replies

    # -- one client ---------------------------------------------------------------------------

    def _one_exchange(self, message: Message, timeout_s: float) -> Exchange:
        node_id = message.metadata.dst_node_id
        self._num_messages += 1
        set_message_id(message, f"message-{self._num_messages}")
        context = self._contexts.get(node_id)
        if context is None or node_id not in self._joined:
            return Exchange(node_id, None, None, UNDELIVERABLE)
        compute_s, link_s = self._time_of(message, node_id - _FIRST_NODE_ID)
        rtt_s = compute_s + link_s
        wire = self._wire
        sent_bytes = None if wire is None else wire.sent_bytes(message)
        received_bytes = None
        if node_id in self._failed and rtt_s > 0:  # not a query, which costs nothing
            if (known_s := self._failed[node_id]) >= timeout_s:
                return Exchange(node_id, None, None, TIMEOUT, sent_bytes)
            return Exchange(node_id, _error(message, _DRAWN), known_s, None, sent_bytes)
        asked = _steps_asked(message)
        if rtt_s >= timeout_s and asked is None:
            return self._too_late(node_id, rtt_s, sent_bytes)
        if wire is None:
            request = new_message(message.metadata, self._own_content(message.content))
        else:
            request = wire.received(message)
            model = wire.model_at_client(request)
        begin_s = 0.0 if self._measured is None else self._measured.processor_s()
        fault = ""
        try:
            reply = self._client_app(request, context)
        except (Exception, SystemExit) as error:  # as in a fleet: the client fails, not the run
            fault = describe(error)
        if self._measured is not None and rtt_s > 0:  # not a query, which costs nothing
            taken_s = self._measured.processor_s() - begin_s
            compute_s = self._factor[node_id - _FIRST_NODE_ID] * taken_s
        elif asked is not None and not fault and reply.has_content():
            steps, base_steps = asked
            done = client_steps(reply)  # an app that does not tell works as ever
            compute_s *= 1.0 if done is None else min(done, steps) / base_steps
        rtt_s = compute_s + link_s
        if rtt_s >= timeout_s:
            return self._too_late(node_id, rtt_s, sent_bytes)
        if fault:
            return Exchange(node_id, _error(message, fault), rtt_s, None, sent_bytes)
        if wire is not None:
            reply, received_bytes = wire.returned(node_id, reply, model)
        set_message_id(reply, f"reply-{self._num_messages}")
        if reply.has_content():
            content = {
                name: fast_record(record) if isinstance(record, ArrayRecord) else record
                for name, record in reply.content.items()
            }
            content[TIMING] = new_record(ConfigRecord, {COMPUTE_S: compute_s, LINK_S: link_s})
            reply.content = new_record(FastRecordDict, content)
        return Exchange(node_id, reply, rtt_s, None, sent_bytes, received_bytes)

    def _too_late(self, node_id: int, rtt_s: float, sent_bytes: int | None) -> Exchange:
        if self._late == "busy":
            self._busy_until[node_id] = self._now_s + rtt_s
        return Exchange(node_id, None, None, TIMEOUT, sent_bytes)

    def _forget_sent(self) -> None:
        """Forget the content of messages before: its records may be other ones by now."""
        self._sent = None
        if self._wire is not None:
            self._wire.begin_exchange()

    def _own_content(self, content: RecordDict) -> RecordDict:
        """Give a client records of its own: Flower sends all clients the same ones."""
        own: dict[str, Any] = {}
        for name, record in content.items():
            if isinstance(record, ArrayRecord):
                if record is not self._sent:
                    self._sent, self._fast = record, fast_record(record)
                own[name] = self._fast.copy()
            else:
                own[name] = record.copy()
        return new_record(RecordDict, own)

    def _time_of(self, message: Message, arm: int) -> tuple[float, float]:
        """Return virtual compute and link seconds of one message."""
        kind = message.metadata.message_type.partition(".")[0]
        if kind == MessageType.TRAIN:
            return self._compute_s[arm], self._download_s[arm] + self._upload_s[arm]
        if kind == MessageType.EVALUATE:
            return self._compute_s[arm], self._download_s[arm]
        return 0.0, 0.0


def _steps_asked(message: Message) -> tuple[int, int] | None:
    """Return the local steps that are asked for, and the base work; none if they are not."""
    asked = message.content.get(REQUEST)
    if not isinstance(asked, ConfigRecord):
        return None
    steps, base = asked.get(LOCAL_STEPS), asked.get(BASE_STEPS)
    return (steps, base) if isinstance(steps, int) and isinstance(base, int) else None


def _end_s(exchange: Exchange, timeout_s: float) -> float:
    """Return when an exchange has ended, from its begin [s]."""
    if exchange.rtt_s is not None:
        return exchange.rtt_s
    return 0.0 if exchange.failure == UNDELIVERABLE else timeout_s


def _bytes_of(record: RecordDict) -> NDArray[np.uint8]:
    return np.frombuffer(recorddict_to_proto(record).SerializeToString(), dtype=np.uint8)


def _exchange_state(end_s: float, exchange: Exchange) -> dict[str, Any]:
    """Return an exchange that is under way, for a checkpoint."""
    state = {
        "end_s": end_s,
        "node": str(exchange.node_id),
        "rtt_s": exchange.rtt_s,
        "failure": exchange.failure,
        "sent_bytes": exchange.sent_bytes,
        "received_bytes": exchange.received_bytes,
        "reply": None,
    }
    if exchange.reply is not None:
        data = message_to_proto(exchange.reply).SerializeToString()
        state["reply"] = np.frombuffer(data, dtype=np.uint8)
    return state


def _restored_exchange(state: Mapping[str, Any]) -> Exchange:
    reply = None
    if state["reply"] is not None:
        reply = message_from_proto(ProtoMessage.FromString(np.asarray(state["reply"]).tobytes()))
    return Exchange(
        int(state["node"]),
        reply,
        state["rtt_s"],
        state["failure"],
        state["sent_bytes"],
        state["received_bytes"],
    )


def _error(message: Message, reason: str) -> Message:
    error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
    reply = Message(error, reply_to=message)
    set_message_id(reply, f"error-{message.metadata.message_id}")
    return reply
