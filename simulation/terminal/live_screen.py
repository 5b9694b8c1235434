"""What is drawn anew while something runs."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.progress import Progress


class LiveScreen:
    """Base of what is shown during a ``with`` block, on a terminal alone.

    Parameters
    ----------
    console : Console
        Where it is.
    live : Live or Progress
        What is shown.
    """

    def __init__(self, console: Console, live: Live | Progress) -> None:
        self._console: Final = console
        self._live: Final = live

    def __enter__(self) -> Self:
        if self._console.is_terminal:  # elsewhere it would print an empty line
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()
