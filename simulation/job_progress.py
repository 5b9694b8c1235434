"""Progress of jobs in several processes, and what all of them need beforehand."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .jobs import Piece

_SAY_EVERY_S = 60.0


def fetch_data() -> None:
    """Have MNIST in the cache before several processes want it at once."""
    from flower_scheduling.client.learning.mnist import load_mnist

    load_mnist(None)


class PieceProgress:
    """Show how far the work is and how long it will take, by the pieces' estimated times."""

    def __init__(self, console: Console, pieces: Sequence[Piece]) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[last]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._pieces = len(pieces)
        self._done = 0
        self._left_s = sum(piece.cost_s for piece in pieces)
        self._spent_s = 0.0
        self._begin_s = self._said_s = time.monotonic()
        total = round(self._left_s)
        self._task = self._progress.add_task("computing", total=total, last="")

    def __enter__(self) -> PieceProgress:
        self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._progress.stop()

    def update(self, piece: Piece, computed: bool) -> None:
        """Take note of a piece that is done."""
        self._done += 1
        self._left_s -= piece.cost_s
        if computed:
            self._spent_s += piece.cost_s
        self._progress.update(self._task, advance=piece.cost_s, last=piece.name)
        now_s = time.monotonic()
        if self._console.is_terminal or not computed or now_s - self._said_s < _SAY_EVERY_S:
            return
        self._said_s = now_s
        left_s = self._left_s * (now_s - self._begin_s) / self._spent_s
        self._console.print(
            f"{self._done} of {self._pieces} pieces, about {left_s / 60:.0f} min left",
            highlight=False,
        )
