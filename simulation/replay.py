"""What would another policy have cost? Studies on the round trips that a run has recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from server.run_directory import MAX_LISTED_ARMS
from simulation.environment import RoundDraw
from simulation.paper.estimate import Estimate
from simulation.recorded_run import RecordedRun, open_run
from simulation.study import Contender, StudyResult, run_study
from simulation.wording import plain
from strategies import POLICIES
from strategies.base import BoolArray, ConfigError, FloatArray, IntArray

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
        for arm, rtt_s, reason in zip(record.selected, record.rtt_s, record.reason, strict=True):
            done = reason is None and rtt_s is not None and rtt_s <= tau_max_s
            samples[arm].append(rtt_s if done and rtt_s is not None else np.inf)
            slowest_s = max(slowest_s, min(samples[arm][-1], tau_max_s))
        time_s += slowest_s
        measured_s += record.round_s
    if not any(samples):
        raise ConfigError("run", str(run.path), "a run in which somebody was selected")
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

    Every row of the batch has a bootstrap sample of each arm's record for its law, so that rows
    differ by what the record leaves open. An arm without a record has that of all others. The
    order of the record is lost: what changed in the course of the run is mixed.

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
        everybody = np.concatenate([values for values in record.samples_s if values.size])
        laws = []
        for values in record.samples_s:
            known = values if values.size else everybody
            if known.size > _MOST_SAMPLES:  # more than enough for its law
                known = rng.choice(known, _MOST_SAMPLES, replace=False)
            laws.append(known[rng.integers(0, known.size, (*batch_shape, known.size))])
        self._laws = laws
        self._block = -1
        self._times_s: FloatArray = np.empty(0)

    def round(self, t: int) -> RoundDraw:
        """Return the draw of a round; see :meth:`simulation.environment.Environment.round`."""
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
        means = [np.minimum(law, tau_max_s).mean(axis=-1) for law in self._laws]
        return np.stack(means, axis=-1)

    def _draw(self, block: int) -> FloatArray:
        key = (*self._seed.spawn_key, 1, block)
        rng = np.random.default_rng(np.random.SeedSequence(self._seed.entropy, spawn_key=key))
        times_s = np.empty((_BLOCK, *self.shape))
        (num_rows,) = self.batch_shape
        for arm, law in enumerate(self._laws):
            which: IntArray = rng.integers(0, law.shape[-1], (_BLOCK, num_rows))
            times_s[..., arm] = law[np.arange(num_rows), which]
        return times_s


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
            raise ConfigError("strategy", name, "a policy that learns from times alone")
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
            "them is a guess."
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
    return spec is not None and not spec.needs and "expected_time_s" not in spec.parameters()


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
