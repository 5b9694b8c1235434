"""Alarms about a run: missed floors, clients that always fail, a deadline that does not fit."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from flower_scheduling.reasons import (
    FREE_RIDER,
    NO_EXAMPLES,
    NO_REPLIES,
    NOBODY_AVAILABLE,
    QUORUM,
)
from flower_scheduling.strategies import NamedFloors, parse_floors
from flower_scheduling.strategies.deadline import AUTO, GivenDeadline
from flower_scheduling.strategies.floors import buffered_lag
from flower_scheduling.strategies.flower import LOGGER, TIMEOUT, RoundRecord, failure_kind

from ..callbacks import RoundCallback, Run
from ..runs.totals import LOOSE, RunTotals

FLOOR_MISSED: Final = "floor-missed"
ALWAYS_FAILS: Final = "always-fails"
DEADLINE_TIGHT: Final = "deadline-tight"
DEADLINE_LOOSE: Final = "deadline-loose"
NO_STEP: Final = "no-step"
DIVERGED: Final = "diverged"
NOT_LEARNING: Final = "not-learning"
CHECKPOINT_STALE: Final = "checkpoint-stale"
FLOOR_UNKNOWN: Final = "floor-unknown"
CAME_AND_LEFT: Final = "came-and-left"
KINDS: Final = {
    FLOOR_MISSED: "a client had less than its floor in the last rounds or steps",
    ALWAYS_FAILS: "a client has failed five times in a row or more",
    FREE_RIDER: "a client sends the model back as it came, or another client's update",
    DEADLINE_TIGHT: "many selected clients miss the deadline",
    DEADLINE_LOOSE: "the deadline is many times what any client takes",
    NO_STEP: "the model has not changed for ten rounds or steps, or more",
    DIVERGED: "the loss is no finite number any more",
    NOT_LEARNING: "twenty evaluations or more without a better accuracy, and not at a plateau",
    CHECKPOINT_STALE: "the last checkpoint is older than it should be",
    FLOOR_UNKNOWN: "a floor is given to a name that no client has",
    CAME_AND_LEFT: "five clients or more came once and left",
}
"""Every kind of alarm, and what it means."""

_WINDOW: Final = 200  # rounds that floors and deadline are judged by
_SHARE_OF_FLOOR: Final = 0.8  # a floor is missed below this share of it,
_OWED_ROUNDS: Final = 5.0  # and if that is at least so many rounds
_FAILURES: Final = 5  # in a row
_FEW_TIMES: Final = 50  # selections in the window, before the deadline is judged
_TIGHT: Final = 0.1  # share of the selected that may miss a deadline
_CALM: Final = 0.5  # an alarm on the deadline ends at this part of what began it: no flapping
_BETTER: Final = 0.002  # what an accuracy must gain to count as better
_NO_STEP_ROUNDS: Final = 10
_EVALUATIONS: Final = 20
_LEARNED: Final = 0.02  # above its first accuracy a model has learned, so that it may be done
_FALLEN: Final = 0.05  # below its best it is no longer what it was
_UNKNOWN_ROUNDS: Final = 10  # in which a client of a name may still join
_GONE_ROUNDS: Final = 10  # after which a client counts as gone
_GONE_CLIENTS: Final = 5
_MAX_LOGGED: Final = 20  # alarms of one kind that the log names
_LOG_AGAIN_S: Final = 3600.0  # and in which time [s]

# What to do, at the end of an alarm's sentence.
_LONGER_DEADLINE: Final = "a longer one (--tau-max-s), or auto, which finds one, loses fewer"
_SHORTER_DEADLINE: Final = "a shorter one (--tau-max-s), or auto, which finds one, saves that time"
_SEE_LOG: Final = "the log says more"
_NO_STEP_ADVICE: Final = {
    NOBODY_AVAILABLE: "check that clients are running and connected",
    NO_REPLIES: "look at the logs of the clients",
    NO_EXAMPLES: "check that the clients have data to train on",
    QUORUM: "too few clients deliver, so look at the logs of those that fail",
}
_DIVERGED_TEXT: Final = (
    "the loss is not a finite number, so the model has diverged: begin again from a checkpoint or "
    "from the start, with a smaller learning rate"
)
_CHECKPOINT_ADVICE: Final = "check that the run directory can be written and the disk is not full"
_UNKNOWN_ADVICE: Final = "its floor has no effect until it joins; check the name in --fairness"
_NAME_ADVICE: Final = (
    "a device that has another name at each start counts as another client; give it a fixed one "
    "(--name)"
)
_FREE_RIDER_ADVICE: Final = (
    "check that it trains on data of its own, or accept such updates (--accept-unchanged)"
)
_FAILS_ADVICE: Final = "look at its log, and stop the client if it cannot be mended"
_FLOOR_ADVICE: Final = (
    "lower the floors (--fairness), select more {} (--num-selected), or see why it "
    "was seldom available"
)


@dataclass(frozen=True, order=True)
class Alarm:
    """An alarm: one thing to look at.

    Attributes
    ----------
    kind : str
        One of :data:`KINDS`.
    arm : int
        The client's arm; -1 if it is about the run.
    text : str
        One sentence: what is the matter, and what to do.
    """

    kind: str
    arm: int
    text: str


class _WindowRound(NamedTuple):
    num_selected: int
    served: list[int]  # arms that shares count
    member: NDArray[np.bool_]  # (num_arms,)
    slowest_s: float  # the slowest answer
    num_timeouts: int
    num_silent: int  # of these, by clients that have never answered
    turns: int


class Alarms:
    """The rules of all alarms, applied to each round; memory does not grow with the rounds.

    Parameters
    ----------
    totals : RunTotals
        The run's rounds, counted up to the one that is observed.
    tau_max_s : float or "auto"
        Deadline [s]; one that is found gives no alarm.
    checkpoint_every : int
        Rounds between checkpoints; 0: there are none.
    fairness : str
        Floors as the user writes them.
    num_selected : int
        Clients at work in buffered mode, N.
    """

    def __init__(
        self,
        totals: RunTotals,
        *,
        tau_max_s: GivenDeadline = 0.0,
        checkpoint_every: int = 0,
        fairness: str = "none",
        num_selected: int = 0,
    ) -> None:
        self._totals = totals
        self._judges_deadline = tau_max_s != AUTO
        self._tau_max_s = 0.0 if tau_max_s == AUTO else tau_max_s
        self._checkpoint_every = checkpoint_every
        self._rule = parse_floors(fairness)
        self._channels = num_selected
        self._window: deque[_WindowRound] = deque()
        # Sums over the window, the last two by arm.
        self._num_selected = self._num_timeouts = self._num_silent = 0
        self._served: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._member: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        # By arm: whether it is a member, how often it became one, rounds since it was one.
        self._there: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self._joins: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._away: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._names: tuple[Sequence[str], str] = (), ""  # and which floors none of them is meant by
        self._first, self._best, self._evaluations_since = -1.0, -1.0, 0
        self._recent: deque[float] = deque(maxlen=_EVALUATIONS)
        self._tight = self._loose = self._diverged = False

    def observe(self, record: RoundRecord) -> None:
        """Judge a round that the totals have just counted."""
        member = np.ones(record.num_arms, dtype=np.bool_)
        member[record.absent] = False
        answers_s = [result.rtt_s or 0.0 for result in record.results if result.completed]
        late = [
            result.arm
            for result in record.results
            if result.reason is not None and failure_kind(result.reason) == TIMEOUT
        ]
        silent = [arm for arm in late if not self._totals.arms[arm].completed]
        slowest_s = max(answers_s, default=0.0)
        self._enter(
            _WindowRound(
                len(record.selected),
                record.served,
                member,
                slowest_s,
                len(late),
                len(silent),
                record.turns,
            )
        )
        member = member.copy()
        member[record.left_out] = True  # it has not left
        self._follow_members(member)
        if self._judges_deadline:
            self._judge_deadline()
        if record.diverged or record.loss is not None:  # a missing loss says nothing
            self._diverged = record.diverged
        if record.accuracy is not None:
            if not self._recent:
                self._first = record.accuracy
            self._recent.append(record.accuracy)
            better = record.accuracy > self._best + _BETTER
            self._evaluations_since = 0 if better else self._evaluations_since + 1
            self._best = record.accuracy if better else self._best

    def active(
        self, names: Sequence[str], floors: Sequence[float] | None, saved_round: int
    ) -> list[Alarm]:
        """Return what there is to look at now, those of the run first.

        Parameters
        ----------
        names : sequence of str
            What the arms are called.
        floors : sequence of float, optional
            Their guaranteed shares of rounds.
        saved_round : int
            The round of the last checkpoint.
        """
        found = [
            *self._of_run(saved_round),
            *self._of_names(names, floors),
            *self._of_clients(names, floors),
        ]
        return sorted(found, key=lambda alarm: (alarm.arm >= 0, list(KINDS).index(alarm.kind)))

    def _judge_deadline(self) -> None:
        answers, timeouts, slowest_s = self._answers()
        enough = answers >= _FEW_TIMES
        limit = _TIGHT * (_CALM if self._tight else 1.0)
        self._tight = enough and timeouts > limit * answers
        limit = LOOSE * (_CALM if self._loose else 1.0)
        self._loose = enough and 0 < limit * slowest_s < self._tau_max_s

    def _answers(self) -> tuple[int, int, float]:
        """Return selections, missed deadlines and slowest answer [s] of the window.

        A client that has never answered has missed no deadline that is far from all answers.
        """
        slowest_s = max((entry.slowest_s for entry in self._window), default=0.0)
        far = 0 < LOOSE * slowest_s < self._tau_max_s
        timeouts = self._num_timeouts - (self._num_silent if far else 0)
        return self._num_selected, timeouts, slowest_s

    def _of_run(self, saved_round: int) -> Iterator[Alarm]:
        answers, timeouts, slowest_s = self._answers()
        totals = self._totals
        buffered = totals.last is not None and totals.last.buffered
        unit = "step" if buffered else "round"
        delays = "keeps its channel" if buffered else "delays its round"
        if self._tight:
            yield Alarm(
                DEADLINE_TIGHT,
                -1,
                f"{timeouts} of the last {answers} requests missed the deadline of "
                f"{self._tau_max_s:g} s, and their updates were lost: {_LONGER_DEADLINE}",
            )
        elif self._loose:
            yield Alarm(
                DEADLINE_LOOSE,
                -1,
                f"the slowest answer in the last {len(self._window)} {unit}s took "
                f"{slowest_s:.3g} s, but the deadline is {self._tau_max_s:g} s, and a client that "
                f"fails {delays} by all of it: {_SHORTER_DEADLINE}",
            )
        if totals.without_step >= _NO_STEP_ROUNDS and totals.last is not None:
            why = totals.last.no_step or "unknown"
            text = f"the model has not changed for {totals.without_step} {unit}s ({why})"
            yield Alarm(NO_STEP, -1, f"{text}: {_no_step_advice(why, totals.last)}")
        if self._diverged:
            yield Alarm(DIVERGED, -1, _DIVERGED_TEXT)
        elif (stuck := self._not_learning()) is not None:
            yield Alarm(NOT_LEARNING, -1, stuck)
        every = self._checkpoint_every
        if every and totals.rounds - saved_round > 2 * every:
            text = (
                f"the last checkpoint is of {unit} {saved_round}, one is due every {every} {unit}s"
            )
            yield Alarm(CHECKPOINT_STALE, -1, f"{text}: {_CHECKPOINT_ADVICE}")

    def _not_learning(self) -> str | None:
        """Say why the model does not learn; a plateau that was learned is the end of a run.

        It is none where the accuracy was never better than at first, is no longer near its best, or
        stays below the target of the run.
        """
        if self._evaluations_since < _EVALUATIONS:
            return None
        count, highest = self._evaluations_since, max(self._recent)
        if highest < self._best - _FALLEN:
            return (
                f"the accuracy has fallen: at most {highest:.4f} in the last {len(self._recent)} "
                f"evaluations, and {self._best:.4f} before"
            )
        text = f"no accuracy clearly better than {self._best:.4f} in {count} evaluations"
        if self._best < self._first + _LEARNED:
            return text
        target = self._totals.target_accuracy
        return f"{text}, and the target is {target:g}" if self._best < target else None

    def _follow_members(self, member: NDArray[np.bool_]) -> None:
        if (missing := member.size - self._there.size) > 0:
            self._there = np.pad(self._there, (0, missing))
            self._joins = np.pad(self._joins, (0, missing))
            self._away = np.pad(self._away, (0, missing))
        self._joins += member & ~self._there
        self._away = np.where(member, 0, self._away + 1)
        self._there = member

    def _of_names(self, names: Sequence[str], floors: Sequence[float] | None) -> Iterator[Alarm]:
        text = ""
        if floors is not None and isinstance(self._rule, NamedFloors):
            if self._names[0] is not names:  # the same list as long as nothing has changed
                self._names = names, self._rule.unknown_message(names)
            text = self._names[1]
        if text and self._totals.rounds >= _UNKNOWN_ROUNDS:
            yield Alarm(FLOOR_UNKNOWN, -1, f"{text}: {_UNKNOWN_ADVICE}")
        gone = np.flatnonzero((self._joins <= 1) & (self._away >= _GONE_ROUNDS))
        if gone.size >= _GONE_CLIENTS:
            text = f"{gone.size} clients came once and left, {names[gone[-1]]} last"
            yield Alarm(CAME_AND_LEFT, -1, f"{text}: {_NAME_ADVICE}")

    def _of_clients(self, names: Sequence[str], floors: Sequence[float] | None) -> Iterator[Alarm]:
        for arm, (times, kind) in sorted(self._totals.failing.items()):
            if kind == FREE_RIDER:
                count = self._totals.arms[arm].failures[kind]
                text = f"{names[arm]} sends the model back, or another's update, {count} so far"
                yield Alarm(FREE_RIDER, arm, f"{text}: {_FREE_RIDER_ADVICE}")
            elif times >= _FAILURES:
                text = f"{names[arm]} has failed {times} times in a row ({kind})"
                yield Alarm(ALWAYS_FAILS, arm, f"{text}: {_FAILS_ADVICE}")
        if floors is None or len(self._window) < _WINDOW:
            return
        floor = np.zeros(self._served.size)
        known = min(len(floors), floor.size)
        floor[:known] = floors[:known]
        due = floor * self._member
        last = self._totals.last
        buffered = last is not None and last.buffered
        most: float = _OWED_ROUNDS
        if buffered:  # what a policy that keeps its floors may lag
            most = buffered_lag(int(np.count_nonzero(floor)), self._channels)
        missed = (self._served < _SHARE_OF_FLOOR * due) & (due - self._served >= most)
        of, more = ("updates", "clients at work") if buffered else ("rounds", "clients a round")
        for arm in np.flatnonzero(missed).tolist():
            count, turns = int(self._served[arm]), int(self._member[arm])
            text = f"{names[arm]} took part in {count} of the last {turns} {of}"
            asked = f"its floor of {floor[arm]:.3g} asks for {due[arm]:.0f}"
            yield Alarm(FLOOR_MISSED, arm, f"{text}, {asked}: {_FLOOR_ADVICE.format(more)}")

    def _enter(self, entry: _WindowRound) -> None:
        """Add a round to the window, and drop the one that falls out of it."""
        if (missing := entry.member.size - self._member.size) > 0:
            self._served = np.pad(self._served, (0, missing))
            self._member = np.pad(self._member, (0, missing))
        self._window.append(entry)
        self._add(entry, 1)
        if len(self._window) > _WINDOW:
            self._add(self._window.popleft(), -1)

    def _add(self, entry: _WindowRound, sign: int) -> None:
        self._num_selected += sign * entry.num_selected
        self._num_timeouts += sign * entry.num_timeouts
        self._num_silent += sign * entry.num_silent
        np.add.at(self._served, entry.served, sign)
        self._member[: entry.member.size] += sign * entry.turns * entry.member


class AlarmLog(RoundCallback):
    """A callback that logs which alarms begin and end.

    Attributes
    ----------
    active : tuple of Alarm
        What there is to look at after the last round; replaced as a whole.
    """

    active: tuple[Alarm, ...] = ()

    def on_start(self, run: Run) -> None:
        """Judge this run from its first round on, also where it goes on with an earlier one."""
        self._run = run
        self._alarms = Alarms(
            run.totals,
            tau_max_s=run.tau_max_s,
            checkpoint_every=run.checkpoint_every if run.directory else 0,
            fairness=str(run.settings.get("fairness", "none")),
            num_selected=int(run.settings.get("num-selected", 0)),
        )
        for record in run.earlier_rounds():
            self._alarms.observe(record)
        self.active = ()
        self._logged: Counter[str] = Counter()  # of each kind, since
        self._since_s = time.monotonic()

    def on_round(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Log what has begun or ended with a round."""
        strategy = self._run.strategy
        self._alarms.observe(record)
        names = strategy.arms.names
        found = self._alarms.active(names, strategy.floors, self._run.saved_round)
        before = {(alarm.kind, alarm.arm) for alarm in self.active}
        now = {(alarm.kind, alarm.arm): alarm for alarm in found}
        if time.monotonic() - self._since_s > _LOG_AGAIN_S:
            self._logged.clear()
            self._since_s = time.monotonic()
        for kind, arm in sorted(now.keys() - before):
            self._logged[kind] += 1
            count = self._logged[kind]
            if count <= _MAX_LOGGED:
                more = "; more are not logged for an hour" if count == _MAX_LOGGED else ""
                LOGGER.warning("alarm %s: %s%s", kind, now[kind, arm].text, more)
        for kind, arm in sorted(before - now.keys()):
            if self._logged[kind] <= _MAX_LOGGED:
                of = f" for {names[arm]}" if arm >= 0 else ""
                LOGGER.info("alarm %s is over%s", kind, of)
        self.active = tuple(found)


def _no_step_advice(why: str, last: RoundRecord) -> str:
    """Return what to do about rounds without a step, of which this is the last."""
    advice = _NO_STEP_ADVICE.get(why, _SEE_LOG)
    if why == NOBODY_AVAILABLE and last.left_out:
        return "clients that are connected have failed time and again, so look at their logs"
    if why in (NO_REPLIES, QUORUM) and TIMEOUT in map(failure_kind, filter(None, last.reason)):
        return f"{advice}, and at the deadline"
    return advice
