"""A disk that has no room for some files of a run directory."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from flower_scheduling.server.runs import directory


def leave_no_room(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let files of these names meet a full disk."""
    write = directory.write_whole

    def limited(target: Path, data: Any, **more: Any) -> None:
        if target.name in names:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        write(target, data, **more)

    monkeypatch.setattr(directory, "write_whole", limited)
