"""Lines of output are whole where there is no terminal."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest
from rich.console import Console

from flower_scheduling.server.cli.options import log_warnings_to
from flower_scheduling.simulation.terminal.sentences import print_sentence
from flower_scheduling.strategies.flower import LOGGER

TEXT = "a sentence with [brackets] of /a/path " + "and words " * 20 + "at its end"


def shown(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.fixture
def _logger() -> Iterator[None]:
    before = LOGGER.handlers, LOGGER.propagate, LOGGER.level
    yield
    LOGGER.handlers, LOGGER.propagate = before[:2]
    LOGGER.setLevel(before[2])


def a_console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), width=80, force_terminal=terminal, color_system=None)


def test_a_sentence_is_broken_where_there_is_a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    piped, terminal, asked = (a_console(terminal=each) for each in (False, True, False))
    for console in (piped, terminal):
        print_sentence(console, TEXT)
    monkeypatch.setenv("COLUMNS", "80")
    print_sentence(asked, TEXT)
    assert shown(piped) == [TEXT]
    assert len(shown(terminal)) > 1
    assert " ".join(shown(terminal)) == TEXT
    assert shown(asked) == shown(terminal)


@pytest.mark.usefixtures("_logger")
def test_a_warning_is_one_line_where_there_is_no_terminal() -> None:
    piped, terminal = a_console(terminal=False), a_console(terminal=True)
    for console in (piped, terminal):
        log_warnings_to(console)
        LOGGER.info("not shown")
        LOGGER.warning(TEXT)
    assert shown(piped) == [f"WARNING {TEXT}"]
    assert len(shown(terminal)) > 1
    assert logging.getLevelName(LOGGER.level) == "INFO", "run directories have every line"
