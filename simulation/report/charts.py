"""Figures of a report as SVG in the colours of the page."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from flower_scheduling.strategies.base import FloatArray
from flower_scheduling.strategies.deadline import AUTO

from ..plots import BLUE, GREEN, GREY, INK, ORANGE, themed_svg
from ..wording import percent, plain, seconds
from .run_statistics import PARTS, ClientStatistics, RunStatistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PART_COLOURS: Final = (BLUE, ORANGE, GREEN)
_HEIGHT: Final = 3.0
_MAX_POINTS: Final = 1000
# Up to so many rounds each one is drawn. Longer runs are drawn in so many stretches, of so many
# rounds at least.
_EACH_ROUND: Final = 300
_STRETCHES: Final = 150
_STRETCH_ROUNDS: Final = 10
# Above this ratio of longest to median the lengths of rounds are drawn on a logarithmic scale.
_LOGARITHMIC: Final = 8.0
_NEGLIGIBLE: Final = 0.001
_MAX_BARS: Final = 25
_MAX_ROWS: Final = 40
# A heat map is as high as so many rows, for the scale beside it.
_FEWEST_ROWS: Final = 7
_LONGEST_NAME: Final = 22


@dataclass(frozen=True)
class Picture:
    """Image of one pair of axes.

    Attributes
    ----------
    svg : bytes
        The image.
    alt : str
        Text in its place, for screen readers.
    """

    svg: bytes
    alt: str


@dataclass(frozen=True)
class ReportFigure:
    """Figure of a report: pictures under one heading.

    Attributes
    ----------
    name : str
        Its anchor.
    title, caption : str
        What it shows and how to read it.
    pictures : list of Picture
        Side by side, or one below the other where there is no room; none: the caption says why.
    """

    name: str
    title: str
    caption: str
    pictures: list[Picture]


def draw_all(stats: RunStatistics, *, tau_max_s: float, target: float | None) -> list[ReportFigure]:
    """Draw all figures of a run, in the order of the report.

    Parameters
    ----------
    stats : RunStatistics
        The run in numbers.
    tau_max_s : float
        Deadline [s].
    target : float, optional
        Accuracy that was aimed at.
    """
    return [
        _accuracy(stats, target),
        _lengths(stats, tau_max_s),
        _stragglers(stats),
        _shares(stats),
        _heat(stats),
        _round_trips(stats, tau_max_s),
    ]


# --- what each shows ------------------------------------------------------------------------------


def _accuracy(stats: RunStatistics, target: float | None) -> ReportFigure:
    title = "Accuracy, against rounds and against time"
    if not stats.evaluations:
        return ReportFigure("accuracy", title, "The model was not evaluated.", [])
    shown = _thinned(stats.evaluations)
    rounds, times_s, accuracy = (np.array(column) for column in zip(*shown, strict=True))
    last = stats.evaluations[-1]
    aim = "" if target is None else f" Dotted: the target of {percent(target)}."
    alt = f"{percent(accuracy[0])} at first, {percent(last[2])} in round {last[0]}"

    def draw(x: FloatArray, label: str) -> Callable[[Axes], None]:
        def onto(axes: Axes) -> None:
            axes.plot(x, accuracy, color=BLUE, marker="." if len(x) < 50 else None)
            if target is not None:
                axes.axhline(target, color=INK, linewidth=1, linestyle=":")
            axes.set_xlabel(label)
            axes.set_ylabel("test accuracy")

        return onto

    return ReportFigure(
        "accuracy",
        title,
        f"Test accuracy of the model on the server, {len(stats.evaluations):,} evaluations.{aim}",
        [
            _picture(draw(rounds, "round"), f"Test accuracy by round: {alt}."),
            _picture(
                draw(times_s, "time since the start [s]"),
                f"Test accuracy by time: {alt}, after {seconds(last[1])}.",
            ),
        ],
    )


def _lengths(stats: RunStatistics, tau_max_s: float) -> ReportFigure:
    round_s = stats.round_s
    numbers = np.arange(1, len(round_s) + 1)
    middle, longest = float(np.median(round_s)), float(round_s.max())
    every = len(round_s) <= _EACH_ROUND
    stretches = min(_STRETCHES, max(1, len(round_s) // _STRETCH_ROUNDS))
    edges = np.linspace(0, len(round_s), stretches + 1).round().astype(int)
    near = longest > 0.3 * tau_max_s
    spread_out = longest > _LOGARITHMIC * middle > 0.0

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import LogLocator, NullLocator

        if every:
            axes.plot(numbers, round_s, ".", markersize=4, color=BLUE, label="round")
            width = max(1, min(25, len(round_s) // 4)) | 1
            axes.plot(numbers, _running_median(round_s, width), color=ORANGE, label="median")
        else:
            parts = [round_s[a:b] for a, b in pairwise(edges)]
            where = (edges[:-1] + edges[1:] + 1) / 2
            medians, most = ([f(part) for part in parts] for f in (np.median, np.max))
            axes.plot(where, most, color=ORANGE, linewidth=1, label="longest")
            axes.plot(where, medians, color=BLUE, label="median")
        if near:
            axes.axhline(tau_max_s, color=INK, linewidth=1, linestyle=":", label="deadline")
        if spread_out:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_locator(NullLocator())
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel("round")
        axes.set_ylabel("length [s]")

    how = (
        "One point a round, and the median of its neighbours."
        if every
        else f"Median and longest of some {len(round_s) // stretches} rounds each."
    )
    which = "last deadline" if stats.summary["tau_max_s"] == AUTO else "deadline"
    deadline = f"the {which} of {seconds(tau_max_s)}"
    return ReportFigure(
        "lengths",
        "How long the rounds took",
        f"{how} {'Dotted: ' if near else 'Far above what is drawn: '}{deadline}.",
        [
            _picture(
                draw,
                f"Length of the rounds: half of them within {seconds(middle)}, the longest "
                f"{seconds(longest)}, against {deadline}.",
                legend=True,
            )
        ],
    )


def _stragglers(stats: RunStatistics) -> ReportFigure:
    title = "Time lost to stragglers"
    worst = sorted(stats.clients, key=lambda client: (-client.lost_s, -client.slowest))
    worst = [client for client in worst if client.slowest][:_MAX_BARS]
    if not stats.compared:
        return ReportFigure("stragglers", title, "No round had two clients to compare.", [])
    total_s = float(stats.round_s.sum())
    several = sum(client.slowest > 0 for client in stats.clients)
    which = (
        f"The {len(worst)} of {several} clients that cost most. " if several > len(worst) else ""
    )
    first = worst[0]
    names = _names(worst)

    def lost(axes: Axes) -> None:
        _bars(axes, names, [client.lost_s for client in worst], BLUE)
        axes.set_xlabel("time lost [s]")

    def often(axes: Axes) -> None:
        _bars(axes, names, [client.slowest / client.selections for client in worst], ORANGE)
        axes.set_xlabel("share of its rounds in which it was the slowest")
        axes.set_xlim(0, 1)

    return ReportFigure(
        "stragglers",
        title,
        f"{which}Time lost: how much shorter the rounds of each client would have been without it. "
        f"Over all rounds that is {seconds(stats.lost_s)} of {seconds(total_s)}.",
        [
            _picture(
                lost,
                f"Time lost by client: most to {names[0]}, {seconds(first.lost_s)}; the last "
                f"shown is {names[-1]}, {seconds(worst[-1].lost_s)}.",
                rows=len(worst),
            ),
            _picture(
                often,
                "How often each was the slowest of its round: "
                f"{names[0]} in {first.slowest:,} of {first.selections:,} rounds.",
                rows=len(worst),
            ),
        ],
    )


def _shares(stats: RunStatistics) -> ReportFigure:
    clients = [client for client in stats.clients if client.share is not None]
    floors = [client.floor for client in clients]
    some = any(floors)
    missed = sum(client.missed for client in clients)
    names = _names(clients)
    shares = np.array([client.share for client in clients])
    many = len(clients) > _MAX_ROWS

    def by_name(axes: Axes) -> None:
        _bars(axes, names, shares, BLUE)
        if some:
            places = np.arange(len(clients))
            marks = [floor or 0.0 for floor in floors]
            axes.vlines(marks, places - 0.4, places + 0.4, color=INK, linewidth=2)
        axes.set_xlabel("share of rounds")

    def by_rank(axes: Axes) -> None:
        order = np.argsort(-shares, kind="stable")
        places = np.arange(1, len(clients) + 1)
        axes.plot(places, shares[order], color=BLUE, label="share")
        if some:
            marks = np.array([floor or 0.0 for floor in floors])[order]
            some_of_them = slice(None, None, -(-len(clients) // _MAX_POINTS))
            axes.plot(
                places[some_of_them],
                marks[some_of_them],
                ".",
                markersize=2,
                color=INK,
                label="floor",
            )
        axes.set_ylim(bottom=0)
        axes.set_xlabel("client, by its share")
        axes.set_ylabel("share of rounds")

    kept = "There were no floors to keep."
    if some:
        kept = "All floors were kept."
        if missed:
            kept = f"{missed:,} of {len(clients):,} clients missed their floors."
    mark = " The line is its floor." if some and not many else ""
    alt = (
        f"Shares of {len(clients):,} clients, from {percent(float(shares.min()))} to "
        f"{percent(float(shares.max()))} of the rounds. {kept}"
        if len(clients)
        else ""
    )
    draw = by_rank if many else by_name
    return ReportFigure(
        "shares",
        "Who took part, against the floors",
        "Share of the rounds in which a client trained, of those in which it belonged to the "
        f"fleet.{mark} {kept}",
        [_picture(draw, alt, rows=0 if many else len(clients), legend=many)],
    )


def _heat(stats: RunStatistics) -> ReportFigure:
    known = [index for index, client in enumerate(stats.clients) if client.joined]
    order = sorted(
        known,
        key=lambda index: (
            stats.clients[index].median_s is None,
            stats.clients[index].median_s or 0.0,
        ),
    )
    groups = [list(group) for group in np.array_split(order, min(_MAX_ROWS, len(order)))]
    single = len(groups) == len(order)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # no client of a group had joined
        rows = np.array([np.nanmean(stats.heat[group], axis=0) for group in groups])
    if single:
        labels = _names([stats.clients[index] for index in order])
    else:
        labels = ["fastest", *[""] * (len(groups) - 2), "slowest"]
    first, last = (float(np.nanmean(row)) for row in (rows[0], rows[-1]))

    def draw(axes: Axes) -> None:
        image = axes.imshow(
            rows,
            aspect="auto",
            interpolation="nearest",
            extent=(0.5, len(stats.round_s) + 0.5, len(rows) - 0.5, -0.5),
            vmin=0.0,
        )
        axes.set_yticks(np.arange(len(rows)), labels)
        if not single:
            axes.tick_params(axis="y", length=0)
        axes.grid(False)
        axes.set_xlabel("round")
        bar = axes.figure.colorbar(image, ax=axes, label="share of rounds")
        bar.outline.set_edgecolor(GREY)

    rows_are = (
        "One row a client"
        if single
        else f"Each row is a group of some {len(order) // len(groups)} clients"
    )
    return ReportFigure(
        "selections",
        "Who was selected when",
        f"{rows_are}, the fastest on top, those that never answered at the bottom. Blank: not "
        "yet there.",
        [
            _picture(
                draw,
                f"Selections over the rounds. {'Of' if single else 'In the group of'} the fastest "
                f"{percent(first)} of the rounds, {'of' if single else 'in the group of'} the "
                f"slowest {percent(last)}.",
                rows=max(_FEWEST_ROWS, len(rows)) if single else 16,
            )
        ],
    )


def _round_trips(stats: RunStatistics, tau_max_s: float) -> ReportFigure:
    title = "Round trips, client by client"
    known = [client for client in stats.clients if client.times_s.size]
    if not known:
        return ReportFigure("round-trips", title, "No client ever answered in time.", [])
    slow = sorted(known, key=lambda client: -(client.median_s or 0.0))
    shown = slow
    which = ""
    if len(slow) > _MAX_BARS:
        # Both ends: clients that hold the rounds up, and what would be possible.
        shown = slow[: _MAX_BARS - 5] + slow[-5:]
        which = f"The {_MAX_BARS - 5} slowest and, below, the 5 fastest of {len(slow):,} clients. "
    names = _names(shown)
    medians = np.array([client.median_s or 0.0 for client in shown])
    ends = np.array([[client.quantile_s(level) or 0.0 for client in shown] for level in (0.1, 0.9)])
    splits = [client.split for client in shown]
    reported = any(split is not None for split in splits)

    def draw(axes: Axes) -> None:
        places = np.arange(len(shown))
        begin = np.zeros(len(shown))
        for number, part in enumerate(PARTS):
            if all(split is None or split[number] < _NEGLIGIBLE for split in splits):
                continue
            width = np.array(
                [
                    0.0 if split is None else split[number] * median
                    for split, median in zip(splits, medians, strict=True)
                ]
            )
            axes.barh(places, width, left=begin, color=_PART_COLOURS[number], label=part)
            begin += width
        rest = medians - begin
        if (rest > _NEGLIGIBLE * medians).any():
            axes.barh(places, rest, left=begin, color=GREY, label="not reported")
        axes.hlines(places, ends[0], ends[1], color=INK, linewidth=1.2)
        _name_rows(axes, names)
        axes.set_xlim(left=0)
        axes.set_xlabel("round trip [s]")

    split = (
        " Its colours are the parts that clients report, computing and the emulated link, and the "
        "network, which remains."
        if reported
        else ""
    )
    return ReportFigure(
        "round-trips",
        title,
        f"{which}Bar: median of the rounds that it completed; line: from where 10 % to where 90 % "
        f"of them lie.{split}",
        [
            _picture(
                draw,
                f"Round trips: the slowest client is {names[0]}, median {seconds(medians[0])}; the "
                f"fastest {names[-1]}, {seconds(medians[-1])}; the deadline {seconds(tau_max_s)}.",
                rows=len(shown),
                legend=reported,
            )
        ],
    )


# --- drawing --------------------------------------------------------------------------------------


def _picture(
    draw: Callable[[Axes], None],
    alt: str,
    *,
    rows: int = 0,
    legend: bool = False,
) -> Picture:
    """Draw one pair of axes, transparent and with its text in the colour of the page.

    Parameters
    ----------
    draw : callable
        Draws onto the axes.
    alt : str
        What it shows.
    rows : int
        Names on the vertical axis, which need room.
    legend : bool
        Whether there is one, above the axes.
    """
    height = max(1.5, 0.24 * rows + 0.9) if rows else _HEIGHT
    svg = themed_svg(draw, alt, height=height, grid="x" if rows else "both", legend=legend)
    return Picture(svg, alt)


def _bars(
    axes: Axes, names: Sequence[str], values: Sequence[float] | FloatArray, colour: str
) -> None:
    places = np.arange(len(names))
    axes.barh(places, values, color=colour)
    _name_rows(axes, names)


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows of horizontal bars, the first one on top."""
    axes.set_yticks(np.arange(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


def _names(clients: Sequence[ClientStatistics]) -> list[str]:
    return [plain(client.name, _LONGEST_NAME) for client in clients]


def _thinned(
    points: Sequence[tuple[int, float, float]],
) -> Sequence[tuple[int, float, float]]:
    step = -(-len(points) // _MAX_POINTS)
    return points if step == 1 else [*points[:-1:step], points[-1]]


def _running_median(values: FloatArray, width: int) -> FloatArray:
    half = width // 2
    return np.array(
        [np.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
    )
