"""The end of the first look: the final screen, and what was saved in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from ..engine.runner import SimulationResult
from ..wording import percent, seconds
from .race import Lane, screen


def print_outcome(results: Sequence[SimulationResult], console: Console) -> None:
    """Print the runs side by side, their curves, and the saving against the first of them.

    Parameters
    ----------
    results : sequence of SimulationResult
        The runs: at random, by the paper's policy, and by ours.
    console : Console
        Where to.
    """
    lanes = {}
    for result in results:
        lane = Lane(
            rounds=result.summary["rounds"],
            time_s=result.summary["time_s"],
            reached=result.summary["target_time_s"] is not None,
        )
        lane.points = [(r.time_s, r.accuracy) for r in result.records if r.accuracy is not None]
        lanes[result.config.label] = lane
    target = results[0].config.target_accuracy
    console.print(screen(lanes, target, console.width))
    console.print(sentence(results), highlight=False)


def sentence(results: Sequence[SimulationResult]) -> str:
    """Return what the last of some runs, and those before it, saved against the first."""
    target = percent(results[0].config.target_accuracy)
    base, *others, best = results
    base_s, best_s = (each.summary["target_time_s"] for each in (base, best))
    name = best.config.label
    if best_s is None:
        return (
            f"{name} did not reach {target} test accuracy in {best.summary['rounds']:,} rounds: "
            "this run does not show what it saves."
        )
    reached = base_s is not None
    spent_s = base_s if reached else base.summary["time_s"]
    text = (
        f"{name} reached {target} test accuracy in {seconds(best_s)}, {base.config.label} "
        f"{'in' if reached else 'not even in'} {seconds(spent_s)}: "
        f"{_difference(best_s, spent_s, exact=reached)}"
    )
    for other in others:
        if (other_s := other.summary["target_time_s"]) is not None:
            saved = _difference(other_s, spent_s, exact=reached)
            text += f"; {other.config.label} in {seconds(other_s)}: {saved}"
    return f"{text}."


def _difference(own_s: float, base_s: float, *, exact: bool) -> str:
    share = 1 - own_s / base_s
    if share < 0:
        return f"{percent(-share)} more" if exact else "no saving that this run can tell"
    return f"{'' if exact else 'at least '}{percent(share)} saved"
