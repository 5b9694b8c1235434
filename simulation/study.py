"""Scheduling studies without training: the same policies over hundreds of seeds at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import Any, Final

import numpy as np

from simulation.environment import Environment
from strategies import RoundContext, RoundOutcome, SchedulingPolicy, Selection, build_policy
from strategies.base import ConfigError, FloatArray, IntArray, check_count, check_real

SEEDS_PER_CHUNK: Final = 200
"""Rows of one batch. Fixed: were it the number of processes, the results would depend on it."""

_ENVIRONMENT: Final = 0  # streams below the seed of a chunk
_POLICY: Final = 1


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy in a study.

    Attributes
    ----------
    policy : str
        Its name in the registry.
    params : mapping
        Its own parameters.
    from_environment : callable, optional
        Returns further parameters that depend on the drawn environment, such as the oracle's
        ``expected_time_s``.
    """

    policy: str
    params: Mapping[str, Any] = field(default_factory=dict)
    from_environment: Callable[[Environment], Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class StudyResult:
    """What one policy cost, for each seed.

    Attributes
    ----------
    total_time_s : (num_seeds,) float64
        Sum over rounds of the slowest selected arm's time, at most tau_max; 0 for an empty round
        [s].
    failures : (num_seeds,) int64
        How often a selected arm missed the deadline.
    play_count : (num_seeds, num_arms) int64
        How often each arm was selected.
    time_s : (num_seeds, num_checkpoints) float64
        Time at the end of each checkpoint round [s].
    """

    total_time_s: FloatArray
    failures: IntArray
    play_count: IntArray
    time_s: FloatArray


def run_study(
    policies: Sequence[str] | Mapping[str, Contender],
    environment: Callable[..., Environment],
    *,
    num_selected: int,
    tau_max_s: float,
    num_rounds: int,
    num_seeds: int,
    seed: int = 0,
    checkpoints: Sequence[int] = (),
    num_processes: int = 1,
) -> dict[str, StudyResult]:
    """Compare policies on the same draws.

    Seeds are run in fixed chunks of :data:`SEEDS_PER_CHUNK`, one row of the batch each, so that
    the results do not depend on `num_processes`. All policies of a chunk see the same placement,
    availability, latencies and failures, and none sees those of another's choice.

    Parameters
    ----------
    policies : sequence of str, or mapping of label to Contender
        Who takes part.
    environment : callable
        Called with ``batch_shape`` and ``seed``, e.g. ``partial(Environment, num_arms=20)``.
    num_selected : int, >= 1
        Most arms per round, N.
    tau_max_s : float, > 0
        Deadline tau_max [s].
    num_rounds : int, >= 1
        Rounds, T.
    num_seeds : int, >= 1
        Independent repetitions.
    seed : int, >= 0
        Seed of the study.
    checkpoints : sequence of int, in [1, num_rounds], increasing
        Rounds after which the time is recorded.
    num_processes : int, >= 1
        Processes that share the chunks; more than one needs picklable arguments.

    Returns
    -------
    dict of str to StudyResult
        By label, in the order given.

    Raises
    ------
    ConfigError
        If an argument has the wrong type or is out of range.
    UnknownPolicyError
        If a policy is not registered.
    """
    num_rounds = check_count("num_rounds", num_rounds, minimum=1)
    num_seeds = check_count("num_seeds", num_seeds, minimum=1)
    num_processes = check_count("num_processes", num_processes, minimum=1)
    seed = check_count("seed", seed, minimum=0)
    tau_max_s = check_real("tau_max_s", tau_max_s, above=0.0)
    checkpoints = [check_count("checkpoints", round, minimum=1) for round in checkpoints]
    if checkpoints != sorted(set(checkpoints)) or checkpoints[-1:] > [num_rounds]:
        raise ConfigError("checkpoints", checkpoints, f"increasing, at most {num_rounds}")
    contenders = (
        policies if isinstance(policies, Mapping) else {name: Contender(name) for name in policies}
    )
    run_chunk = partial(
        _run_chunk,
        dict(contenders),
        environment,
        num_selected=num_selected,
        tau_max_s=tau_max_s,
        num_rounds=num_rounds,
        num_seeds=num_seeds,
        seed=seed,
        checkpoints=checkpoints,
    )
    chunks = range(-(-num_seeds // SEEDS_PER_CHUNK))
    if num_processes == 1 or len(chunks) == 1:
        parts = [run_chunk(chunk) for chunk in chunks]
    else:
        # Not fork: a parent that has used a threaded library may leave its locks held.
        with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
            parts = list(pool.map(run_chunk, chunks))
    return {label: _join([part[label] for part in parts]) for label in contenders}


class _Tally:
    """What a policy has cost so far, one row per seed."""

    def __init__(self, policy: SchedulingPolicy, num_checkpoints: int) -> None:
        (num_seeds,) = policy.batch_shape
        self.policy = policy
        self.time_s = np.zeros(num_seeds)
        self.failures = np.zeros(num_seeds, dtype=np.int64)
        self.curve_s = np.empty((num_seeds, num_checkpoints))

    def play(self, context: RoundContext, outcome: RoundOutcome, cost_s: FloatArray) -> None:
        """Play a round; `cost_s` is what each arm would cost it."""
        selection = self.policy.ask(context)
        self.policy.tell(selection, outcome)
        self.time_s += _slowest(cost_s, selection, self.policy.num_selected)
        if not outcome.completed.take(selection.positions).all():
            self.failures += np.count_nonzero(selection.mask & ~outcome.completed, axis=-1)

    def result(self) -> StudyResult:
        return StudyResult(self.time_s, self.failures, self.policy.play_count, self.curve_s)


def _run_chunk(
    contenders: Mapping[str, Contender],
    environment: Callable[..., Environment],
    chunk: int,
    *,
    num_selected: int,
    tau_max_s: float,
    num_rounds: int,
    num_seeds: int,
    seed: int,
    checkpoints: Sequence[int],
) -> dict[str, StudyResult]:
    rows = min(SEEDS_PER_CHUNK, num_seeds - chunk * SEEDS_PER_CHUNK)
    env = environment(
        batch_shape=(rows,), seed=np.random.SeedSequence(seed, spawn_key=(chunk, _ENVIRONMENT))
    )
    tallies = {}
    for label, contender in contenders.items():
        more = contender.from_environment(env) if contender.from_environment else {}
        policy = build_policy(
            contender.policy,
            num_arms=env.num_arms,
            num_selected=num_selected,
            tau_max_s=tau_max_s,
            batch_shape=(rows,),
            # The same for all: a policy's result does not depend on who else takes part.
            rng=np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(chunk, _POLICY))),
            **contender.params,
            **more,
        )
        tallies[label] = _Tally(policy, len(checkpoints))

    for t in range(1, num_rounds + 1):
        draw = env.round(t)
        context = RoundContext(t, draw.available, draw.member)
        time_s = draw.round_trip_time_s
        outcome = RoundOutcome(time_s, time_s <= tau_max_s)
        cost_s = np.minimum(time_s, tau_max_s)
        for tally in tallies.values():
            tally.play(context, outcome, cost_s)
            if t in checkpoints:
                tally.curve_s[:, checkpoints.index(t)] = tally.time_s
    return {label: tally.result() for label, tally in tallies.items()}


def _slowest(cost_s: FloatArray, selection: Selection, num_selected: int) -> FloatArray:
    """Return the largest cost in each row of the selection, 0 for an empty one; (num_seeds,)."""
    num_rows = cost_s.shape[0]
    if selection.positions.size == num_rows * num_selected:  # all rows are full
        # Reducing a contiguous first axis is four times as fast as a short last one.
        by_row = cost_s.take(selection.positions).reshape(num_rows, num_selected)
        return np.asarray(np.ascontiguousarray(by_row.T).max(axis=0))
    return np.asarray(np.where(selection.mask, cost_s, 0.0).max(axis=1))


def _join(parts: Sequence[StudyResult]) -> StudyResult:
    return StudyResult(
        total_time_s=np.concatenate([part.total_time_s for part in parts]),
        failures=np.concatenate([part.failures for part in parts]),
        play_count=np.concatenate([part.play_count for part in parts]),
        time_s=np.concatenate([part.time_s for part in parts]),
    )
