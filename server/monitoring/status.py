"""What a running server tells about itself: who is there, who is slow, who is owed rounds."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from flwr.app import ArrayRecord
from rich.markup import escape
from rich.table import Table

from flower_scheduling.client.wire.frames import package_version
from flower_scheduling.strategies.flower import RoundRecord, ScheduledStrategy

from ..runs.totals import RunHistory, Tallies
from ..transport.grid import StreamGrid
from .alarms import AlarmLog

_MAX_ROWS = 40
"""More arms are not listed for people; ``--json`` has them all."""


class RunStatus:
    """Count along as a run goes, and tell when asked, from any thread.

    Parameters
    ----------
    num_rounds : int, optional
        Rounds at most; ``None``: unknown, somebody else's ServerApp decides.
    alarm_log : AlarmLog, optional
        Who watches for what people should look at.
    """

    def __init__(self, num_rounds: int | None = None, alarm_log: AlarmLog | None = None) -> None:
        self._num_rounds = num_rounds
        self._alarm_log = alarm_log or AlarmLog()
        self._last_seen: dict[int, float] = {}  # by arm, of those that have left
        self._begin_s = time.monotonic()
        self._lock = threading.Lock()  # guards what follows
        self._strategy: ScheduledStrategy | None = None
        self._tallies = Tallies()
        self._queues: list[float] | None = None
        self._floors: list[float] | None = None
        self._last: RoundRecord | None = None
        self._accuracy: float | None = None
        self._loss: float | None = None

    def watch(self, strategy: ScheduledStrategy, history: RunHistory) -> None:
        """Follow a strategy that is about to start.

        Parameters
        ----------
        strategy : ScheduledStrategy
            The strategy.
        history : RunHistory
            The rounds of an earlier part of the run, which count too.
        """
        evaluated = history.evaluated
        with self._lock:
            self._strategy = strategy
            self._tallies = deepcopy(history.tallies)
            self._floors, self._queues = strategy.floors, strategy.queues
            self._last = history.last
            if evaluated is not None:
                self._accuracy, self._loss = evaluated.accuracy, evaluated.loss
        strategy.add_hook(self._record)

    def snapshot(self, grid: StreamGrid) -> dict[str, Any]:
        """Return the present state, ready for JSON.

        Parameters
        ----------
        grid : StreamGrid
            Where the clients are.

        Returns
        -------
        dict
            ``connected``, ``available``, ``busy`` and ``opted_out`` count clients; ``round`` is
            the last one that ended, 0 before; times are in seconds, ``null`` is unknown. Each of
            ``arms`` has its state, ``selections``, ``completed``, ``mean_rtt_s``, ``last_rtt_s``,
            ``share`` of rounds against its ``floor``, virtual ``queue``, and ``failures`` by
            reason. ``alarms`` are what to look at, each with ``kind`` and ``text``. Rounds are
            counted since the run began, also if this server resumed it; ``uptime_s``, and what
            was refused, late or ignored, since this server started.
        """
        nodes, busy, opted_out = _who(grid)
        with self._lock:
            last = self._last
            arms = [] if self._strategy is None else list(self._strategy.arms.arms)
            rounds = self._tallies.rounds
            rows = []
            for arm in arms:
                tally = self._tallies[arm.index]
                rows.append(
                    {
                        "index": arm.index,
                        "name": arm.name,
                        "num_examples": arm.num_examples,
                        **_state(arm.node_id, nodes, busy, opted_out),
                        "selections": tally.selections,
                        "completed": tally.completed,
                        "share": tally.selections / rounds if rounds else None,
                        "floor": _at(self._floors, arm.index),
                        "queue": _at(self._queues, arm.index),
                        "mean_rtt_s": tally.mean_rtt_s,
                        "last_rtt_s": tally.last_rtt_s,
                        "failures": dict(tally.failures),
                    }
                )
            known = {arm.node_id for arm in arms}
            rows += [
                {"index": None, "name": name, **_state(node_id, nodes, busy, opted_out)}
                for node_id, name in sorted(nodes.items())
                if node_id not in known  # not yet an arm, or somebody else's ServerApp
            ]
            return {
                "version": package_version(),
                "uptime_s": time.monotonic() - self._begin_s,
                "round": last.round if last else 0,
                "rounds": self._num_rounds,
                "steps": self._tallies.steps,
                "time_s": last.time_s if last else None,
                "round_s": last.round_s if last else None,
                "accuracy": self._accuracy,
                "loss": self._loss,
                "connected": len(nodes),
                "available": len(nodes.keys() - busy - opted_out),
                "busy": len(busy),
                "opted_out": len(opted_out),
                "refused": grid.num_refused,
                "late_replies": grid.num_late_replies,
                "ignored_replies": grid.num_ignored_replies,
                "alarms": [{"kind": a.kind, "text": a.text} for a in self._alarm_log.active],
                "arms": rows,
            }

    def presence(self, grid: StreamGrid) -> dict[str, Any]:
        """Return who is there now, ready for JSON: :class:`.PresenceWriter`.

        Parameters
        ----------
        grid : StreamGrid
            Where the clients are.

        Returns
        -------
        dict
            ``connected``, ``busy`` and ``opted_out`` list arms, ``newcomers`` names of clients
            that are no arms yet; ``last_seen`` has the arms that have left, and when [s since
            1970].
        """
        nodes, busy, opted_out = _who(grid)
        with self._lock:
            arms = [] if self._strategy is None else list(self._strategy.arms.arms)
        connected = [arm.index for arm in arms if arm.node_id in nodes]
        for arm in connected:
            self._last_seen.pop(arm, None)
        for arm in {arm.index for arm in arms}.difference(connected):
            self._last_seen.setdefault(arm, round(time.time(), 1))
        known = {arm.node_id for arm in arms}
        return {
            "connected": connected,
            "busy": [arm.index for arm in arms if arm.node_id in busy],
            "opted_out": [arm.index for arm in arms if arm.node_id in opted_out],
            "newcomers": sorted(name for node, name in nodes.items() if node not in known),
            "last_seen": {str(arm): seen for arm, seen in self._last_seen.items()},
            "refused": grid.num_refused,
        }

    def _record(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Count a round; a round hook, so what it reads of the strategy stands still."""
        strategy = self._strategy
        assert strategy is not None
        with self._lock:
            self._last = record
            self._floors, self._queues = strategy.floors, strategy.queues
            self._tallies.count(record)
            if record.accuracy is not None:
                self._accuracy, self._loss = record.accuracy, record.loss


