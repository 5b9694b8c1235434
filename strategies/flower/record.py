"""What one round leaves behind: the record that hooks, run directory and progress read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from flwr.app import ArrayRecord, MetricRecord

from flower_scheduling.client.wire.protocol import (
    COMPUTE_S,
    LINK_S,
    LOCAL_STEPS,
    REQUEST,
    TIMING,
)
from flower_scheduling.columns import (
    When,
    column,
    count,
    finite,
    flag,
    list_of,
    or_none,
    seconds,
    text,
)
from flower_scheduling.errors import one_line

from ..base import BoolArray, Explanation, FloatArray

MAX_CLIENT_METRICS: Final = 64
"""Metrics of an evaluation on clients that are recorded, at most."""
MAX_METRIC_NAME: Final = 80
"""Longest name of such a metric."""
EXPLAINED_SCORES: Final = 4096
"""The last picks of a buffered step are explained, as many as have so many scores together."""


def _metrics(value: object) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= MAX_CLIENT_METRICS
        and all(len(key) <= MAX_METRIC_NAME and finite(each) for key, each in value.items())
    )


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What a selected arm delivered in a round; ``None`` where unknown.

    Attributes
    ----------
    arm : int
        Its index.
    name : str
        Its name.
    rtt_s : float or None
        Round-trip time [s]; ``None`` if no reply came in time.
    reason : str or None
        Why there is no usable update, ``kind`` or ``kind: details``; ``None`` if there is one.
    compute_s : float or None
        Local update [s], as the client reports it.
    link_s : float or None
        Time on the emulated link [s], as the client reports it; what is left of the round trip is
        the real network.
    staleness : int or None
        Steps between the model that it was sent and the one that its update went into [steps];
        ``None`` for the clients of a round.
    begin_s : float or None
        When its channel was given to it, since the start of the run [s]; ``None`` in rounds.
    steps_asked : int or None
        Local steps that it was asked for, where work is by speed [steps].
    steps_done : int or None
        Local steps that it reports to have made [steps].
    """

    arm: int
    name: str
    rtt_s: float | None = field(default=None, metadata=column(or_none(seconds)))
    reason: str | None = field(default=None, metadata=column(or_none(text)))
    compute_s: float | None = field(
        default=None, metadata=column(or_none(seconds), reported=(TIMING, COMPUTE_S))
    )
    link_s: float | None = field(
        default=None, metadata=column(or_none(seconds), reported=(TIMING, LINK_S))
    )
    staleness: int | None = field(default=None, metadata=column(or_none(count), when=When.IN_STEPS))
    begin_s: float | None = field(
        default=None, metadata=column(or_none(seconds), when=When.IN_STEPS)
    )
    steps_asked: int | None = field(default=None, metadata=column(or_none(count), when=When.IF_ANY))
    steps_done: int | None = field(
        default=None,
        metadata=column(or_none(count), when=When.IF_ANY, reported=(REQUEST, LOCAL_STEPS)),
    )

    @property
    def completed(self) -> bool:
        """Whether a usable update came in time."""
        return self.reason is None


