"""The figure of the first look: accuracy against virtual seconds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from ..engine.runner import SimulationResult
from ..plots import LINE_STYLES, new_figure, save


def draw_accuracy(results: Sequence[SimulationResult], folder: Path) -> list[Path]:
    """Draw accuracy against virtual time and return the files, a PNG and an SVG.

    Parameters
    ----------
    results : sequence of SimulationResult
        Runs with a target accuracy.
    folder : Path
        Where to; created if need be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figure, (axes,) = new_figure((7, 4))
    for result, style in zip(results, cycle(LINE_STYLES), strict=False):
        shown = [(r.time_s, r.accuracy) for r in result.records if r.accuracy is not None]
        time_s, accuracy = zip(*shown, strict=True)
        axes.plot(time_s, accuracy, label=result.config.strategy, linestyle=style)
    target = results[0].config.target_accuracy
    axes.axhline(target, color="0.5", linewidth=1, linestyle=":", label=f"target, {target:.0%}")
    axes.set_xlabel("virtual time [s]")
    axes.set_ylabel("test accuracy")
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.suptitle("The same devices and the same draws: what the choice of clients saves")
    paths = [folder / "accuracy-time.png", folder / "accuracy-time.svg"]
    save(figure, *paths)
    return paths
