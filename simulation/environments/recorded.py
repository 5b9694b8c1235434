"""Recorded runs: a run directory opened for reading, and the environment that resamples it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from flower_scheduling.errors import ConfigError
from flower_scheduling.server.runs.at_work import AtWork
from flower_scheduling.server.runs.directory import count_rounds, read_rounds
from flower_scheduling.server.runs.round_lines import MAX_LISTED_ARMS
from flower_scheduling.strategies.base import BoolArray, FloatArray, IntArray
from flower_scheduling.strategies.deadline import AUTO, LONGEST_S, as_deadline
from flower_scheduling.strategies.flower import TIMEOUT, ArmResult, RoundRecord
from flower_scheduling.strategies.local_work import EQUAL_TIME

from ..wording import plain
from .paper import RoundDraw

# Below so many recorded rounds little is known of a client; from twice as many on its law is its
# own.
FEW: Final = 10
_WELL_KNOWN: Final = 2 * FEW
_LARGEST_FLOOR: Final = float(np.nextafter(1.0, 0.0))
_PARAMS: Final = ("beta", "truncate")
_MOST_NAMED: Final = 5
_MOST_SAMPLES: Final = 2000
# Size of the sample of a client hardly known.
_LEAST_SAMPLES: Final = 64
_BLOCK: Final = 64
# For how many recorded times the one counts that no round has shown, and how many times the longest
# recorded one it takes at most.
_UNSEEN: Final = 0.5
_BEYOND: Final = 3.0
_TINY_S: Final = 1e-9
# A grid of what a fleet may be like: usual failure rates, as logits; for how many rounds of its own
# the fleet's rate counts with a client; shares of clients that fail at rates of their own.
_LOGIT_RATES: Final = np.linspace(-8.0, 4.0, 25)
_RATE_WEIGHTS: Final = np.geomspace(5.0, 500.0, 7)
_ODD_SHARES: Final = (0.001, 0.01, 0.1)


@dataclass(frozen=True)
class RecordedArm:
    """A client of a recorded run.

    Attributes
    ----------
    name : str
        The name that it gave itself: not to be trusted.
    num_examples : int or None
        Size of its data set, where known.
    floor : float or None
        Its participation floor, if the policy keeps floors.
    """

    name: str
    num_examples: int | None
    floor: float | None


@dataclass(frozen=True)
class RecordedRun:
    """Run directory as it was when it was opened; rounds that came later are not looked at.

    Attributes
    ----------
    path : Path
        The folder.
    config : mapping
        Settings of the run.
    arms : tuple of RecordedArm
        The clients, by arm.
    num_rounds : int, >= 1
        Rounds recorded.
    strategy : str
        The policy.
    num_selected : int
        N.
    tau_max_s : float
        Deadline [s]; of a run that found its own, the longest round trip that was in time.
    """

    path: Path
    config: Mapping[str, Any]
    arms: tuple[RecordedArm, ...]
    num_rounds: int
    strategy: str
    num_selected: int
    tau_max_s: float

    @property
    def finds_deadline(self) -> bool:
        """Whether each round had a deadline that was found from measured times."""
        return bool(self.config.get("tau-max-s") == AUTO)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients, by arm."""
        return tuple(arm.name for arm in self.arms)

    @property
    def floors(self) -> tuple[float, ...]:
        """Participation floors by arm; empty: none."""
        floors = [arm.floor for arm in self.arms if arm.floor is not None]
        return tuple(floors) if len(floors) == len(self.arms) else ()

    def rounds(self) -> Iterator[RoundRecord]:
        """Read the rounds, one at a time.

        Raises
        ------
        ConfigError
            If one of them is damaged.
        """
        try:
            for record in read_rounds(self.path, self.num_rounds, self.names):
                if max([record.num_arms - 1, *record.available, *record.absent]) >= len(self.arms):
                    message = f"its arms.json lacks a client of round {record.round}"
                    raise ConfigError("run", str(self.path), message)
                yield record
        except ConfigError as error:
            raise ConfigError("run", str(self.path), error.message) from None


def require_run(path: Path) -> None:
    """Refuse a folder that is no run directory.

    Raises
    ------
    ConfigError
        If it has no settings; it names the runs in the folder, if there are any.
    """
    if not (path / "config.toml").exists():
        raise _no_run(path, " (it has no config.toml)")


def holds_runs(path: Path) -> bool:
    """Tell whether there is a run directory in a folder, or one folder deeper."""
    patterns = ("*/config.toml", "*/*/config.toml")
    return any(next(iter(path.glob(pattern)), None) is not None for pattern in patterns)


