"""Sentences are whole: none begins with the verb of which the code block above is the subject."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documentation import pages
from paths import ROOT

_AFTER_A_BLOCK = re.compile(r"^ *```\w+\n.*?^ *```\n\n?([^\n]*)", re.MULTILINE | re.DOTALL)


def begun(text: str) -> list[str]:
    """Return the lines after code blocks that begin in the middle of a sentence."""
    return [line for line in _AFTER_A_BLOCK.findall(text) if re.match(r" *[a-z]", line)]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_begins_in_a_code_block(page: Path) -> None:
    assert begun(page.read_text(encoding="utf-8")) == []


def test_such_a_sentence_is_found() -> None:
    assert begun("```console\n$ make\n```\n\nbuilds it.\n") == ["builds it."]
    assert begun("```console\n$ make\n```\n\nIt builds it.\n") == []
