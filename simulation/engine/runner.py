"""Simulation: real ServerApp, real ClientApps, real data, virtual time."""

from __future__ import annotations

import json
import logging
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from flwr.app import Context, RecordDict

from flower_scheduling.client.learning.partitions import build_partition
from flower_scheduling.client.wire.compression import expected_share
from flower_scheduling.errors import ConfigError, NoStepError, NotSavedError, SchedulingError
from flower_scheduling.files import write_whole
from flower_scheduling.server.app import create_app, prepare_run
from flower_scheduling.server.callbacks import RoundCallback, Run, RunEnd
from flower_scheduling.server.runs.directory import TRUTH, read_rounds
from flower_scheduling.strategies import POLICIES, NamedFloors, check_feasibility, parse_floors
from flower_scheduling.strategies.base import FloatArray
from flower_scheduling.strategies.deadline import AUTO, GivenDeadline
from flower_scheduling.strategies.flower import LOGGER, RoundHook, RoundRecord

from ..settings import SimulationConfig
from .virtual_grid import GridEnvironment, VirtualGrid


@dataclass(frozen=True)
class SimulationResult:
    """Result of a simulation.

    Attributes
    ----------
    config : SimulationConfig
        Resolved settings.
    summary : dict
        The run in numbers, as in ``summary.json``.
    records : list of RoundRecord
        The rounds.
    error : NoStepError, NotSavedError or None
        What it ended with, if no round changed the model, or its results could not be written.
    written : mapping of str to int
        Files outside its run directory that an app has written, see :func:`.files_since`.
    """

    config: SimulationConfig
    summary: dict[str, Any]
    records: list[RoundRecord]
    error: SchedulingError | None = None
    written: Mapping[str, int] = field(default_factory=dict)

    @property
    def scheduled(self) -> bool:
        """Whether a policy has selected the clients: an app may sample them by itself."""
        return bool(self.summary.get("scheduled", True))


class Simulation:
    """Simulation that is ready to run: settings checked, data loaded and distributed.

    Parameters
    ----------
    config : SimulationConfig
        Settings.

    Raises
    ------
    ConfigError, UnknownPolicyError, ClientConfigError
        If a setting does not fit the others or the data.
    DataUnavailableError
        If the data cannot be had.
    """

    def __init__(self, config: SimulationConfig) -> None:
        # Imported here: torch takes seconds that help texts and wrong flags can do without.
        import torch

        from flower_scheduling.client.learning.datasets import load_data

        # Refuses bad settings before any work is done, or anything is written.
        self._prepared = prepare_run(
            config,
            availability=float(config.per_client("availability").mean()),
            log_every_s=math.inf,  # thousands of rounds a second
        )
        torch.set_num_threads(1)  # small batches: threads cost more than they bring
        self.config = config
        labels = load_data(config.dataset, config.data_dir).train_labels.numpy()
        partition = build_partition(config.partitioner, labels, config.num_clients, config.seed)
        self._refuse_infeasible_floors([len(indices) for indices in partition])
        arrays = self._prepared.arrays
        model_bits = 8 * sum(array.numpy().nbytes for array in arrays.values())
        kinds = config.compression
        self._environment = config.environment(
            model_bits, expected_share(kinds.down, arrays), expected_share(kinds.up, arrays)
        )

    def run(self, hooks: Sequence[RoundHook] = (), *, resume: bool = False) -> SimulationResult:
        """Run all rounds, once; an interrupt leaves the run directory complete up to it.

        Parameters
        ----------
        hooks : sequence of callable
            Called after each round.
        resume : bool
            Whether to go on with the run in ``run-dir``, from its last checkpoint.
        """
        from flower_scheduling.client.app import create_client_app

        config = self.config
        # Flower samples nodes and draws noise from the global generators.
        random.seed(config.seed)
        np.random.seed(config.seed % 2**32)  # noqa: NPY002
        run_config = config.server_config().to_mapping()
        grid = VirtualGrid(
            create_client_app(),  # without link emulation: the grid knows the times
            self._environment,
            [
                {
                    "partition-id": arm,
                    "num-partitions": config.num_clients,
                    "name": f"client-{arm + 1}",
                }
                for arm in range(config.num_clients)
            ],
            run_config,
            late=config.late,
            compression=config.compression,
        )
        records: list[RoundRecord] = []
        results = _Results(self._write_truth)
        server_app = create_app(
            lambda: [results],
            hooks=(lambda record, arrays: records.append(record), *hooks),
            prepared=self._prepared,
            resume=resume,
        )
        context = Context(
            run_id=grid.run.run_id,
            node_id=0,
            node_config={},
            state=RecordDict(),
            run_config=run_config,
        )
        failure = None
        with _quiet_flower():
            try:
                server_app(grid, context)
            except (NoStepError, NotSavedError) as error:  # what the rounds took is a result too
                failure = error
        summary = results.summary
        if resume:  # with what was before
            names = [arm["name"] for arm in summary["arms"]]
            earlier = summary["rounds"] - len(records)
            records[:0] = read_rounds(Path(config.run_dir), earlier, names)
        return SimulationResult(config, summary, records, failure)

    def _write_truth(self) -> None:
        """Leave the clients' expected times in the run directory, if there is one."""
        if self.config.run_dir:
            names = [f"client-{number + 1}" for number in range(self.config.num_clients)]
            folder = Path(self.config.run_dir)
            write_truth(folder, names, self._environment, self.config.tau_max_s)

    def _refuse_infeasible_floors(self, num_examples: list[int]) -> None:
        config = self.config
        if "min_participation" not in POLICIES[config.strategy].parameters():
            return
        names = [f"client-{arm + 1}" for arm in range(config.num_clients)]
        rule = parse_floors(config.fairness)
        if isinstance(rule, NamedFloors) and (message := rule.unknown_message(names)):
            last = f"they are called {names[0]} to {names[-1]}"
            raise ConfigError("fairness", config.fairness, message, last)
        floors = rule.floors(num_examples, config.num_selected, names)
        feasibility = check_feasibility(
            floors, config.num_selected, config.per_client("availability")
        )
        if not feasibility.feasible:
            raise ConfigError("fairness", config.fairness, feasibility.message(names))
        if (above := np.flatnonzero(floors > config.max_share)).size:
            text = f"is below the floor of {names[above[0]]}, {floors[above[0]]:.3g}"
            raise ConfigError("max-share", config.max_share, text)


