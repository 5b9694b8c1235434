"""The plot of letters: curves where they belong, in the size that was asked for."""

from __future__ import annotations

import numpy as np

from flower_scheduling.simulation.terminal.text_plot import Curve, text_plot


def plot(*curves: Curve, height: int = 11) -> list[str]:
    text = text_plot(curves, width=60, height=height, bottom=0.5, top=0.9, x_label="time [s]")
    return text.plain.split("\n")


def curve(x: list[float], y: list[float], letter: str = "#") -> Curve:
    return Curve(np.array(x), np.array(y), letter, "bold")


def test_size_and_labels() -> None:
    lines = plot(curve([0.0, 1000.0], [0.5, 0.9]))
    assert len(lines) == 11
    assert all(len(line) <= 60 for line in lines)
    assert lines[0].startswith("  90%|")
    assert lines[4].startswith("  70%|")
    assert lines[8].startswith("  50%|")
    assert lines[-1].split() == ["0", "time", "[s]", "500", "1,000", "s"]


def test_a_straight_line_goes_from_corner_to_corner() -> None:
    rows = [line[6:] for line in plot(curve([0.0, 10.0], [0.5, 0.9]))[:9]]
    assert rows[-1][0] == rows[0][-1] == "#"
    first = [row.index("#") for row in rows]
    assert first == sorted(first, reverse=True)
    assert sum(row.count("#") for row in rows) == 54, "one letter a column"


def test_a_curve_ends_where_its_time_does_and_later_curves_lie_above() -> None:
    both = plot(curve([0.0, 10.0], [0.9, 0.9], "."), curve([0.0, 5.0], [0.9, 0.9], "#"))
    assert both[0][6:] == "#" * 27 + "." * 27


def test_what_lies_below_is_left_out_and_what_lies_above_is_at_the_top() -> None:
    rows = plot(curve([0.0, 5.0, 5.01, 10.0], [0.1, 0.1, 1.0, 1.0]))[:9]
    assert "".join(rows[1:]).count("#") == 0
    assert rows[0].count("#") == 27


def test_nothing_is_drawn_of_nothing() -> None:
    for lines in (plot(), plot(curve([], [])), plot(curve([0.0], [0.0]))):
        assert not any("#" in line for line in lines)
        assert lines[-1].split() == ["0", "time", "[s]"]
