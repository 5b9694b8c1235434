"""Scales of axes, lines at deadlines and floors, and the colours of heat maps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from flower_scheduling.palette import HEAT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Mark = Literal["deadline", "target", "floor", "zero"]

_MARKS: Final = {"deadline": ":", "target": (0, (6, 2, 1, 2)), "floor": "-", "zero": "-"}


def mark(axes: Axes, value: float, kind: Mark, label: str | None = None, *, on: str = "y") -> None:
    """Draw a line across the axes at a deadline, target, floor or zero.

    Parameters
    ----------
    axes : Axes
        Where to.
    value : float
        Its place.
    kind : {"deadline", "target", "floor", "zero"}
        What it is: dotted, dashed and dotted, thick, or thin.
    label : str, optional
        Its name in the legend.
    on : {"x", "y"}
        The axis of the value.
    """
    draw = axes.axhline if on == "y" else axes.axvline
    width = {"floor": 2.0, "zero": 0.8}.get(kind, 1.2)
    draw(value, color=INK.light, linewidth=width, linestyle=_MARKS[kind], label=label, zorder=1.5)


def as_shares(axes: Axes, *, on: str = "y") -> None:
    """Show an axis in percent, and let it end at 0 % and 100 % at the latest."""
    if on == "y":
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, 0.0), min(high, 1.0))
    else:
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, 0.0), min(high, 1.0))
    (axes.yaxis if on == "y" else axes.xaxis).set_major_formatter(shown_percent)


def shown_percent(share: float, _place: float = 0) -> str:
    """Return how an axis shows a share."""
    return f"{100 * share:.6g} %"


def plain_log(axes: Axes, *, on: str = "y") -> None:
    """Make an axis logarithmic, labelled at 1, 2, 5, 10 and so on, as they are written."""
    from matplotlib.ticker import LogLocator, NullLocator

    (axes.set_yscale if on == "y" else axes.set_xscale)("log")
    axis = axes.yaxis if on == "y" else axes.xaxis
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def powers_log(axes: Axes, *, on: str = "y") -> None:
    """Make an axis logarithmic, labelled at powers of ten."""
    (axes.set_yscale if on == "y" else axes.set_xscale)("log")
    (axes.yaxis if on == "y" else axes.xaxis).set_major_formatter(_shown_power)


def _shown_power(value: float, _place: float) -> str:
    if 0.01 <= value < 1e5:
        return f"{value:,.6g}"
    raised = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return "10" + f"{round(np.log10(value))}".translate(raised)


def heat_colours() -> Any:
    """Return the colours of heat maps: their lightness rises evenly."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("heat", list(HEAT))
