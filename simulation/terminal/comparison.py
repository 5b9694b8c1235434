"""The sentence that compares policies: by the time to the target, or that of as many rounds."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.runner import SimulationResult
from ..wording import seconds


def comparison(results: Sequence[SimulationResult]) -> str:
    """Compare runs of the same draws by the virtual time to the target accuracy.

    Without a target it is the time of all rounds, if all runs have as many; totals of runs of
    unequal length are not compared.
    """
    target = results[0].config.target_accuracy
    if target:
        return _to_target(results, target)
    rounds = {result.summary["rounds"] for result in results}
    if len(rounds) > 1:
        return "The runs differ in length: their times cannot be compared, see the figures."
    spent = sorted((result.summary["time_s"], result.config.strategy) for result in results)
    (first_s, first), *others = spent
    return (
        f"{first} took the least time for {rounds.pop()} rounds, {seconds(first_s)}; "
        f"{_times(others, first_s)}."
    )


def _to_target(results: Sequence[SimulationResult], target: float) -> str:
    reached = sorted(
        (result.summary["target_time_s"], result.config.strategy)
        for result in results
        if result.summary["target_time_s"] is not None
    )
    missed = [each for each in results if each.summary["target_time_s"] is None]
    if not reached:
        best = max(missed, key=lambda each: each.summary["accuracy"] or 0.0)
        accuracy = best.summary["accuracy"]
        came = "" if accuracy is None else f"; {best.config.strategy} came to {accuracy:.1%}"
        return f"{target:.1%} test accuracy: not reached by any of {len(results)}{came}."
    (first_s, first), *others = reached
    text = f"{first} reached {target:.1%} test accuracy first, after {seconds(first_s)}"
    if others:
        text += f"; {_times(others, first_s)}"
    if missed:
        names = ", ".join(each.config.strategy for each in missed)
        most = max(each.summary["rounds"] for each in missed)
        text += f"; not reached by {len(missed)} of {len(results)} in {most} rounds: {names}"
    return f"{text}."


def _times(others: Sequence[tuple[float, str]], first_s: float) -> str:
    """Return how many times as long others took, the nearest first."""
    ratios = [(f"{time_s / max(first_s, 1e-9):.2f}", name) for time_s, name in others]
    (ratio, name), *more = ratios
    text = f"{name} took {ratio} times as long"
    return text + "".join(f", {name} {ratio}" for ratio, name in more)
