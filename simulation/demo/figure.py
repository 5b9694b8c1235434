"""The figure of the first look: accuracy against virtual seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flower_scheduling.palette import looks

from .. import plots
from ..engine.runner import SimulationResult
from ..wording import percent


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
    paths = [folder / "accuracy-time.png", folder / "accuracy-time.svg"]
    shown = looks(result.config.strategy for result in results)
    target = results[0].config.target_accuracy
    with plots.styled("demo"):
        figure, (axes,) = plots.new_figure((7, 4))
        for number, result in enumerate(results):
            points = [(r.time_s, r.accuracy) for r in result.records if r.accuracy is not None]
            time_s, accuracy = zip(*points, strict=True)
            curve = plots.curve_of(result.config.label, time_s, [accuracy])
            plots.draw_curve(axes, curve, shown[result.config.strategy], number=number)
        plots.mark(axes, target, "target", f"target, {percent(target)}")
        axes.set_xlabel("virtual time [s]")
        axes.set_ylabel("test accuracy")
        axes.set_xlim(left=0)
        plots.as_shares(axes)
        axes.legend(loc="lower right")
        figure.suptitle("The same clients and links: what scheduling saves")
        plots.save(figure, *paths)
    return paths
