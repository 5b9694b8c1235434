"""Arm table: which node is which arm, and which arms can be selected now."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flower_scheduling._flwr import NodeInfo

from ..base import BoolArray, FloatArray, IntArray
from .timed_grid import TimedExchange


@dataclass(slots=True)
class Arm:
    """One device, whatever connection it has at present.

    Attributes
    ----------
    index : int
        Arm number, from 0, in the order of joining.
    key : str
        Identity that survives reconnects: the node's public key where it has one, else its id.
    node_id : int
        Flower node id of the present (or last) connection.
    name : str
        What people call it; the client's own answer to a query, else derived from the key.
    num_examples : int or None
        Size s_k of its data set, 0 for one without data; ``None`` while unknown.
    label_counts : list of int or None
        Examples per label, where the client tells.
    queried : bool
        Whether it has answered the question for its name and size.
    named : bool
        Whether the grid knows its name, which the client then cannot choose.
    sized : bool
        Whether it told its size itself, in the answer to the query.
    pause, next_try : int
        For how many rounds it is left out, and the first in which it may be selected again, if it
        has no examples.
    failures : int
        How often its work has come to nothing in a row; what the link loses does not count.
    rest_end_s : float
        When it may be selected again after such failures, on the grid's clock [s]; 0: at once.
    """

    index: int
    key: str
    node_id: int
    name: str
    num_examples: int | None = None
    label_counts: list[int] | None = None
    queried: bool = False
    named: bool = False
    sized: bool = False
    pause: int = 0
    next_try: int = 0
    failures: int = 0
    rest_end_s: float = 0.0

    @property
    def empty(self) -> bool:
        """Whether it has no examples to train on, by what it said last."""
        return self.num_examples == 0


_FIELDS: Final = tuple(field.name for field in fields(Arm))
_COLUMNS: Final = (
    "_present",
    "_staying",
    "_free",
    *("_rested", "_resting"),
    "_queried",
    "_size",
    "_next_try",
    "_rest_end_s",
    "_node",
    "_seen",
)


class ArmTable:
    """Map nodes to arms. Arms are never removed: a device that returns is the same arm.

    An arm is a *member*, and so accrues the rounds it is owed, while its node is connected and not
    on leave. It is *available* while it is connected, not busy and not opted out. It is neither
    while it owes an answer to the query that every newcomer is asked as soon as it is free, nor
    while it rests after failures. An arm without examples is no member, and available only when it
    is to be tried again.

    What the rounds need of all arms is in arrays: of ten thousand few change between two rounds.

    Attributes
    ----------
    arms : list of Arm
        All of them, by index. A change is made known by :meth:`note`.
    silent : set of int
        Arms with a pending query; kept by :class:`.ArmDiscovery`.
    round : int
        The round that is to be selected for.
    version : int
        Grows when an arm is added or changed.
    gone : (...) int64
        Arms that have been away for so long that their data count for nothing.
    """

    def __init__(self) -> None:
        self.arms: list[Arm] = []
        self.silent: set[int] = set()
        self.round = 0
        self.version = 0
        self._clear()

    def _clear(self) -> None:
        self._by_key: dict[str, Arm] = {}
        self._by_node: dict[int, Arm] = {}
        self._connected: set[int] = set()  # nodes
        self._left: set[int] = set()  # arms that have left while they rested
        self._names: list[str] | None = None
        self._rows: list[str | None] = []  # JSON of each arm, for the state
        self._state: NDArray[np.uint8] | None = None
        self.gone: IntArray = np.zeros(0, dtype=np.int64)
        # By arm; longer than the list of arms, for those to come.
        self._present = np.zeros(0, dtype=np.bool_)  # connected
        self._staying = np.zeros(0, dtype=np.bool_)  # connected and not on leave
        self._free = np.zeros(0, dtype=np.bool_)
        self._rested = np.zeros(0, dtype=np.bool_)  # not left out after failures
        self._resting = np.zeros(0, dtype=np.bool_)  # left out, and free otherwise
        self._queried = np.zeros(0, dtype=np.bool_)
        self._size = np.zeros(0)  # NaN while unknown
        self._next_try = np.zeros(0, dtype=np.int64)
        self._rest_end_s = np.zeros(0)
        self._node = np.zeros(0, dtype=np.uint64)
        self._seen = np.zeros(0, dtype=np.int64)  # last round as a member, from 1; 0: not noted yet

    def __len__(self) -> int:
        return len(self.arms)

    def sync(self, grid: TimedExchange) -> None:
        """Read the connected nodes of a grid; new devices become new arms."""
        connected = set(grid.get_node_ids())
        if connected != self._connected:
            self._follow(grid, connected)
        self._free = self._present.copy()
        self._clear_nodes(self._free, grid.busy())
        self._clear_nodes(self._free, grid.opted_out())
        self._staying = self._present.copy()
        self._clear_nodes(self._staying, grid.on_leave())
        self._rested = self._rest_end_s <= grid.now()
        self._resting = self._free & ~self._rested
        self._free &= self._rested

    def note(self, arm: Arm) -> None:
        """Take note that what is known of an arm has changed."""
        index = arm.index
        self._queried[index] = arm.queried
        self._size[index] = math.nan if arm.num_examples is None else arm.num_examples
        self._next_try[index] = arm.next_try
        self._rest_end_s[index] = arm.rest_end_s
        self._node[index] = arm.node_id
        self._rows[index] = self._state = self._names = None
        self.version += 1

    def note_members(self, gone_rounds: int) -> None:
        """Take note of the members in the round that begins, and of those away for longer."""
        seen = self._seen[: len(self.arms)]
        resting = (self._staying & ~self._rested)[: len(self.arms)]  # it is there all the same
        seen[self.member | resting | (seen == 0)] = self.round
        self.gone = np.flatnonzero(self.round - seen > gone_rounds)

    def state(self) -> dict[str, Any]:
        """Return the arms, for a checkpoint: the names of their fields, and rows of values."""
        if self._state is None:
            for index, row in enumerate(self._rows):
                if row is None:
                    values = [getattr(self.arms[index], name) for name in _FIELDS]
                    self._rows[index] = json.dumps(values, separators=(",", ":"))
            text = ",\n".join(self._rows)  # type: ignore[arg-type]
            self._state = np.frombuffer(f"[{text}]".encode(), dtype=np.uint8)
        return {
            "fields": list(_FIELDS),
            "rows": self._state,
            "seen": self._seen[: len(self.arms)].copy(),
        }

    def load_state(self, state: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> None:
        """Restore arms from :meth:`state`; none is available until the next ``sync``.

        Checkpoints of earlier versions have a mapping for each arm.
        """
        seen: IntArray | None = None
        if isinstance(state, Mapping):
            seen = np.asarray(state["seen"])
            rows = json.loads(np.asarray(state["rows"], dtype=np.uint8).tobytes())
            state = [dict(zip(state["fields"], row, strict=True)) for row in rows]
        self._clear()
        self.arms = []
        for row in state:
            self._add(Arm(**row))
        if seen is not None:
            self._seen[: seen.size] = seen

    @property
    def names(self) -> list[str]:
        """What the arms are called, by index; another list when that has changed."""
        if self._names is None:
            self._names = [arm.name for arm in self.arms]
        return self._names

    @property
    def sizes(self) -> FloatArray:
        """Examples of the arms, (num_arms,) float64; NaN where unknown."""
        return self._size[: len(self.arms)].copy()

    def arm_of(self, node_id: int) -> Arm:
        """Return the arm behind a node id."""
        return self._by_node[node_id]

    def knows(self, node_id: int) -> bool:
        """Tell whether a node id is an arm's."""
        return node_id in self._by_node

    def node_ids(self, arms: Iterable[int]) -> list[int]:
        """Return the present node ids of arms, in the given order."""
        node_ids: list[int] = self._node[list(arms)].tolist()
        return node_ids

    @property
    def available(self) -> BoolArray:
        """Arms that can be selected now, (num_arms,) bool."""
        available: BoolArray = (self._free & self._queried & ~self._unfit())[: len(self.arms)]
        return available

    @property
    def member(self) -> BoolArray:
        """Arms that belong to the fleet at present, (num_arms,) bool."""
        member: BoolArray = (self._staying & self._rested & (self._size != 0))[: len(self.arms)]
        member[list(self.silent)] = False
        return member

    def all_empty(self, at_least: int = 1) -> bool:
        """Tell whether so many arms that stay have answered, and none of them has examples."""
        heard = self._size[self._staying & self._queried]
        return heard.size >= at_least and not heard.any()  # NaN is true

    @property
    def num_available(self) -> int:
        """How many arms can be selected now."""
        return int(np.count_nonzero(self.available))

    @property
    def resting(self) -> list[Arm]:
        """Arms that could be selected now if they did not rest after failures."""
        mask = self._resting & self._queried & ~self._unfit()
        return [self.arms[i] for i in np.flatnonzero(mask).tolist()]

    def left_out(self, now_s: float) -> list[int]:
        """Return the connected arms that rest, or have no examples and are not tried again yet.

        Any thread may ask, while arms are added.
        """
        known = len(self.arms)  # the columns have as many rows or more at any moment
        out = (self._rest_end_s[:known] > now_s) | self._unfit(known)
        left_out: list[int] = np.flatnonzero(self._present[:known] & out).tolist()
        return left_out

    def _unfit(self, known: int | None = None) -> BoolArray:
        unfit: BoolArray = (self._size[:known] == 0) & (self._next_try[:known] > self.round)
        return unfit

    def end_rests(self) -> None:
        """Let all arms be tried again: the clock that their rests are measured on is another."""
        for arm in self.arms:
            if arm.rest_end_s:
                arm.rest_end_s = 0.0
                self.note(arm)

    def unqueried(self) -> list[Arm]:
        """Return the free arms whose name and size are not known yet."""
        return [self.arms[i] for i in np.flatnonzero(self._free & ~self._queried).tolist()]

    def _follow(self, grid: TimedExchange, connected: set[int]) -> None:
        """Take note of who has joined and left since the last look."""
        joined = connected - self._connected
        nodes: dict[int, NodeInfo] = {}
        if not joined <= self._by_node.keys():
            nodes = {node.node_id: node for node in grid.get_nodes()}
        # Sorted: the arm numbers of devices that join together must not depend on set order.
        for node_id in sorted(joined):
            if node_id not in self._by_node:
                if nodes and node_id not in nodes:  # it has just left
                    connected.discard(node_id)
                    continue
                self._meet(node_id, nodes.get(node_id))
            arm = self._by_node[node_id]
            if arm.node_id != node_id:  # a SuperNode gets a new node id at each start
                arm.node_id = node_id
                self.note(arm)
            if arm.index in self._left:  # a device that comes back may be mended
                self._left.discard(arm.index)
                arm.rest_end_s = 0.0
                self.note(arm)
        changed = self._connected ^ connected
        self._connected = connected
        for arm in [self._by_node[node_id] for node_id in changed]:
            self._present[arm.index] = arm.node_id in connected
            if arm.rest_end_s and arm.node_id not in connected:
                self._left.add(arm.index)

    def _meet(self, node_id: int, node: NodeInfo | None) -> None:
        """Find the arm of a new node, or add one."""
        key = (node.public_key.hex() if node else "") or f"node-{node_id}"
        arm = self._by_key.get(key)
        if arm is None:
            named = node is not None and bool(node.name)
            name = node.name if node is not None and named else _short(key)
            self._add(Arm(len(self.arms), key, node_id, name, named=named))
        else:
            self._by_node[node_id] = arm

    def _add(self, arm: Arm) -> None:
        if (room := self._present.size) <= len(self.arms):  # first, for readers in other threads
            for name in _COLUMNS:
                setattr(self, name, np.pad(getattr(self, name), (0, max(64, room))))
        self.arms.append(arm)
        self._by_key[arm.key] = self._by_node[arm.node_id] = arm
        self._rows.append(None)
        self.note(arm)

    def _clear_nodes(self, mask: BoolArray, nodes: AbstractSet[int]) -> None:
        """Set a mask to false for the arms that these are the present nodes of."""
        found = [self._by_node[node] for node in nodes if node in self._by_node]
        mask[[arm.index for arm in found if arm.node_id in nodes]] = False


def _short(key: str) -> str:
    """Return what people can tell keys apart by; those of SuperNodes all begin alike."""
    return key if len(key) <= 16 else hashlib.sha256(key.encode()).hexdigest()[:12]
