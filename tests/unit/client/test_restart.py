"""What of a client outlives a new beginning: its arguments, its opt-out, its number."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import pytest

from flower_scheduling.client.restart import (
    begin_anew,
    take_slot_number,
    take_state,
    takes_work,
)


@pytest.mark.parametrize(("available", "slot"), [(True, None), (False, 0), (True, 7)])
def test_the_same_program_begins_with_what_was(
    available: bool, slot: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []

    def begin(*what: Any) -> None:
        begun.append(what)
        for key, value in what[2].items():
            if key.endswith("STATE"):  # the file is closed with this process
                what[2][key] = str(os.dup(int(value)))

    monkeypatch.setattr(os, "execve", begin)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-X", "dev", "flower-client", "--name", "a"])
    before = signal.getsignal(signal.SIGUSR1)
    try:
        begin_anew({"HOME": "/here"}, b"state", available=available, slot=slot)
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN, "until there is a handler"
    finally:
        signal.signal(signal.SIGUSR1, before)
    ((program, words, environment),) = begun
    assert program == words[0] == sys.executable
    assert words[1:] == ["-X", "dev", "flower-client", "--name", "a"]
    assert environment["HOME"] == "/here"
    for name in environment.keys() - {"HOME"}:
        assert not name.startswith("FLOWER_CLIENT_"), "it would be taken for a flag's"
        monkeypatch.setenv(name, environment[name])
    assert takes_work() is available
    assert take_slot_number() == slot
    assert take_state() == b"state"
    assert (takes_work(), take_slot_number(), take_state()) == (True, None, b""), "once"
