"""The deny list: read when it has changed, and only when it is refreshed."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from flower_scheduling.errors import ConfigError
from flower_scheduling.server.transport.deny_list import DenyList
from flower_scheduling.strategies.flower import LOGGER


def test_deny_list_is_read_when_it_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "deny"
    file.write_text("a\n")
    denied = DenyList(str(file))
    assert (denied("a"), denied("b")) == (True, False)
    file.write_text("a\r\n  b \n\n")
    denied.refresh()
    assert denied("b")
    file.unlink()
    denied.refresh()
    assert denied("b"), "what was read last still counts"
    with pytest.raises(ConfigError, match="deny-list"):
        DenyList(str(file))


def test_name_is_looked_up_without_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "deny"
    file.write_text("a\n")
    denied = DenyList(str(file))

    def fail(self: Path) -> None:
        raise AssertionError("the file was looked at")

    monkeypatch.setattr(Path, "stat", fail)
    assert (denied("a"), denied("b")) == (True, False)
    assert not DenyList("")("a")


def test_list_that_cannot_be_read_is_logged_once_in_printable_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "caf\udce9"  # in the shell: a name in Latin-1
    file.write_text("a\n")
    denied = DenyList(str(file))
    denied.refresh()
    file.unlink()
    with caplog.at_level(logging.WARNING, logger=LOGGER.name):
        denied.refresh()
        denied.refresh()
    (line,) = caplog.messages
    assert line.startswith("deny-list ")
    assert line.endswith("caf\\udce9: No such file or directory")
    assert denied("a")