def open_run(path: Path) -> RecordedRun:
    """Open a run directory for reading.

    Raises
    ------
    ConfigError
        If it is none, or has no rounds.
    """
    try:
        # The rounds first: their clients are all in the list of arms that is read later.
        num_rounds = count_rounds(path)
        config = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
        strategy = str(config["strategy"])
        num_selected, tau_max_s = int(config["num-selected"]), as_deadline(config["tau-max-s"])
        if not num_rounds:
            raise ConfigError("run", str(path), "must be a run with rounds")
        arms = tuple(
            RecordedArm(str(arm["name"]), arm.get("num_examples"), arm.get("floor"))
            for arm in json.loads((path / "arms.json").read_text(encoding="utf-8"))
        )
    except ConfigError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        if isinstance(error, FileNotFoundError):
            reason = f"it has no {Path(error.filename).name}"
        raise _no_run(path, f" ({reason})") from None
    longest_s = LONGEST_S if tau_max_s == AUTO else tau_max_s
    run = RecordedRun(path, config, arms, num_rounds, strategy, num_selected, longest_s)
    return run if tau_max_s != AUTO else replace(run, tau_max_s=_longest_s(run) or LONGEST_S)


def _longest_s(run: RecordedRun) -> float:
    """Return the longest round trip of a run that was in time [s]."""
    results = (each for record in run.rounds() for each in [*record.results, *record.late_updates])
    return max((result.rtt_s or 0.0 for result in results if result.completed), default=0.0)


def _no_run(path: Path, reason: str) -> ConfigError:
    runs = sorted(each.parent.name for each in path.glob("*/config.toml"))
    if runs and not (path / "config.toml").exists():
        listed = ", ".join(plain(name) for name in runs[:_MOST_NAMED])
        more = f" and {len(runs) - _MOST_NAMED} more" if len(runs) > _MOST_NAMED else ""
        what = "the run" if len(runs) == 1 else "the runs"
        reason = f": {path} holds {what} {listed}{more}"
    return ConfigError("run", str(path), f"must be a run directory{reason}")


