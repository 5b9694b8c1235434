"""Write the tables of the documentation that are made of code: ``python docs/write_tables.py``.

Each is the table under a header line of a page; a test holds the pages to it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from flower_scheduling import POLICIES, RoundRecord, ScheduledStrategy
from flower_scheduling.columns import When, columns
from flower_scheduling.strategies import PolicySpec
from flower_scheduling.strategies.flower import ArmResult

DOCS = Path(__file__).resolve().parent
STRATEGIES = "flower_scheduling.strategies."


def policies(*, comparators: bool) -> list[str]:
    """Return a row for each policy that comes with the package.

    The last column has what it learns from besides times.
    """
    return [
        f"| `{name}` | {spec.summary} | {', '.join(_learned_from(spec)).replace('_', ' ')} |"
        for name, spec in POLICIES.items()
        if spec.comparator == comparators and spec.build.__module__.startswith(STRATEGIES)
    ]


def _learned_from(spec: PolicySpec) -> tuple[str, ...]:
    return (*spec.reports, *(("updates",) if spec.needs_updates else ()))


def described(thing: object, heading: str) -> dict[str, str]:
    """Return what the docstring of a class says of each name under a heading, in Markdown."""
    section = (inspect.getdoc(thing) or "").split(f"{heading}\n{'-' * len(heading)}\n")[1]
    entries = re.findall(
        r"^(\w+(?:, \w+)*) : .*\n((?:(?:    .*)?\n)*)", section + "\n", re.MULTILINE
    )
    return {
        name: re.sub(r":\w+:`\.?(\w+)`", r"`\1`", " ".join(text.split())).replace("``", "`")
        for names, text in entries
        for name in names.split(", ")
    }


def arguments(shown: list[str]) -> list[str]:
    """Return a row for each of some arguments of ScheduledStrategy: the first sentence on it."""
    texts = described(ScheduledStrategy, "Parameters")
    parameters = inspect.signature(ScheduledStrategy).parameters
    rows = []
    for name in shown:
        default = parameters[name].default
        code = "" if default is inspect.Parameter.empty else f"`{default!r}`".replace("'", '"')
        first = re.split(r"(?<=\.) (?=[A-Z])", texts[name])[0]
        rows.append(f"| `{name}` | {code} | {first} |")
    return rows


def column_rows(record: type[RoundRecord] | type[ArmResult]) -> list[str]:
    """Return a row for each column of a record: its unit, where it is written, what it is."""
    texts = described(record, "Attributes")
    rows = []
    for name, column in columns(record).items():
        unit = re.search(r" \[(.*?)\]", texts[name])
        text = texts[name].replace(unit[0] if unit else "", "", 1)
        text = text.replace("`None`", "left out" if column.when is When.IF_ANY else "`null`")
        since = f"since {column.since}" if column.since else ""
        written = ", ".join(filter(None, (column.when.value, since)))
        rows.append(f"| `{name}` | {unit[1] if unit else ''} | {written} | {text} |")
    return rows


def rows_under(text: str, header: str) -> list[str]:
    """Return the rows of the table under a header line of a page."""
    lines = text.partition(f"{header}\n")[2].splitlines()[1:]
    return list(takewhile(lambda line: line.startswith("|"), lines))


def with_rows(text: str, header: str, rows: list[str]) -> str:
    """Return a page with other rows in the table under a header line."""
    before, line, after = text.partition(f"{header}\n")
    rule, *rest = after.split("\n")
    return before + line + "\n".join([rule, *rows, *rest[len(rows_under(text, header)) :]])


def pages() -> Iterator[tuple[Path, str]]:
    """Yield each page with tables, and what it should be."""
    page = DOCS / "policies" / "list.md"
    text = page.read_text(encoding="utf-8")
    for title, comparators in (("what it does", False), ("comparator", True)):
        header = f"| `--strategy` | {title} | also learns from |"
        text = with_rows(text, header, policies(comparators=comparators))
    yield page, text

    page = DOCS / "how-to" / "own-app.md"
    text = page.read_text(encoding="utf-8")
    header = "| argument | default | what it is |"
    shown = [row.split("`")[1] for row in rows_under(text, header)]
    yield page, with_rows(text, header, arguments(shown))

    page = DOCS / "reference" / "rounds.md"
    text = page.read_text(encoding="utf-8")
    text = with_rows(text, "| field | unit | written | what it is |", column_rows(RoundRecord))
    header = "| list | unit | written | of each client of `selected` |"
    yield page, with_rows(text, header, column_rows(ArmResult))


if __name__ == "__main__":
    for page, text in pages():
        page.write_text(text, encoding="utf-8")
