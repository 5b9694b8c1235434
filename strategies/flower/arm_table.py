"""Arm table: which node is which arm, and which arms can be selected now."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..base import BoolArray
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
    seen : int
        The last round in which it belonged to the fleet; -1: before this was noted.
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
    seen: int = -1

    @property
    def empty(self) -> bool:
        """Whether it has no examples to train on, by what it said last."""
        return self.num_examples == 0


class ArmTable:
    """Map nodes to arms. Arms are never removed: a device that returns is the same arm.

    An arm is a *member*, and so accrues the rounds it is owed, while its node is connected and not
    on leave. It is *available* while it is connected, not busy and not opted out. It is neither
    while it owes an answer to the query that every newcomer is asked as soon as it is free. An arm
    without examples is no member, and available only when it is to be tried again.

    Attributes
    ----------
    arms : list of Arm
        All of them, by index.
    silent : set of int
        Arms with a pending query; kept by :class:`.ArmDiscovery`.
    round : int
        The round that is to be selected for.
    """

    def __init__(self) -> None:
        self.arms: list[Arm] = []
        self.silent: set[int] = set()
        self.round = 0
        self._by_key: dict[str, Arm] = {}
        self._by_node: dict[int, Arm] = {}
        self._staying: list[int] = []  # connected and not on leave
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self.arms)

    def sync(self, grid: TimedExchange) -> None:
        """Read the connected nodes of a grid; new devices become new arms."""
        connected = set(grid.get_node_ids())
        if not connected <= self._by_node.keys():
            self._meet(grid, connected)
        busy = grid.busy()
        by_node = self._by_node
        free = connected - busy - grid.opted_out()
        self._free = sorted({by_node[node].index for node in free})
        members = connected - grid.on_leave()
        self._staying = sorted({by_node[node].index for node in members})

    def state(self) -> list[dict[str, Any]]:
        """Return the arms, ready for JSON."""
        return [asdict(arm) for arm in self.arms]

    def load_state(self, state: Iterable[Mapping[str, Any]]) -> None:
        """Restore arms from :meth:`state`; none is available until the next ``sync``."""
        self.arms = [Arm(**arm) for arm in state]
        self._by_key = {arm.key: arm for arm in self.arms}
        self._by_node = {arm.node_id: arm for arm in self.arms}
        self._staying, self._free = [], []

    def arm_of(self, node_id: int) -> Arm:
        """Return the arm behind a node id."""
        return self._by_node[node_id]

    def node_ids(self, arms: Iterable[int]) -> list[int]:
        """Return the present node ids of arms, in the given order."""
        return [self.arms[arm].node_id for arm in arms]

    @property
    def available(self) -> BoolArray:
        """Arms that can be selected now, (num_arms,) bool."""
        return self._mask(self._ready(self._free))

    @property
    def member(self) -> BoolArray:
        """Arms that belong to the fleet at present, (num_arms,) bool."""
        return self._mask(
            [i for i in self._staying if i not in self.silent and self.arms[i].num_examples != 0]
        )

    def all_empty(self, at_least: int = 1) -> bool:
        """Tell whether so many arms that stay have answered, and none of them has examples."""
        heard = [i for i in self._staying if self.arms[i].queried]
        return len(heard) >= at_least and all(self.arms[i].empty for i in heard)

    @property
    def num_available(self) -> int:
        """How many arms can be selected now."""
        return len(self._ready(self._free))

    def unqueried(self) -> list[Arm]:
        """Return the free arms whose name and size are not known yet."""
        return [self.arms[i] for i in self._free if not self.arms[i].queried]

    def _ready(self, arms: list[int]) -> list[int]:
        table, now = self.arms, self.round
        return [
            i
            for i in arms
            if table[i].queried and not (table[i].num_examples == 0 and now < table[i].next_try)
        ]

    def _mask(self, arms: list[int]) -> BoolArray:
        mask = np.zeros(len(self.arms), dtype=np.bool_)
        mask[arms] = True
        return mask

    def _meet(self, grid: TimedExchange, connected: set[int]) -> None:
        nodes = {node.node_id: node for node in grid.get_nodes()}
        # Sorted: the arm numbers of devices that join together must not depend on set order.
        for node_id in sorted(connected - self._by_node.keys()):
            node = nodes.get(node_id)
            key = (node.public_key.hex() if node else "") or f"node-{node_id}"
            arm = self._by_key.get(key)
            if arm is None:
                named = node is not None and bool(node.name)
                name = node.name if node is not None and named else _short(key)
                arm = Arm(len(self.arms), key, node_id, name, named=named)
                self.arms.append(arm)
                self._by_key[key] = arm
            arm.node_id = node_id  # a SuperNode gets a new node id at each start
            self._by_node[node_id] = arm


def _short(key: str) -> str:
    """Return what people can tell keys apart by; those of SuperNodes all begin alike."""
    return key if len(key) <= 16 else hashlib.sha256(key.encode()).hexdigest()[:12]
