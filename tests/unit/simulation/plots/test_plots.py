"""The plotting kit: spread beside means, many clients in groups, and themed colours."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flower_scheduling.palette import INK, MEANINGS, policy_look
from flower_scheduling.simulation import plots

LOOK = policy_look("cs-ucb")
assert LOOK is not None


def axes_of(size: tuple[float, float] = (4.6, 3.6)) -> Axes:
    _, (axes,) = plots.new_figure(size)
    return axes


def overlapping(axes: Axes) -> list[tuple[str, str]]:
    """Return the neighbours among the tick labels below axes that overlap."""
    figure = axes.figure
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    labels = [label for label in axes.get_xticklabels() if label.get_text()]
    boxes = [label.get_window_extent() for label in labels]
    return [
        (one.get_text(), other.get_text())
        for one, other, a, b in zip(labels, labels[1:], boxes, boxes[1:], strict=False)
        if a.x1 > b.x0
    ]


# --- spread ---------------------------------------------------------------------------------------


def test_a_band_of_shares_ends_at_zero_and_one() -> None:
    samples = [[0.0, 0.0], [0.9, 1.0], [0.0, 1.0], [0.0, 1.0], [0.1, 1.0], [0.0, 1.0]]
    free = plots.curve_of("a", [0, 1], samples)
    assert free.low[0] < 0
    assert free.high[1] > 1
    held = plots.curve_of("a", [0, 1], samples, bounds=(0.0, 1.0))
    assert held.mean == pytest.approx(free.mean)
    assert (held.low[0], held.high[1]) == (0.0, 1.0)
    assert (held.low[1], held.high[0]) == (free.low[1], free.high[0])


@pytest.mark.parametrize(("count", "lines", "bands"), [(1, 1, 0), (3, 4, 0), (5, 6, 0), (6, 1, 1)])
def test_few_runs_are_drawn_and_of_more_a_band(count: int, lines: int, bands: int) -> None:
    samples = np.random.default_rng(0).random((count, 8))
    axes = axes_of()
    plots.draw_curve(axes, plots.curve_of("a", np.arange(8), samples), LOOK)
    assert len(axes.lines) == lines
    assert len(axes.collections) == bands
    mean = axes.lines[-1]
    assert mean.get_ydata() == pytest.approx(samples.mean(axis=0))
    for run, row in zip(axes.lines[:-1], samples, strict=False):
        assert run.get_ydata() == pytest.approx(row)
        assert run.get_linewidth() < mean.get_linewidth()


def test_runs_that_are_all_the_same_are_one_line() -> None:
    axes = axes_of()
    plots.draw_curve(axes, plots.curve_of("bound", [1, 2], [[3.0, 4.0]] * 2), LOOK)
    assert len(axes.lines) == 1


def test_an_axis_of_shares_stays_within_them() -> None:
    axes = axes_of()
    axes.plot([0, 1], [0.0, 1.0])
    plots.as_shares(axes)
    assert axes.get_ylim() == (0.0, 1.0)
    assert axes.yaxis.get_major_formatter()(0.25, 0) == "25 %"
    assert axes.yaxis.get_major_formatter()(0.1 + 0.2, 0) == "30 %"


# --- many clients ---------------------------------------------------------------------------------


def test_a_thousand_clients_become_groups_of_like_speed() -> None:
    rng = np.random.default_rng(1)
    speed_s = rng.random(1000)
    speed_s[7] = np.inf
    groups = plots.grouped([f"c{i}" for i in range(1000)], speed_s.tolist())
    assert len(groups.members) == plots.GROUPS
    assert sorted(np.concatenate(groups.members).tolist()) == list(range(1000))
    assert groups.members[-1][-1] == 7, "a client that never answered comes last"
    ends = [(speed_s[each].min(), speed_s[each].max()) for each in groups.members]
    assert all(a[1] <= b[0] for a, b in pairwise(ends))
    assert not groups.single
    assert "25 groups of 40" in groups.title
    assert groups.labels[:3] == ["1", "41", "81"]
    assert "of about 40" in plots.grouped(["c"] * 1001, [1.0] * 1001).title


def test_few_clients_keep_their_order_and_names() -> None:
    groups = plots.grouped(["b", "a", "c"], [3.0, 1.0, 2.0])
    assert (groups.labels, groups.title, groups.single) == (["b", "a", "c"], "client", True)


@pytest.mark.parametrize(
    "names",
    [
        [str(i) for i in range(6)],
        [str(i) for i in range(40)],
        [f"edge-device-{i}" for i in range(40)],
        plots.grouped([str(i) for i in range(1000)], [1.0] * 1000).labels,
        plots.grouped([str(i) for i in range(99_999)], [1.0] * 99_999).labels,
    ],
)
def test_labels_of_bars_are_few_and_do_not_overlap(names: list[str]) -> None:
    with plots.styled("test"):
        axes = axes_of()
        plots.draw_bars(axes, np.ones(len(names)), "ok")
        plots.label_bars(axes, names)
        assert 2 <= len(axes.get_xticklabels()) <= 20
        assert overlapping(axes) == []


def test_failures_are_hatched() -> None:
    axes = axes_of()
    plots.draw_bars(axes, [0.5], "ok", "delivered")
    plots.draw_bars(axes, [0.1], "failed", "failed", after=[0.5])
    ok, failed = axes.patches
    assert not ok.get_hatch()
    assert failed.get_hatch()
    assert failed.get_y() == 0.5


@pytest.mark.parametrize("length", [6, 30, 60])
def test_a_legend_stays_within_its_figure(length: int) -> None:
    with plots.styled("test"):
        figure, axes = plots.new_figure((10, 4), 1, 2)
        for number in range(9):
            axes[0].plot([0, 1], [0, number], label=f"{number}".ljust(length, "x"))
        plots.legend_below(figure)
        figure.draw_without_rendering()
        (legend,) = figure.legends
        box = legend.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert len(legend.get_texts()) == 9


# --- themes ---------------------------------------------------------------------------------------


def test_a_themed_figure_has_no_fixed_colour_of_the_palette() -> None:
    def draw(axes: Axes) -> None:
        plots.draw_bars(axes, [1.0, 2.0], "failed", "failed", across=True)
        plots.mark(axes, 1.5, "deadline", on="x")

    svg = plots.themed_svg(draw, "test", height=2.0, grid="x", legend=True).decode()
    style, _, body = svg.partition("</style>")
    failed = MEANINGS["failed"]
    name = failed.light[1:]
    assert f"--{name}:{failed.light}" in style
    assert f"--{name}:{failed.dark}" in style
    assert f"var(--{name})" in body
    assert "currentColor" in body
    assert not re.search(f"{failed.light}|{INK.light}", body)


def test_a_figure_is_written_the_same_twice(tmp_path: Path) -> None:
    found = []
    for name in ("one.svg", "two.svg"):
        with plots.styled("test"):
            axes = axes_of()
            plots.draw_bars(axes, [1.0], "failed")
            figure = axes.figure
            assert isinstance(figure, Figure)
            plots.save(figure, tmp_path / name)
        found.append((tmp_path / name).read_bytes())
    assert found[0] == found[1]
