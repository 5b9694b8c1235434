"""What would another policy have cost? Studies on the round trips that a run has recorded."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from server.run_directory import count_rounds, read_rounds
from simulation.environment import RoundDraw
from simulation.paper.estimate import Estimate
from simulation.study import Contender, StudyResult, run_study
from strategies import POLICIES
from strategies.base import BoolArray, ConfigError, FloatArray, IntArray
from strategies.flower import RoundRecord

RECORDED: Final = "recorded"
"""Label of the policy that made the record, run again."""
FEW: Final = 10
"""Below so many recorded rounds little is known of a client."""
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
    time_s : float
        Sum of the recorded rounds' lengths, as the study counts them [s].
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
    time_s: float


def read_record(run_dir: Path) -> Record:
    """Read a run directory, of a fleet or a simulation, running or finished.

    Raises
    ------
    ConfigError
        If it is none, or has no rounds.
    """
    try:
        config = tomllib.loads((run_dir / "config.toml").read_text(encoding="utf-8"))
        arms = json.loads((run_dir / "arms.json").read_text(encoding="utf-8"))
        names = [str(arm["name"]) for arm in arms]
        floors = [arm["floor"] for arm in arms]
        strategy = str(config["strategy"])
        num_selected, tau_max_s = int(config["num-selected"]), float(config["tau-max-s"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise ConfigError("run", str(run_dir), f"a run directory ({reason})") from None
    num_rounds = count_rounds(run_dir)
    if not num_rounds:
        raise ConfigError("run", str(run_dir), "a run with rounds")
    samples: list[list[float]] = [[] for _ in names]
    available = np.zeros((num_rounds, len(names)), dtype=np.bool_)
    member = np.zeros_like(available)
    time_s = 0.0
    for row, record in enumerate(_rounds(run_dir, num_rounds, names)):
        available[row, record.available] = True
        member[row, : record.num_arms] = True
        member[row, record.absent] = False
        slowest_s = 0.0
        for arm, rtt_s, reason in zip(record.selected, record.rtt_s, record.reason, strict=True):
            done = reason is None and rtt_s is not None and rtt_s <= tau_max_s
            samples[arm].append(rtt_s if done and rtt_s is not None else np.inf)
            slowest_s = max(slowest_s, min(samples[arm][-1], tau_max_s))
        time_s += slowest_s
    if not any(samples):
        raise ConfigError("run", str(run_dir), "a run in which somebody was selected")
    return Record(
        names=tuple(names),
        policy=strategy,
        num_selected=num_selected,
        num_rounds=num_rounds,
        tau_max_s=tau_max_s,
        samples_s=tuple(np.array(values) for values in samples),
        available=available,
        member=member,
        floors=tuple(floors) if all(floor is not None for floor in floors) else (),
        time_s=time_s,
    )


def _rounds(run_dir: Path, num_rounds: int, names: Sequence[str]) -> Iterator[RoundRecord]:
    try:
        yield from read_rounds(run_dir, num_rounds, names)
    except ConfigError as error:
        raise ConfigError("run", str(run_dir), error.allowed) from None


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
    time_s : Estimate
        Total time; the interval holds 95 % of the repetitions, each with another law that the
        record may come from and other draws [s].
    little_known : float
        Share of its selections that fell on clients of whom fewer than ten rounds were recorded:
        how much of the answer the record does not say.
    """

    policy: str
    time_s: Estimate
    little_known: float


def replay(
    record: Record, policies: Sequence[str], *, num_seeds: int = 100, seed: int = 0
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

    Raises
    ------
    ConfigError
        If a policy needs what was not recorded.
    """
    for name in policies:
        spec = POLICIES.get(name)
        if spec is None or spec.needs or "expected_time_s" in spec.parameters():
            raise ConfigError("strategy", name, "a policy that learns from times alone")
    contenders = {name: _contender(record, name) for name in policies}
    again = POLICIES.get(record.policy)
    if again is not None and not again.needs:
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


def _contender(record: Record, name: str) -> Contender:
    floors: dict[str, Any] = {}
    if record.floors and "min_participation" in POLICIES[name].parameters():
        floors = {"min_participation": list(record.floors)}
    return Contender(name, floors)


def _replayed(name: str, result: StudyResult, few: BoolArray) -> Replayed:
    times_s = result.total_time_s
    low, high = np.quantile(times_s, _INTERVAL)
    plays = result.play_count.sum(axis=0)
    share = float(plays[few].sum() / max(plays.sum(), 1))
    found = Estimate(float(times_s.mean()), float(low), float(high), times_s.size)
    return Replayed(name, found, share)
