"""Which node is which arm, and what is known of all of them at once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.proto.node_pb2 import NodeInfo

from flower_scheduling.strategies.flower.arm_table import ArmTable


class Nodes:
    """A grid of nodes that come and go, by id; a key is that of the device."""

    def __init__(self, **keys: int) -> None:
        self.nodes = {node: key for key, node in keys.items()}
        self.late: set[int] = set()  # gone when they are looked at
        self.at_work: set[int] = set()
        self.out: set[int] = set()
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(node_id=node, name=key, public_key=key.encode())
            for node, key in self.nodes.items()
            if node not in self.late
        ]

    def busy(self) -> set[int]:
        return self.at_work

    def opted_out(self) -> set[int]:
        return self.out

    on_leave = opted_out


def synced(table: ArmTable, grid: Nodes) -> tuple[list[int], list[int]]:
    """Return the arms that are available and those that are members."""
    any_grid: Any = grid
    table.sync(any_grid)
    for arm in table.unqueried():
        arm.queried = True
        table.note(arm)
    return (
        np.flatnonzero(table.available).tolist(),
        np.flatnonzero(table.member).tolist(),
    )


def test_nodes_come_and_go() -> None:
    table, grid = ArmTable(), Nodes(a=30, b=20, c=10)
    assert synced(table, grid) == ([0, 1, 2], [0, 1, 2])
    assert table.names == ["c", "b", "a"], "by node id, whatever the order of a set"
    grid.at_work, grid.out = {20, 99}, {30}
    assert synced(table, grid) == ([0], [0, 1])
    del grid.nodes[10]
    grid.nodes[40] = "d"
    grid.at_work = set()
    assert synced(table, grid) == ([1, 3], [1, 3])
    grid.nodes[10], grid.out = "c", set()
    assert synced(table, grid) == ([0, 1, 2, 3], [0, 1, 2, 3])
    assert len(table) == 4


def test_a_device_with_another_node_is_the_same_arm() -> None:
    table, grid = ArmTable(), Nodes(a=1, b=2)
    synced(table, grid)
    grid.nodes[7] = "a"  # the SuperLink has not missed the earlier one yet
    grid.at_work = {1}
    assert synced(table, grid) == ([0, 1], [0, 1])
    assert table.node_ids([0]) == [7]
    del grid.nodes[7]
    assert synced(table, grid) == ([1], [1]), "no message could be delivered"
    del grid.nodes[1]
    grid.at_work = set()
    synced(table, grid)
    grid.nodes[1] = "a"
    assert synced(table, grid)[0] == [0, 1]
    assert table.node_ids([0]) == [1]


def test_a_node_that_has_left_meanwhile_is_no_arm() -> None:
    table, grid = ArmTable(), Nodes(a=1, b=2)
    grid.late = {2}
    assert synced(table, grid) == ([0], [0])
    assert table.names == ["a"]
    grid.late = set()
    assert synced(table, grid) == ([0, 1], [0, 1])
    assert table.names == ["a", "b"]


def test_arms_without_examples_and_with_a_pending_query() -> None:
    table, grid = ArmTable(), Nodes(a=1, b=2, c=3)
    synced(table, grid)
    arm = table.arms[1]
    arm.num_examples, arm.next_try = 0, 11
    table.note(arm)
    table.silent.add(2)
    table.round = 10
    assert synced(table, grid) == ([0, 2], [0])
    assert not table.all_empty()
    table.round = 11
    assert synced(table, grid)[0] == [0, 1, 2]
    assert np.isnan(table.sizes).tolist() == [True, False, True]
    for arm in table.arms:
        arm.num_examples = 0
        table.note(arm)
    assert table.all_empty()
    assert not table.all_empty(4)


@pytest.mark.parametrize("earlier", [False, True])
def test_state(*, earlier: bool) -> None:
    table, grid = ArmTable(), Nodes(**{f"dev \u00e9{i}": i for i in range(1, 200)})
    synced(table, grid)
    table.arms[3].label_counts = [1, 2, 3]
    table.note(table.arms[3])
    state: Any = table.state()
    assert state["rows"] is table.state()["rows"], "made anew only when something has changed"
    if earlier:  # of version 0.1: a mapping for each arm
        names = state["fields"]
        rows = json.loads(state["rows"].tobytes())
        state = [dict(zip(names, row, strict=True)) for row in rows]
    again = ArmTable()
    again.load_state(state)
    assert again.arms == table.arms
    assert not again.available.any()
    assert synced(again, grid) == synced(table, grid)
    assert len(again) == 199
    version = again.version
    again.arms[5].num_examples = 7
    again.note(again.arms[5])
    assert again.version > version
    assert (
        json.loads(again.state()["rows"].tobytes())[5]
        != json.loads(table.state()["rows"].tobytes())[5]
    )
    assert again.names == table.names


def test_who_is_left_out_can_be_read_while_arms_are_added() -> None:
    """The status is made by another thread, between any two steps of the run's own."""
    reads = 0

    class Read(ArmTable):
        def __setattr__(self, name: str, value: Any) -> None:
            nonlocal reads
            super().__setattr__(name, value)
            if "ready" in self.__dict__:
                assert self.left_out(0.0) == []
                reads += 1

    table = Read()
    table.ready = True  # type: ignore[attr-defined]
    for count in (1, 63, 64, 65, 200):
        synced(table, Nodes(**{f"d{number}": number for number in range(count)}))
    assert len(table) == 200
    assert reads > 50