class FleetEnvironment(GridEnvironment, Protocol):
    """Environment of a simulated fleet, whose means are known."""

    @property
    def regimes(self) -> Sequence[int]:
        """Rounds from which the means differ from those before, the first being 1."""

    def expected_time_s(self, tau_max_s: float, t: int = 1) -> FloatArray:
        """Return the means of the times, each cut off at the deadline [s], (num_arms,)."""


def write_truth(
    folder: Path, names: Sequence[str], environment: FleetEnvironment, tau_max_s: GivenDeadline
) -> None:
    """Leave the clients' expected times in a run directory: a page shows regret by them.

    They are cut off at the deadline, so there are none for one that moves.
    """
    if tau_max_s == AUTO:
        return
    truth = []
    for t in environment.regimes:
        expected_s = environment.expected_time_s(float(tau_max_s), t).tolist()
        # By name: arms are numbered in the order of joining.
        by_name = dict(zip(names, expected_s, strict=True))
        truth.append({"since_round": t, "expected_time_s": by_name})
    write_whole(folder / TRUTH, json.dumps(truth) + "\n")


class _Results(RoundCallback):
    """Leaves the truth in the run directory at the start of a run, and keeps its summary."""

    def __init__(self, write_truth: Callable[[], None]) -> None:
        self._write_truth = write_truth
        self.summary: dict[str, Any] = {}

    def on_start(self, run: Run) -> None:
        self._write_truth()

    def on_end(self, status: RunEnd, summary: Mapping[str, Any]) -> None:
        self.summary = dict(summary)


@contextmanager
def _quiet_flower() -> Iterator[None]:
    """Drop what Flower itself logs below an error, while our loggers keep their level.

    Flower logs several lines a round, which costs as much time as the round itself.
    """
    flower = logging.getLogger("flwr")
    levels = flower.level, LOGGER.level
    LOGGER.setLevel(LOGGER.getEffectiveLevel())
    flower.setLevel(logging.ERROR)
    try:
        yield
    finally:
        flower.setLevel(levels[0])
        LOGGER.setLevel(levels[1])
