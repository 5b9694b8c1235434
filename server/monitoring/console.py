"""The console log: a line now and then on how far the run is, and which client is slow."""

from __future__ import annotations

import math
import time
from typing import Final

from flwr.app import ArrayRecord

from flower_scheduling.strategies.flower import LOGGER, RoundRecord

from ..callbacks import RoundCallback, Run

_QUIET_S: Final = 10.0  # longest time without a line, while rounds end


class ConsoleLog(RoundCallback):
    """A callback that logs the first round, evaluated ones, and else one every ten seconds."""

    def __init__(self) -> None:
        self._logged_s = -math.inf

    def on_start(self, run: Run) -> None:
        """Log the next round in any case."""
        self._logged_s = -math.inf

    def on_round(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Log a round, if it is due."""
        now_s = time.monotonic()
        if record.accuracy is None and now_s - self._logged_s < _QUIET_S:
            return
        self._logged_s = now_s
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
