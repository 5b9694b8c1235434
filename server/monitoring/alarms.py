"""What somebody should look at: missed floors, clients that always fail, a bad deadline."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from flower_scheduling.strategies.flower import (
    LOGGER,
    TIMEOUT,
    RoundRecord,
    ScheduledStrategy,
    failure_kind,
)

FLOOR_MISSED: Final = "floor-missed"
ALWAYS_FAILS: Final = "always-fails"
DEADLINE_TIGHT: Final = "deadline-tight"
DEADLINE_LOOSE: Final = "deadline-loose"
NO_STEP: Final = "no-step"
DIVERGED: Final = "diverged"
NOT_LEARNING: Final = "not-learning"
CHECKPOINT_STALE: Final = "checkpoint-stale"
KINDS: Final = {
    FLOOR_MISSED: "a client had less than its floor in the last rounds",
    ALWAYS_FAILS: "a client has failed five times in a row or more",
    DEADLINE_TIGHT: "many selected clients miss the deadline",
    DEADLINE_LOOSE: "the deadline is many times what anybody takes",
    NO_STEP: "the model has not changed for ten rounds or more",
    DIVERGED: "the loss is no finite number any more",
    NOT_LEARNING: "twenty evaluations or more without a better accuracy",
    CHECKPOINT_STALE: "the last checkpoint is older than it should be",
}
"""Every kind of alarm, and what it means."""

_WINDOW: Final = 200
"""Rounds that floors and deadline are judged by."""
_SHARE_OF_FLOOR: Final = 0.8
_OWED_ROUNDS: Final = 5.0
"""A floor is missed below this share of it, and if that is at least so many rounds."""
_FAILURES: Final = 5
_FEW_TIMES: Final = 50
_TIGHT: Final = 0.1
"""Share of the selected that may miss a deadline."""
_LOOSE: Final = 10.0
"""A deadline may be so many times the slowest answer of the window."""
_CALM: Final = 0.5
"""An alarm on the deadline is over at this part of what began it, so that it does not flap."""
_BETTER: Final = 0.002
"""What an accuracy must gain to count as better."""
_NO_STEP_ROUNDS: Final = 10
_EVALUATIONS: Final = 20
_MAX_TOLD: Final = 20
_TOLD_S: Final = 3600.0
"""Alarms of one kind that the log names, and in which time [s]."""


@dataclass(frozen=True, order=True)
class Alarm:
    """One thing to look at.

    Attributes
    ----------
    kind : str
        One of :data:`KINDS`.
    arm : int
        The client's arm; -1 if it is about the run.
    text : str
        One sentence.
    """

    kind: str
    arm: int
    text: str


class Alarms:
    """Watch the rounds of a run; memory does not grow with them.

    Parameters
    ----------
    tau_max_s : float
        Deadline [s].
    checkpoint_every : int
        Rounds between checkpoints; 0: there are none.
    """

    def __init__(self, *, tau_max_s: float, checkpoint_every: int = 0) -> None:
        self._tau_max_s = tau_max_s
        self._checkpoint_every = checkpoint_every
        self._round = 0
        # Per round of the window: selected arms, who was a member, slowest answer, time-outs.
        self._window: deque[tuple[list[int], NDArray[np.bool_], float, int]] = deque()
        self._num_selected = self._num_timeouts = 0  # of the window
        self._selected: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._present: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._failing: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._failure: dict[int, str] = {}
        self._without_step = 0
        self._why_no_step = ""
        self._best, self._evaluations_since = -1.0, 0
        self._diverged = False
        self._tight = self._loose = False

    def observe(self, record: RoundRecord) -> None:
        """Take note of a round."""
        self._round = record.round
        self._grow(record.num_arms)
        member = np.ones(record.num_arms, dtype=np.bool_)
        member[record.absent] = False
        slowest_s, timeouts = 0.0, 0
        for result in record.results:
            if result.reason is None:
                self._failing[result.arm] = 0
                self._failure.pop(result.arm, None)
                slowest_s = max(slowest_s, result.rtt_s or 0.0)
            else:
                kind = failure_kind(result.reason)
                self._failing[result.arm] += 1
                self._failure[result.arm] = kind
                timeouts += kind == TIMEOUT
        self._enter(record.selected, member, slowest_s, timeouts)
        self._judge_deadline()
        self._without_step = 0 if record.stepped else self._without_step + 1
        self._why_no_step = record.no_step or ""
        if record.accuracy is not None:
            self._diverged = record.loss is None
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
        found = [*self._of_run(saved_round), *self._of_clients(names, floors)]
        return sorted(found, key=lambda alarm: (alarm.arm >= 0, list(KINDS).index(alarm.kind)))

    def _judge_deadline(self) -> None:
        answers, timeouts, slowest_s = self._answers()
        enough = answers >= _FEW_TIMES
        limit = _TIGHT * (_CALM if self._tight else 1.0)
        self._tight = enough and timeouts > limit * answers
        limit = _LOOSE * (_CALM if self._loose else 1.0)
        self._loose = enough and 0 < limit * slowest_s < self._tau_max_s

    def _answers(self) -> tuple[int, int, float]:
        """Return selections, missed deadlines and slowest answer [s] of the window."""
        slowest_s = max((entry[2] for entry in self._window), default=0.0)
        return self._num_selected, self._num_timeouts, slowest_s

    def _of_run(self, saved_round: int) -> Iterator[Alarm]:
        answers, timeouts, slowest_s = self._answers()
        if self._tight:
            yield Alarm(
                DEADLINE_TIGHT,
                -1,
                f"{timeouts} of the last {answers} selections missed the deadline of "
                f"{self._tau_max_s:g} s: a longer one loses fewer updates",
            )
        elif self._loose:
            yield Alarm(
                DEADLINE_LOOSE,
                -1,
                f"nobody took more than {slowest_s:.3g} s in the last {len(self._window)} rounds, "
                f"the deadline is {self._tau_max_s:g} s: who fails costs all of it",
            )
        if self._without_step >= _NO_STEP_ROUNDS:
            text = f"the model has not changed for {self._without_step} rounds: {self._why_no_step}"
            yield Alarm(NO_STEP, -1, text)
        if self._diverged:
            yield Alarm(DIVERGED, -1, "the loss is not finite: the model has diverged")
        elif self._evaluations_since >= _EVALUATIONS:
            text = f"no accuracy clearly better than {self._best:.4f} in {self._evaluations_since}"
            yield Alarm(NOT_LEARNING, -1, f"{text} evaluations")
        every = self._checkpoint_every
        if every and self._round - saved_round > 2 * every:
            text = f"the last checkpoint is of round {saved_round}, one every {every} is wanted"
            yield Alarm(CHECKPOINT_STALE, -1, text)

    def _of_clients(self, names: Sequence[str], floors: Sequence[float] | None) -> Iterator[Alarm]:
        for arm in np.flatnonzero(self._failing >= _FAILURES).tolist():
            text = f"{names[arm]} has failed {self._failing[arm]} times in a row"
            yield Alarm(ALWAYS_FAILS, arm, f"{text}: {self._failure.get(arm, '')}")
        if floors is None or len(self._window) < _WINDOW:
            return
        floor = np.zeros(self._selected.size)
        known = min(len(floors), floor.size)
        floor[:known] = floors[:known]
        due = floor * self._present
        missed = (self._selected < _SHARE_OF_FLOOR * due) & (due - self._selected >= _OWED_ROUNDS)
        for arm in np.flatnonzero(missed).tolist():
            share = self._selected[arm] / self._present[arm]
            text = f"{names[arm]} had {share:.3f} of the last {self._present[arm]} rounds"
            yield Alarm(FLOOR_MISSED, arm, f"{text}, its floor is {floor[arm]:.3f}")

    def _enter(
        self, selected: list[int], member: NDArray[np.bool_], slowest_s: float, timeouts: int
    ) -> None:
        self._window.append((selected, member, slowest_s, timeouts))
        self._num_selected += len(selected)
        self._num_timeouts += timeouts
        self._selected[selected] += 1
        self._present[: member.size] += member
        if len(self._window) > _WINDOW:
            old, old_member, _, old_timeouts = self._window.popleft()
            self._num_selected -= len(old)
            self._num_timeouts -= old_timeouts
            self._selected[old] -= 1
            self._present[: old_member.size] -= old_member

    def _grow(self, num_arms: int) -> None:
        for name in ("_selected", "_present", "_failing"):
            old = getattr(self, name)
            if old.size < num_arms:
                setattr(self, name, np.concatenate([old, np.zeros(num_arms - old.size, old.dtype)]))


class AlarmLog:
    """Say in the log which alarms begin and end; a round hook.

    Attributes
    ----------
    active : tuple of Alarm
        What there is to look at after the last round; replaced as a whole.
    """

    def __init__(self) -> None:
        self.active: tuple[Alarm, ...] = ()
        self._told: Counter[str] = Counter()
        self._told_since_s = time.monotonic()
        self._alarms: Alarms | None = None

    def watch(
        self,
        strategy: ScheduledStrategy,
        *,
        tau_max_s: float,
        checkpoint_every: int,
        saved_round: Callable[[], int],
    ) -> None:
        """Watch the rounds of a strategy that is about to start.

        Parameters
        ----------
        strategy : ScheduledStrategy
            What runs.
        tau_max_s, checkpoint_every
            As for :class:`Alarms`.
        saved_round : callable
            Returns the round of the last checkpoint.
        """
        self._strategy, self._saved_round = strategy, saved_round
        self._alarms = Alarms(tau_max_s=tau_max_s, checkpoint_every=checkpoint_every)
        strategy.add_hook(self)

    def __call__(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Take note of a round."""
        assert self._alarms is not None
        self._alarms.observe(record)
        names = [arm.name for arm in self._strategy.arms.arms]
        found = self._alarms.active(names, self._strategy.floors, self._saved_round())
        before = {(alarm.kind, alarm.arm): alarm for alarm in self.active}
        now = {(alarm.kind, alarm.arm): alarm for alarm in found}
        if time.monotonic() - self._told_since_s > _TOLD_S:
            self._told.clear()
            self._told_since_s = time.monotonic()
        for kind, arm in sorted(now.keys() - before.keys()):
            self._told[kind] += 1
            told = self._told[kind]
            if told <= _MAX_TOLD:
                more = "; more are not logged for an hour" if told == _MAX_TOLD else ""
                LOGGER.warning("alarm %s: %s%s", kind, now[kind, arm].text, more)
        for kind, arm in sorted(before.keys() - now.keys()):
            if self._told[kind] <= _MAX_TOLD:
                of = f" for {names[arm]}" if arm >= 0 else ""
                LOGGER.info("alarm %s is over%s", kind, of)
        self.active = tuple(found)
