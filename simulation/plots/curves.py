"""Curves with their spread: the runs where they are few, else a band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from flower_scheduling.palette import Colour, Look
from flower_scheduling.strategies.base import FloatArray

from ..theory.estimate import mean_and_half_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Up to so many runs each is drawn; of more, their mean and its interval.
FEW_RUNS: Final = 5
_MARKERS: Final = 7  # on a curve, about
_WIDTH: Final = 1.5
_WIDE: Final = 2.3


@dataclass(frozen=True)
class Curve:
    """Curve of repeated runs: the runs where they are few, else their mean and its interval.

    Attributes
    ----------
    label : str
        Its name in the legend.
    x, mean, low, high : (num_points,) float64
        The points, and the ends of their intervals.
    runs : (num_runs, num_points) float64, optional
        The runs, where there are at most :data:`FEW_RUNS`.
    """

    label: str
    x: FloatArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray
    runs: FloatArray | None = None


def curve_of(
    label: str, x: Any, samples: Any, *, bounds: tuple[float, float] | None = None
) -> Curve:
    """Return the mean of repeated runs with its 95 % interval, and the runs where they are few.

    Parameters
    ----------
    label : str
        Its name in the legend.
    x : (num_points,) array-like of float
        The points.
    samples : (num_runs, num_points) array-like of float
        One row a run.
    bounds : tuple of float, optional
        Least and largest value that there can be, such as 0 and 1 of an accuracy: an interval ends
        there.
    """
    places, values = np.asarray(x, dtype=np.float64), np.asarray(samples, dtype=np.float64)
    if len(values) > 1:
        mean, half = mean_and_half_width(values)
    else:
        mean, half = values[0], np.zeros(len(places))
    low, high = mean - half, mean + half
    if bounds is not None:
        low, high = np.clip(low, *bounds), np.clip(high, *bounds)
    return Curve(label, places, mean, low, high, values if len(values) <= FEW_RUNS else None)


def draw_curve(
    axes: Axes,
    curve: Curve,
    look: Look,
    *,
    number: int = 0,
    points: bool = False,
    positive: bool = False,
) -> None:
    """Draw a curve with its spread: thin lines of few runs, or the band of an interval.

    Parameters
    ----------
    axes : Axes
        Where to.
    curve, look : Curve, Look
        What, and how.
    number : int
        Its place among the curves of the axes, by which markers keep out of each other's way.
    points : bool
        Whether every point has a marker.
    positive : bool
        Whether what is not above zero is left out, as on a logarithmic axis.
    """

    def kept(values: FloatArray) -> FloatArray:
        return np.where(values > 0, values, np.nan) if positive else values

    colour = look.colour.light
    if curve.runs is None:
        axes.fill_between(
            curve.x, kept(curve.low), kept(curve.high), color=colour, alpha=0.18, linewidth=0
        )
    elif len(curve.runs) > 1 and (curve.runs != curve.mean).any():
        for run in curve.runs:
            axes.plot(curve.x, kept(run), color=colour, linewidth=0.7, alpha=0.4)
    step = 1 if points else max(1, len(curve.x) // _MARKERS)
    axes.plot(
        curve.x,
        kept(curve.mean),
        label=curve.label,
        **line(look),
        markevery=(0 if points else (2 * number) % step, step),
    )


def line(look: Look) -> dict[str, Any]:
    """Return how matplotlib draws a line of that look."""
    return {
        "color": look.colour.light,
        "linestyle": (0, look.dash) if look.dash else "-",
        "linewidth": _WIDE if look.wide else _WIDTH,
        "marker": look.marker,
        "markersize": 4.5,
    }


def ordered_looks(labels: Sequence[str]) -> dict[str, Look]:
    """Return looks of what has an order, such as the values of a parameter: from dark to light."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    shades = [to_hex(colormaps["viridis"](place)) for place in np.linspace(0.0, 0.6, len(labels))]
    dashes = ((), (6.0, 2.0), (7.0, 1.5, 1.5, 1.5), (2.0, 1.0), (9.0, 1.0, 1.0, 1.0, 1.0, 1.0))
    return {
        label: Look(Colour(shade, shade), dashes[i % len(dashes)], "os^Dv<>"[i % 7])
        for i, (label, shade) in enumerate(zip(labels, shades, strict=True))
    }
