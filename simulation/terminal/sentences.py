"""Sentences on standard output and error: whole lines where no terminal would need them shorter."""

from __future__ import annotations

import os

from rich.console import Console


def print_sentence(console: Console, text: str) -> None:
    """Print a text, between words broken to the width of a terminal or ``COLUMNS``, else whole.

    Logs and pipes have no width: a line that is broken there is found by no search.
    """
    whole = not console.is_terminal and "COLUMNS" not in os.environ
    console.print(text, highlight=False, markup=False, soft_wrap=whole)
