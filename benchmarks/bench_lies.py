"""What a client gets by lying, and by doing nothing, with and without what stands against it.

    python benchmarks/bench_lies.py            # the table of docs/policies/robustness.md
    python benchmarks/bench_lies.py --write    # and put it there

Twenty clients with a mixture of digits of their own, five at work, over the paper's radio links in
virtual time: real apps, training and aggregation. The cheat is client 1, the slowest one. As a liar
it trains, and reports 100 times its loss; as a free rider it answers in a millisecond with the
model that it got. Two seeds of 200 rounds; some ten minutes.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from flwr.app import Context, Message, MessageType, MetricRecord, RecordDict

import flower_scheduling.simulation.engine.runner as runner
from flower_scheduling.client.wire.protocol import ARRAYS, METRICS, TRAIN_LOSS
from flower_scheduling.errors import NoStepError
from flower_scheduling.simulation.engine.virtual_grid import VirtualGrid
from flower_scheduling.simulation.environments.paper import Environment, RoundDraw
from flower_scheduling.simulation.settings import SCENARIOS, SimulationConfig
from flower_scheduling.strategies.flower import RoundRecord

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "policies" / "robustness.md"
MARK: Final = "<!-- bench_lies.py -->\n"
LIAR, FREE_RIDER, HONEST = "liar", "free rider", "honest"
ROUNDS, SEEDS = 200, range(2)
MAX_SHARE: Final = 0.3
SETTINGS: Final[Mapping[str, Any]] = {
    **SCENARIOS["ideal"],
    **{"scenario": "ideal", "partitioner": "dirichlet:0.1", "eval-every": 10_000},
    **{"batch-size": 16, "learning-rate": 0.02, "checkpoint-every": 0},
    "num-spare": 0,  # shares are of rounds of N
}
GUARDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "without": {"accept-unchanged": True, "loss-quantile": 1.0},
    "by default": {},
    f"and `max_share={MAX_SHARE}`": {"max-share": MAX_SHARE},
}
"""What stands against cheats, by column."""


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table."""

    cheat: str
    policy: str
    mode: str


CASES: Final = (
    *(
        Case(LIAR, policy, mode)
        for policy in ("cs-ucb-q-loss", "oort")
        for mode in ("rounds", "buffered")
    ),
    *(
        Case(FREE_RIDER, policy, mode)
        for policy in ("cs-ucb-q-adaptive", "cs-ucb-q-loss", "proportional-fair", "oort")
        for mode in ("rounds", "buffered")
    ),
)


class _Hasty:
    """An environment in which client 1 takes a millisecond."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def round(self, t: int) -> RoundDraw:
        draw = self._environment.round(t)
        times = {name: getattr(draw, name).copy() for name in ("download_s", "upload_s")}
        for each in times.values():
            each[0] = 0.0
        compute_s = draw.compute_s.copy()
        compute_s[0] = 1e-3
        return replace(draw, compute_s=compute_s, **times)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)


def cheating(app: Callable[[Message, Context], Message], cheat: str) -> Any:
    """Return a ClientApp in which client 1 cheats."""

    def answer(message: Message, context: Context) -> Message:
        trains = message.metadata.message_type.partition(".")[0] == MessageType.TRAIN
        if not trains or context.node_config["partition-id"] != 0 or cheat == HONEST:
            return app(message, context)
        if cheat == LIAR:
            reply = app(message, context)
            reply.content[METRICS][TRAIN_LOSS] *= 100.0
            return reply
        metrics = MetricRecord({"num-examples": 3000, TRAIN_LOSS: 2.3})
        content = RecordDict({ARRAYS: message.content[ARRAYS], METRICS: metrics})
        return Message(content, reply_to=message)

    return answer


def shares(records: Sequence[RoundRecord]) -> tuple[float, float]:
    """Return which share of the work client 1 was given, and of the updates in the model it made.

    Arms are numbered as clients join, so it is found by its name.
    """
    results = [result for record in records for result in record.results]
    used = [result for result in results if result.completed]
    return tuple(  # type: ignore[return-value]
        sum(result.name == "client-1" for result in some) / max(len(some), 1)
        for some in (results, used)
    )


def run(case: Case, cheat: str, guards: Mapping[str, Any], seed: int, rounds: int) -> list[float]:
    """Return the two shares of client 1."""
    guards = dict(guards)
    quantile = guards.pop("loss-quantile", None)
    options = {}
    if quantile is not None and case.policy == "cs-ucb-q-loss":
        options["strategy-option"] = f"loss-quantile={quantile}"
    config = SimulationConfig.from_mapping(
        {
            **SETTINGS,
            **{"strategy": case.policy, "mode": case.mode, "seed": seed},
            **{"rounds": rounds, **guards, **options},
        }
    )
    simulation = runner.Simulation(config)
    if cheat == FREE_RIDER:
        simulation._environment = _Hasty(simulation._environment)  # type: ignore[assignment]

    class Grid(VirtualGrid):
        def __init__(self, app: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(cheating(app, cheat), *args, **kwargs)

    usual, runner.VirtualGrid = runner.VirtualGrid, Grid  # type: ignore[misc]
    try:
        return list(shares(simulation.run().records))
    except NoStepError:
        return [1.0, 0.0]
    finally:
        runner.VirtualGrid = usual  # type: ignore[misc]


def cells(case: Case, seeds: Sequence[int], rounds: int) -> Iterator[tuple[float, float]]:
    """Yield the shares of a row by column, means over the seeds, those of an honest one first."""
    columns = [(HONEST, {}), *((case.cheat, guards) for guards in GUARDS.values())]
    for cheat, guards in columns:
        found = np.mean([run(case, cheat, guards, seed, rounds) for seed in seeds], axis=0)
        yield float(found[0]), float(found[1])


def table(seeds: Sequence[int] = SEEDS, rounds: int = ROUNDS) -> str:
    """Return the table for documentation."""
    lines = [
        f"| cheat | policy | mode | honest | {' | '.join(GUARDS)} |",
        "|---" * (len(GUARDS) + 4) + "|",
    ]
    for case in CASES:
        shown = [f"{given:.1%} / {used:.1%}" for given, used in cells(case, seeds, rounds)]
        lines.append(f"| {case.cheat} | `{case.policy}` | {case.mode} | {' | '.join(shown)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    found = table()
    if arguments.write:
        before, _, after = PAGE.read_text(encoding="utf-8").split(MARK)
        PAGE.write_text(before + MARK + found + MARK + after, encoding="utf-8")


if __name__ == "__main__":
    main()
