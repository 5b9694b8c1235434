"""Replays: studies of other policies on the round trips that a run has recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, repeat
from typing import Any, Final

import numpy as np

from flower_scheduling.errors import ConfigError
from flower_scheduling.strategies import POLICIES, find_policy, parse_options
from flower_scheduling.strategies.base import BoolArray, FloatArray

from ..environments.paper import RoundDraw
from ..environments.recorded import FEW, RecordedEnvironment, RunRecord
from ..theory.estimate import Estimate
from ..wording import plain
from .study import SEEDS_PER_CHUNK, Contender, StudyResult, run_study

# Label of the policy that made the record, run again.
RECORDED: Final = "recorded"
# With fewer repetitions an interval says little.
_ENOUGH: Final = 20
# With fewer requests some failures in a hundred may not have shown.
_MANY_TRIES: Final = 100
_CHANGED: Final = 1.25
# Share of requests whose time is not recorded that is worth a sentence.
_NOTABLE: Final = 0.05
# How rarely a record is called changed that is not.
_CHANCE: Final = 0.001
_INTERVAL: Final = (0.025, 0.975)


@dataclass(frozen=True)
class Replayed:
    """Replay of one policy on a record.

    Attributes
    ----------
    policy : str
        The policy's name, with the parameters that were given.
    times_s : (num_seeds,) float64
        Total time of each repetition, which all policies of a replay share: differences of pairs
        say what one policy saves against another; of a buffered run that of as many updates [s].
    little_known : float
        Share of its selections that fell on clients of which fewer than ten rounds were recorded:
        how much of the result the record does not say.
    """

    policy: str
    times_s: FloatArray = field(repr=False)
    little_known: float

    @property
    def time_s(self) -> Estimate:
        """Total time; see :func:`spread` [s]."""
        return spread(self.times_s)


def spread(values: FloatArray) -> Estimate:
    """Return a mean and the interval that holds 95 % of the repetitions.

    Each repetition has another law that the record may come from, and other draws.
    """
    low, high = np.quantile(values, _INTERVAL)
    return Estimate(float(values.mean()), float(low), float(high), values.size)


def replay(
    record: RunRecord,
    policies: Sequence[str],
    *,
    num_seeds: int = 100,
    seed: int = 0,
    again: bool = True,
    option: str = "",
    on_round: Callable[[int, int], None] | None = None,
) -> list[Replayed]:
    """Run policies on what was recorded, the one that made the record first.

    Parameters
    ----------
    record : RunRecord
        From :func:`.read_record`.
    policies : sequence of str
        Their names; those that need more than times cannot be replayed.
    num_seeds : int, >= 2
        Repetitions.
    seed : int
        Seed.
    again : bool
        Whether to run the policy that made the record, as :data:`RECORDED`, if that can be done.
    option : str
        Parameters of the policies, ``key=value,key=value``.
    on_round : callable, optional
        Called in each round with how many have begun, and how many there are.

    Raises
    ------
    ConfigError, UnknownPolicyError
        If there is no such policy, it needs what was not recorded, or has no such parameter.
    """
    for name in policies:
        find_policy(name, "strategy", filter(replayable, POLICIES))
        if not replayable(name):
            listed = ", ".join(filter(replayable, POLICIES))
            message = f"must be a policy that learns from times alone: {listed}"
            raise ConfigError("strategy", name, message)
    contenders = {
        f"{name} {option}".strip(): _contender(record, name, option or _own_option(record, name))
        for name in policies
    }
    if again and (own := _recorded(record)) is not None:
        contenders = {RECORDED: own, **contenders}
    environment: Callable[..., RecordedEnvironment] = partial(RecordedEnvironment, record)
    if on_round is not None:
        total = -(-num_seeds // SEEDS_PER_CHUNK) * record.num_rounds
        counts = map(on_round, count(1), repeat(total))
        environment = partial(_WatchedEnvironment, record, partial(next, counts))
    results = run_study(
        contenders,
        environment,
        num_selected=record.num_selected,
        tau_max_s=record.tau_max_s,
        num_rounds=record.num_rounds,
        num_seeds=num_seeds,
        seed=seed,
    )
    few = np.array([values.size < FEW for values in record.samples_s])
    updates = record.num_rounds * record.num_selected if record.buffered else None
    return [_replayed(name, result, few, updates) for name, result in results.items()]


class _WatchedEnvironment(RecordedEnvironment):
    """Environment of a recorded run that reports each round that is drawn."""

    def __init__(self, record: RunRecord, report: Callable[[], None], **batch: Any) -> None:
        super().__init__(record, **batch)
        self._report = report

    def round(self, t: int) -> RoundDraw:
        self._report()
        return super().round(t)


def reproduced(record: RunRecord, found: Sequence[Replayed]) -> bool | None:
    """Return whether its own policy reproduces a record.

    ``None``: too few repetitions, or the run had spare clients, and what is replayed has none.
    """
    again = next((each.time_s for each in found if each.policy == RECORDED), None)
    if again is None or again.count < _ENOUGH or record.has_spares:
        return None
    return again.low <= record.time_s <= again.high


def caveats(record: RunRecord, found: Sequence[Replayed]) -> list[str]:
    """Return what the record cannot say, in sentences."""
    lines = []
    if record.buffered:
        lines.append(
            "The run was in buffered mode, in which no client is waited for. The replay is of "
            "rounds with as many updates: it shows what waiting for whole rounds would have cost."
        )
    if record.has_spares:
        lines.append(
            f"The run had spare clients: {record.num_asked} were asked, and a round ended when "
            f"{record.num_selected} had answered. The replay has none: its rounds ask "
            f"{record.num_selected} clients and wait for all of them."
        )
    tries = sum(values.size for values in record.samples_s)
    if record.num_untimed > _NOTABLE * tries:
        lines.append(
            f"What clients took that had not answered by then, {record.num_untimed:,} times, and "
            "whether they failed, is not in the record: in the replay slow clients look quicker, "
            "and fail less often, than they do. Rounds that wait for them would take longer."
        )
    if record.by_speed:
        lines.append(
            "Clients were asked for work by their speed, slow ones for less of it. The replay "
            "draws these round trips for all policies: with equal work slow clients cost more."
        )
    errors = sum(int(np.count_nonzero(~silent)) for silent in record.unanswered)
    if errors > _NOTABLE * tries:
        lines.append(
            f"{errors:,} of {tries:,} requests failed by an error. A run leaves clients out for a "
            "while that fail time and again; the replay asks them as it asks others, and takes "
            "longer than such a run would."
        )
    if reproduced(record, found) is False:
        lines.append(
            "Replayed, the policy of the run takes another time than was recorded: round trips "
            "changed in the course of the run, or depend on each other. The differences are a hint "
            "and no more."
        )
    if changed := changed_arms(record):
        lines.append(
            f"Between the first and the second half of their round trips, the times of "
            f"{_listed(record, changed)} changed by more than a quarter; the replay mixes them."
        )
    if tries < _MANY_TRIES and all(np.isfinite(values).all() for values in record.samples_s):
        lines.append(
            f"None of {tries} requests failed, and none fails in the replay. So few requests do "
            "not show that no client ever fails."
        )
    rare = [arm for arm, values in enumerate(record.samples_s) if values.size < FEW]
    if rare:
        lines.append(
            f"Fewer than {FEW} requests were recorded of {_listed(record, rare)}: the replay draws "
            "most of their round trips from those of other clients."
        )
    return lines


def changed_arms(record: RunRecord) -> list[int]:
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


def _listed(record: RunRecord, arms: Sequence[int]) -> str:
    names = ", ".join(plain(record.names[arm]) for arm in arms[:5])
    return names + (f" and {len(arms) - 5} more" if len(arms) > 5 else "")


def replayable(name: str) -> bool:
    """Tell whether a policy needs nothing but what is recorded of any run."""
    spec = POLICIES.get(name)
    return spec is not None and not spec.by_data and "expected_time_s" not in spec.parameters()


def plays_again(record: RunRecord) -> bool:
    """Tell whether the policy of a record can be replayed as it was set there."""
    return _recorded(record) is not None


def _own_option(record: RunRecord, name: str) -> str:
    """Return the parameters that a policy had in the record, if it is that of the record."""
    return record.option if name == record.policy else ""


def _recorded(record: RunRecord) -> Contender | None:
    """Return the policy of a record as it was set there; ``None`` if it cannot be replayed."""
    if record.buffered or not replayable(record.policy):
        return None
    try:
        return _contender(record, record.policy, record.option)
    except ConfigError:  # of another app, which may have given it anything
        return None


def _contender(record: RunRecord, name: str, option: str) -> Contender:
    taken = POLICIES[name].parameters()
    params = {key: value for key, value in record.params.items() if key in taken}
    if record.floors and "min_participation" in taken:
        params["min_participation"] = list(record.floors)
    params |= parse_options(name, option)
    return Contender(name, params)


def _replayed(
    name: str, result: StudyResult, few: BoolArray, updates: int | None = None
) -> Replayed:
    """Return a replay; where failures leave fewer updates, of as many more rounds as it takes."""
    plays = result.play_count.sum(axis=0)
    share = float(plays[few].sum() / max(plays.sum(), 1))
    time_s = result.total_time_s
    if updates is not None:
        completed = result.play_count.sum(axis=1) - result.failures
        time_s = time_s * (updates / np.maximum(completed, 1))
    return Replayed(name, time_s, share)
