"""The deny list: read when it has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_scheduling.errors import ConfigError
from flower_scheduling.server.transport.deny_list import DenyList


def test_deny_list_is_read_when_it_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "deny"
    file.write_text("a\n")
    denied = DenyList(str(file))
    assert (denied("a"), denied("b")) == (True, False)
    file.write_text("a\r\n  b \n\n")
    assert denied("b")
    file.unlink()
    assert denied("b"), "what was read last still counts"
    with pytest.raises(ConfigError, match="deny-list"):
        DenyList(str(file))
