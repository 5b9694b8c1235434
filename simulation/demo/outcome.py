"""The end of the first look: the final screen, and what was saved in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from ..engine.runner import SimulationResult
from ..terminal.sentences import print_sentence
from ..theory.time_to_target import TimeToTarget, saving_sentence
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
    print_sentence(console, sentence(results))


def sentence(results: Sequence[SimulationResult]) -> str:
    """Return what the last of some runs, and those before it, saved against the first."""
    runs = [
        TimeToTarget(
            result.config.label,
            result.summary["rounds"],
            result.summary["time_s"],
            result.summary["target_time_s"],
            "step" if result.config.mode == "buffered" else "round",
        )
        for result in results
    ]
    return saving_sentence(runs, results[0].config.target_accuracy)
