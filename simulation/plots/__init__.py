"""Plotting kit: looks by meaning, spread beside means, many clients in groups, and saved figures.

Colours, dashes and markers come from :mod:`flower_scheduling.palette`; bars have hatches besides,
so that a figure can be read in grey.
"""

from .bars import (
    GROUPS,
    MOST_BARS,
    Groups,
    draw_bars,
    draw_floors,
    draw_ranges,
    failure_bars,
    grouped,
    label_bars,
    label_rows,
)
from .canvas import legend_below, legend_under, new_figure, save, styled, themed_svg
from .curves import FEW_RUNS, Curve, curve_of, draw_curve, line, ordered_looks
from .scales import Mark, as_shares, heat_colours, mark, plain_log, powers_log, shown_percent

__all__ = [
    "FEW_RUNS",
    "GROUPS",
    "MOST_BARS",
    "Curve",
    "Groups",
    "Mark",
    "as_shares",
    "curve_of",
    "draw_bars",
    "draw_curve",
    "draw_floors",
    "draw_ranges",
    "failure_bars",
    "grouped",
    "heat_colours",
    "label_bars",
    "label_rows",
    "legend_below",
    "legend_under",
    "line",
    "mark",
    "new_figure",
    "ordered_looks",
    "plain_log",
    "powers_log",
    "save",
    "shown_percent",
    "styled",
    "themed_svg",
]
