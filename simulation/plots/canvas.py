"""Figures and files: the kit's style, legends, and SVG in the colours of a page."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from flower_scheduling import palette
from flower_scheduling.files import write_whole
from flower_scheduling.palette import INK, RULE, Colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Letters of a legend in an inch, and how many the sample beside a label takes.
_LETTERS: Final = 13
_HANDLE: Final = 10
_STYLE: Final[dict[Any, Any]] = {
    "font.size": 9,
    "axes.titlesize": "medium",
    "figure.titlesize": "large",
    "text.parse_math": False,  # names are text, whatever is in them
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK.light),
    "axes.edgecolor": RULE.light,
    "grid.color": RULE.light,
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.xmargin": 0.02,
    "hatch.linewidth": 0.8,
    "legend.frameon": False,
    "legend.handlelength": 3.4,
}
_THEMED: Final[dict[Any, Any]] = {
    "font.size": 10,
    "legend.handlelength": 2.2,
    "legend.columnspacing": 1.2,
    "legend.fontsize": 9,
    "svg.fonttype": "none",
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
}


@contextmanager
def styled(name: str, **settings: Any) -> Iterator[None]:
    """Draw and save in the kit's style; a figure's name fixes the ids in its SVG."""
    import matplotlib

    chosen: dict[Any, Any] = {"svg.hashsalt": name, **_STYLE, **settings}
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
        buffer = io.BytesIO()
        figure.savefig(buffer, format=path.suffix[1:], dpi=120, metadata=nothing)
        write_whole(path, buffer.getvalue(), durable=False)


def legend_below(figure: Figure, columns: int = 4) -> None:
    """Put one legend below all axes, each label once; none for a single curve.

    Parameters
    ----------
    figure : Figure
        Its axes have the labels.
    columns : int
        Columns at most; fewer where labels are long.
    """
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*_listed(axes), strict=True):
            handles.setdefault(label, handle)
    if len(handles) > 1:
        longest = _HANDLE + max(map(len, handles))
        fitting = max(1, int(_LETTERS * figure.get_figwidth() / longest))
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower center",
            ncols=min(columns, fitting, len(handles)),
        )


def legend_under(axes: Axes, columns: int = 2) -> None:
    """Put a legend below one pair of axes, under the name of the axis."""
    handles, labels = _listed(axes)
    axes.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=columns)


def _listed(axes: Axes) -> tuple[list[Any], list[str]]:
    """Return the handles and labels of a legend, bars before lines."""
    from matplotlib.container import BarContainer

    found = list(zip(*axes.get_legend_handles_labels(), strict=True))
    found.sort(key=lambda each: not isinstance(each[0], BarContainer))
    return [handle for handle, _ in found], [label for _, label in found]


def themed_svg(
    draw: Callable[[Axes], None],
    name: str,
    *,
    height: float,
    grid: Literal["x", "y", "both"],
    legend: bool,
) -> bytes:
    """Return one pair of axes as a transparent SVG in the colours of a light or dark page.

    Parameters
    ----------
    draw : callable
        Draws onto the axes.
    name : str
        Fixes the ids in the SVG.
    height : float
        Height [inch].
    grid : {"x", "y", "both"}
        Axes with grid lines.
    legend : bool
        Whether there is one, above the axes.
    """
    buffer = io.BytesIO()
    with styled(name, **_THEMED), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # browsers have other fonts
        figure, (axes,) = new_figure((5.4, height))
        axes.grid(False)
        axes.grid(True, axis=grid)
        draw(axes)
        if legend:
            figure.legend(*_listed(axes), loc="outside upper left", ncols=4)
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=nothing)
    return _themed(buffer.getvalue().decode()).encode()


def _themed(svg: str) -> str:
    """Return an SVG whose colours follow the page that it stands in."""
    used = [each for each in _colours() if each.light in svg]
    light, dark = (
        "".join(f"--{each.light[1:]}:{getattr(each, ground)};" for each in used)
        for ground in ("light", "dark")
    )
    for each in used:
        by = "currentColor" if each is INK else f"var(--{each.light[1:]})"
        svg = svg.replace(each.light, by)
    style = (
        f"<style>svg{{color:{INK.light};{light}}}@media screen and (prefers-color-scheme:dark)"
        f"{{svg{{color:{INK.dark};{dark}}}}}</style>"
    )
    head, tag, rest = svg.partition("<svg ")
    opening, end, body = rest.partition(">")
    return head + tag + opening + end + style + body


def _colours() -> list[Colour]:
    return [value for value in vars(palette).values() if isinstance(value, Colour)]
