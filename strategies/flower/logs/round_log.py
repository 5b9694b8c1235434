"""The log of a run's rounds: a line each, and at the end the shares and floors of the clients."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ..arm_table import Arm
from ..record import RoundRecord, failure_kind
from ..timed_grid import LOGGER

_MAX_SHOWN: Final = 10  # clients in the line of a round,
_MAX_SHARES: Final = 20  # and in that of the shares
_MAX_REASON: Final = 60
_MAX_METRICS: Final = 3  # of an evaluation on clients


class RoundLog:
    """A log with a line for each round, or now and then one.

    Parameters
    ----------
    num_rounds : int
        The last round; 0: it is not known.
    every_s : float
        Least time between two lines [s]; the first round and evaluated ones have theirs in any
        case. 0: every round; infinite: none at all.
    earlier : iterable of RoundRecord
        Rounds that were logged already, of the run that this one goes on with.
    """

    def __init__(
        self, num_rounds: int, every_s: float = 0.0, earlier: Iterable[RoundRecord] = ()
    ) -> None:
        self._num_rounds = num_rounds
        self._every_s = every_s
        self._logged_s = -math.inf
        self._first: int | None = None
        self._last = 0
        self._turns = 0
        self._buffered = False
        self._joined: list[int] = []  # by arm, the turns before its first round
        self._absent: Counter[int] = Counter()  # turns that were not owed to it
        self._ended: Counter[int] = Counter()
        self._served: Counter[int] = Counter()  # these, and late updates that were used
        self._failed: Counter[int] = Counter()
        for record in earlier if every_s < math.inf else ():
            self._count(record)

    def on_round(self, record: RoundRecord) -> None:
        """Count a round, and log it if it is due."""
        if self._every_s == math.inf:
            return
        self._count(record)
        now_s = time.monotonic()
        evaluated = record.accuracy is not None or record.server_metrics is not None
        due = evaluated or now_s - self._logged_s >= self._every_s
        if due and LOGGER.isEnabledFor(logging.INFO):
            self._logged_s = now_s
            what = "STEP" if record.buffered else "ROUND"
            of = f"/{self._num_rounds}" if self._num_rounds else ""
            LOGGER.info("[%s %d%s] %s", what, record.round, of, round_text(record))

    def _count(self, record: RoundRecord) -> None:
        self._first = record.round if self._first is None else self._first
        self._buffered = record.buffered
        self._last = record.round
        self._joined += [self._turns] * (record.num_arms - len(self._joined))
        self._turns += record.turns
        self._absent.update(dict.fromkeys(record.absent, record.turns))
        self._served.update(record.served)
        ended = [*record.results, *record.late_updates]
        self._ended.update(result.arm for result in ended)
        self._failed.update(result.arm for result in ended if not result.completed)

    def on_end(self, arms: Sequence[Arm], floors: Sequence[float] | None) -> None:
        """Log the share of rounds of each client against its floor, the least kept ones first.

        Of the rounds in which it belonged to the fleet, as floors are.
        """
        if self._first is None or not arms:
            return
        self._joined += [self._turns] * (len(arms) - len(self._joined))  # after the last round
        turns = [self._turns - self._joined[arm.index] - self._absent[arm.index] for arm in arms]
        shares = [self._served[arm.index] / max(turns[arm.index], 1) for arm in arms]
        known = [0.0] * len(arms) if floors is None else [*floors, *[0.0] * len(arms)]
        listed = sorted(arms, key=lambda arm: shares[arm.index] - known[arm.index])
        words = []
        for arm in listed[:_MAX_SHARES]:
            notes = [] if floors is None else [f"floor {known[arm.index]:.2f}"]
            if failed := self._failed[arm.index]:
                notes.append(f"failed {failed} of {self._ended[arm.index]}")
            note = f" ({', '.join(notes)})" if notes else ""
            words.append(f"{arm.name} {shares[arm.index]:.2f}{note}")
        if len(listed) > _MAX_SHARES:
            words.append(f"and {len(listed) - _MAX_SHARES} more")
        of, unit = ("completed work", "steps") if self._buffered else ("rounds", "rounds")
        what = f"shares of {of}" if floors is None else f"shares of {of} against their floors"
        listing = ", ".join(words)
        LOGGER.info("%s, %s %d to %d: %s", what, unit, self._first, self._last, listing)


def round_text(record: RoundRecord) -> str:
    """Return a round in one line: its clients, their round trips or failures, the step."""
    failures = [result for result in record.results if not result.completed]
    # Of many clients those that failed, and then the slowest.
    shown = sorted(record.results, key=lambda r: (r.completed, -(r.rtt_s or 0.0)))
    shown = record.results if len(shown) <= _MAX_SHOWN else shown[:_MAX_SHOWN]
    words = []
    said = set()  # in a buffered step a client may fail in the same way many times
    for result in shown:
        if result.reason is None:
            what = "" if result.rtt_s is None else f" {seconds(result.rtt_s)}"
        elif (result.arm, result.reason) in said:
            what = f" {failure_kind(result.reason)} again"
        else:
            said.add((result.arm, result.reason))
            reason = result.reason
            cut = reason if len(reason) <= _MAX_REASON else f"{reason[:_MAX_REASON]}..."
            what = f" {cut}"
        words.append(f"{result.name}{what}")
    if more := len(record.results) - len(shown):
        words.append(f"and {more} more")
    verb = "done" if record.buffered else "selected"
    parts = [f"{verb} {', '.join(words) or 'none'}"]
    if record.stepped:
        parts.append(f"new model from {record.completed.count(True)} of {len(record.results)}")
    else:
        parts.append(f"no step: {record.no_step}")
    if failures and len(record.results) > _MAX_SHOWN:
        kinds = Counter(failure_kind(result.reason or "") for result in failures)
        parts.append("failed: " + ", ".join(f"{kind} {n}" for kind, n in kinds.most_common()))
    if stale := max((result.staleness or 0 for result in record.results), default=0):
        parts.append(f"up to {stale} step{'s' if stale > 1 else ''} old")
    if record.late:
        parts.append(f"{len(record.late)} not waited for")
    if record.used_late:
        parts.append(f"{len(record.used_late)} late ones used")
    if record.accuracy is not None:
        parts.append(f"accuracy {record.accuracy:.4f}")
    elif record.loss is not None:
        parts.append(f"loss {record.loss:.4g}")
    elif record.server_metrics:
        parts.append(metrics_text(record.server_metrics, _MAX_METRICS))
    if record.client_metrics:
        parts.append(f"on clients {metrics_text(record.client_metrics, _MAX_METRICS)}")
    parts.append(f"{len(record.available)} available, after {seconds(record.time_s)}")
    return "; ".join(parts)


def metrics_text(metrics: Mapping[str, float], most: int) -> str:
    """Return metrics in words, so many of them at most."""
    shown = [f"{key} {value:.4g}" for key, value in list(metrics.items())[:most]]
    more = len(metrics) - len(shown)
    return ", ".join([*shown, f"{more} more"] if more else shown)


def seconds(time_s: float) -> str:
    """Return a time in words, to some three digits."""
    digits = 0 if time_s >= 100 else 1 if time_s >= 10 else 2 if time_s >= 0.1 else 4
    return f"{time_s:.{digits}f} s"
