"""The life of a run: callbacks that start with it, see each round, and end with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord

from flower_scheduling.strategies.deadline import GivenDeadline, as_deadline
from flower_scheduling.strategies.flower import (
    RoundHook,
    RoundRecord,
    ScheduledStrategy,
    TimedExchange,
)

from .runs.totals import RunTotals

if TYPE_CHECKING:  # these import this module
    from .runs.directory import RunDirectory


class RunEnd(Enum):
    """How a run ended."""

    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"

    @classmethod
    def of(cls, error: BaseException | None) -> RunEnd:
        """Return how a run ended that left by this exception."""
        if error is None:
            return cls.FINISHED
        # Flower's own programs turn a signal into SystemExit (flwr 1.42).
        stopped = isinstance(error, KeyboardInterrupt | SystemExit)
        return cls.KILLED if stopped else cls.FAILED


@dataclass
class Run:
    """A run from its first round to its last, as callbacks see it.

    Attributes
    ----------
    settings : mapping
        All settings, by the keys of ``config.toml``.
    strategy : ScheduledStrategy
        What schedules and trains.
    grid : TimedExchange
        The grid that it runs on.
    arrays : ArrayRecord
        The model: the initial one, or that after the last round.
    totals : RunTotals
        Its rounds, counted.
    num_rounds : int
        Rounds at most.
    checkpoint_every : int
        Rounds between two checkpoints; 0: there are none.
    initial : mapping
        The arrays of the model as the app gave it: :func:`.describe_model`.
    done : int
        Rounds of an earlier part of the run.
    directory : RunDirectory or None
        Where the results go.
    saved_round : int
        The round of the last checkpoint.
    unsaved : list of str
        Results that could not be written at the end, each with file and reason.
    """

    settings: Mapping[str, Any]
    strategy: ScheduledStrategy
    grid: TimedExchange
    arrays: ArrayRecord
    totals: RunTotals
    num_rounds: int = 0
    checkpoint_every: int = 0
    initial: Mapping[str, Any] = field(default_factory=dict)
    done: int = 0
    directory: RunDirectory | None = None
    saved_round: int = 0
    unsaved: list[str] = field(default_factory=list)

    @property
    def tau_max_s(self) -> GivenDeadline:
        """Deadline of a round [s], or ``"auto"``."""
        return as_deadline(self.settings["tau-max-s"])

    def earlier_rounds(self) -> Iterator[RoundRecord]:
        """Read the rounds of an earlier part of the run."""
        if self.directory is not None and self.done:
            yield from self.directory.read(self.done, [arm.name for arm in self.strategy.arms.arms])

    def summary(self) -> dict[str, Any]:
        """Return the run in numbers, ready for JSON."""
        return self.totals.summary(
            self.strategy.arms.arms, self.strategy.floors, tau_max_s=self.tau_max_s
        )


class RoundCallback:
    """A part of the server that follows runs; every method may be left out.

    Callbacks wrap each other as they are listed, the first outermost: it starts first, and gets
    each round and the end last, when the others have done their part.
    """

    def on_start(self, run: Run) -> None:
        """Get ready, before the first round; what is left of an earlier run is forgotten."""

    def on_round(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Follow a round that has ended, with the model after it."""

    def on_end(self, status: RunEnd, summary: Mapping[str, Any]) -> None:
        """Close, however the run ended; called for each callback whose start succeeded.

        Parameters
        ----------
        status : RunEnd
            How it ended.
        summary : mapping
            The run in numbers, as in ``summary.json``.
        """


@contextmanager
def following(run: Run, callbacks: Sequence[RoundCallback]) -> Iterator[list[RoundHook]]:
    """Have callbacks follow a run, from entering to leaving the context.

    Yields
    ------
    list of callable
        What is to be called after each round, in this order.

    Raises
    ------
    Exception
        What a callback raises, and it is passed on to the others; but of two faults of the disk
        the first.
    """
    with ExitStack() as stack:
        for callback in callbacks:
            callback.on_start(run)
            stack.push(partial(_end, run, callback))
        yield [callback.on_round for callback in reversed(callbacks)]


def _end(
    run: Run,
    callback: RoundCallback,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: object,
) -> None:
    try:
        callback.on_end(RunEnd.of(error), run.summary())
    except OSError:
        if not isinstance(error, OSError):
            raise
