"""Time to a target accuracy: what runs took to it, and what that saved, in sentences.

The other measure, the time of as many rounds, is that of a run's report and of the page. It leaves
out that a round teaches the model more or less, depending on which clients train in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..wording import percent, seconds

_TINY_S = 1e-9


@dataclass(frozen=True)
class TimeToTarget:
    """Time that a run took to the target accuracy.

    Attributes
    ----------
    name : str
        What the run is called.
    rounds : int
        Its rounds.
    time_s : float
        Its time in all [s].
    reached_s : float or None
        When it had reached the target [s]; ``None``: it has not.
    unit : str
        What its rounds are called: steps in buffered mode.
    """

    name: str
    rounds: int
    time_s: float
    reached_s: float | None
    unit: str = "round"

    def saved_share(self, base: TimeToTarget) -> float | None:
        """Return the share of another run's time to the target that this one saved.

        ``None`` where one of the two has not reached it; negative: this one took longer.
        """
        if self.reached_s is None or base.reached_s is None:
            return None
        return 1.0 - self.reached_s / max(base.reached_s, _TINY_S)

    def saving_text(self, base: TimeToTarget) -> str:
        """Return what this run saved against another one, in a few words; it has the target."""
        assert self.reached_s is not None
        share = self.saved_share(base)
        if share is None:
            share = 1.0 - self.reached_s / max(base.time_s, _TINY_S)
            if share < 0:
                return "no saving that this run can tell"
            return f"at least {percent(share)} saved"
        return f"{percent(-share)} more" if share < 0 else f"{percent(share)} saved"


def first_reached_s(evaluations: Iterable[tuple[int, float, float]], target: float) -> float | None:
    """Return when an accuracy was first reached [s].

    Parameters
    ----------
    evaluations : iterable of (int, float, float)
        Round, time since the start [s] and accuracy, in order.
    target : float
        The accuracy.
    """
    return next((time_s for _, time_s, accuracy in evaluations if accuracy >= target), None)


def saving_sentence(runs: Sequence[TimeToTarget], target: float) -> str:
    """Return what the last of some runs, and those before it, saved against the first.

    Parameters
    ----------
    runs : sequence of TimeToTarget
        Two or more; the first is what they are compared with.
    target : float
        Accuracy that they aimed at.
    """
    base, *others, best = runs
    goal = f"{percent(target)} test accuracy"
    if best.reached_s is None:
        return (
            f"{best.name} did not reach {goal} in {best.rounds:,} {best.unit}s: this run does not "
            "show what it saves."
        )
    spent_s = base.time_s if base.reached_s is None else base.reached_s
    text = (
        f"{best.name} reached {goal} in {seconds(best.reached_s)}, {base.name} "
        f"{'not even in' if base.reached_s is None else 'in'} {seconds(spent_s)}: "
        f"{best.saving_text(base)}"
    )
    for other in others:
        if other.reached_s is not None:
            text += f"; {other.name} in {seconds(other.reached_s)}: {other.saving_text(base)}"
    return f"{text}."


def ranking_sentence(runs: Sequence[TimeToTarget], target: float) -> str:
    """Return which run reached the target first, how much longer others took, and which missed it.

    Parameters
    ----------
    runs : sequence of TimeToTarget
        The runs; one at least has reached it.
    target : float
        Accuracy that they aimed at.
    """
    reached = sorted((run.reached_s, run.name) for run in runs if run.reached_s is not None)
    missed = [run for run in runs if run.reached_s is None]
    (first_s, first), *others = reached
    text = f"{first} reached {target:.1%} test accuracy first, after {seconds(first_s)}"
    if others:
        text += f"; {times_as_long(others, first_s)}"
    if missed:
        names = ", ".join(run.name for run in missed)
        most = max(missed, key=lambda run: run.rounds)
        limit = f"{most.rounds} {most.unit}s"
        text += f"; not reached by {len(missed)} of {len(runs)} in {limit}: {names}"
    return f"{text}."


def times_as_long(others: Sequence[tuple[float, str]], first_s: float) -> str:
    """Return how many times as long others took, the nearest first.

    Parameters
    ----------
    others : sequence of (float, str)
        Times [s] and names.
    first_s : float
        What they are compared with [s].
    """
    ratios = [(f"{time_s / max(first_s, _TINY_S):.2f}", name) for time_s, name in others]
    (ratio, name), *more = ratios
    text = f"{name} took {ratio} times as long"
    return text + "".join(f", {name} {ratio}" for ratio, name in more)
