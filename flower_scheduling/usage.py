"""What is said of a command line that is wrong."""

from __future__ import annotations

import click


def usage_text(error: click.ClickException) -> str:
    """Return the line for a fault of the command line: of like options the one most like it.

    click lists them by the alphabet (8.4), so that ``--app`` comes before ``--name`` for ``--nam``.
    """
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        return f"{error.message} (did you mean {error.possibilities[0]}?)"
    return error.format_message()
