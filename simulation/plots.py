"""Plotting kit: figures without a display, saved reproducibly, and SVG in the page's colours."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# In turn: curves are told apart without colour, and where they coincide.
LINE_STYLES: Final = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))

# Colours of themed figures, to be seen on a light and on a dark page.
BLUE: Final = "#4a8fd9"
ORANGE: Final = "#d9822b"
GREEN: Final = "#3f9f6b"
GREY: Final = "#808080"
# Stands for the page's text colour until the figure is written.
INK: Final = "#010203"
_THEMED: Final[dict[Any, Any]] = {
    "font.size": 10,
    "svg.fonttype": "none",
    "text.parse_math": False,  # names are text, whatever is in them
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "axes.edgecolor": GREY,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
    "grid.color": GREY,
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_STYLE: Final = (
    b"<style>svg{color:#1c1c1c}@media (prefers-color-scheme:dark){svg{color:#e6e4e0}}</style>"
)


@contextmanager
def look(name: str, **settings: Any) -> Iterator[None]:
    """Draw and save with settings of matplotlib; a figure's name fixes the ids in its SVG."""
    import matplotlib

    chosen: dict[Any, Any] = {"svg.hashsalt": name, **settings}
    with matplotlib.rc_context(chosen):
        yield


def new_figure(
    size: tuple[float, float], rows: int = 1, columns: int = 1
) -> tuple[Figure, list[Axes]]:
    """Return a figure of that size [inch] and its axes, row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")  # not pyplot's: no global state
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def save(figure: Figure, *paths: Path) -> None:
    """Write a figure as PNG or SVG files, without what differs between two runs or versions."""
    for path in paths:
        nothing = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(path, dpi=120, metadata=nothing)


def themed_svg(
    draw: Callable[[Axes], None],
    name: str,
    *,
    height: float,
    grid: Literal["x", "both"],
    legend: bool,
) -> bytes:
    """Return one pair of axes as a transparent SVG with its text in the page's colour.

    Parameters
    ----------
    draw : callable
        Draws onto the axes.
    name : str
        Fixes the ids in the SVG.
    height : float
        Height [inch].
    grid : {"x", "both"}
        Axes with grid lines.
    legend : bool
        Whether there is one, above the axes.
    """
    buffer = io.BytesIO()
    with look(name, **_THEMED), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # browsers have other fonts
        figure, (axes,) = new_figure((5.4, height))
        axes.grid(axis=grid)
        draw(axes)
        if legend:
            figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=4)
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=nothing)
    head, tag, rest = buffer.getvalue().partition(b"<svg ")
    opening, end, body = rest.partition(b">")
    return head + tag + opening + end + _STYLE + body.replace(INK.encode(), b"currentColor")
