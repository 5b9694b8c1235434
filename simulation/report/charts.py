"""Figures of a report as SVG in the colours of the page."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from flower_scheduling.palette import INK, MEANINGS, RULE, SERIES
from flower_scheduling.strategies.base import FloatArray
from flower_scheduling.strategies.deadline import AUTO
from flower_scheduling.strategies.floors import LAG

from .. import plots
from ..wording import percent, plain, seconds
from .run_statistics import PARTS, ClientStatistics, RunStatistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
_MOST_KINDS: Final = 3
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
        *_failures(stats),
        *([] if stats.buffered else [_stragglers(stats)]),
        _shares(stats),
        _heat(stats),
        _round_trips(stats, tau_max_s),
    ]


# --- what each shows ------------------------------------------------------------------------------


def _accuracy(stats: RunStatistics, target: float | None) -> ReportFigure:
    title = f"Accuracy, against {stats.unit}s and against time"
    if not stats.evaluations:
        return ReportFigure("accuracy", title, "No evaluation reported an 'accuracy'.", [])
    shown = _thinned(stats.evaluations)
    rounds, times_s, accuracy = (np.array(column) for column in zip(*shown, strict=True))
    last = stats.evaluations[-1]
    aim = "" if target is None else f" The line of dashes and dots: the target, {percent(target)}."
    alt = f"{percent(accuracy[0])} at first, {percent(last[2])} in {stats.unit} {last[0]}"

    def draw(x: FloatArray, label: str) -> Callable[[Axes], None]:
        def onto(axes: Axes) -> None:
            marker = "." if len(x) < 50 else None
            axes.plot(x, accuracy, color=MEANINGS["accuracy"].light, marker=marker)
            if target is not None:
                plots.mark(axes, target, "target")
            axes.set(xlabel=label, ylabel="test accuracy")
            plots.as_shares(axes)

        return onto

    return ReportFigure(
        "accuracy",
        title,
        f"Test accuracy of the model on the server, {len(stats.evaluations):,} evaluations.{aim}",
        [
            draw_picture(draw(rounds, stats.unit), f"Test accuracy by {stats.unit}: {alt}."),
            draw_picture(
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
    failed = stats.failed > 0

    def draw_each(axes: Axes) -> None:
        colour, broken = SERIES[0].light, MEANINGS["failed"].light
        axes.plot(
            numbers[~failed], round_s[~failed], ".", markersize=4, color=colour, label=stats.unit
        )
        if failed.any():
            where, lengths = numbers[failed], round_s[failed]
            axes.plot(where, lengths, "x", markersize=5, color=broken, label="with a failure")
        width = max(1, min(25, len(round_s) // 4)) | 1
        axes.plot(numbers, _running_median(round_s, width), color=INK.light, label="median")

    def draw_stretches(axes: Axes) -> None:
        parts = [round_s[a:b] for a, b in pairwise(edges)]
        where = (edges[:-1] + edges[1:] + 1) / 2
        low, median, high = np.transpose([np.quantile(part, (0.1, 0.5, 0.9)) for part in parts])
        most = [part.max() for part in parts]
        axes.plot(where, most, ".", markersize=3, color=SERIES[1].light, label="longest")
        axes.fill_between(
            where, low, high, color=SERIES[0].light, alpha=0.3, linewidth=0, label="10 % to 90 %"
        )
        axes.plot(where, median, color=SERIES[0].light, label="median")

    def draw(axes: Axes) -> None:
        (draw_each if every else draw_stretches)(axes)
        if near:
            plots.mark(axes, tau_max_s, "deadline", "deadline")
        if spread_out:
            plots.plain_log(axes)
        else:
            axes.set_ylim(bottom=0)
        axes.set(xlabel=stats.unit, ylabel=f"length of a {stats.unit} [s]")

    how = (
        f"One point a {stats.unit}, and the median of its neighbours. A cross: in this "
        f"{stats.unit} a request failed."
        if every
        else f"Each point stands for some {len(round_s) // stretches} {stats.unit}s: their median, "
        "the range of the middle 80 %, and the longest."
    )
    which = "last deadline" if stats.summary["tau_max_s"] == AUTO else "deadline"
    deadline = f"the {which} of {seconds(tau_max_s)}"
    line = f"Dotted: {deadline}." if near else f"Far above what is drawn: {deadline}."
    return ReportFigure(
        "lengths",
        f"How long the {stats.unit}s took",
        f"{how} {line}",
        [
            draw_picture(
                draw,
                f"Length of the {stats.unit}s: half of them within {seconds(middle)}, the longest "
                f"{seconds(longest)}, against {deadline}.",
                legend=True,
            )
        ],
    )


def _failures(stats: RunStatistics) -> list[ReportFigure]:
    """Return the figure of requests that failed, if any did."""
    kinds = sorted(stats.failures, key=lambda kind: -int(stats.failures[kind].sum()))
    if not kinds:
        return []
    counts = {plain(kind, _LONGEST_NAME): stats.failures[kind] for kind in kinds[:_MOST_KINDS]}
    if len(kinds) > _MOST_KINDS:
        counts["others"] = np.sum([stats.failures[kind] for kind in kinds[_MOST_KINDS:]], axis=0)
    requests = np.maximum(stats.requests, 1)
    middles = (stats.edges[:-1] + stats.edges[1:] + 1) / 2
    width = np.diff(stats.edges) * 0.9
    total, asked = int(stats.failed.sum()), stats.num_requests
    worst = [client for client in stats.clients if client.failures]
    worst.sort(key=lambda client: (-client.failures.total(), client.requests))
    concerned, worst = len(worst), worst[:_MAX_BARS]
    names = _names(worst)
    most = worst[0]

    def over_time(axes: Axes) -> None:
        begin = np.zeros(len(middles))
        for number, (kind, count) in enumerate(counts.items()):
            share = count / requests
            axes.bar(middles, share, width, bottom=begin, label=kind, **plots.failure_bars(number))
            begin += share
        axes.set(xlabel=stats.unit, ylabel="share of the requests")
        plots.as_shares(axes)

    def by_client(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        counts = [client.failures.total() for client in worst]
        plots.draw_bars(axes, counts, "failed", across=True)
        plots.label_rows(axes, names)
        axes.set(xlabel="number of requests that failed", ylabel="client")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    which = (
        f"the {len(worst)} of {concerned:,} clients with most failures"
        if concerned > len(worst)
        else "each client with a failure"
    )
    return [
        ReportFigure(
            "failures",
            "Requests that failed",
            f"{total:,} of {asked:,} requests brought no update: first their share over the run, "
            f"by what went wrong; then {which}, the one with most on top.",
            [
                draw_picture(
                    over_time,
                    f"Failed requests over the {stats.unit}s: {percent(total / asked)} of all, "
                    f"most often {next(iter(counts))}.",
                    legend=True,
                    grid="y",
                ),
                draw_picture(
                    by_client,
                    f"Failed requests by client: most of {names[0]}, {most.failures.total():,} of "
                    f"its {most.requests:,}.",
                    rows=len(worst),
                ),
            ],
        )
    ]


def _stragglers(stats: RunStatistics) -> ReportFigure:
    title = "Time lost to stragglers"
    worst = sorted(stats.clients, key=lambda client: (-client.lost_s, -client.slowest))
    worst = [client for client in worst if client.slowest][:_MAX_BARS]
    if not stats.compared:
        return ReportFigure("stragglers", title, f"No round {stats.not_compared}.", [])
    total_s = float(stats.round_s.sum())
    several = sum(client.slowest > 0 for client in stats.clients)
    which = ""
    if several > len(worst):
        which = f"Shown are the {len(worst)} of {several:,} clients that cost most. "
    first = worst[0]
    names = _names(worst)

    def lost(axes: Axes) -> None:
        plots.draw_bars(axes, [client.lost_s for client in worst], "lost", across=True)
        plots.label_rows(axes, names)
        axes.set(xlabel="time lost [s]", ylabel="client")

    def often(axes: Axes) -> None:
        shares = [client.slowest / client.selections for client in worst]
        plots.draw_bars(axes, shares, "slowest", across=True)
        plots.label_rows(axes, names)
        axes.set(xlabel="share of its rounds in which it was the slowest", ylabel="client")
        axes.set_xlim(0, 1)
        plots.as_shares(axes, on="x")

    return ReportFigure(
        "stragglers",
        title,
        f"{which}Time lost: by how much the client made its rounds longer than the others in them "
        f"needed. In all rounds together {seconds(stats.lost_s)} of {seconds(total_s)} were lost.",
        [
            draw_picture(
                lost,
                f"Time lost by client: most to {names[0]}, {seconds(first.lost_s)}; the last "
                f"shown is {names[-1]}, {seconds(worst[-1].lost_s)}.",
                rows=len(worst),
            ),
            draw_picture(
                often,
                "How often each was the slowest of its round: "
                f"{names[0]} in {first.slowest:,} of {first.selections:,} rounds.",
                rows=len(worst),
            ),
        ],
    )


def _shares(stats: RunStatistics) -> ReportFigure:
    clients = [client for client in stats.clients if client.share is not None]
    floors = np.array([client.floor or 0.0 for client in clients])
    some = bool(floors.any())
    missed = sum(client.missed for client in clients)
    names = _names(clients)
    shares = np.array([client.share or 0.0 for client in clients])
    failed = np.array(
        [
            each / max(client.requests, 1) * client.failures.total()
            for each, client in zip(shares.tolist(), clients, strict=True)
        ]
    )
    many = len(clients) > _MAX_ROWS

    def by_name(axes: Axes) -> None:
        plots.draw_bars(axes, shares - failed, "ok", "delivered", across=True)
        if failed.any():
            plots.draw_bars(axes, failed, "failed", "failed", after=shares - failed, across=True)
        if some:
            plots.draw_floors(axes, floors, across=True)
        plots.label_rows(axes, names)
        axes.set(xlabel=f"share of {stats.share_of}", ylabel="client")
        plots.as_shares(axes, on="x")

    def by_rank(axes: Axes) -> None:
        order = np.argsort(-shares, kind="stable")[:: -(-len(clients) // _MAX_POINTS)]
        places = np.linspace(1, len(clients), len(order))
        axes.plot(places, shares[order], color=MEANINGS["ok"].light, linewidth=2.5, label="share")
        if some:
            axes.plot(places, floors[order], ".", markersize=2.5, color=INK.light, label="floor")
        if 0.0 < _LOGARITHMIC * np.median(shares) < shares.max() and shares.min() > 0.0:
            plots.plain_log(axes)
        else:
            axes.set_ylim(bottom=0)
        label = f"share of {stats.share_of}"
        axes.set(xlabel="clients by their share, the largest first", ylabel=label)
        plots.as_shares(axes)

    kept = "There were no floors to keep."
    if some:
        kept = "All floors were kept."
        if (shares < floors).any():
            lag = "six" if stats.clients[0].lag == LAG else f"{stats.clients[0].lag:,}"
            kept = (
                f"No client is behind its floor by more than the {lag} {stats.share_of} that it "
                "may be."
            )
        if missed:
            kept = f"{missed:,} of {len(clients):,} clients missed their floors."
    mark = (
        f" {'Small dots: the floors.' if many else 'The line across a bar is its floor.'}"
        if some
        else ""
    )
    alt = (
        f"Shares of {len(clients):,} clients, from {percent(float(shares.min()))} to "
        f"{percent(float(shares.max()))} of the {stats.share_of}. {kept}"
        if len(clients)
        else ""
    )
    draw = by_rank if many else by_name
    how = "Share of the rounds for which a client was selected, of those in which"
    if stats.buffered:
        how = "Share of the updates that were a client's, failed ones included, of those while"
    return ReportFigure(
        "shares",
        "How often each client took part" + (", against its floor" if some else ""),
        f"{how} it belonged to the fleet.{mark} {kept}",
        [draw_picture(draw, alt, rows=0 if many else len(clients), legend=True)],
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
            cmap=plots.heat_colours(),
        )
        axes.set_yticks(np.arange(len(rows)), labels)
        if not single:
            axes.tick_params(axis="y", length=0)
        axes.grid(False)
        axes.set(xlabel=stats.unit, ylabel="client" if single else "clients, in groups")
        label = f"share of {stats.share_of}"
        bar = axes.figure.colorbar(image, ax=axes, label=label, format=plots.shown_percent)
        bar.outline.set_edgecolor(RULE.light)

    sizes = " or ".join(str(size) for size in sorted({len(group) for group in groups}))
    rows_are = "Each row is a client" if single else f"Each row is a group of {sizes} clients"
    return ReportFigure(
        "selections",
        "Which clients were selected when",
        f"{rows_are}, the fastest on top, those that never answered at the bottom. Blank: not "
        "joined yet.",
        [
            draw_picture(
                draw,
                f"Selections over the {stats.unit}s. {'Of' if single else 'In the group of'} the "
                f"fastest {percent(first)} of the {stats.share_of}, "
                f"{'of' if single else 'in the group of'} the slowest {percent(last)}.",
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
            plots.draw_bars(axes, width, part, part, after=begin, across=True)
            begin += width
        rest = medians - begin
        if (rest > _NEGLIGIBLE * medians).any():
            plots.draw_bars(axes, rest, "unreported", "not reported", after=begin, across=True)
        plots.draw_ranges(axes, ends[0], ends[1], across=True)
        plots.label_rows(axes, names)
        axes.set_xlim(left=0)
        axes.set(xlabel="round trip [s]", ylabel="client")

    split = (
        " Colours split it into computing and the emulated link, as clients report them, and the "
        "network, which is the rest."
        if reported
        else ""
    )
    profile = (
        " The second picture shows all clients, the fastest first: their medians, and a band that "
        "holds 80 % of the round trips of each."
        if which
        else ""
    )
    return ReportFigure(
        "round-trips",
        title,
        f"{which}Bars end at the median round trip of a client; 80 % of its round trips lie within "
        f"the thin line, a tenth below it and a tenth above.{split}{profile}",
        [
            draw_picture(
                draw,
                f"Round trips: the slowest client is {names[0]}, median {seconds(medians[0])}; the "
                f"fastest {names[-1]}, {seconds(medians[-1])}; the deadline {seconds(tau_max_s)}.",
                rows=len(shown),
                legend=reported,
            ),
            *([_profile(slow[::-1], tau_max_s)] if which else []),
        ],
    )


def _profile(clients: Sequence[ClientStatistics], tau_max_s: float) -> Picture:
    """Draw the round trips of many clients, the fastest first."""
    low, middle, high = np.transpose(
        [[client.quantile_s(level) or 0.0 for level in (0.1, 0.5, 0.9)] for client in clients]
    )
    ranks = np.arange(1, len(clients) + 1)
    shown = slice(None, None, -(-len(clients) // _MAX_POINTS))
    near = float(high.max()) > 0.3 * tau_max_s
    colour = SERIES[0].light

    def draw(axes: Axes) -> None:
        axes.fill_between(
            ranks[shown],
            low[shown],
            high[shown],
            color=colour,
            alpha=0.3,
            linewidth=0,
            label="10 % to 90 %",
        )
        axes.plot(ranks[shown], middle[shown], color=colour, label="median")
        if near:
            plots.mark(axes, tau_max_s, "deadline", "deadline")
        if high.max() > _LOGARITHMIC * np.median(middle) > 0.0 and low.min() > 0.0:
            plots.plain_log(axes)
        else:
            axes.set_ylim(bottom=0)
        axes.set(xlabel="clients by their median, the fastest first", ylabel="round trip [s]")

    quarter, half, most = (seconds(float(np.quantile(middle, q))) for q in (0.25, 0.5, 0.75))
    return draw_picture(
        draw,
        f"Round trips of all {len(clients):,} clients: a quarter of the medians are within "
        f"{quarter}, half within {half}, three quarters within {most}.",
        legend=True,
    )


# --- drawing --------------------------------------------------------------------------------------


def draw_picture(
    draw: Callable[[Axes], None],
    alt: str,
    *,
    rows: int = 0,
    legend: bool = False,
    grid: Literal["x", "y", "both"] | None = None,
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
    grid : {"x", "y", "both"}, optional
        Axes with grid lines; across the rows by default, or both.
    """
    height = max(1.5, 0.24 * rows + 0.9) if rows else _HEIGHT
    lines = grid or ("x" if rows else "both")
    svg = plots.themed_svg(draw, alt, height=height, grid=lines, legend=legend)
    return Picture(svg, alt)


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
