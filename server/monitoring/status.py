"""The status of a running server: which clients are there, slow, owed rounds, or failing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from flwr.app import ArrayRecord
from rich import box
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table

from flower_scheduling.client.wire.frames import package_version
from flower_scheduling.strategies.deadline import AUTO
from flower_scheduling.strategies.flower import Arm, RoundRecord

from ..callbacks import RoundCallback, Run
from ..runs.totals import RunTotals
from ..transport.grid import StreamGrid
from .alarms import AlarmLog

_MAX_METRICS: Final = 3
_MAX_ROWS: Final = 40  # arms in the table for people; ``--json`` has them all
_NAME_WIDTH: Final = 20  # of a name, in a window in which failures want room too
_AT_ONCE: Final = 100  # arms whose rows are made at a time


class ServerStatus(RoundCallback):
    """The status of a run and of its clients' connections; any thread may read it.

    Parameters
    ----------
    num_rounds : int, optional
        Rounds at most; ``None``: unknown until another app starts its run.
    alarm_log : AlarmLog, optional
        The alarms of the run.
    """

    def __init__(self, num_rounds: int | None = None, alarm_log: AlarmLog | None = None) -> None:
        self._num_rounds = num_rounds
        self._alarm_log = alarm_log or AlarmLog()
        self._begin_s = time.monotonic()
        self._run: Run | None = None
        self._totals = RunTotals()
        self._floors: list[float] | None = None
        self._queues: list[float] | None = None
        self._last_seen: dict[int, float] = {}  # by arm, of those that have left

    def on_start(self, run: Run) -> None:
        """Follow this run; rounds of an earlier part of it count too."""
        self._last_seen = {}
        self._totals, self._run, self._num_rounds = run.totals, run, run.num_rounds
        self._read_strategy(run)

    def on_round(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Read floors and queues, which stand still between two rounds."""
        if self._run is not None:
            self._read_strategy(self._run)

    def _read_strategy(self, run: Run) -> None:
        self._floors, self._queues = run.strategy.floors, run.strategy.queues

    def snapshot(self, grid: StreamGrid) -> dict[str, Any]:
        """Return the present state, ready for JSON.

        Parameters
        ----------
        grid : StreamGrid
            Where the clients are.

        Returns
        -------
        dict
            ``connected``, ``available``, ``busy``, ``opted_out`` and ``left_out`` count clients,
            the last those that have failed time and again, or have no examples; ``round`` is the
            last one that ended, 0 before; times are in seconds, ``null`` is unknown. Each of
            ``arms`` has its state, ``selections``, ``completed``, ``mean_rtt_s``, ``last_rtt_s``,
            ``share`` of rounds against its ``floor``, virtual ``queue``, and ``failures`` by
            reason. ``deadline_s`` is the given deadline, or the last that was found. ``alarms`` are
            what to look at, each with ``kind`` and ``text``. Rounds are counted since the run
            began, also if this server resumed it; ``uptime_s``, and what was refused, late or
            ignored, since this server started.
        """
        nodes, totals = _Nodes.of(grid), self._totals
        left_out = self._left_out(grid)
        with totals.lock:
            last, evaluated, arms = totals.last, totals.evaluated, self._arms()
            unable = {arm.node_id for arm in arms if arm.index in left_out}
            unable |= nodes.busy | nodes.opted_out
            status = {
                "version": package_version(),
                "uptime_s": time.monotonic() - self._begin_s,
                "round": last.round if last else 0,
                "rounds": self._num_rounds,
                "steps": totals.steps,
                "buffered": last is not None and last.buffered,
                "time_s": last.time_s if last else None,
                "round_s": last.round_s if last else None,
                "deadline_s": self._deadline_s(last),
                "accuracy": evaluated.accuracy if evaluated else None,
                "loss": totals.loss,
                "server_metrics": totals.server_metrics,
                "client_metrics": totals.client_metrics,
                "connected": len(nodes.names),
                "available": len(nodes.names.keys() - unable),
                "busy": len(nodes.busy),
                "opted_out": len(nodes.opted_out),
                "left_out": len(left_out),
                "refused": grid.num_refused,
                "late_replies": grid.num_late_replies,
                "ignored_replies": grid.num_ignored_replies,
                "alarms": [{"kind": a.kind, "text": a.text} for a in self._alarm_log.active],
            }
        rows: list[dict[str, Any]] = []
        for begin in range(0, len(arms), _AT_ONCE):
            with totals.lock:  # of ten thousand clients the round need not wait for all
                rows += [
                    {**self._row(arm, nodes), "left_out": arm.index in left_out}
                    for arm in arms[begin : begin + _AT_ONCE]
                ]
            time.sleep(0)  # let the event loop stamp what has arrived
        known = {arm.node_id for arm in arms}
        rows += [
            {"index": None, "name": name, **nodes.state(node_id), "left_out": False}
            for node_id, name in sorted(nodes.names.items())
            if node_id not in known  # not yet an arm, or of another ServerApp
        ]
        return {**status, "arms": rows}

    def _deadline_s(self, last: RoundRecord | None) -> float | None:
        """Return the deadline that was given, or that of the last round if it is found."""
        given = AUTO if self._run is None else self._run.tau_max_s
        return (last.deadline_s if last else None) if given == AUTO else given

    def client_names(self, grid: StreamGrid) -> set[str]:
        """Return the names of the clients that are connected or belong to the run."""
        return {*_Nodes.of(grid).names.values(), *(arm.name for arm in self._arms())}

    def connections(self, grid: StreamGrid) -> dict[str, Any]:
        """Return which clients are connected now, ready for JSON: :class:`.LiveFile`.

        Parameters
        ----------
        grid : StreamGrid
            Where the clients are.

        Returns
        -------
        dict
            ``connected``, ``busy``, ``opted_out`` and ``left_out`` list arms, ``newcomers`` names
            of clients that are no arms yet; ``last_seen`` has the arms that have left, and when [s
            since 1970].
        """
        nodes, arms = _Nodes.of(grid), self._arms()
        connected = [arm.index for arm in arms if arm.node_id in nodes.names]
        for arm in connected:
            self._last_seen.pop(arm, None)
        for arm in {arm.index for arm in arms}.difference(connected):
            self._last_seen.setdefault(arm, round(time.time(), 1))
        known = {arm.node_id for arm in arms}
        return {
            "connected": connected,
            "busy": [arm.index for arm in arms if arm.node_id in nodes.busy],
            "opted_out": [arm.index for arm in arms if arm.node_id in nodes.opted_out],
            "left_out": sorted(self._left_out(grid)),
            "newcomers": sorted(name for node, name in nodes.names.items() if node not in known),
            "last_seen": {str(arm): seen for arm, seen in self._last_seen.items()},
            "refused": grid.num_refused,
        }

    def _left_out(self, grid: StreamGrid) -> set[int]:
        return set() if self._run is None else set(self._run.strategy.arms.left_out(grid.now()))

    def _arms(self) -> list[Arm]:
        return [] if self._run is None else list(self._run.strategy.arms.arms)

    def _row(self, arm: Arm, nodes: _Nodes) -> dict[str, Any]:
        counts = self._totals.grow(arm.index + 1)[arm.index]
        return {
            "index": arm.index,
            "name": arm.name,
            "num_examples": arm.num_examples,
            **nodes.state(arm.node_id),
            "selections": counts.requests,
            "completed": counts.completed,
            "share": self._totals.share(counts) if counts.first_round else None,
            "floor": _at(self._floors, arm.index),
            "queue": _at(self._queues, arm.index),
            "mean_rtt_s": counts.mean_rtt_s,
            "last_rtt_s": counts.last_rtt_s,
            "failures": dict(counts.failures),
        }


