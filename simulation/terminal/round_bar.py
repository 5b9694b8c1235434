"""The bar of one long computation that counts rounds, with the time that is left."""

from __future__ import annotations

import time
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from .live_screen import LiveScreen
from .sentences import print_sentence

_SHOW_EVERY_S: Final = 0.1
_LINE_EVERY_S: Final = 60.0


class RoundBar(LiveScreen):
    """A bar while rounds are computed; on anything but a terminal a line a minute.

    Parameters
    ----------
    console : Console
        Where it is.
    what : str
        What is done, a few words.
    """

    def __init__(self, console: Console, what: str) -> None:
        self._what = what
        self._bar = Progress(
            TextColumn("[bold]{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            TextColumn("{task.percentage:>3.0f} %", table_column=Column(no_wrap=True)),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            expand=True,
            transient=True,
        )
        super().__init__(console, self._bar)
        self._task = self._bar.add_task(what, total=None)
        self._next_s = time.monotonic() + (0.0 if console.is_terminal else _LINE_EVERY_S)

    def __call__(self, done: int, total: int) -> None:
        """Show how many rounds of how many are done."""
        now_s = time.monotonic()
        if now_s < self._next_s and (done < total or self._bar.disable):
            return
        if self._bar.disable:
            self._next_s = now_s + _LINE_EVERY_S
            print_sentence(self._console, f"{self._what}: {done / total:.0%}")
            return
        self._next_s = now_s + _SHOW_EVERY_S
        self._bar.update(self._task, completed=done, total=total)
