"""What would another policy have cost? Studies on the round trips that a run has recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from flower_scheduling.errors import ConfigError
from flower_scheduling.server.runs.round_lines import MAX_LISTED_ARMS
from flower_scheduling.strategies import POLICIES
from flower_scheduling.strategies.base import BoolArray, FloatArray, IntArray

from ..environments.paper import RoundDraw
from ..environments.recorded_run import RecordedRun, open_run
from ..theory.estimate import Estimate
from ..wording import plain
from .study import Contender, StudyResult, run_study

RECORDED: Final = "recorded"
"""Label of the policy that made the record, run again."""
FEW: Final = 10
"""Below so many recorded rounds little is known of a client."""
_ENOUGH: Final = 20
"""With fewer repetitions an interval says little."""
_PARAMS: Final = ("beta", "truncate")
_CHANGED: Final = 1.25
_CHANCE: Final = 0.001
"""How rarely a record is called changed that is not."""
_MOST_SAMPLES: Final = 2000
_BLOCK: Final = 64
_WELL_KNOWN: Final = 2 * FEW
"""From so many times on a client's law is its own."""
_LEAST_SAMPLES: Final = 64
"""Size of the sample of a client hardly known."""
_UNSEEN: Final = 0.5
"""For how many recorded times the one counts that nobody has seen."""
_TINY_S: Final = 1e-9
_LOGIT_RATES: Final = np.linspace(-8.0, 4.0, 25)
"""Usual failure rates of a fleet, as logits."""
_RATE_WEIGHTS: Final = np.geomspace(5.0, 500.0, 7)
"""For how many rounds of its own the fleet's rate counts with a client."""
_ODD_SHARES: Final = (0.001, 0.01, 0.1)
"""Shares of clients that fail at rates of their own."""
_INTERVAL: Final = (0.025, 0.975)


@dataclass(frozen=True)
class Record:
    """What a run directory says of its clients.

    Attributes
    ----------
    names : tuple of str
        The clients, by arm.
    policy : str
        What scheduled them.
    num_selected, num_rounds : int
        N and T.
    tau_max_s : float
        Deadline [s].
    samples_s : tuple of (num_samples,) float64
        Of each arm the times of the rounds in which it was selected, ``inf`` where it failed [s].
    available : (num_rounds, num_arms) bool
        Who could be selected.
    member : (num_rounds, num_arms) bool
        Who belonged to the fleet.
    floors : tuple of float
        Participation floors; empty: none.
    params : mapping
        Settings of the run that some policies take as parameters of their own.
    time_s : float
        Sum of the recorded rounds' lengths, as the study counts them: whoever fails takes the whole
        deadline [s].
    measured_s : float
        The same as it was measured [s].
    """

    names: tuple[str, ...]
    policy: str
    num_selected: int
    num_rounds: int
    tau_max_s: float
    samples_s: tuple[FloatArray, ...]
    available: BoolArray
    member: BoolArray
    floors: tuple[float, ...]
    params: Mapping[str, Any]
    time_s: float
    measured_s: float


def read_record(run_dir: Path) -> Record:
    """Read a run directory, of a fleet or a simulation, running or finished.

    Raises
    ------
    ConfigError
        If it is none, or has no rounds.
    """
    return record_of(open_run(run_dir))


def record_of(run: RecordedRun) -> Record:
    """Return what the rounds of a run say of its clients.

    Where a round does not list who was available, which large fleets leave out, it was those who
    were selected and, of the others, as many as there were, drawn at random.

    Raises
    ------
    ConfigError
        If nobody was ever selected, or a round is damaged.
    """
    num_rounds, tau_max_s = run.num_rounds, run.tau_max_s
    samples: list[list[float]] = [[] for _ in run.arms]
    available = np.zeros((num_rounds, len(run.arms)), dtype=np.bool_)
    member = np.zeros_like(available)
    rng = np.random.default_rng(0)
    time_s = measured_s = 0.0
    for row, record in enumerate(run.rounds()):
        if record.num_arms > MAX_LISTED_ARMS:
            drawn = rng.random(record.num_arms)
            drawn[record.selected] = -1.0
            available[row, np.argsort(drawn)[: len(record.available)]] = True
        else:
            available[row, record.available] = True
        member[row, : record.num_arms] = True
        member[row, record.absent] = False
        slowest_s = 0.0
        for result in record.results:
            taken_s = result.rtt_s if result.completed and result.rtt_s is not None else np.inf
            samples[result.arm].append(taken_s if taken_s <= tau_max_s else np.inf)
            slowest_s = max(slowest_s, min(taken_s, tau_max_s))
        time_s += slowest_s
        measured_s += record.round_s
    if not any(samples):
        raise ConfigError("run", str(run.path), "must be a run in which somebody was selected")
    return Record(
        names=run.names,
        policy=run.strategy,
        num_selected=run.num_selected,
        num_rounds=num_rounds,
        tau_max_s=tau_max_s,
        samples_s=tuple(np.array(values) for values in samples),
        available=available,
        member=member,
        floors=run.floors,
        params={key: run.config[key] for key in _PARAMS if key in run.config},
        time_s=time_s,
        measured_s=measured_s,
    )


