"""The metrics of a round: the same names for every tracker."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

import numpy as np

from flower_scheduling.strategies.flower import RoundRecord

from ...runs.totals import RunTotals

METRICS: Final[Mapping[str, str]] = {
    "round/time_s": "End of the round since the run began [s]",
    "round/length_s": "Length of the round [s]",
    "round/clients": "Clients known so far",
    "round/available": "Clients that could have been selected",
    "round/selected": "Clients that were",
    "round/completed": "Of these, clients whose update came in time and was usable",
    "round/failures": "Of these, clients that failed",
    "round/stepped": "1 if the model changed, else 0",
    "round/rtt_mean_s": "Mean round trip of the completed [s]",
    "round/rtt_max_s": "Longest round trip of the completed [s]",
    "round/compute_mean_s": "Mean local update, as clients report [s]",
    "round/link_mean_s": "Mean time on the emulated link, as clients report [s]",
    "round/slowest_arm": "Client that was waited for longest, by index in `arms.json`",
    "model/accuracy": "Test accuracy, where evaluated",
    "model/loss": "Test loss, where evaluated",
    "model/<metric>": "What else the server's evaluation finds",
    "clients/<metric>": "What clients find when they evaluate, as the strategy averages it",
    "floors/worst_shortfall": "Largest floor minus share of rounds so far, 0 if all are met",
    "floors/most_owed": "Longest virtual queue [rounds]",
    "failures/<kind>": "Failures of this kind so far, from the first one on",
    "client/<name>/rtt_s": "Round trip of a client that completed [s], in fleets of up to 50",
    "summary/<key>": "The numbers of `summary.json`, at the end",
}
"""What is reported, and what it means."""
MOST_CLIENTS: Final = 50
"""In larger fleets clients have no series of their own."""
_LONGEST_NAME: Final = 100
_UNUSUAL: Final = re.compile(r"[^0-9A-Za-z_.: -]")

Floats = Sequence[float] | None


class RoundMetrics:
    """A function from records to metrics; what is unknown or not finite is left out.

    Parameters
    ----------
    totals : RunTotals
        The run's rounds, counted up to the record that is turned into metrics.
    floors, queues : callable
        Return the floor and the virtual queue of each arm, or ``None``.
    """

    def __init__(
        self, totals: RunTotals, floors: Callable[[], Floats], queues: Callable[[], Floats]
    ) -> None:
        self.totals = totals
        self._floors, self._queues = floors, queues

    def of_earlier(self) -> RoundMetrics:
        """Return what turns records of an earlier part of the run into metrics, from round 1 on.

        Their floors are the present ones, where there were no fewer clients, and their queues
        those that the records hold. The totals, which are its own, are the caller's to count.
        """
        floors = self._floors()
        return RoundMetrics(RunTotals(), lambda: floors, lambda: None)

    def __call__(self, record: RoundRecord) -> dict[str, float]:
        """Return the metrics of the round that the totals counted last."""
        waited_s = [record.round_s if rtt is None else rtt for rtt in record.rtt_s]
        completed_s = {result.arm: result.rtt_s for result in record.results if result.completed}
        rtt_s = _known(completed_s.values())
        found: dict[str, float | None] = {
            "round/time_s": record.time_s,
            "round/length_s": record.round_s,
            "round/clients": record.num_arms,
            "round/available": len(record.available),
            "round/selected": len(record.results),
            "round/completed": record.completed.count(True),
            "round/failures": record.completed.count(False),
            "round/stepped": record.stepped,
            "round/rtt_mean_s": fmean(rtt_s) if rtt_s else None,
            "round/rtt_max_s": max(rtt_s, default=None),
            "round/compute_mean_s": _mean(result.compute_s for result in record.results),
            "round/link_mean_s": _mean(result.link_s for result in record.results),
            "round/slowest_arm": (
                record.selected[waited_s.index(max(waited_s))] if waited_s else None
            ),
            "model/accuracy": record.accuracy,
            "model/loss": record.loss,
            **self._owed(record),
            **_named("model", record.server_metrics),
            **_named("clients", record.client_metrics),
            **{f"failures/{kind}": count for kind, count in self.totals.failures.items()},
        }
        if record.num_arms <= MOST_CLIENTS:
            for result in record.results:
                key = f"client/{_part(result.name, result.arm)}/rtt_s"
                found[key] = completed_s.get(result.arm)
        return finite(found)

    def _owed(self, record: RoundRecord) -> dict[str, float | None]:
        floors: Floats = self._floors()
        queues = self._queues() if record.queue is None else record.queue
        shortfall = None
        if floors is not None and len(floors) <= record.num_arms:
            counts = self.totals.arms[: len(floors)]
            shares = np.array([counted.served for counted in counts]) / max(self.totals.turns, 1)
            shortfall = float(np.max(np.asarray(floors) - shares, initial=0.0))
        return {
            "floors/worst_shortfall": shortfall,
            # In the precision of scores.bin: a round that is sent again has the same number.
            "floors/most_owed": (
                float(np.max(np.asarray(queues, dtype=np.float32)))
                if queues is not None and len(queues)
                else None
            ),
        }


def summary_metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a run's summary."""
    return finite({f"summary/{key}": value for key, value in summary.items()})


def finite(values: Mapping[str, Any]) -> dict[str, float]:
    """Return those values that are finite numbers, as floats."""
    return {
        key: float(value)
        for key, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _known(values: Any) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return fmean(known) if known else None


def _named(group: str, metrics: Mapping[str, float] | None) -> dict[str, float]:
    """Return metrics of an app under the names of a group."""
    found = enumerate(sorted((metrics or {}).items()))
    return {f"{group}/{_part(name, place)}": value for place, (name, value) in found}


def _part(name: str, index: int) -> str:
    """Return a name as part of a metric's: MLflow takes few characters and no dots alone.

    A name that had to be changed gets its index, lest two become one.
    """
    part = _UNUSUAL.sub("_", name[:_LONGEST_NAME]).strip()
    if part == name and part.strip("."):
        return name
    return f"{part.strip('.')}-{index}"