# --- resampling ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunRecord:
    """Round trips, availability and membership of the clients of a recorded run.

    Attributes
    ----------
    names : tuple of str
        The clients, by arm.
    policy : str
        The policy that scheduled them.
    num_selected, num_rounds : int
        N and T.
    tau_max_s : float
        Deadline [s].
    samples_s : tuple of (num_samples,) float64
        Of each arm the times of the rounds in which it was selected, ``inf`` where it failed; those
        of late updates that were used, or failed, among them [s].
    available : (num_rounds, num_arms) bool
        Arms that could be selected.
    member : (num_rounds, num_arms) bool
        Arms that belonged to the fleet.
    floors : tuple of float
        Participation floors; empty: none.
    params : mapping
        Settings of the run that some policies take as parameters of their own.
    option : str
        Parameters of its policy, as ``strategy-option`` has them.
    time_s : float
        Sum of the recorded rounds' lengths, as the study counts them: up to the last client's
        answer, or until it was known that the last one had failed [s].
    measured_s : float
        The same as it was measured, with the server's own work [s].
    between_s : float
        What the run took besides its rounds: waiting for clients, aggregating, evaluating [s].
    failures_s : tuple of (num_failures,) float64
        Of each arm after what time each of its failures was known, in their order: when its error
        came, or else at the end of its round or before that of its buffered step, and never later
        than the deadline. Empty: all at the deadline [s].
    unanswered : tuple of (num_failures,) bool
        Which of these failures were no answer before the deadline; empty like ``failures_s``.
    buffered : bool
        Whether the record is of buffered steps. ``num_rounds`` is then the number of rounds with as
        many updates, ``time_s`` what the steps took, and ``floors`` are those of rounds.
    num_steps : int
        Number of these steps; 0 where there are none.
    by_speed : bool
        Whether clients were asked for work by their speed.
    num_asked : int
        The most clients that a round has asked: above ``num_selected`` in a run with spare clients,
        whose rounds ended with the N-th answer; 0 in buffered steps.
    num_untimed : int
        How often a client had not answered by then, and its time is not recorded.
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
    failures_s: tuple[FloatArray, ...] = ()
    unanswered: tuple[BoolArray, ...] = ()
    option: str = ""
    buffered: bool = False
    num_steps: int = 0
    by_speed: bool = False
    between_s: float = 0.0
    num_asked: int = 0
    num_untimed: int = 0

    @property
    def delivered(self) -> bool:
        """Whether any client ever delivered in time."""
        return any(np.isfinite(values).any() for values in self.samples_s)

    @property
    def has_spares(self) -> bool:
        """Whether rounds asked more clients than they waited for."""
        return self.num_asked > self.num_selected


def read_record(run_dir: Path) -> RunRecord:
    """Read a run directory, of a fleet or a simulation, running or finished.

    Raises
    ------
    ConfigError
        If it is none, or has no rounds.
    """
    return record_of(open_run(run_dir))


def record_of(run: RecordedRun) -> RunRecord:
    """Return the round trips, availability and membership in the rounds of a run.

    Where a round does not list the available arms, which large fleets leave out, they are those
    that were asked and as many of the others as there were, drawn at random. Else arms at work, and
    those left out after failures, are available: a replay knows by itself who works and who fails.

    Raises
    ------
    ConfigError
        If no client was ever selected, or a round is damaged.
    """
    num_rounds, tau_max_s = run.num_rounds, run.tau_max_s
    longest_s = LONGEST_S if run.finds_deadline else tau_max_s
    trips = _RoundTrips(len(run.arms), tau_max_s)
    available = np.zeros((num_rounds, len(run.arms)), dtype=np.bool_)
    member = np.zeros_like(available)
    rng = np.random.default_rng(0)
    time_s = measured_s = last_s = 0.0
    buffered, updates, num_steps, num_asked, num_untimed = False, 0, 0, 0, 0
    at_work = AtWork()
    for row, record in enumerate(run.rounds()):
        if record.num_arms > MAX_LISTED_ARMS:
            drawn = rng.random(record.num_arms)
            drawn[[*record.selected, *record.late]] = -1.0
            available[row, np.argsort(drawn)[: len(record.available)]] = True
        else:
            available[row, record.available] = True
            # Of a step they are those that were so when a channel was last given away.
            if record.buffered:
                at_work.add(record)
                available[row, record.selected] = True
            working = at_work.arms.difference(record.absent)
            available[row, [*working, *record.left_out]] = True
            if not record.buffered:
                at_work.add(record)
        member[row, : record.num_arms] = True
        member[row, record.absent] = False
        member[row, record.left_out] = True
        deadline_s = record.deadline_s or longest_s
        slowest_s = 0.0
        for result in record.results:
            taken_s = trips.add(result, min(_over_s(record, result), deadline_s))
            slowest_s = max(slowest_s, taken_s)
        for result in record.late_updates:
            trips.add(result, deadline_s)
        time_s += slowest_s
        measured_s += record.round_s
        last_s = record.time_s
        buffered |= record.buffered
        updates += record.completed.count(True)
        num_untimed += len(record.late) - len(record.late_updates)
        if not record.buffered:
            num_asked = max(num_asked, len(record.results) + len(record.late))
    if not any(trips.times_s):
        raise ConfigError("run", str(run.path), "must be a run in which clients were selected")
    floors = run.floors
    if buffered:  # clients work on between two steps
        num_steps = num_rounds
        time_s = measured_s = max(measured_s, last_s)
        num_rounds = max(1, round(updates / run.num_selected))
        rows = np.linspace(0, run.num_rounds - 1, num_rounds).round().astype(np.int64)
        available, member = available[rows], member[rows]
        floors = tuple(min(run.num_selected * floor, _LARGEST_FLOOR) for floor in floors)
    return RunRecord(
        names=run.names,
        policy=run.strategy,
        num_selected=run.num_selected,
        num_rounds=num_rounds,
        tau_max_s=tau_max_s,
        samples_s=tuple(np.array(values) for values in trips.times_s),
        available=available,
        member=member,
        floors=floors,
        params={key: run.config[key] for key in _PARAMS if key in run.config},
        time_s=time_s,
        measured_s=measured_s,
        between_s=max(last_s - measured_s, 0.0),
        failures_s=tuple(np.array([known_s for known_s, _ in each]) for each in trips.failures),
        unanswered=tuple(
            np.array([silent for _, silent in each], dtype=np.bool_) for each in trips.failures
        ),
        option=str(run.config.get("strategy-option", "")),
        buffered=buffered,
        num_steps=num_steps,
        by_speed=run.config.get("local-work") == EQUAL_TIME,
        num_asked=num_asked,
        num_untimed=max(num_untimed, 0),
    )


class _RoundTrips:
    """The round trips of each arm, as they are read.

    Parameters
    ----------
    num_arms : int
        Number of arms.
    tau_max_s : float
        What takes longer has failed [s].

    Attributes
    ----------
    times_s : list of list of float
        By arm, ``inf`` where it failed [s].
    failures : list of list of (float, bool)
        By arm, after what time each failure was known [s], and whether it was no answer.
    """

    def __init__(self, num_arms: int, tau_max_s: float) -> None:
        self.times_s: list[list[float]] = [[] for _ in range(num_arms)]
        self.failures: list[list[tuple[float, bool]]] = [[] for _ in range(num_arms)]
        self._tau_max_s = tau_max_s

    def add(self, result: ArmResult, latest_s: float) -> float:
        """Add what became of a request, and return after what time that was known [s].

        It was known after ``latest_s`` at the latest; a reply says when.
        """
        known_s = latest_s if result.rtt_s is None else min(result.rtt_s, latest_s)
        if result.completed and result.rtt_s is not None and result.rtt_s <= self._tau_max_s:
            self.times_s[result.arm].append(result.rtt_s)
            return result.rtt_s
        self.times_s[result.arm].append(np.inf)
        self.failures[result.arm].append((known_s, result.reason in (None, TIMEOUT)))
        return known_s


def _over_s(record: RoundRecord, result: ArmResult) -> float:
    """Return after what time a client's round was over, or its buffered step [s]."""
    if not record.buffered:
        return record.round_s
    return np.inf if result.begin_s is None else max(record.time_s - result.begin_s, 0.0)


