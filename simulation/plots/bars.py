"""Bars with hatches by meaning, and many clients in groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from flower_scheduling.palette import FAILURES, INK, MEANINGS, PAPER
from flower_scheduling.strategies.base import FloatArray, IntArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Up to so many clients each is drawn; more are drawn in so many groups.
MOST_BARS: Final = 40
GROUPS: Final = 25
# Labels below an axis, in letters and in number.
_LETTERS: Final = 44
_MOST_LABELS: Final = 20
# Hatches by meaning; what has none is plain.
_HATCHES: Final = {"failed": "xxx", "link": "/////", "network": "....."}


def failure_bars(kind: int) -> dict[str, Any]:
    """Return how matplotlib draws bars of the kinds of failures, the most frequent kind first."""
    colours = (MEANINGS["failed"], *FAILURES)
    return {
        "color": colours[kind].light,
        "edgecolor": PAPER.light,
        "linewidth": 0,
        "hatch": (_HATCHES["failed"], "////", "....", "")[kind],
    }


def draw_bars(
    axes: Axes,
    values: Sequence[float] | FloatArray,
    meaning: str,
    label: str | None = None,
    *,
    after: Sequence[float] | FloatArray | None = None,
    across: bool = False,
) -> None:
    """Draw bars in the colour and hatch of their meaning.

    Parameters
    ----------
    axes : Axes
        Where to.
    values : (num_bars,) array-like of float
        Their lengths.
    meaning : str
        Key of :data:`~flower_scheduling.palette.MEANINGS`.
    label : str, optional
        Their name in the legend.
    after : (num_bars,) array-like of float, optional
        Where they begin.
    across : bool
        Whether they lie.
    """
    places, begin = np.arange(len(values)), 0.0 if after is None else after
    style: dict[str, Any] = {
        "color": MEANINGS[meaning].light,
        "edgecolor": PAPER.light,
        "linewidth": 0,
        "hatch": _HATCHES.get(meaning),
        "label": label,
    }
    if across:
        axes.barh(places, values, left=begin, **style)
    else:
        axes.bar(places, values, bottom=begin, **style)


@dataclass(frozen=True)
class Groups:
    """Clients in groups, each a bar or a row.

    Attributes
    ----------
    members : list of (num_members,) int64
        Indices of the clients of each group; one a group where they are few.
    title : str
        What the axis of the groups is called.
    labels : list of str
        Names of the groups: of the client, or the rank of its first.
    """

    members: list[IntArray]
    title: str
    labels: list[str]

    @property
    def single(self) -> bool:
        """Whether each is one client."""
        return all(len(each) == 1 for each in self.members)


def grouped(
    names: Sequence[str],
    speed_s: Sequence[float],
    *,
    most: int = MOST_BARS,
    groups: int = GROUPS,
) -> Groups:
    """Group clients of about the same speed, if they are too many to be told apart.

    Parameters
    ----------
    names : sequence of str
        Names of the clients.
    speed_s : sequence of float
        Their round-trip times [s]; infinite: unknown.
    most, groups : int
        Up to so many clients keep their order, one a group; more are put in so many groups.
    """
    count = len(names)
    if count <= most:
        return Groups([np.array([i]) for i in range(count)], "client", list(names))
    order = np.argsort(np.asarray(speed_s, dtype=np.float64), kind="stable")
    members = np.array_split(order, groups)
    firsts = 1 + np.cumsum([0, *(len(each) for each in members[:-1])])
    about = "about " if count % groups else ""
    title = f"clients by rank, fastest first ({groups} groups of {about}{count / groups:.0f})"
    return Groups(members, title, [f"{first:,}" for first in firsts.tolist()])


def label_bars(axes: Axes, labels: Sequence[str]) -> None:
    """Label standing bars, as many of them as fit."""
    longest = max((len(label) for label in labels), default=1) + 2
    most = max(2, min(_MOST_LABELS, _LETTERS // longest))
    step = -(-len(labels) // most)
    axes.set_xticks(np.arange(len(labels))[::step], list(labels)[::step])
    axes.set_xlim(-0.6, len(labels) - 0.4)
    axes.grid(False, axis="x")


def label_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Label lying bars, the first one on top."""
    axes.set_yticks(np.arange(len(labels)), list(labels))
    axes.set_ylim(len(labels) - 0.4, -0.6)


def draw_ranges(
    axes: Axes,
    low: Sequence[float] | FloatArray,
    high: Sequence[float] | FloatArray,
    label: str = "",
    *,
    across: bool = False,
) -> None:
    """Draw thin lines over bars, from one end of a range to the other."""
    draw = axes.hlines if across else axes.vlines
    for colour, width, name in ((PAPER.light, 2.2, ""), (INK.light, 1.0, label)):
        draw(np.arange(len(low)), low, high, color=colour, linewidth=width, label=name)


def draw_floors(
    axes: Axes,
    floors: Sequence[float] | FloatArray,
    *,
    first: float = 0.0,
    width: float = 0.96,
    across: bool = False,
) -> None:
    """Mark the floor of each bar.

    Parameters
    ----------
    axes : Axes
        Where to.
    floors : (num_bars,) array-like of float
        The floors.
    first, width : float
        Place of the first bar, and the marks' width.
    across : bool
        Whether the bars lie.
    """
    places = first + np.arange(len(floors))
    draw = axes.vlines if across else axes.hlines
    for colour, thickness, name in ((PAPER.light, 3.6, ""), (INK.light, 2.0, "floor")):
        ends = places - width / 2, places + width / 2
        draw(floors, *ends, color=colour, linewidth=thickness, label=name)
