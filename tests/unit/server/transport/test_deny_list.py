"""The deny list: whom it means, and that it is read only when it is refreshed."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flower_scheduling.errors import ConfigError
from flower_scheduling.server.monitoring.status import ServerStatus
from flower_scheduling.server.runs.totals import RunTotals
from flower_scheduling.server.transport.deny_list import DenyList
from flower_scheduling.strategies.flower import LOGGER, Arm


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
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger=LOGGER.name):
        denied.refresh()
        denied.refresh()
    (line,) = caplog.messages
    assert line.startswith("deny-list ")
    assert line.endswith("caf\\udce9: No such file or directory")
    assert denied("a")


ACUTE = "caf\N{LATIN SMALL LETTER E WITH ACUTE}"


@pytest.mark.parametrize(
    ("line", "client"),
    [
        ("\N{BYTE ORDER MARK}dev-1", "dev-1"),
        ("dev-1 # stolen", "dev-1"),
        ("dev-1\t#stolen", "dev-1"),
        ("dev-1#stolen", "dev-1"),
        ("dev-1#2", "dev-1#2"),
        ("#17", "#17"),
        ("\t dev-1 \N{NO-BREAK SPACE}\r", "dev-1"),
        ("DEV-1", "dev-1"),
        ("dev-1", "Dev-1"),
        ("STRASSE", "stra\N{LATIN SMALL LETTER SHARP S}e"),
        (ACUTE, "cafe\N{COMBINING ACUTE ACCENT}"),
        ("cafe\N{COMBINING ACUTE ACCENT}", ACUTE.upper()),
        ("dev-\N{FULLWIDTH DIGIT ONE}", "dev-1"),
        ("dev\N{SOFT HYPHEN}-1", "dev-1"),
    ],
)
def test_a_name_denies_the_client_that_is_meant(line: str, client: str, tmp_path: Path) -> None:
    file = tmp_path / "deny"
    file.write_text(f"other\n{line}\n")
    denied = DenyList(str(file))
    assert denied(client)
    assert not denied("dev-2")
    assert not denied("stolen")


def test_what_is_a_comment_denies_nobody(tmp_path: Path) -> None:
    file = tmp_path / "deny"
    file.write_text("# dev-1 is back\n   #dev-2\n\n")
    denied = DenyList(str(file))
    assert not any(map(denied, ("dev-1", "dev-2", "")))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_lists_of_editors_are_read(encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "deny"
    mark = "\N{BYTE ORDER MARK}" if encoding == "utf-16-be" else ""
    file.write_bytes(f"{mark}dev-1\r\ndev-2 # stolen\r\nDEV-3\r\n".encode(encoding))
    denied = DenyList(str(file))
    assert [denied(f"dev-{number}") for number in (1, 2, 3, 4)] == [True, True, True, False]


@pytest.mark.parametrize("data", ["dev-1\r\n".encode("utf-16-le"), b"caf\xe9\n", b"\xff\xfed"])
def test_a_list_that_would_deny_nobody_is_refused(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "deny"
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=r"deny-list = .*: must be a readable file"):
        DenyList(str(file))


def test_the_log_says_how_many_names_there_are_and_which_no_client_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "deny"
    file.write_text("dev1\nstolen\nDEV-3\n")
    connected = ["dev-1", "dev-2"]
    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        denied = DenyList(str(file), lambda: connected)
        assert denied("dev-3")
        denied.refresh()
        assert caplog.messages == ["deny list: 3 names"]
        denied.begin()
        expected = "deny list: no client is called dev1 (did you mean dev-1?) or stolen"
        assert caplog.messages[1:] == [expected]
        caplog.clear()
        file.write_text("# no more\ndev-1\nDEV-3\n")
        denied.refresh()
        denied.refresh()
        assert caplog.messages == ["deny list: 2 names"], "both are clients'"
        caplog.clear()
        file.write_text("# many\n" + "".join(f"x{number}\n" for number in range(1000)))
        denied.refresh()
        first, second = caplog.messages
        assert (first, len(second) < 200) == ("deny list: 1000 names", True)
        assert second.endswith("or 995 more")


def test_a_client_of_the_run_is_known_though_it_was_denied_before_it_came(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "deny"
    file.write_text("Dev-1\nstolen\n")
    status = ServerStatus()
    arms = [Arm(0, "key", 100, "dev-1")]
    strategy = SimpleNamespace(arms=SimpleNamespace(arms=arms), floors=None, queues=None)
    run: Any = SimpleNamespace(strategy=strategy, totals=RunTotals(), num_rounds=9)
    status.on_start(run)  # as of a run that goes on
    grid: Any = SimpleNamespace(get_nodes=tuple, busy=set, opted_out=set)
    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        DenyList(str(file), lambda: status.client_names(grid)).begin()
    assert caplog.messages[-1] == "deny list: no client is called stolen"
