"""A plot of letters: curves over time on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

_MARGIN: Final = 5  # columns of the labels of the y axis


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve of a plot.

    Attributes
    ----------
    x, y : (n,) float64
        Its points, `x` increasing.
    letter : str
        What it is drawn with: curves are told apart without colour.
    style : str
        Style of rich.
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    letter: str
    style: str


def text_plot(
    curves: Sequence[Curve],
    *,
    width: int,
    height: int,
    bottom: float,
    top: float,
    x_label: str,
) -> Text:
    """Draw curves over time from 0 on, later ones above earlier ones.

    Parameters
    ----------
    curves : sequence of Curve
        What to draw; a curve without points is left out.
    width, height : int
        Size of the whole [characters], the axis and its two lines of labels among it.
    bottom, top : float, in [0, 1], bottom < top
        Ends of the y axis, which counts in percent; what lies below is left out.
    x_label : str
        What the x axis shows.
    """
    rows, columns = height - 2, width - _MARGIN - 1
    right = max((float(curve.x[-1]) for curve in curves if curve.x.size), default=0.0)
    letters = [[" "] * columns for _ in range(rows)]
    styles = [[""] * columns for _ in range(rows)]
    for curve in curves:
        if not curve.x.size or right <= 0.0:
            continue
        last = round(float(curve.x[-1]) / right * (columns - 1))
        heights = np.interp(np.arange(last + 1) / (columns - 1) * right, curve.x, curve.y)
        levels = ((heights - bottom) / (top - bottom) * (rows - 1)).round().astype(int)
        for column, level in enumerate(levels.tolist()):
            if level >= 0:
                row = rows - 1 - min(level, rows - 1)
                letters[row][column], styles[row][column] = curve.letter, curve.style
    text = Text(no_wrap=True)
    labels = {0: f"{top:.0%}", rows - 1: f"{bottom:.0%}"}
    if rows % 2:
        labels[rows // 2] = f"{(bottom + top) / 2:.0%}"
    for row in range(rows):
        text.append(f"{labels.get(row, ''):>{_MARGIN}}|")
        for letter, style in zip(letters[row], styles[row], strict=True):
            text.append(letter, style=style)
        text.append("\n")
    text.append(" " * _MARGIN + "+" + "-" * columns + "\n")
    text.append(_axis(right, columns, x_label))
    return text


def _axis(right: float, columns: int, label: str) -> str:
    """Return the line of labels below the x axis."""
    line = [" "] * (_MARGIN + 1 + columns)

    def put(text: str, begin: int) -> None:
        line[begin : begin + len(text)] = text

    put("0", _MARGIN)
    end = f"{right:,.0f} s" if right > 0.0 else ""
    put(end, len(line) - len(end))
    middle = f"{right / 2:,.0f}" if right > 0.0 else ""
    put(middle, _MARGIN + (columns - len(middle)) // 2)
    put(label, _MARGIN + columns // 4 - len(label) // 2)
    return "".join(line).rstrip()