def status_table(status: Mapping[str, Any]) -> Table:
    """Return a status as a table for people, those who are not there and the slowest first."""
    of = f" of {status['rounds']}" if status["rounds"] else ""
    accuracy = "" if status["accuracy"] is None else f", accuracy {status['accuracy']:.4f}"
    caption = (
        f"{status['connected']} connected, {status['available']} available, "
        f"{status['busy']} busy, {status['opted_out']} opted out, {status['refused']} refused"
    )
    caption += "\nshare of rounds against its floor; owed: virtual queue; round trips in seconds"
    table = Table(title=f"round {status['round']}{of}{accuracy}", caption=caption)
    for column in ("client", "state", "rounds", "share", "floor", "owed", "mean trip", "last trip"):
        table.add_column(column, justify="left" if column in ("client", "state") else "right")
    table.add_column("failures")
    rows = sorted(status["arms"], key=lambda arm: (arm["connected"], -(arm.get("mean_rtt_s") or 0)))
    for arm in rows[:_MAX_ROWS]:
        state = "away" if not arm["connected"] else "opted out" if arm["opted_out"] else ""
        table.add_row(
            escape(arm["name"]),  # clients choose their names
            state or ("busy" if arm["busy"] else "free"),
            str(arm.get("selections", "")),
            *(_number(arm.get(key)) for key in ("share", "floor", "queue")),
            *(_number(arm.get(key)) for key in ("mean_rtt_s", "last_rtt_s")),
            ", ".join(f"{kind} {count}" for kind, count in arm.get("failures", {}).items()),
        )
    if len(rows) > _MAX_ROWS:
        table.add_row(f"… and {len(rows) - _MAX_ROWS} more")
    return table


def _who(grid: StreamGrid) -> tuple[dict[int, str], set[int], set[int]]:
    """Return who is connected, by name, who of them is busy, and who has opted out."""
    nodes = {node.node_id: node.name for node in grid.get_nodes()}
    # Who has just vanished is still waited for, but is not there.
    return nodes, grid.busy() & nodes.keys(), grid.opted_out()


def _state(
    node_id: int, nodes: Mapping[int, str], busy: set[int], opted_out: set[int]
) -> dict[str, bool]:
    return {
        "connected": node_id in nodes,
        "busy": node_id in busy,
        "opted_out": node_id in opted_out,
    }


def _at(values: list[float] | None, arm: int) -> float | None:
    return values[arm] if values is not None and arm < len(values) else None


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
