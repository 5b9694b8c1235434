"""Scheduling studies without training: policies over hundreds of seeds at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields
from functools import partial
from multiprocessing import get_context
from typing import Any, Final, TypeVar

import numpy as np

from flower_scheduling.errors import ConfigError
from flower_scheduling.strategies import (
    RoundContext,
    RoundOutcome,
    SchedulingPolicy,
    Selection,
    build_policy,
)
from flower_scheduling.strategies.base import FloatArray, IntArray, check_count, check_real

from ..environments.paper import StudyEnvironment

# Rows of one batch. Fixed: were it the number of processes, the results would depend on it.
SEEDS_PER_CHUNK: Final = 200

_EnvironmentT = TypeVar("_EnvironmentT", bound=StudyEnvironment)

_ENVIRONMENT: Final = 0  # streams below the seed of a chunk
_POLICY: Final = 1


@dataclass(frozen=True, slots=True)
class Contender:
    """Policy of a study, with its parameters.

    Attributes
    ----------
    policy : str or callable
        Its name in the registry, or what builds it from the same parameters.
    params : mapping
        Its own parameters.
    from_environment : callable, optional
        Returns further parameters that depend on the drawn environment, such as the oracle's
        ``expected_time_s``.
    """

    policy: str | Callable[..., SchedulingPolicy]
    params: Mapping[str, Any] = field(default_factory=dict)
    from_environment: Callable[[Any], Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class StudyResult:
    """Result of one policy in a study, a row per seed.

    Attributes
    ----------
    total_time_s : (num_seeds,) float64
        Sum over rounds of the slowest selected arm's time, at most tau_max; 0 for an empty round.
        One that failed takes tau_max, or until that was known where the environment says when [s].
    failures : (num_seeds,) int64
        How often a selected arm missed the deadline.
    play_count : (num_seeds, num_arms) int64
        How often each arm was selected.
    time_s : (num_seeds, num_checkpoints) float64
        Time at the end of each checkpoint round [s].
    failures_at : (num_seeds, num_checkpoints) int64
        Failures up to and including each checkpoint round.
    play_count_at : (num_seeds, num_checkpoints, num_arms) int64
        Selections of each arm up to and including each checkpoint round.
    expected_time_s : (num_seeds, num_arms) float64, optional
        True means E min(tau_k, tau_max) of each drop, in the first round [s]; the same for all
        policies. ``None`` unless `true_means` was asked for.
    pseudo_time_s : (num_seeds, num_checkpoints) float64, optional
        Sum over rounds, up to and including each checkpoint, of the largest true mean in the super
        arm [s]: what :func:`.pseudo_regret_s` takes. ``None`` unless `true_means`
        was asked for.
    """

    total_time_s: FloatArray
    failures: IntArray
    play_count: IntArray
    time_s: FloatArray
    failures_at: IntArray
    play_count_at: IntArray
    expected_time_s: FloatArray | None = None
    pseudo_time_s: FloatArray | None = None


def run_study(
    policies: Sequence[str] | Mapping[str, Contender],
    environment: Callable[..., StudyEnvironment],
    *,
    num_selected: int,
    tau_max_s: float,
    num_rounds: int,
    num_seeds: int,
    seed: int = 0,
    checkpoints: Sequence[int] = (),
    true_means: bool = False,
    num_processes: int = 1,
) -> dict[str, StudyResult]:
    """Compare policies on the same draws.

    Seeds are run in fixed chunks of :data:`SEEDS_PER_CHUNK`, one row of the batch each, so that
    the results do not depend on `num_processes`. All policies of a chunk see the same placement,
    availability, latencies and failures, and none sees those of another's choice.

    Parameters
    ----------
    policies : sequence of str, or mapping of label to Contender
        Policies to compare.
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
        Rounds after which time, failures and selections are recorded.
    true_means : bool
        Also record what needs the true means; it costs some 10 % more time. Nothing else changes.
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
        raise ConfigError("checkpoints", checkpoints, f"must be increasing, at most {num_rounds}")
    contenders = (
        policies if isinstance(policies, Mapping) else {name: Contender(name) for name in policies}
    )
    play = partial(
        run_chunk,
        dict(contenders),
        environment,
        num_selected=num_selected,
        tau_max_s=tau_max_s,
        num_rounds=num_rounds,
        num_seeds=num_seeds,
        seed=seed,
        checkpoints=checkpoints,
        true_means=true_means,
    )
    chunks = range(-(-num_seeds // SEEDS_PER_CHUNK))
    if num_processes == 1 or len(chunks) == 1:
        parts = [play(chunk) for chunk in chunks]
    else:
        # Not fork: a parent that has used a threaded library may leave its locks held.
        with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
            parts = list(pool.map(play, chunks))
    return {label: _join([part[label] for part in parts]) for label in contenders}


def drops(
    environment: Callable[..., _EnvironmentT], *, num_seeds: int, seed: int = 0
) -> Iterator[_EnvironmentT]:
    """Yield the environments of a study, for what depends on the drops and not on a policy.

    Parameters
    ----------
    environment, num_seeds, seed
        As for :func:`run_study`.

    Yields
    ------
    environment
        One per chunk of :data:`SEEDS_PER_CHUNK` seeds, with a row per seed in their order.

    Raises
    ------
    ConfigError
        If an argument has the wrong type or is out of range.
    """
    num_seeds = check_count("num_seeds", num_seeds, minimum=1)
    seed = check_count("seed", seed, minimum=0)
    for chunk in range(-(-num_seeds // SEEDS_PER_CHUNK)):
        yield drop(environment, chunk, num_seeds, seed)


def drop(
    environment: Callable[..., _EnvironmentT], chunk: int, num_seeds: int, seed: int
) -> _EnvironmentT:
    """Return the environment of one chunk of a study, a row per seed."""
    return environment(
        batch_shape=(min(SEEDS_PER_CHUNK, num_seeds - chunk * SEEDS_PER_CHUNK),),
        seed=np.random.SeedSequence(seed, spawn_key=(chunk, _ENVIRONMENT)),
    )


class _Tally:
    """Running totals of a policy in a study, one row per seed."""

    def __init__(self, policy: SchedulingPolicy, num_checkpoints: int, *, pseudo: bool) -> None:
        (num_seeds,) = policy.batch_shape
        self.policy = policy
        self.time_s = np.zeros(num_seeds)
        self.failures = np.zeros(num_seeds, dtype=np.int64)
        self.pseudo_s = np.zeros(num_seeds) if pseudo else None
        self._curve_s = np.empty((num_seeds, num_checkpoints))
        self._failures_at = np.empty((num_seeds, num_checkpoints), dtype=np.int64)
        self._play_count_at = np.empty(
            (num_seeds, num_checkpoints, policy.num_arms), dtype=np.int64
        )
        self._pseudo_curve_s = np.empty((num_seeds, num_checkpoints)) if pseudo else None

    def play(
        self,
        context: RoundContext,
        outcome: RoundOutcome,
        cost_s: FloatArray,
        means_s: FloatArray | None,
    ) -> None:
        """Play a round; `cost_s` is the time of each arm in it, `means_s` its true mean."""
        selection = self.policy.ask(context)
        self.policy.tell(selection, outcome)
        self.time_s += _slowest(cost_s, selection, self.policy.num_selected)
        if self.pseudo_s is not None and means_s is not None:
            self.pseudo_s += _slowest(means_s, selection, self.policy.num_selected)
        if not outcome.completed.take(selection.positions).all():
            self.failures += np.count_nonzero(selection.mask & ~outcome.completed, axis=-1)

    def record(self, column: int) -> None:
        """Record a checkpoint."""
        self._curve_s[:, column] = self.time_s
        self._failures_at[:, column] = self.failures
        self._play_count_at[:, column] = self.policy.play_count
        if self._pseudo_curve_s is not None:
            self._pseudo_curve_s[:, column] = self.pseudo_s

    def result(self, expected_time_s: FloatArray | None) -> StudyResult:
        return StudyResult(
            total_time_s=self.time_s,
            failures=self.failures,
            play_count=self.policy.play_count,
            time_s=self._curve_s,
            failures_at=self._failures_at,
            play_count_at=self._play_count_at,
            expected_time_s=expected_time_s,
            pseudo_time_s=self._pseudo_curve_s,
        )


def run_chunk(
    contenders: Mapping[str, Contender],
    environment: Callable[..., StudyEnvironment],
    chunk: int,
    *,
    num_selected: int,
    tau_max_s: float,
    num_rounds: int,
    num_seeds: int,
    seed: int,
    checkpoints: Sequence[int],
    true_means: bool,
) -> dict[str, StudyResult]:
    """Run one chunk of :func:`run_study`, which has checked the arguments and says what they are.

    Parameters
    ----------
    chunk : int, >= 0
        Which: the seeds from ``chunk * SEEDS_PER_CHUNK`` on, as many as a chunk has or are left.
    """
    env = drop(environment, chunk, num_seeds, seed)
    tallies = {}
    for label, contender in contenders.items():
        more = contender.from_environment(env) if contender.from_environment else {}
        name = contender.policy
        build = name if callable(name) else partial(build_policy, name)
        policy = build(
            num_arms=env.num_arms,
            num_selected=num_selected,
            tau_max_s=tau_max_s,
            batch_shape=env.batch_shape,
            # The same for all: a policy's result does not depend on the others in the study.
            rng=np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(chunk, _POLICY))),
            **contender.params,
            **more,
        )
        tallies[label] = _Tally(policy, len(checkpoints), pseudo=true_means)

    column = {round: number for number, round in enumerate(checkpoints)}
    for t in range(1, num_rounds + 1):
        draw = env.round(t)
        context = RoundContext(t, draw.available, draw.member)
        time_s = draw.round_trip_time_s
        outcome = RoundOutcome(time_s, time_s <= tau_max_s)
        cost_s = np.minimum(time_s, tau_max_s)
        if draw.failure_s is not None:
            cost_s = np.where(draw.failed, draw.failure_s, cost_s)
        means_s = env.expected_time_s(tau_max_s, t) if true_means else None
        for tally in tallies.values():
            tally.play(context, outcome, cost_s, means_s)
            if t in column:
                tally.record(column[t])
    expected_time_s = env.expected_time_s(tau_max_s) if true_means else None
    return {label: tally.result(expected_time_s) for label, tally in tallies.items()}


def _slowest(cost_s: FloatArray, selection: Selection, num_selected: int) -> FloatArray:
    """Return the largest cost in each row of the selection, 0 for an empty one; (num_seeds,)."""
    num_rows = cost_s.shape[0]
    if selection.positions.size == num_rows * num_selected:  # all rows are full
        # Reducing a contiguous first axis is four times as fast as a short last one.
        by_row = cost_s.take(selection.positions).reshape(num_rows, num_selected)
        return np.asarray(np.ascontiguousarray(by_row.T).max(axis=0))
    return np.asarray(np.where(selection.mask, cost_s, 0.0).max(axis=1))


def _join(parts: Sequence[StudyResult]) -> StudyResult:
    def joined(name: str) -> Any:
        arrays = [getattr(part, name) for part in parts]
        return None if arrays[0] is None else np.concatenate(arrays)

    return StudyResult(**{spec.name: joined(spec.name) for spec in fields(StudyResult)})