class _Nodes(NamedTuple):
    """The connected clients: their names by node, and which are busy or have opted out."""

    names: dict[int, str]
    busy: set[int]
    opted_out: set[int]

    @classmethod
    def of(cls, grid: StreamGrid) -> _Nodes:
        names = {node.node_id: node.name for node in grid.get_nodes()}
        # A client that has just vanished is still waited for, but not connected.
        return cls(names, grid.busy() & names.keys(), grid.opted_out())

    def state(self, node_id: int) -> dict[str, bool]:
        return {
            "connected": node_id in self.names,
            "busy": node_id in self.busy,
            "opted_out": node_id in self.opted_out,
        }


def status_table(status: Mapping[str, Any]) -> Table:
    """Return a status as a table for people: clients that are away first, then the slowest."""
    of = f" of {status['rounds']}" if status["rounds"] else ""
    found = {"accuracy": status["accuracy"], "loss": status["loss"]}
    found |= status["server_metrics"] or {}
    metrics = [f", {key} {value:.4g}" for key, value in found.items() if value is not None]
    caption = (
        f"{status['connected']} connected, {status['available']} available, "
        f"{status['busy']} busy, {status['opted_out']} opted out, "
        f"{status.get('left_out', 0)} left out, {status['refused']} refused"
    )
    # A server of an earlier version does not say whether its rounds are steps.
    unit, share_of = ("step", "updates") if status.get("buffered") else ("round", "rounds")
    caption += (
        f"\nshare of {share_of} against its floor; owed: virtual queue; round trips in seconds"
    )
    title = f"{unit} {status['round']}{of}{escape(''.join(metrics[:_MAX_METRICS]))}"
    rows = sorted(status["arms"], key=lambda arm: (arm["connected"], -(arm.get("mean_rtt_s") or 0)))
    longest = max((cell_len(arm["name"]) for arm in rows[:_MAX_ROWS]), default=0)
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    # A name is never cut: what is too long for a narrow window goes on below.
    table.add_column("client", overflow="fold", min_width=min(longest, _NAME_WIDTH))
    for column in ("state", share_of, "share", "floor", "owed", "mean\ntrip", "last\ntrip"):
        table.add_column(column, justify="left" if column == "state" else "right", no_wrap=True)
    table.add_column("failures", overflow="fold")
    for arm in rows[:_MAX_ROWS]:
        state = "away" if not arm["connected"] else "opted out" if arm["opted_out"] else ""
        if not state and arm.get("left_out"):
            state = "left out"
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


def _at(values: list[float] | None, arm: int) -> float | None:
    return values[arm] if values is not None and arm < len(values) else None


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
