"""The pages of the documentation: their blocks of commands, headings and links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from paths import ROOT

README: Final = ROOT / "README.md"
TUTORIAL: Final = ROOT / "docs/tutorial.md"
_FENCE: Final = re.compile(
    r"^(?P<indent> *)(?:<!-- (?P<mark>[^\n]*) -->\n *)?"
    r"```console\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """Commands of a page, as somebody types them one after the other.

    A comment above the block says what differs: ``<!-- not run: REASON -->`` for what cannot run
    where the documentation is tested, ``<!-- exit 2 -->`` for the exit code of the last command.
    """

    page: Path
    line: int
    commands: tuple[str, ...]
    not_run: str = ""
    exit_code: int = 0

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Return every Markdown file of the repository that people read."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docker").glob("*.md")]
    return sorted([*found, *(ROOT / "examples").rglob("README.md")])


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of commands of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        mark = found["mark"] or ""
        joined = re.sub(r"\\\n|(?<=&&)\n|(?<= \|)\n", " ", found["text"])
        lines = [line.strip() for line in joined.splitlines()]
        commands = tuple(line[2:] for line in lines if line.startswith("$ "))
        not_run = mark.removeprefix("not run: ") if mark.startswith("not run: ") else ""
        code = re.fullmatch(r"exit (\d+)", mark)
        assert not mark or not_run or code, f"{page}: a mark that nothing reads: {mark!r}"
        assert commands, f"{page}: a block of commands without one"
        line = text[: found.start("text")].count("\n")
        yield Block(page, line, commands, not_run, int(code[1]) if code else 0)


def words(command: str) -> list[str]:
    """Split a command as a shell does, without its comment and the dots that stand for more."""
    return [word for word in shlex.split(command, comments=True) if word not in ("...", "…")]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MkDocs make them."""
    text = re.sub(r"^ *```.*?^ *```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {_anchor(heading) for heading in headings}


def links(page: Path) -> list[str]:
    """Return the targets of a page's links and pictures."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    return re.findall(r"\]\(([^)\s]+)\)", text)


def text_of(page: Path) -> str:
    """Return a page's text, with the files that the site puts into it."""
    return re.sub(
        r'^--8<-- "(.*)"$',
        lambda found: (ROOT / found[1]).read_text(encoding="utf-8"),
        page.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )


def _anchor(heading: str) -> str:
    kept = re.sub(r"[^\w\s-]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading)).strip().lower()
    return re.sub(r"\s", "-", kept)
