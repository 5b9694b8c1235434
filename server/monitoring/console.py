"""A line in the log now and then: how far the run is, and who is slow."""

from __future__ import annotations

import time
from typing import Final

from flwr.app import ArrayRecord

from flower_scheduling.strategies.flower import LOGGER, RoundRecord

_QUIET_S: Final = 10.0
"""Longest silence while rounds end."""


class RoundLog:
    """Log the first round, evaluated ones, and others if nothing was logged for ten seconds.

    A round hook.
    """

    def __init__(self) -> None:
        self._said_s: float | None = None

    def __call__(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Take note of a round."""
        now_s = time.monotonic()
        silent = self._said_s is None or now_s - self._said_s >= _QUIET_S
        if not silent and record.accuracy is None:
            return
        self._said_s = now_s
        parts = [f"{record.time_s:.1f} s", f"{len(record.available)} clients available"]
        if record.accuracy is not None:
            parts.append(f"accuracy {record.accuracy:.4f}")
        times = [(result.rtt_s, result.name) for result in record.results if result.rtt_s]
        if times:
            rtt_s, name = max(times)
            parts.append(f"slowest {name} {rtt_s:.3f} s")
        failed = record.completed.count(False)
        if failed:
            parts.append(f"{failed} of {len(record.results)} failed")
        LOGGER.info("round %d: %s", record.round, ", ".join(parts))
