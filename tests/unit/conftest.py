"""What unit tests may not do."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import urllib3.util.connection  # noqa: F401  # it binds a socket when it is imported, as flwr does


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test fail that binds or connects a socket; socket pairs are of the family AF_UNIX."""

    def guarded(name: str) -> Any:
        real = getattr(socket.socket, name)

        def call(self: socket.socket, address: Any) -> Any:
            if self.family != socket.AF_UNIX:
                pytest.fail(
                    f"a unit test must open no socket, this is {name}({address!r}): "
                    "move it to tests/integration"
                )
            return real(self, address)

        return call

    for name in ("bind", "connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, guarded(name))
