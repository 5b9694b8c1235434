"""Which clients are at work between two rounds, or steps, as records tell it."""

from __future__ import annotations

import math

from flower_scheduling.strategies.flower import TIMEOUT, ArmResult, RoundRecord, failure_kind

from .round_lines import MAX_LISTED_ARMS


class AtWork:
    """Clients that are there and cannot be selected, since they work on.

    In buffered mode those that have a channel; in rounds those that were not waited for, or have
    missed their deadline, until they are seen available again. Of fleets so large that records list
    no available clients these are, in rounds, of the last one alone.
    """

    def __init__(self) -> None:
        self._begin_s: dict[int, float] = {}  # by arm, when it was given its channel, or NaN

    @property
    def arms(self) -> set[int]:
        """Those that are at work after the last record."""
        return set(self._begin_s)

    def add(self, record: RoundRecord) -> None:
        """Follow a round or step."""
        if record.buffered:
            self._begin_s.update((pick.arm, pick.begin_s) for pick in record.picks)
            for each in record.results:
                if each.begin_s is None or self._begin_s.get(each.arm) == each.begin_s:
                    self._begin_s.pop(each.arm, None)
            return
        available = record.available if record.num_arms <= MAX_LISTED_ARMS else ()
        before = self.arms if available else set[int]()  # else it is not known who is back
        done = {*available, *(each.arm for each in record.late_updates)}
        missed = {each.arm for each in record.results if _is_timeout(each)}
        late = (before - done) | missed | set(record.late)
        self._begin_s = dict.fromkeys(late, math.nan)


def _is_timeout(result: ArmResult) -> bool:
    return result.reason is not None and failure_kind(result.reason) == TIMEOUT