class RecordedFleet:
    """Draw each arm's time from those that were recorded of it; availability as recorded.

    Every row of the batch has laws of its own that the record may come from, so that rows differ
    by what the record leaves open. Whether an arm fails is apart from how long it takes:

    - An arm fails either as arms of this fleet usually do, at rates about one mean, or at a rate
      of its own, which may be any. How often the first, how much those differ and how many are of
      the second kind is drawn for each row from what the whole record says, then each arm's rate
      given its own rounds. So who was tried once and failed is mostly bad luck in a fleet where
      others hardly fail, and who fails always goes on failing.
    - The times of an arm that completed 20 rounds or more are a bootstrap sample of its own. Of
      an arm with n times only n / 20 of the sample are; the rest come from a pool of all times in
      which those of arms seldom tried weigh most: policies seldom try the slow. The pool's weights
      are drawn for each row (a Bayesian bootstrap), and so is one time beyond the pool's median
      that nobody has seen yet: few rounds do not show the longest times.

    The order of the record is lost: what changed in the course of the run is mixed.

    Parameters
    ----------
    record : Record
        What was recorded.
    batch_shape : tuple of int
        One row per repetition, ``(num_rows,)``.
    seed : numpy.random.SeedSequence
        Where all draws come from.
    """

    def __init__(
        self, record: Record, batch_shape: tuple[int, ...], seed: np.random.SeedSequence
    ) -> None:
        self.num_arms = len(record.names)
        self.batch_shape = batch_shape
        self.shape = (*batch_shape, self.num_arms)
        self._record = record
        self._seed = seed
        rng = np.random.default_rng(seed.spawn(1)[0])
        (num_rows,) = batch_shape
        self._failure = _failure_rates(record.samples_s, num_rows, rng)
        self._laws = _time_laws(record.samples_s, record.tau_max_s, num_rows, rng)
        self._block = -1
        self._times_s: FloatArray = np.empty(0)

    def round(self, t: int) -> RoundDraw:
        """Return the draw of a round; see :meth:`.Environment.round`."""
        block, offset = divmod(t - 1, _BLOCK)
        if block != self._block:
            self._block, self._times_s = block, self._draw(block)
        time_s = self._times_s[offset]
        failed = np.isinf(time_s)
        row = (t - 1) % self._record.num_rounds
        nothing = np.zeros(self.shape)
        return RoundDraw(
            available=np.broadcast_to(self._record.available[row], self.shape),
            download_s=nothing,
            compute_s=np.where(failed, 0.0, time_s),
            upload_s=nothing,
            failed=failed,
            member=np.broadcast_to(self._record.member[row], self.shape),
        )

    def expected_time_s(self, tau_max_s: float, t: int = 1) -> FloatArray:
        """Return the means of the laws [s], (num_rows, num_arms)."""
        means_s = [np.minimum(law, tau_max_s).mean(axis=-1) for law in self._laws]
        done_s = np.stack(means_s, axis=-1)
        return np.asarray(done_s + self._failure * (tau_max_s - done_s))

    def _draw(self, block: int) -> FloatArray:
        key = (*self._seed.spawn_key, 1, block)
        rng = np.random.default_rng(np.random.SeedSequence(self._seed.entropy, spawn_key=key))
        times_s = np.empty((_BLOCK, *self.shape))
        (num_rows,) = self.batch_shape
        for arm, law in enumerate(self._laws):
            which: IntArray = rng.integers(0, law.shape[-1], (_BLOCK, num_rows))
            times_s[..., arm] = law[np.arange(num_rows), which]
        times_s[rng.random(times_s.shape) < self._failure] = np.inf
        return times_s


