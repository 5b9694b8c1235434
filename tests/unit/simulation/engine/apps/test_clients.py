"""Clients of an app share a process and nothing else."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from apps import echo_app
from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict

from flower_scheduling._flwr import take_identity
from flower_scheduling.simulation.engine.apps.clients import ClientCalls, seed_all

SEED = np.random.SeedSequence(1)
drawn: list[tuple[float, ...]] = []


def draw() -> tuple[float, ...]:
    return (random.random(), float(np.random.rand()), torch.rand(1).item())  # noqa: NPY002


def work(message: Message, context: Context) -> None:
    drawn.append(draw())
    context.run_config["spoiled"] = 1
    os.chdir("/")
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)


def call(calls: ClientCalls, node: int, kind: str = MessageType.TRAIN) -> tuple[float, ...]:
    drawn.clear()
    take_identity(1)
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(2))})})
    context = Context(1, node, {"name": "x"}, RecordDict(), {})
    calls(Message(content, node, kind), context)
    assert "spoiled" not in calls._run_config
    return drawn[-1] if drawn else ()


def test_what_a_client_draws_follows_from_its_calls_alone() -> None:
    alone = ClientCalls(echo_app(work), {}, 3)
    first, second = call(alone, 7), call(alone, 7)
    assert not {*first} & {*second}
    among = ClientCalls(echo_app(work), {}, 3)
    others = [call(among, node) for node in (5, 6)]
    assert call(among, 7) == first
    others.append(call(among, 5))
    assert call(among, 7) == second
    assert len({first, second, *others}) == 5
    assert call(ClientCalls(echo_app(work), {}, 4), 7) != first, "another seed"


def test_saved_counts_go_on() -> None:
    calls, other = ClientCalls(echo_app(work), {}, 3), ClientCalls(echo_app(work), {}, 3)
    call(calls, 7)
    other.load_state_dict(calls.state_dict())
    assert call(calls, 7) == call(other, 7)


def test_the_server_goes_on_as_if_no_client_had_drawn_or_gone_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        seed_all(SEED)
        undisturbed = draw()
        seed_all(SEED)
        call(ClientCalls(echo_app(work), {}, 3), 7)
        assert draw() == undisturbed
        assert Path.cwd() == tmp_path
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])


def test_an_answer_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(TypeError, match="returned str, not a Message"):
        call(ClientCalls(echo_app(lambda message, context: "no"), {}, 0), 1)
