"""The sentence that compares policies: by the time to the target, or that of as many rounds."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.runner import SimulationResult
from ..theory.time_to_target import TimeToTarget, ranking_sentence, times_as_long
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
    unit = "steps" if all(each.config.mode == "buffered" for each in results) else "rounds"
    return (
        f"{first} took the least time for {rounds.pop()} {unit}, {seconds(first_s)}; "
        f"{times_as_long(others, first_s)}."
    )


def _to_target(results: Sequence[SimulationResult], target: float) -> str:
    runs = [
        TimeToTarget(
            result.config.strategy,
            result.summary["rounds"],
            result.summary["time_s"],
            result.summary["target_time_s"],
            "step" if result.config.mode == "buffered" else "round",
        )
        for result in results
    ]
    if all(run.reached_s is None for run in runs):
        best = max(results, key=lambda each: each.summary["accuracy"] or 0.0)
        accuracy = best.summary["accuracy"]
        came = "" if accuracy is None else f"; {best.config.strategy} came to {accuracy:.1%}"
        return f"{target:.1%} test accuracy: not reached by any of {len(results)}{came}."
    return ranking_sentence(runs, target)
