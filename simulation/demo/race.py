"""The screen of the first look: policies side by side, and their accuracy over virtual time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..terminal.live_screen import LiveScreen
from ..terminal.progress import RunStatus
from ..terminal.sentences import print_sentence
from ..terminal.text_plot import Curve, text_plot

# Of each policy in turn: letter and style of its curve.
_LOOKS: Final = ((".", ""), ("+", "cyan"), ("#", "bold green"))
_HEADING: Final = "The same clients and links, four clients at work at a time:"
_WIDTH: Final = 80
_HEIGHT: Final = 11
# The plot begins this far below the target, where the policies differ.
_SHOWN_BELOW: Final = 0.34
_PER_SECOND: Final = 5
_LINE_EVERY_S: Final = 10.0


@dataclass(slots=True)
class Lane:
    """How far a policy is.

    Attributes
    ----------
    rounds : int
        Rounds so far.
    time_s : float
        Their virtual time [s].
    reached : bool
        Whether the target was reached, if the run has ended.
    points : list of tuple of float
        Virtual time [s] and accuracy of the evaluations, or some of them.
    """

    rounds: int = 0
    time_s: float = 0.0
    reached: bool | None = None
    points: list[tuple[float, float]] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        """The last accuracy that is known."""
        return self.points[-1][1] if self.points else 0.0


class Race(LiveScreen):
    """The screen while the policies run; on anything but a terminal a line every ten seconds.

    Parameters
    ----------
    console : Console
        Where it is.
    policies : sequence of str
        Names of the runs, at most three.
    target : float
        The accuracy aimed at.
    """

    def __init__(self, console: Console, policies: Sequence[str], target: float) -> None:
        self._target = target
        self._lanes = {name: Lane() for name in policies}
        live = Live(
            get_renderable=lambda: screen(self._lanes, target, console.width),
            console=console,
            refresh_per_second=_PER_SECOND,
            transient=True,
        )
        super().__init__(console, live)
        self._next_line_s = time.monotonic() + _LINE_EVERY_S

    def show(self, name: str, status: RunStatus) -> None:
        """Show how far the run of a policy is."""
        lane = self._lanes[name]
        lane.rounds, lane.time_s = status.round, status.time_s
        if status.accuracy is not None and status.accuracy != lane.accuracy:
            lane.points.append((status.time_s, status.accuracy))
        now_s = time.monotonic()
        if self._console.is_terminal or now_s < self._next_line_s:
            return
        self._next_line_s = now_s + _LINE_EVERY_S
        parts = [f"{name} {each.accuracy:.1%}" for name, each in self._lanes.items()]
        print_sentence(self._console, f"accuracy so far: {', '.join(parts)}")


def screen(lanes: Mapping[str, Lane], target: float, width: int) -> RenderableType:
    """Return the policies side by side, above the plot of their accuracy over virtual time."""
    width = min(width, _WIDTH)
    table = Table(box=None, padding=(0, 1), width=width, header_style="")
    table.add_column("")
    table.add_column("policy", no_wrap=True)
    table.add_column("rounds, steps", justify="right", no_wrap=True)
    table.add_column("accuracy", justify="right", no_wrap=True)
    table.add_column(r"time \[s]", justify="right", no_wrap=True)
    over = all(lane.reached is not None for lane in lanes.values())
    table.add_column(f"to {target:.0%}" if over else f"on the way to {target:.0%}", ratio=1)
    longest_s = max((lane.time_s for lane in lanes.values()), default=0.0)
    curves = []
    for (name, lane), (letter, style) in zip(lanes.items(), _LOOKS, strict=False):
        done = lane.time_s if over else lane.accuracy
        total = max(longest_s, 1e-9) if over else target
        bar = ProgressBar(
            total=total,
            completed=done,
            complete_style=style or "default",
            finished_style=style or "default",
        )
        table.add_row(
            Text(letter, style=style),
            name,
            f"{lane.rounds:,}",
            f"{lane.accuracy:.1%}",
            ("" if lane.reached is not False else "> ") + f"{lane.time_s:,.0f}",
            bar,
        )
        time_s, accuracy = np.array([(0.0, 0.0), *lane.points]).T
        curves.append(Curve(time_s, accuracy, letter, style))
    plot = text_plot(
        curves,
        width=width,
        height=_HEIGHT,
        bottom=max(target - _SHOWN_BELOW, 0.0),
        top=target,
        x_label="virtual time [s]",
    )
    return Group(Text(_HEADING), table, Text("accuracy on the test images"), plot)
