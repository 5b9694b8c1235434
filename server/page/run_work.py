"""The work of a buffered run: which client had which channel when, and what each client did."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from flower_scheduling.strategies.flower import RoundRecord, failure_kind

from ..runs.at_work import AtWork
from .numbers import number

_PIECES: Final = 600  # of the chart of channels
_RESULTS: Final = 500_000  # that are kept for the histories of clients
_HISTORY: Final = 500  # results of a client's history
_TINY_S: Final = 1e-9


@dataclass(slots=True)
class _Piece:
    arm: int
    begin_s: float
    end_s: float
    step: int  # in which it ended
    picked_in: int  # step in which the channel was given to it
    staleness: int | None
    reason: str | None


class RunWork:
    """The last pieces of work by channel, and the last results by client.

    Memory is bounded: 600 pieces, and 500,000 results of some twenty bytes each.
    """

    def __init__(self) -> None:
        self._pieces: deque[_Piece] = deque(maxlen=_PIECES)
        self._under_way: dict[int, tuple[float, int]] = {}
        self._at_work = AtWork()
        self._kinds: list[str | None] = [None]
        self._arms, self._rounds, self._kind = array("i"), array("i"), array("i")
        self._rtt_s = array("f")
        self.buffered = False
        """Whether the run is of buffered steps."""

    @property
    def at_work(self) -> list[int]:
        """Clients that have a channel, or work on though their round has ended."""
        return list(self._at_work.arms)

    def add(self, record: RoundRecord, deadline_s: float | None) -> None:
        """Add a round or step; the deadline is the one of the settings [s], if they have one."""
        self.buffered |= record.buffered
        self._at_work.add(record)
        self._note_results(record)
        if not record.buffered:
            return
        begun = {(pick.arm, pick.begin_s) for pick in record.picks}
        for result in record.results:
            if result.begin_s is None:
                continue
            picked_in = record.round
            if (result.arm, result.begin_s) in begun:
                begun.remove((result.arm, result.begin_s))
            else:
                begin_s, picked_in = self._under_way.pop(result.arm, (None, 0))
                if begin_s != result.begin_s:
                    picked_in = 0  # it was not recorded
            longest_s = record.deadline_s or deadline_s or 0.0
            end_s = result.begin_s + (longest_s if result.rtt_s is None else result.rtt_s)
            self._pieces.append(
                _Piece(
                    result.arm,
                    result.begin_s,
                    min(end_s, record.time_s),
                    record.round,
                    picked_in,
                    result.staleness,
                    result.reason and failure_kind(result.reason),
                )
            )
        for arm, begin_s in begun:
            self._under_way[arm] = begin_s, record.round

    def channels(self, num_channels: int) -> dict[str, Any] | None:
        """Return the last pieces of work by channel, ready for JSON; ``None`` in rounds.

        Which of the channels a client had is not recorded and makes no difference: each piece is
        put on one that was free then, the one that has been free for the shortest time.

        Parameters
        ----------
        num_channels : int
            N.
        """
        if not self.buffered:
            return None
        pieces = sorted(self._pieces, key=lambda piece: piece.begin_s)
        # What a server that was started anew had lost looks as if it went on for ever.
        newest = sorted(self._under_way.items(), key=lambda item: item[1])[-max(num_channels, 1) :]
        pieces += [_Piece(arm, at, np.inf, 0, step, None, None) for arm, (at, step) in newest]
        pieces.sort(key=lambda piece: piece.begin_s)
        free_s: list[float] = []
        lanes = []
        for piece in pieces:
            lane, best_s = -1, -np.inf
            for each, since_s in enumerate(free_s):
                if best_s < since_s <= piece.begin_s + _TINY_S:
                    lane, best_s = each, since_s
            if lane < 0:
                lane = len(free_s)
                free_s.append(0.0)
            free_s[lane] = piece.end_s
            lanes.append(lane)
        return {
            "channel": lanes,
            "arm": [piece.arm for piece in pieces],
            "begin_s": [number(piece.begin_s) for piece in pieces],
            "end_s": [number(piece.end_s) if piece.step else None for piece in pieces],
            "step": [piece.step or None for piece in pieces],
            "picked_in": [piece.picked_in or None for piece in pieces],
            "staleness": [piece.staleness for piece in pieces],
            "reason": [piece.reason for piece in pieces],
        }

    def history(self, arm: int) -> dict[str, Any]:
        """Return a client's last results, ready for JSON.

        Parameters
        ----------
        arm : int
            The client.
        """
        at = np.flatnonzero(np.frombuffer(self._arms, dtype=np.int32) == arm)[-_HISTORY:]
        times_s = np.frombuffer(self._rtt_s, dtype=np.float32)[at]
        return {
            "arm": arm,
            "round": np.frombuffer(self._rounds, dtype=np.int32)[at].tolist(),
            "rtt_s": [number(float(value)) for value in times_s],
            "reason": [self._kinds[self._kind[each]] for each in at.tolist()],
        }

    def _note_results(self, record: RoundRecord) -> None:
        for result in record.results:
            kind = result.reason and failure_kind(result.reason)
            if kind not in self._kinds:
                self._kinds.append(kind)
            self._arms.append(result.arm)
            self._rounds.append(record.round)
            self._kind.append(self._kinds.index(kind))
            self._rtt_s.append(np.nan if result.rtt_s is None else result.rtt_s)
        if len(self._arms) > _RESULTS:
            for column in (self._arms, self._rounds, self._kind, self._rtt_s):
                del column[: _RESULTS // 5]
