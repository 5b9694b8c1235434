"""Membership of a run: known arms, their availability, pending queries of new clients."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from flower_scheduling.reasons import TIMEOUT

from .arm_discovery import ArmDiscovery
from .arm_table import Arm, ArmTable
from .logs.rate_limited_log import RateLimitedLog
from .record import ArmResult, failure_kind
from .timed_grid import LOGGER, TimedExchange

_ANSWER_STEP_S = 0.05
_LOG_AGAIN_S = 10.0
_FIRST_WAIT = 10  # times the bound on other waits
_FIRST_PAUSE = 10  # rounds without a client that has no examples
_LONGEST_PAUSE = 160
_MAX_NAMED = 5
_FAILURES = 3  # in a row, after which a client rests
_LONGEST_REST_S = 60.0
_LONGEST_REST = 8.0  # times what its work took, if that is longer
_GONE_ROUNDS = 100  # away, after which a client does not count in floors by size


def rest_after(failures: int, work_s: float) -> float:
    """Return for how long a client is left out that fails time and again [s].

    After the third failure in a row it is as long as its work took, and a second at least; after
    each further one twice as long, up to eight times as long as its work takes, or a minute.

    Parameters
    ----------
    failures : int
        Failures in a row so far.
    work_s : float
        How long its work took [s].
    """
    if failures < _FAILURES:
        return 0.0
    shortest_s = max(1.0, work_s)
    longest_s = max(_LONGEST_REST_S, _LONGEST_REST * shortest_s)
    return min(shortest_s * 2.0 ** min(failures - _FAILURES, 32), longest_s)


class Membership:
    """Keep the table of arms in step with a grid, and wait until enough of them are available.

    Parameters
    ----------
    wait_s : float
        Longest wait for clients [s].
    query_timeout_s : float
        Longest wait for a joining client to tell its name and size [s].
    asks : bool
        Whether clients are asked for these.
    unit : str
        What rounds are called in the log: steps in buffered mode.

    Attributes
    ----------
    table : ArmTable
        All arms so far.
    sizes_changed : bool
        Whether a size that counts has changed since this was last set to false.
    """

    def __init__(
        self, wait_s: float, query_timeout_s: float, *, asks: bool = True, unit: str = "round"
    ) -> None:
        self._unit = unit
        self.table = ArmTable()
        self.sizes_changed = True
        self._wait_s = wait_s
        self._discovery = ArmDiscovery(self.table, query_timeout_s, asks=asks)
        self._log = RateLimitedLog(time.monotonic)

    @property
    def arms(self) -> list[Arm]:
        """All arms so far, by index."""
        return self.table.arms

    def sync(self, grid: TimedExchange) -> None:
        """Read the connected clients, and query new ones for name and size."""
        self.table.sync(grid)
        self._discovery.ask(grid)
        if self._discovery.collect(grid):
            self.sizes_changed = True
            self._discovery.ask(grid)  # what was learned concerns others

    def note_members(self) -> None:
        """Note which arms belong to the fleet in the round that begins, and which are gone."""
        before = self.table.gone
        self.table.note_members(_GONE_ROUNDS)
        self.sizes_changed |= not np.array_equal(self.table.gone, before)

    def wait_for_first(self, grid: TimedExchange) -> None:
        """Wait for a first client, if there is none yet: devices may be started after the server.

        Rounds without any client would be lost, so the bound is ten times that of other waits.
        """
        if not len(self.table):
            self.wait_for(grid, 1, f"the first {self._unit}", _FIRST_WAIT * self._wait_s)

    def wait_for(
        self, grid: TimedExchange, num_clients: int, what: str, wait_s: float | None = None
    ) -> None:
        """Wait until so many clients are available, within the bound; log the wait now and then.

        It does not wait where so many are there and none of them has examples. Where enough are
        there, and some of them rest after failures, it waits until enough have rested, whatever the
        bound. At the bound those that are connected, and have not told their name and size, are
        taken as they are: of a node that starts a process for each message the first answer may
        take longer.
        """
        wait_s = self._wait_s if wait_s is None else wait_s
        end_s = grid.now() + wait_s
        self.sync(grid)
        logged: tuple[int, float] | None = None
        while (available := self.table.num_available) < num_clients:
            if self.table.all_empty(num_clients):  # of no use to wait for
                return
            # Not from the time waited: what is left by that may be too little to move a clock.
            left_s = end_s - grid.now()
            rests = sorted(arm.rest_end_s for arm in self.table.resting)
            enough_rest = available + len(rests) >= num_clients
            if left_s <= 0.0 and not enough_rest:
                self._take_silent(what)
                return
            waited_s = wait_s - left_s
            if logged is None or available != logged[0] or waited_s - logged[1] >= _LOG_AGAIN_S:
                logged = (available, waited_s)
                LOGGER.info(
                    "waiting for clients for %s: %d of %d available, %.0f of %.3g s%s%s",
                    what,
                    available,
                    num_clients,
                    waited_s,
                    wait_s,
                    self._silent_text(),
                    self._resting_text(),
                )
            pauses = [left_s] if left_s > 0.0 else []
            pauses += [max(rests[0] - grid.now(), 0.0)] if rests else []
            pauses += [_ANSWER_STEP_S] if len(self._discovery) else []
            grid.wait(min(pauses))
            self.sync(grid)

    def _take_silent(self, what: str) -> None:
        """Let clients that have not answered their query take part without."""
        if arms := self._discovery.give_up():
            text = "%s: too few clients have sent their size: trying those that are connected, %s"
            LOGGER.warning(text, what, _listed(arms))
            self.sizes_changed = True

    def _silent_text(self) -> str:
        """Return which clients are connected and free, but have not answered their query."""
        arms = self.table.unqueried()
        return f"; connected, but without an answer so far: {_listed(arms)}" if arms else ""

    def _resting_text(self) -> str:
        """Return which clients rest after failures."""
        arms = self.table.resting
        return f"; left out for a while after failures: {_listed(arms)}" if arms else ""

    def note_results(self, results: Iterable[ArmResult], now_s: float) -> None:
        """Let clients rest whose work comes to nothing time and again.

        One that fails at once would otherwise be asked without end where the others are away or at
        work. For how long see :func:`rest_after`; missed deadlines are of the link, and do not
        count.

        Parameters
        ----------
        results : iterable of ArmResult
            What has ended, each result once.
        now_s : float
            The grid's time [s].
        """
        for result in results:
            arm = self.arms[result.arm]
            if result.reason is None:
                if arm.failures:
                    arm.failures, arm.rest_end_s = 0, 0.0
                    self.table.note(arm)
            elif (kind := failure_kind(result.reason)) != TIMEOUT:
                arm.failures += 1
                if rest_s := rest_after(arm.failures, result.rtt_s or 0.0):
                    arm.rest_end_s = now_s + rest_s
                    self._log_rest(arm, kind, rest_s)
                self.table.note(arm)

    def _log_rest(self, arm: Arm, kind: str, rest_s: float) -> None:
        if arm.failures == _FAILURES:
            self._log.log(
                "left out after failures",
                arm.name,
                f"{arm.name} has failed {_FAILURES} times in a row ({kind}): it is left out for "
                f"{rest_s:.3g} s, for longer each time that it fails again, and owed nothing "
                "meanwhile",
            )

    def learn_sizes(self, server_round: int, num_examples: Mapping[int, float | None]) -> None:
        """Take the ``num-examples`` of replies, by arm, as sizes.

        A client that told its size when it was asked keeps that one while it has examples. One
        without is left out for some rounds, longer each time.
        """
        for arm, found in num_examples.items():
            known = self.arms[arm]
            if found == 0:
                self._leave_out(known, server_round)
            elif found is not None and (not known.sized or known.empty):
                size = max(1, round(found))
                if size != known.num_examples:
                    self.sizes_changed = True
                    known.num_examples = size
                    self.table.note(known)

    def _leave_out(self, arm: Arm, server_round: int) -> None:
        pause = _FIRST_PAUSE
        if arm.empty:  # tried again in vain
            pause = min(_LONGEST_PAUSE, 2 * max(_FIRST_PAUSE, arm.pause))
        else:
            self.sizes_changed = True
            text = "%s has no examples: it is left out for %d %ss, and owed none while it is so"
            LOGGER.warning(text, arm.name, pause, self._unit)
        arm.num_examples, arm.pause, arm.next_try = 0, pause, server_round + pause
        self.table.note(arm)


def _listed(arms: Sequence[Arm]) -> str:
    names = ", ".join(arm.name for arm in arms[:_MAX_NAMED])
    return f"{names} and {len(arms) - _MAX_NAMED} more" if len(arms) > _MAX_NAMED else names