def _failure_rates(
    samples_s: Sequence[FloatArray], num_rows: int, rng: np.random.Generator
) -> FloatArray:
    """Draw how often each arm fails, given the record, (num_rows, num_arms).

    A mixture of Beta laws for the arms; its mean, weight and share of odd ones on a grid.
    """
    from scipy.special import betaln, expit

    tries = np.array([values.size for values in samples_s])
    fails = np.array([np.count_nonzero(np.isinf(values)) for values in samples_s])
    axes = (expit(_LOGIT_RATES), _RATE_WEIGHTS, _ODD_SHARES)
    mean, weight, odd = (grid.reshape(-1, 1) for grid in np.meshgrid(*axes))
    first, second = mean * weight, (1.0 - mean) * weight
    log_chance = 0.5 * np.log(mean * (1.0 - mean))  # on a grid of logits: Jeffreys' prior
    cases, counts = np.unique(np.stack([fails, tries]), axis=1, return_counts=True)
    for (bad, all_), count in zip(cases.T, counts, strict=True):
        usual = betaln(first + bad, second + all_ - bad) - betaln(first, second)
        own = betaln(1.0 + bad, 1.0 + all_ - bad)
        log_chance += count * np.logaddexp(np.log1p(-odd) + usual, np.log(odd) + own)
    chance = np.exp(log_chance - log_chance.max()).ravel()
    drawn = rng.choice(chance.size, num_rows, p=chance / chance.sum())
    first, second, odd = first[drawn], second[drawn], odd[drawn]
    usual = betaln(first + fails, second + tries - fails) - betaln(first, second)
    own = betaln(1.0 + fails, 1.0 + tries - fails)
    is_odd = rng.random(usual.shape) < expit(np.log(odd) + own - np.log1p(-odd) - usual)
    first, second = np.where(is_odd, 1.0, first), np.where(is_odd, 1.0, second)
    return np.asarray(rng.beta(first + fails, second + tries - fails))


def _time_laws(
    samples_s: Sequence[FloatArray], tau_max_s: float, num_rows: int, rng: np.random.Generator
) -> list[FloatArray]:
    """Draw samples of what each arm takes when it does not fail [s]; (num_rows, any) per arm."""
    own_s = [values[np.isfinite(values)] for values in samples_s]
    pool_s = np.concatenate(own_s)
    if not pool_s.size:
        return [np.full((num_rows, 1), tau_max_s) for _ in own_s]
    weights = np.concatenate([np.full(v.size, (FEW / (FEW + v.size)) ** 2) for v in own_s])
    if pool_s.size > _MOST_SAMPLES:
        chance = weights / weights.sum()
        kept = rng.choice(pool_s.size, _MOST_SAMPLES, replace=False, p=chance)
        pool_s, weights = pool_s[kept], np.full(_MOST_SAMPLES, weights.sum() / _MOST_SAMPLES)
    median_s = max(float(np.median(pool_s)), _TINY_S)
    unseen_s = np.exp(rng.uniform(np.log(median_s), np.log(tau_max_s), (num_rows, 1)))
    pools_s = np.hstack([np.broadcast_to(pool_s, (num_rows, pool_s.size)), unseen_s])
    parts = rng.standard_gamma([*weights, _UNSEEN], pools_s.shape)
    levels = np.cumsum(parts, axis=1) / parts.sum(axis=1, keepdims=True)
    levels = (levels + np.arange(num_rows)[:, None]).ravel()
    laws = []
    for own in own_s:
        known = own
        if own.size > _MOST_SAMPLES:  # more than enough for its law
            known = rng.choice(own, _MOST_SAMPLES, replace=False)
        law = np.empty((num_rows, max(known.size, _LEAST_SAMPLES)))
        if known.size:
            law[:] = known[rng.integers(0, known.size, law.shape)]
        row, column = np.nonzero(rng.random(law.shape) >= own.size / _WELL_KNOWN)
        place = np.searchsorted(levels, row + rng.random(row.size), side="right")
        law[row, column] = pools_s.ravel()[np.minimum(place, levels.size - 1)]
        laws.append(law)
    return laws


@dataclass(frozen=True)
class Replayed:
    """What a policy would have cost on a record.

    Attributes
    ----------
    policy : str
        Who.
    times_s : (num_seeds,) float64
        Total time of each repetition, which all policies of a replay share: differences of pairs
        say what one policy saves against another [s].
    little_known : float
        Share of its selections that fell on clients of whom fewer than ten rounds were recorded:
        how much of the answer the record does not say.
    """

    policy: str
    times_s: FloatArray = field(repr=False)
    little_known: float

    @property
    def time_s(self) -> Estimate:
        """Total time; see :func:`spread` [s]."""
        return spread(self.times_s)


