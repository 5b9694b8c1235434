"""A run in numbers: what summary, tables and figures are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord

from strategies.flower import TIMEOUT, Arm, RoundRecord, failure_kind

_SUGGESTED_QUANTILE: Final = 0.99
_SUGGESTED_FACTOR: Final = 1.5


class RunHistory:
    """Collect the rounds of a run; :meth:`record` is a round hook.

    Parameters
    ----------
    arrays : ArrayRecord
        The initial model, or that after ``records``.
    records : sequence of RoundRecord
        Rounds of an earlier part of the run.

    Attributes
    ----------
    records : list of RoundRecord
        The rounds so far.
    arrays : ArrayRecord
        The model after them.
    """

    def __init__(self, arrays: ArrayRecord, records: Sequence[RoundRecord] = ()) -> None:
        self.arrays = arrays
        self.records = list(records)

    def record(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Take note of a round."""
        self.records.append(record)
        self.arrays = arrays

    def keep(self, num_rounds: int) -> None:
        """Forget the rounds after the first ``num_rounds``."""
        del self.records[num_rounds:]

    @property
    def evaluated(self) -> list[RoundRecord]:
        """The rounds after which the model was evaluated."""
        return [record for record in self.records if record.accuracy is not None]

    def reached(self, accuracy: float) -> RoundRecord | None:
        """Return the first evaluated round with at least this accuracy."""
        return next((r for r in self.evaluated if (r.accuracy or 0.0) >= accuracy), None)

    def selections(self, num_arms: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Count how often each arm was selected, (num_arms,)."""
        arms = [arm for record in self.records for arm in record.selected]
        return np.bincount(arms, minlength=num_arms)

    def summary(
        self,
        arms: Sequence[Arm],
        floors: Sequence[float] | None,
        *,
        tau_max_s: float,
        target_accuracy: float = 0.0,
    ) -> dict[str, Any]:
        """Return the run in numbers, ready for JSON; times in seconds."""
        rtts: dict[int, list[float]] = {arm.index: [] for arm in arms}
        failures: Counter[int] = Counter()
        reasons: Counter[str] = Counter()
        for record in self.records:
            for arm, rtt, reason in zip(record.selected, record.rtt_s, record.reason, strict=True):
                if reason is None and rtt is not None:
                    rtts[arm].append(rtt)
                elif reason is not None:
                    failures[arm] += 1
                    reasons[failure_kind(reason)] += 1
        num_rounds = len(self.records)
        evaluated = self.evaluated
        target = self.reached(target_accuracy) if target_accuracy else None
        counts = self.selections(len(arms))
        every_rtt = [rtt for values in rtts.values() for rtt in values]
        return {
            "rounds": num_rounds,
            "time_s": self.records[-1].time_s if self.records else 0.0,
            "accuracy": evaluated[-1].accuracy if evaluated else None,
            "loss": evaluated[-1].loss if evaluated else None,
            "best_accuracy": max((r.accuracy or 0.0 for r in evaluated), default=None),
            "target_accuracy": target_accuracy or None,
            "target_round": target.round if target else None,
            "target_time_s": target.time_s if target else None,
            "rounds_without_step": num_rounds - sum(r.stepped for r in self.records),
            "failures": sum(failures.values()),
            "failure_reasons": dict(reasons),
            "tau_max_s": tau_max_s,
            "suggested_tau_max_s": _suggest_tau_max(every_rtt, reasons[TIMEOUT], tau_max_s),
            "arms": [
                {
                    "index": arm.index,
                    "name": arm.name,
                    "num_examples": arm.num_examples,
                    "floor": None if floors is None else floors[arm.index],
                    "share": float(counts[arm.index]) / max(num_rounds, 1),
                    "mean_rtt_s": float(np.mean(rtts[arm.index])) if rtts[arm.index] else None,
                    "failures": failures[arm.index],
                }
                for arm in arms
            ],
        }


def _suggest_tau_max(rtts: list[float], num_timeouts: int, tau_max_s: float) -> float | None:
    """Suggest a deadline: half as much again as 99 of 100 answers take, or twice the present one.

    With more than 1 in 100 answers too late the deadline itself hides that quantile.
    """
    if not rtts:
        return None
    if num_timeouts > (1 - _SUGGESTED_QUANTILE) * (len(rtts) + num_timeouts):
        return 2 * tau_max_s
    return round(_SUGGESTED_FACTOR * float(np.quantile(rtts, _SUGGESTED_QUANTILE)), 3)
