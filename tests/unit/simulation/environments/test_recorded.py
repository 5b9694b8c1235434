"""Records of runs, and what is drawn from them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from apps import echo_app
from flwr.app import Message, MessageType, RecordDict

from flower_scheduling.simulation.engine.virtual_grid import VirtualGrid
from flower_scheduling.simulation.environments.recorded import RecordedFleet, RunRecord
from flower_scheduling.strategies.flower import TIMEOUT, Exchange

NUM_ROUNDS = 64


def recorded(samples_s: Sequence[Sequence[float]]) -> RunRecord:
    """Return the record of a run in which each arm took these times, ``inf`` where it failed."""
    there = np.ones((NUM_ROUNDS, len(samples_s)), dtype=np.bool_)
    return RunRecord(
        names=tuple(f"c{arm}" for arm in range(len(samples_s))),
        policy="random",
        num_selected=1,
        num_rounds=NUM_ROUNDS,
        tau_max_s=60.0,
        samples_s=tuple(np.array(values) for values in samples_s),
        available=there,
        member=there,
        floors=(),
        params={},
        time_s=1.0,
        measured_s=1.0,
    )


def exchanged(record: RunRecord) -> list[list[Exchange]]:
    """Return what becomes of a message to each client in each round, under a minute's deadline."""
    fleet = RecordedFleet(record, 0)
    app = echo_app(lambda message, context: Message(RecordDict(), reply_to=message))
    grid = VirtualGrid(app, fleet, [{} for _ in record.names], {})
    found = []
    for number in range(1, NUM_ROUNDS + 1):
        grid.begin_round(number)
        nodes = grid.get_node_ids()
        messages = [Message(RecordDict(), node, MessageType.TRAIN) for node in nodes]
        found.append(grid.exchange(messages, 60.0))
    return found


def test_a_client_that_failed_in_the_record_answers_no_grid() -> None:
    found = exchanged(recorded([[1.0] * 30, [1.0, math.inf] * 15]))
    assert {each.failure for each, _ in found} == {None}
    failed = [each for _, each in found if each.reply is None]
    assert 0 < len(failed) < NUM_ROUNDS
    assert {each.failure for each in failed} == {TIMEOUT}
    assert {each.rtt_s for _, each in found if each.reply is not None} == {1.0}