def spread(values: FloatArray) -> Estimate:
    """Return a mean and what 95 % of the repetitions lie between.

    Each repetition has another law that the record may come from, and other draws.
    """
    low, high = np.quantile(values, _INTERVAL)
    return Estimate(float(values.mean()), float(low), float(high), values.size)


def replay(
    record: Record,
    policies: Sequence[str],
    *,
    num_seeds: int = 100,
    seed: int = 0,
    again: bool = True,
) -> list[Replayed]:
    """Run policies on what was recorded, the one that made the record first.

    Parameters
    ----------
    record : Record
        From :func:`read_record`.
    policies : sequence of str
        Their names; those that need more than times cannot be replayed.
    num_seeds : int, >= 2
        Repetitions.
    seed : int
        Seed.
    again : bool
        Whether to run the policy that made the record, as :data:`RECORDED`, if that can be done.

    Raises
    ------
    ConfigError
        If a policy needs what was not recorded.
    """
    for name in policies:
        if not _replayable(name):
            raise ConfigError("strategy", name, "must be a policy that learns from times alone")
    contenders = {name: _contender(record, name) for name in policies}
    if again and _replayable(record.policy):
        contenders = {RECORDED: _contender(record, record.policy), **contenders}
    results = run_study(
        contenders,
        partial(RecordedFleet, record),
        num_selected=record.num_selected,
        tau_max_s=record.tau_max_s,
        num_rounds=record.num_rounds,
        num_seeds=num_seeds,
        seed=seed,
    )
    few = np.array([values.size < FEW for values in record.samples_s])
    return [_replayed(name, result, few) for name, result in results.items()]


def reproduced(record: Record, found: Sequence[Replayed]) -> bool | None:
    """Return whether a record comes out of its own policy; ``None``: too little to tell."""
    again = next((each.time_s for each in found if each.policy == RECORDED), None)
    if again is None or again.count < _ENOUGH:
        return None
    return again.low <= record.time_s <= again.high


def caveats(record: Record, found: Sequence[Replayed]) -> list[str]:
    """Return what the record cannot say, in sentences."""
    lines = []
    if reproduced(record, found) is False:
        lines.append(
            "The policy of the record does not come out at what was recorded: times have changed "
            "in the course of the run, or depend on each other. Take the differences for a hint."
        )
    if changed := changed_arms(record):
        lines.append(
            f"Between the first and the second half of their rounds, the times of "
            f"{_listed(record, changed)} changed by more than a quarter; replays mix the two."
        )
    rare = [arm for arm, values in enumerate(record.samples_s) if values.size < FEW]
    if rare:
        lines.append(
            f"Fewer than {FEW} rounds were recorded of {_listed(record, rare)}: what is played of "
            "them is mostly drawn from what others did."
        )
    return lines


def changed_arms(record: Record) -> list[int]:
    """Return the arms whose times have changed in the course of the run.

    Those whose median time is another by a quarter in the second half of their rounds than in the
    first, where the rank-sum test says that this is no chance.
    """
    from scipy.stats import mannwhitneyu

    changed = []
    for arm, values in enumerate(record.samples_s):
        if values.size < 2 * FEW:
            continue
        halves = np.array_split(np.minimum(values, record.tau_max_s), 2)
        first_s, second_s = (float(np.median(half)) for half in halves)
        if max(first_s, second_s) <= _CHANGED * min(first_s, second_s):
            continue
        chance = float(mannwhitneyu(*halves, method="asymptotic").pvalue)
        if chance < _CHANCE / len(record.names):
            changed.append(arm)
    return changed


def _listed(record: Record, arms: Sequence[int]) -> str:
    names = ", ".join(plain(record.names[arm]) for arm in arms[:5])
    return names + (f" and {len(arms) - 5} more" if len(arms) > 5 else "")


def _replayable(name: str) -> bool:
    spec = POLICIES.get(name)
    return spec is not None and not spec.reports and "expected_time_s" not in spec.parameters()


def _contender(record: Record, name: str) -> Contender:
    taken = POLICIES[name].parameters()
    params = {key: value for key, value in record.params.items() if key in taken}
    if record.floors and "min_participation" in taken:
        params["min_participation"] = list(record.floors)
    return Contender(name, params)


def _replayed(name: str, result: StudyResult, few: BoolArray) -> Replayed:
    plays = result.play_count.sum(axis=0)
    share = float(plays[few].sum() / max(plays.sum(), 1))
    return Replayed(name, result.total_time_s, share)