class RecordedEnvironment:
    """Environment of a recorded run: times resampled arm by arm, availability as recorded.

    Every row of the batch has laws of its own that the record may come from, so that rows differ
    by what the record leaves open. Whether an arm fails is apart from how long it takes:

    - Where no failure was recorded none is drawn: with a deadline far above the times, the failures
      that a short record leaves possible would be all of the result. Else an arm fails either as
      arms of this fleet usually do, at rates about one mean, or at a rate of its own, which may be
      any. How often the first, how much those differ and how many are of the second kind is drawn
      for each row from what the whole record says, then each arm's rate given its own rounds. So
      an arm that was tried once and failed mostly had bad luck in a fleet where others hardly
      fail, and one that always failed goes on failing.
    - The times of an arm that completed 20 rounds or more are a bootstrap sample of its own. Of
      an arm with n times only n / 20 of the sample are; the rest come from a pool of all times in
      which those of arms seldom tried weigh most: policies seldom try the slow. The pool's weights
      are drawn for each row (a Bayesian bootstrap), and so is one time between the pool's median
      and three times its longest that was not seen yet: few rounds do not show the longest times.
    - When a failure is known is drawn from the arm's own failures, however few there are, or from
      those of all arms where it has none.

    The order of the record is lost: what changed in the course of the run is mixed.

    Parameters
    ----------
    record : RunRecord
        What was recorded.
    batch_shape : tuple of int
        One row per repetition, ``(num_rows,)``.
    seed : numpy.random.SeedSequence
        Where all draws come from.
    """

    def __init__(
        self, record: RunRecord, batch_shape: tuple[int, ...], seed: np.random.SeedSequence
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
        self._known_s: FloatArray | None = None
        own_s = record.failures_s
        self._failures_s: FloatArray = np.concatenate(own_s) if own_s else np.empty(0)
        # Where those begin that an arm draws from, and how many they are.
        sizes: IntArray = np.array([values.size for values in own_s], dtype=np.int64)
        self._first: IntArray = np.where(sizes > 0, np.cumsum(sizes) - sizes, 0)
        self._count: IntArray = np.where(sizes > 0, sizes, self._failures_s.size)

    def round(self, t: int) -> RoundDraw:
        """Return the draw of a round; see :meth:`.Environment.round`."""
        block, offset = divmod(t - 1, _BLOCK)
        if block != self._block:
            self._block, self._times_s = block, self._draw(block)
            self._known_s = self._draw_known(block)
        time_s = self._times_s[offset]
        failed = np.isinf(time_s)
        row = (t - 1) % self._record.num_rounds
        nothing = np.zeros(self.shape)
        return RoundDraw(
            available=np.broadcast_to(self._record.available[row], self.shape),
            download_s=nothing,
            # A message that takes no time is a query for grids, which no failure concerns.
            compute_s=np.where(failed, self._record.tau_max_s, time_s),
            upload_s=nothing,
            failed=failed,
            member=np.broadcast_to(self._record.member[row], self.shape),
            failure_s=None if self._known_s is None else self._known_s[offset],
        )

    def expected_time_s(self, tau_max_s: float, t: int = 1) -> FloatArray:
        """Return the means of the laws [s], (num_rows, num_arms)."""
        means_s = [np.minimum(law, tau_max_s).mean(axis=-1) for law in self._laws]
        done_s = np.stack(means_s, axis=-1)
        return np.asarray(done_s + self._failure * (tau_max_s - done_s))

    def _rng(self, stream: int, block: int) -> np.random.Generator:
        key = (*self._seed.spawn_key, stream, block)
        return np.random.default_rng(np.random.SeedSequence(self._seed.entropy, spawn_key=key))

    def _draw(self, block: int) -> FloatArray:
        rng = self._rng(1, block)
        times_s = np.empty((_BLOCK, *self.shape))
        (num_rows,) = self.batch_shape
        for arm, law in enumerate(self._laws):
            which: IntArray = rng.integers(0, law.shape[-1], (_BLOCK, num_rows))
            times_s[..., arm] = law[np.arange(num_rows), which]
        times_s[rng.random(times_s.shape) < self._failure] = np.inf
        return times_s

    def _draw_known(self, block: int) -> FloatArray | None:
        """Draw when the failures of a block are known [s]; ``None``: the record does not say."""
        if not self._failures_s.size:
            return None
        known_s = np.zeros(self._times_s.shape)
        where = np.nonzero(np.isinf(self._times_s))
        arms = where[-1]
        which = self._first[arms] + self._rng(2, block).integers(0, self._count[arms])
        known_s[where] = self._failures_s[which]
        return known_s


class RecordedFleet:
    """The environment of a recorded run for a grid: one row of :class:`RecordedEnvironment`.

    Who did not answer before a deadline in the record answers before none here.

    Parameters
    ----------
    record : RunRecord
        What was recorded.
    seed : int
        Where all draws come from.
    """

    regimes: Final = (1,)
    """Rounds from which the means differ from those before."""

    def __init__(self, record: RunRecord, seed: int) -> None:
        failures = zip(record.failures_s, record.unanswered, strict=True)
        failures_s = tuple(np.where(never, np.inf, known_s) for known_s, never in failures)
        record = replace(record, failures_s=failures_s)
        self._rows = RecordedEnvironment(record, (1,), np.random.SeedSequence(seed))

    def round(self, t: int) -> RoundDraw:
        """Return the draw of a round, without batch axes."""
        draw = self._rows.round(t)
        return RoundDraw(
            available=draw.available[0],
            download_s=draw.download_s[0],
            compute_s=draw.compute_s[0],
            upload_s=draw.upload_s[0],
            failed=draw.failed[0],
            member=None if draw.member is None else draw.member[0],
            failure_s=None if draw.failure_s is None else draw.failure_s[0],
        )

    def expected_time_s(self, tau_max_s: float, t: int = 1) -> FloatArray:
        """Return the means of the laws [s], (num_arms,)."""
        means_s: FloatArray = self._rows.expected_time_s(tau_max_s, t)[0]
        return means_s

    def slowdown(self, t: int) -> FloatArray:
        """Return 1 for each arm: the order of the record is lost."""
        return np.ones(self._rows.num_arms)


def _failure_rates(
    samples_s: Sequence[FloatArray], num_rows: int, rng: np.random.Generator
) -> FloatArray:
    """Draw how often each arm fails, given the record, (num_rows, num_arms).

    A mixture of Beta laws for the arms; its mean, weight and share of odd ones on a grid.
    """
    from scipy.special import betaln, expit

    tries = np.array([values.size for values in samples_s])
    fails = np.array([np.count_nonzero(np.isinf(values)) for values in samples_s])
    if not fails.any():
        return np.zeros((num_rows, tries.size))
    axes = (expit(_LOGIT_RATES), _RATE_WEIGHTS, _ODD_SHARES)
    mean, weight, odd = (grid.reshape(-1, 1) for grid in np.meshgrid(*axes))
    first, second = mean * weight, (1.0 - mean) * weight
    # Level on a grid of logits: so many failures are expected as were recorded, also of few.
    log_chance = np.zeros_like(mean)
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
    longest_s = min(tau_max_s, max(_BEYOND * float(pool_s.max()), median_s))
    unseen_s = np.exp(rng.uniform(np.log(median_s), np.log(longest_s), (num_rows, 1)))
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
