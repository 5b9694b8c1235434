"""Warnings that come all the time are counted."""

from __future__ import annotations

from flower_scheduling.strategies.flower import (
    RateLimitedLog,
)


def test_same_warning_comes_once_a_minute_with_a_count(said: list[str]) -> None:
    now = [0.0]
    warnings = RateLimitedLog(lambda: now[0])
    for i in range(100):
        warnings.log("refused", "a", f"refused a, {i}")
        warnings.log("refused", f"made-up-{i}", f"refused {i}")
    assert len(said) == 20
    assert said[:2] == ["refused a, 0", "refused 0"]
    now[0] = 60.0
    warnings.flush_suppressed()
    assert said[-1] == "refused: 180 more in a minute were not logged"
    warnings.log("refused", "a", "refused a again")
    assert said[-1] == "refused a again"
    warnings.flush_suppressed(all_kinds=True)
    assert len(said) == 22, "nothing was withheld"
