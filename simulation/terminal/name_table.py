"""A table of names and numbers: no name is cut where there is little room, and no unit is lost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from rich.markup import escape
from rich.table import Table

_LONGEST: Final = 30  # longer ones may go on in a second line


def name_table(
    first: str,
    names: Collection[str],
    headings: Sequence[str],
    *,
    left: Collection[str] = (),
    **options: Any,
) -> Table:
    """Return a table without rows.

    Parameters
    ----------
    first : str
        Heading of the column of names.
    names : collection of str
        What it will hold.
    headings : sequence of str
        Those of the other columns, as they are to be shown.
    left : collection of str
        Which of them hold short names, not numbers.
    **options
        Of rich's ``Table``.
    """
    table = Table(**options)
    longest = max(map(len, [first, *names]))
    if longest <= _LONGEST:
        table.add_column(escape(first), no_wrap=True)
    else:
        table.add_column(escape(first), overflow="fold")
    for heading in headings:
        if heading in left:
            table.add_column(escape(heading), no_wrap=True)
        else:
            table.add_column(escape(heading), justify="right", overflow="fold")
    return table
