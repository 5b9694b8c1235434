"""A fleet in which something dies, hangs or is cut every few seconds, the server among them.

``SOAK_S`` sets for how long, ``SOAK_SEED`` what happens (``make soak``).
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleet_processes import Fleet, Link
from waiting import PATIENCE_S

from flower_scheduling.server.runs.checkpoint import CheckpointFolder
from flower_scheduling.strategies.base import FloatArray

SOAK_S = float(os.environ.get("SOAK_S", "25"))
SEEDS = [int(os.environ["SOAK_SEED"])] if "SOAK_SEED" in os.environ else [1]
NUM_CLIENTS, FLOOR = 6, 0.2
STUTTERING = 5  # the client that sends every reply twice, and old ones again
GROWTH_MB = 60

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.usefixtures("mnist"),
    pytest.mark.timeout(SOAK_S + 900),
]


class Chaos:
    """A fleet whose clients are behind relays, and what can happen to it."""

    def __init__(self, fleet: Fleet, seed: int, mode: str) -> None:
        self.fleet = fleet
        self.mode = mode
        self.rng = random.Random(seed)
        self.port = fleet.server(
            "--strategy cs-ucb-q --num-selected 2 --min-clients 3 --wait-s 20 --tau-max-s 3 "
            f"--rounds 1000000 --fairness equal:{FLOOR} --eval-every 1000000 --run-dir run "
            f"--mode {mode}"
        )
        self.links = [Link(self.port) for _ in range(NUM_CLIENTS)]
        for number in range(NUM_CLIENTS):
            self.start_client(number)
        self.memory_mb: list[list[float]] = [[]]  # of each life of the server, once it is warm
        self._born_at = 0  # round
        self.log: list[str] = []
        self._later: list[tuple[float, Callable[[], None]]] = []

    def start_client(self, number: int) -> None:
        module = "stuttering_client" if number == STUTTERING else "client.cli"
        self.fleet.client(self.links[number].port, number, NUM_CLIENTS, "--compute 40", module)

    def run(self, seconds: float) -> None:
        """Let something happen every second or three, and put right what must not last."""
        actions = [
            (self.kill_server, 1),
            (self.kill_client, 3),
            (self.stop_client, 3),
            (self.cut_link, 3),
            (self.freeze_link, 2),
            (self.delay_link, 2),
        ]
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            time.sleep(self.rng.uniform(1.0, 3.0))
            self._catch_up()
            self._note_memory()
            (action,) = self.rng.choices([a for a, _ in actions], [w for _, w in actions])
            self.log.append(action.__name__)
            action()
        time.sleep(5.0)
        self._later.sort(key=lambda item: item[0])
        while self._later:
            self._later.pop(0)[1]()

    def kill_server(self) -> None:
        server = self.fleet.processes["server"]
        server.kill()
        server.wait()
        self.fleet.start(
            "server",
            "server.cli.main",
            f"--resume run --address 127.0.0.1:{self.port}",
        )
        self.memory_mb.append([])
        self._born_at = len(self.fleet.rounds())

    def kill_client(self) -> None:
        number = self.rng.randrange(NUM_CLIENTS)
        client = self.fleet.processes[f"dev-{number}"]
        client.kill()
        client.wait()
        self.start_client(number)

    def stop_client(self) -> None:
        client = self.fleet.processes[f"dev-{self.rng.randrange(NUM_CLIENTS)}"]
        client.send_signal(signal.SIGSTOP)
        self._after(self.rng.uniform(1.0, 8.0), lambda: client.send_signal(signal.SIGCONT))

    def cut_link(self) -> None:
        link = self.links[self.rng.randrange(NUM_CLIENTS)]
        link.cut()
        self._after(self.rng.uniform(0.5, 20.0), link.restore)

    def freeze_link(self) -> None:
        self.links[self.rng.randrange(NUM_CLIENTS)].freeze()

    def delay_link(self) -> None:
        """Hold up what passes, so that some replies come late."""
        link = self.links[self.rng.randrange(NUM_CLIENTS)]
        link.delay_s = self.rng.uniform(0.1, 1.0)
        self._after(self.rng.uniform(1.0, 8.0), lambda: setattr(link, "delay_s", 0.0))

    def close(self) -> None:
        for link in self.links:
            link.close()

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, call))

    def _catch_up(self) -> None:
        now_s = time.monotonic()
        for item in [item for item in self._later if item[0] <= now_s]:
            self._later.remove(item)
            item[1]()

    def _note_memory(self) -> None:
        status = Path(f"/proc/{self.fleet.processes['server'].pid}/status")
        found = re.search(r"VmRSS:\s+(\d+) kB", status.read_text()) if status.exists() else None
        if found and len(self.fleet.rounds()) > self._born_at + 10:
            self.memory_mb[-1].append(int(found[1]) / 1024)


@pytest.fixture(params=SEEDS)
def seed(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture(params=["rounds", "buffered"])
def chaos(request: pytest.FixtureRequest, seed: int, tmp_path: Path) -> Iterator[Chaos]:
    fleet = Fleet(tmp_path)
    chaos = Chaos(fleet, seed, request.param)
    yield chaos
    fleet.end()
    chaos.close()


def test_no_round_is_lost_or_counted_twice(chaos: Chaos) -> None:
    fleet = chaos.fleet
    chaos.fleet.wait_for_rounds(5)
    chaos.run(SOAK_S)
    known = len(fleet.rounds())
    fleet.wait_for_rounds(known + 20)  # it goes on
    assert fleet.status(chaos.port)["ignored_replies"] > 0, "some come twice"
    server = fleet.processes["server"]
    server.send_signal(signal.SIGTERM)
    assert server.wait(PATIENCE_S) == 0, fleet.log("server")

    rounds = fleet.rounds()
    print(len(rounds), "rounds;", {name: chaos.log.count(name) for name in set(chaos.log)})
    assert [r["round"] for r in rounds] == list(range(1, len(rounds) + 1))
    assert all(a["time_s"] <= b["time_s"] for a, b in pairwise(rounds))
    assert "Traceback" not in fleet.log("server")
    assert rounds[-1]["num_arms"] == NUM_CLIENTS, "a device is the same arm whatever happened"

    # What the policy remembers is what the recorded rounds imply.
    saved = CheckpointFolder(fleet.folder / "run" / "checkpoint").load()
    assert saved is not None
    assert len(rounds) - saved.round <= 1
    policy = saved.state["strategy"]["policy"]
    plays, queue = implied(rounds[: saved.round])
    assert policy["play_count"].tolist() == plays.tolist()
    if chaos.mode == "rounds":
        assert policy["virtual_queue"] == pytest.approx(queue)
    else:  # of a step's pieces of work, the record does not say which clients were away at which
        work = [piece for r in rounds for piece in zip(r["selected"], r["begin_s"], strict=True)]
        assert len(set(work)) == len(work), "no piece of work counts twice"
    lives = [life for life in chaos.memory_mb if len(life) >= 2]
    print("memory [MB] of each server's life:", [(round(x[0]), round(x[-1])) for x in lives])
    assert all(life[-1] - life[0] < GROWTH_MB for life in lives)


def implied(rounds: list[dict[str, Any]]) -> tuple[FloatArray, FloatArray]:
    """Return how often each arm was selected, and the virtual queues of rounds."""
    arms = np.arange(NUM_CLIENTS)
    plays, queue = np.zeros(NUM_CLIENTS), np.zeros(NUM_CLIENTS)
    for r in rounds:
        plays += np.bincount(r["selected"], minlength=NUM_CLIENTS)
        member = (arms < r["num_arms"]) & ~np.isin(arms, r["absent"])
        owed = np.maximum(queue + FLOOR - np.isin(arms, r["selected"]), 0.0)
        queue = np.where(member, owed, queue)
    return plays, queue