@dataclass(frozen=True, slots=True)
class Pick:
    """A client that was given a free channel in a buffered step.

    Attributes
    ----------
    arm : int
        Its index.
    begin_s : float
        When, since the start of the run [s].
    idle : (num_arms,) bool or None
        Arms that could have been given it; ``None`` where the strategy was not to explain, and of
        the earlier picks of a step with many (:data:`EXPLAINED_SCORES`).
    explanation : Explanation or None
        Why this one was, over all arms.
    queue : (num_arms,) float64 or None
        Virtual queues at that moment [updates]; ``None`` for a policy without.
    """

    arm: int
    begin_s: float
    idle: BoolArray | None = None
    explanation: Explanation | None = None
    queue: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round as it was run and measured.

    Attributes
    ----------
    round : int
        Flower's round number, from 1.
    time_s : float
        End of the round since the start of the run [s], on the run's clock: real in a fleet,
        virtual in a simulation.
    round_s : float
        Length of the round [s], from the first message out to the last reply or the deadline.
    num_arms : int
        Arms known so far.
    available : list of int
        Arms that could have been selected.
    results : list of ArmResult
        The super arm and what it delivered, in the order of arms.
    stepped : bool
        Whether the model changed.
    no_step : str or None
        Why it did not: ``nobody-available``, ``no-replies``, ``no-examples``, ``quorum``,
        ``not-configured`` or ``aggregation``.
    accuracy : float or None
        Of the new model on the server; ``None`` in rounds without an evaluation, and where it is
        not finite.
    loss : float or None
        Likewise.
    diverged : bool
        Whether there was a loss that is not finite.
    client_metrics : mapping of str to float or None
        Of the new model on clients, as the wrapped strategy averages them; ``None`` in rounds
        without such an evaluation.
    server_metrics : mapping of str to float or None
        Of the new model on the server, beside accuracy and loss; ``None`` if there are none.
    absent : list of int
        Arms that were owed nothing in this round, having left, on leave or left out, and were not
        selected. One that is tried again after it was left out belongs to the fleet for a round.
    left_out : list of int
        Arms that are connected and left out for a while, since they have failed time and again or
        have no examples.
    sent_bytes : int or None
        Size of the round's messages as they travel [bytes]; ``None`` if unknown.
    received_bytes : int or None
        Size of its replies [bytes], likewise.
    buffered : bool
        Whether it is a buffered step: the super arm are then the arms whose work has ended since
        the last one, in the order of ends, and one may be there several times.
    explanation : Explanation or None
        Why these were selected, over all arms; ``None`` where the strategy was not to explain.
    queue : (num_arms,) float64 or None
        Virtual queues after the round [rounds], with the explanation; ``None`` for a policy
        without.
    deadline_s : float or None
        Deadline of the round [s], where it was found from measured times; of a buffered step the
        longest of those of its pieces of work; ``None`` where it is a setting.
    late : list of int
        Spare arms that had not answered when enough others had: neither selected nor failures.
    late_updates : list of ArmResult
        Late clients of earlier rounds whose update went into this round's step, and those of which
        no usable one has come, with the reason; empty where late updates are dropped.
    picks : list of Pick
        In a buffered step, which clients were given a channel, in this order; the results tell what
        became of them, in this step or a later one.
    """

    round: int = field(metadata=column(count))
    time_s: float = field(metadata=column(seconds))
    round_s: float = field(metadata=column(seconds))
    num_arms: int = field(metadata=column(count))
    available: list[int] = field(metadata=column(list_of(count), when=When.SMALL_FLEETS))
    results: list[ArmResult]
    stepped: bool = field(metadata=column(flag))
    no_step: str | None = field(default=None, metadata=column(or_none(text), since="0.1.0"))
    accuracy: float | None = field(default=None, metadata=column(or_none(finite)))
    loss: float | None = field(default=None, metadata=column(or_none(finite)))
    client_metrics: Mapping[str, float] | None = field(
        default=None, metadata=column(_metrics, when=When.IF_ANY)
    )
    absent: list[int] = field(
        default_factory=list, metadata=column(list_of(count), when=When.SMALL_FLEETS)
    )
    left_out: list[int] = field(
        default_factory=list, metadata=column(list_of(count), when=When.IF_ANY)
    )
    sent_bytes: int | None = field(default=None, metadata=column(count, when=When.IF_ANY))
    received_bytes: int | None = field(default=None, metadata=column(count, when=When.IF_ANY))
    buffered: bool = field(default=False, metadata=column(flag, when=When.IF_ANY))
    diverged: bool = field(default=False, metadata=column(flag, when=When.IF_ANY))
    server_metrics: Mapping[str, float] | None = field(
        default=None, metadata=column(_metrics, when=When.IF_ANY)
    )
    explanation: Explanation | None = field(default=None, compare=False)
    queue: FloatArray | None = field(default=None, compare=False)
    deadline_s: float | None = field(default=None, metadata=column(seconds, when=When.IF_ANY))
    late: list[int] = field(default_factory=list, metadata=column(list_of(count), when=When.IF_ANY))
    late_updates: list[ArmResult] = field(default_factory=list)
    picks: list[Pick] = field(default_factory=list, compare=False)

    @property
    def selected(self) -> list[int]:
        """Indices of the super arm."""
        return [result.arm for result in self.results]

    @property
    def used_late(self) -> list[int]:
        """Arms whose late update went into this round's step."""
        return [result.arm for result in self.late_updates if result.completed]

    @property
    def served(self) -> list[int]:
        """Arms that shares count: the super arm, and those whose late update was used."""
        return self.selected + self.used_late

    @property
    def turns(self) -> int:
        """What shares and floors are of: one round, or the pieces of work of a buffered step."""
        return len(self.results) if self.buffered else 1

    @property
    def names(self) -> list[str]:
        """Names of the super arm."""
        return [result.name for result in self.results]

    @property
    def rtt_s(self) -> list[float | None]:
        """Round-trip times of the super arm [s]."""
        return [result.rtt_s for result in self.results]

    @property
    def reason(self) -> list[str | None]:
        """Why the arms of the super arm did not deliver."""
        return [result.reason for result in self.results]

    @property
    def completed(self) -> list[bool]:
        """Whether the arms of the super arm delivered."""
        return [result.completed for result in self.results]

    @property
    def compute_s(self) -> list[float | None]:
        """Local update times of the super arm [s], as clients report them."""
        return [result.compute_s for result in self.results]

    @property
    def link_s(self) -> list[float | None]:
        """Emulated link times of the super arm [s], as clients report them."""
        return [result.link_s for result in self.results]


RoundHook = Callable[[RoundRecord, ArrayRecord], None]
"""Called after each round with its record and the current model."""


def finite_metrics(metrics: MetricRecord | None) -> dict[str, float] | None:
    """Return the single finite numbers of a record for a :class:`RoundRecord`, if it has any."""
    named = {} if metrics is None else metrics
    finite = {
        one_line(key)[:MAX_METRIC_NAME]: float(value)
        for key, value in named.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    return dict(list(finite.items())[:MAX_CLIENT_METRICS]) or None


def failure_kind(reason: str) -> str:
    """Return what failures of this reason are counted by: ``kind`` of ``kind: details``."""
    return reason.partition(":")[0]
