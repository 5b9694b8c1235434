"""Buffered steps: channels that are refilled one by one, a step after so many updates."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedXgbBagging,
    FedXgbCyclic,
    Strategy,
)

from flower_scheduling.client.wire.protocol import REPEAT, REPORT, REQUEST
from flower_scheduling.errors import ConfigError, SchedulingError, TooFewClientsError
from flower_scheduling.reasons import NO_EXAMPLES, NO_REPLIES, NOBODY_AVAILABLE, QUORUM, STALE

from ...base import (
    BoolArray,
    Explanation,
    FloatArray,
    IntArray,
    RoundContext,
    Selection,
    check_count,
    check_real,
)
from ..grids import SelectedNodesGrid
from ..old_api.ported import PortedStrategy
from ..record import EXPLAINED_SCORES, ArmResult, Pick, RoundRecord
from ..replies import ArraySpec, Update
from ..reply_sorter import ODD
from ..round import ModelStep, RoundParts, set_ttl
from ..timed_grid import LOGGER, Exchange
from ..wrapped import has_own, quorum_of, strategies_of
from .channel_grid import ChannelGrid
from .floor_cost import FloorCost
from .staleness import models_of, models_state, rebased

_FIXED_SET: Final = (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedXgbBagging,
    FedXgbCyclic,
)
"""Those whose promise is for a set of clients that one step trains, each once, and those of trees,
which are no updates of a model."""
_LOOK_S: Final = 0.2  # with a free channel: clients may have become available
GIVE_UP: Final = 10
"""A step ends after so many times as many pieces of work as it needs updates."""
_WIDEST: Final = 10.0
"""An update weighs at most so many times as much, or as little, for its client's rate."""
_LONGEST: Final = 4.0
"""A step is at most so many times as long as the average one."""
_MEMORY: Final = 100  # steps that the average weight is of


@dataclass(frozen=True, slots=True)
class BufferOptions:
    """How updates that come one by one become steps.

    Attributes
    ----------
    size : int, >= 1
        Usable updates of a step, B.
    max_staleness : int, >= 0
        Steps after which an update is not used any more.
    discount : float, >= 0
        A stale update counts (1 + s)^-discount, s the steps since; 0: as a fresh one.
    even : bool
        Whether the data of clients count evenly, however often they deliver
        (:class:`StepWeights`).
    """

    size: int
    max_staleness: int = 100
    discount: float = 0.0
    even: bool = True

    def __post_init__(self) -> None:
        check_count("buffer_size", self.size, minimum=1)
        check_count("max_staleness", self.max_staleness, minimum=0)
        check_real("staleness_discount", self.discount, at_least=0.0)

    def require_fit(self, strategy: Strategy, min_replies: int) -> None:
        """Refuse, by name, a strategy that needs a fixed set of clients in each step.

        Raises
        ------
        ConfigError
            If it does, or needs more updates than a step has.
        """
        require_any_set(strategy, "mode", "buffered", 'use mode="rounds"')
        for inner in strategies_of(strategy):
            name = type(inner).__name__
            if (needed := max(quorum_of(inner), min_replies)) > self.size:
                message = f"must be at least {needed}, the updates that {name} needs"
                raise ConfigError("buffer_size", self.size, message)


def require_any_set(strategy: Strategy, key: str, value: str, hint: str) -> None:
    """Refuse, by name, a strategy for which updates of earlier models cannot be presented.

    Parameters
    ----------
    strategy : Strategy
        The one that is wrapped.
    key, value, hint : str
        The setting that asks for it, and what to do.

    Raises
    ------
    ConfigError
        If it needs a fixed set of clients in each step, or runs rounds by itself.
    """
    for inner in strategies_of(strategy):
        ported = isinstance(inner, PortedStrategy) and inner.needs_fixed_set
        if isinstance(inner, _FIXED_SET) or ported:
            message = f"{type(inner).__name__} needs a fixed set of clients in each step"
            raise ConfigError(key, value, message, hint)
    if has_own(strategy, "start"):
        means = "itself" if isinstance(strategy, PortedStrategy) else "a start() of its own"
        message = f"{type(strategy).__name__} runs rounds by {means}"
        raise ConfigError(key, value, message, hint)


class Overdue:
    """Tells work that takes so long that nothing should be held up for its client.

    While a client is owed rounds, channels are kept free so that its share does not fall further
    behind. One whose app hangs would keep them free until its deadline, which in an unknown fleet
    is an hour. So work that takes more than four times the longest answer so far is overdue: its
    client counts as away, and is owed nothing, until it answers or is given up.

    Attributes
    ----------
    longest_s : float
        The longest answer so far [s]; 0: there is none.
    """

    _TIMES: Final = 4.0

    def __init__(self) -> None:
        self.longest_s = 0.0

    def note(self, answer_s: float) -> None:
        """Take note of an answer."""
        self.longest_s = max(self.longest_s, answer_s)

    def is_overdue(self, work_s: float) -> bool:
        """Whether work that has taken so long is overdue."""
        return 0.0 < self._TIMES * self.longest_s < work_s


class StepWeights:
    """How much the updates of a step weigh: each by its client's rate, and all of them together.

    A wrapped strategy takes the mean of the updates of a step, by their weights, as those of
    rounds. So a step to which clients with little data alone have delivered is as long as any
    other, and clients that deliver often count for more. Here

    - all updates of a step are made longer or shorter by the sum of their weights over the mean of
      such sums so far;
    - if they are to count evenly, the weight of an update, the examples of its client, is divided
      by the client's share of all updates so far, relative to an equal one. Under a weighted mean
      the model then moves on average by sum over k of s_k / s (w_k - w_sent), however often each
      client delivers.

    Parameters
    ----------
    even : bool
        Whether they count evenly.

    Attributes
    ----------
    counts : (num_arms,) int64
        Usable updates so far.
    """

    def __init__(self, even: bool) -> None:
        self._even = even
        self.counts: IntArray = np.zeros(0, dtype=np.int64)
        self._mean_total = 0.0
        self._num_steps = 0

    def of_step(
        self, arms: Sequence[int], num_examples: Sequence[float | None]
    ) -> tuple[list[float], float]:
        """Return the factor of each update's weight, and of their length; count the updates.

        Parameters
        ----------
        arms : sequence of int
            Whose updates they are, one at least.
        num_examples : sequence of float or None
            Their aggregation weights; ``None`` where unknown.
        """
        grown = max(arms) + 1 - self.counts.size
        self.counts = np.pad(self.counts, (0, max(grown, 0)))
        np.add.at(self.counts, list(arms), 1)
        even = self.counts.sum() / np.count_nonzero(self.counts)
        factors = np.clip(even / self.counts[list(arms)], 1.0 / _WIDEST, _WIDEST)
        if not self._even:
            factors[...] = 1.0
        total = float(sum(f * (n or 1.0) for f, n in zip(factors, num_examples, strict=True)))
        self._num_steps += 1
        self._mean_total += (total - self._mean_total) / min(self._num_steps, _MEMORY)
        return factors.tolist(), min(total / self._mean_total, _LONGEST)

    def state_dict(self) -> dict[str, Any]:
        """Return the counts so far."""
        return {
            "counts": self.counts.copy(),
            "mean_total": self._mean_total,
            "num_steps": self._num_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` left off."""
        self.counts = np.asarray(state["counts"], dtype=np.int64)
        self._mean_total, self._num_steps = state["mean_total"], state["num_steps"]


@dataclass(slots=True)
class _Work:
    """A piece of work under way."""

    arm: int
    selection: Selection
    version: int  # of the model that the client was sent
    begin_s: float  # since the start of the run
    deadline_s: float


@dataclass(slots=True)
class _Delivered:
    """An update that waits for its step."""

    place: int  # among the results
    arm: int
    update: Update
    sent: ArrayRecord
    staleness: int


class BufferedStep(ModelStep):
    """One step: what has ended since the last one, and the updates among it."""

    def __init__(
        self,
        parts: RoundParts,
        number: int,
        arrays: ArrayRecord,
        specs: Mapping[str, ArraySpec] | None,
    ) -> None:
        super().__init__(parts, number, arrays, specs)
        self.results: list[ArmResult] = []
        self.delivered: list[_Delivered] = []
        self.any_empty = False
        self.asked: Counter[int] = Counter()  # arms, how often
        self.configured = False  # whether the wrapped strategy has seen the model of this step
        self.available: list[int] = []
        self.absent: list[int] = []
        self.left_out: list[int] = []
        self.picks: list[Pick] = []
        self.queue: FloatArray | None = None
        self.begin_s = parts.timed.now()
        self.length_s = 0.0
        self.deadline_s: float | None = None  # longest one of what has ended, if they are found
        self._bytes = [0, 0]
        self._bytes_known = [False, False]

    @property
    def arms(self) -> list[int]:
        """Arms whose work has ended in this step, each once."""
        return sorted({result.arm for result in self.results})

    @property
    def explanation(self) -> Explanation | None:
        """Why the last pick of the step was made."""
        return self.picks[-1].explanation if self.picks else None

    def note_pick(self, pick: Pick) -> None:
        """Keep a pick; of many the last ones alone keep their explanation."""
        self.picks.append(pick)
        if pick.idle is None:
            return
        last = len(self.picks) - 1 - max(1, EXPLAINED_SCORES // max(pick.idle.size, 1))
        if last >= 0:
            self.picks[last] = Pick(self.picks[last].arm, self.picks[last].begin_s)

    def note_bytes(self, exchange: Exchange) -> None:
        """Count what an exchange has sent and received."""
        for i, size in enumerate((exchange.sent_bytes, exchange.received_bytes)):
            if size is not None:
                self._bytes[i] += size
                self._bytes_known[i] = True

    def aggregate(
        self, options: BufferOptions, weights: StepWeights
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the new model, or none, and the metrics.

        Parameters
        ----------
        options : BufferOptions
            How updates count.
        weights : StepWeights
            What they weigh, which takes these into account.
        """
        parts, updates = self._parts, self.delivered
        self.length_s = parts.timed.now() - self.begin_s
        if self.no_step is not None:
            return None, None
        if not parts.free_form:
            updates = self._drop_odd(updates)
        if not updates or len(updates) < parts.wrapped.quorum:
            none = NO_EXAMPLES if self.any_empty else NO_REPLIES
            self.no_step = QUORUM if updates else none
            return None, None
        try:
            return self._aggregated(self._presented(updates, options, weights), consume=True)
        except Exception as error:  # a fault in a step must not end the run
            return self._failed(error)
        finally:
            self._free()

    def refuse(self, reasons: Mapping[int, str]) -> None:
        """Leave out updates that turn out to be none beside others, by place among those there."""
        for place in sorted(reasons, reverse=True):
            at = self.delivered.pop(place).place
            self.results[at] = self._parts.sorter.refused(self.results[at], reasons[place])

    def _drop_odd(self, delivered: list[_Delivered]) -> list[_Delivered]:
        """Leave out updates with other names than most, which Flower's own rules refuse."""
        agreed = self._parts.sorter.agreed({each.arm: each.update for each in delivered})
        names = {each.arm: each.update.signature for each in delivered if each.arm in agreed}
        kept = [each for each in delivered if each.update.signature in names.values()]
        for each in delivered:
            if each.update.signature not in names.values():
                refused = self._parts.sorter.refused(self.results[each.place], ODD)
                self.results[each.place] = refused
        return kept

    def _presented(
        self, delivered: list[_Delivered], options: BufferOptions, weights: StepWeights
    ) -> list[Message]:
        """Return the updates as those of the model before this step."""
        sizes = [each.update.num_examples for each in delivered]
        factors, length = weights.of_step([each.arm for each in delivered], sizes)
        self.delivered = []
        delivered = delivered[::-1]
        replies = []
        for factor in factors:  # one after the other: what was delivered is not held twice
            each = delivered.pop()
            replies.append(
                rebased(
                    each.update.message,
                    each.sent,
                    self._arrays,
                    scale=length * (1.0 + each.staleness) ** -options.discount,
                    per_step=self._parts.work.scale(each.update.message),
                    weight=factor,
                    weighted_by_key=self._parts.wrapped.weighted_by_key,
                )
            )
        return replies

    def record(self, time_s: float) -> RoundRecord:
        """Return what the step leaves behind; ``time_s`` is its end since the run's begin."""
        sent, received = (
            size if known else None
            for size, known in zip(self._bytes, self._bytes_known, strict=True)
        )
        return RoundRecord(
            round=self.number,
            time_s=time_s,
            round_s=self.length_s,
            num_arms=len(self._parts.membership.table),
            available=self.available,
            results=self.results,
            stepped=self.no_step is None,
            no_step=self.no_step,
            absent=self.absent,
            left_out=self.left_out,
            sent_bytes=sent,
            received_bytes=received,
            buffered=True,
            explanation=self.explanation,
            queue=self.queue,
            deadline_s=self.deadline_s,
            picks=self.picks,
        )


class Channels:
    """The N channels of a run: each is given to an idle client as soon as it is free.

    The wrapped strategy makes a step after every B usable updates. An update is presented to it as
    if it had been trained from the model of the step (:func:`.rebased`); the models that clients
    still work from are kept once each.

    Parameters
    ----------
    parts : RoundParts
        What rounds share; its grid must be a :class:`.ChannelGrid`.
    options : BufferOptions
        How updates become steps.
    timeout_s : float
        Longest deadline of a piece of work [s].

    Raises
    ------
    ConfigError
        If the grid cannot send messages one by one.
    """

    def __init__(self, parts: RoundParts, options: BufferOptions, timeout_s: float) -> None:
        if not isinstance(parts.timed, ChannelGrid):
            name = type(parts.timed).__name__
            raise ConfigError("mode", "buffered", f"{name} has no dispatch() and next_ended()")
        self._grid: ChannelGrid = parts.timed
        self._parts = parts
        self._options = options
        self._timeout_s = timeout_s
        self._work: dict[int, _Work] = {}  # by node
        self._ended: deque[Exchange] = deque()
        self._models: dict[int, ArrayRecord] = {}  # by version, those that are worked from
        self._version = 0  # changes of the model so far
        self._decisions = 0
        self._weights = StepWeights(options.even)
        self._overdue = Overdue()
        self._floor_cost = FloorCost(parts.policy.num_selected)

    @property
    def progress(self) -> tuple[int, int]:
        """Decisions so far, and pieces of work that have ended."""
        return self._decisions, self._parts.policy.policy.last_round

    def run_step(
        self,
        one: BufferedStep,
        arrays: ArrayRecord,
        config: ConfigRecord,
        begin_s: float,
    ) -> None:
        """Keep the channels busy until the step has its updates.

        Parameters
        ----------
        one : BufferedStep
            The step, which takes what ends.
        arrays : ArrayRecord
            The model.
        config : ConfigRecord
            Flower's training configuration.
        begin_s : float
            When the run began, on the grid's clock [s].
        """
        self._models[self._version] = arrays
        most = GIVE_UP * self._options.size
        while len(one.delivered) < self._options.size and len(one.results) < most:
            self._fill(one, arrays, config, begin_s)
            if not self._ended:
                if not self._work and not self._wait(one, arrays, config, begin_s):
                    break
                free = len(self._work) < self._parts.policy.num_selected
                self._ended.extend(self._grid.next_ended(_LOOK_S if free else math.inf))
            if self._ended:
                self._end(one, self._ended.popleft(), begin_s)
        self._show_model(one, arrays, config)
        table = self._parts.membership.table
        one.available = np.flatnonzero(self._parts.policy.selectable(table)).tolist()
        served = {each.arm for each in one.results}
        one.absent = [arm for arm in np.flatnonzero(~table.member).tolist() if arm not in served]
        left_out = table.left_out(self._parts.timed.now())
        one.left_out = [arm for arm in left_out if arm not in served]
        self._parts.work.warn(one.results)
        if one.deadline_s is None and self._parts.deadline.is_found:
            one.deadline_s = self._parts.deadline.level_s
        if self._parts.explain:
            one.queue = self._parts.policy.queue

    def step(self, one: BufferedStep) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the new model, or none, and the metrics."""
        arrays, metrics = one.aggregate(self._options, self._weights)
        if arrays is not None:
            self._version += 1
        needed = {work.version for work in self._work.values()}
        self._models = {v: model for v, model in self._models.items() if v in needed}
        return arrays, metrics

    # -- one channel ----------------------------------------------------------------------------

    def _fill(
        self, one: BufferedStep, arrays: ArrayRecord, config: ConfigRecord, begin_s: float
    ) -> None:
        """Give each free channel to an idle client, as far as the policy wants it."""
        parts = self._parts
        while len(self._work) < parts.policy.num_selected:
            self._decisions += 1
            parts.timed.begin_round(self._decisions)
            parts.sync()
            table = parts.membership.table
            at_work = [work.arm for work in self._work.values()]
            late = self._late(parts.timed.now() - begin_s)
            selection = parts.policy.ask_one(table, at_work, late)
            found = np.flatnonzero(selection.mask)
            if not found.size:
                return
            arm = int(found[0])
            (node,) = table.node_ids([arm])
            there = table.available.copy()
            there[at_work] = True
            slowdown = parts.work.ask([arm], there)
            message = self._message(one, arm, node, arrays, config)
            deadline_s = min(parts.deadline.of([arm], slowdown), self._timeout_s)
            set_ttl([message], deadline_s)
            at_s = parts.timed.now() - begin_s
            one.note_pick(self._pick(arm, at_s, selection))
            self._work[node] = _Work(arm, selection, self._version, at_s, deadline_s)
            self._grid.dispatch([message], deadline_s)

    def _pick(self, arm: int, begin_s: float, selection: Selection) -> Pick:
        policy = self._parts.policy
        if not self._parts.explain or (explanation := policy.explain(selection)) is None:
            return Pick(arm, begin_s)
        return Pick(arm, begin_s, selection.context.available, explanation, policy.queue)

    def _message(
        self, one: BufferedStep, arm: int, node: int, arrays: ArrayRecord, config: ConfigRecord
    ) -> Message:
        """Return the wrapped strategy's message to a client."""
        (message,) = self._configured(one, node, arrays, config)
        request: dict[str, Any] = {**self._parts.work.request(arm)}
        if requested := self._parts.policy.requested_metrics:
            request[REPORT] = " ".join(requested)
        if repeat := one.asked[arm]:
            request[REPEAT] = repeat
        if request:
            message.content[REQUEST] = ConfigRecord(request)
        one.asked[arm] += 1
        return message

    def _configured(
        self, one: BufferedStep, node: int, arrays: ArrayRecord, config: ConfigRecord
    ) -> list[Message]:
        wrapped = self._parts.wrapped
        grid = SelectedNodesGrid(self._parts.grid, [node])
        try:
            messages = wrapped.configure_train(one.number, arrays, config, grid)
        except TooFewClientsError as error:
            raise SchedulingError(f"{wrapped.name}: {error}") from None
        destinations = [message.metadata.dst_node_id for message in messages]
        if destinations != [node]:
            raise SchedulingError(
                f"{wrapped.name} configured {len(messages)} messages for the client of a free "
                "channel: buffered mode needs exactly one to it"
            )
        one.configured = True
        return messages

    def _show_model(self, one: BufferedStep, arrays: ArrayRecord, config: ConfigRecord) -> None:
        """Show the wrapped strategy the model of the step, if no channel was filled in it.

        Flower's adaptive rules keep the model that they configure messages with (flwr 1.42).
        """
        if one.delivered and not one.configured:
            arm = one.delivered[0].arm
            (node,) = self._parts.membership.table.node_ids([arm])
            self._configured(one, node, arrays, config)

    def _wait(
        self, one: BufferedStep, arrays: ArrayRecord, config: ConfigRecord, begin_s: float
    ) -> bool:
        """Wait for a client, with nothing at work; tell whether one has got a channel.

        None has either where the policy selects none of those that are there: to ask it again at
        once would be of no use.
        """
        parts = self._parts
        parts.membership.wait_for(parts.timed, 1, f"step {one.number}")
        parts.grow()
        self._fill(one, arrays, config, begin_s)
        if not self._work:
            there = parts.membership.table.num_available
            one.no_step = QUORUM if there else NOBODY_AVAILABLE
        return bool(self._work)

    def _late(self, now_s: float) -> list[int]:
        """Return the arms at work whose work is overdue."""
        return [
            work.arm
            for work in self._work.values()
            if self._overdue.is_overdue(now_s - work.begin_s)
        ]

    def _end(self, one: BufferedStep, exchange: Exchange, begin_s: float) -> None:
        """Take what became of a piece of work; the policy learns from it."""
        parts, work = self._parts, self._work.pop(exchange.node_id, None)
        if work is None:  # of an earlier run
            return
        staleness, sent = self._version - work.version, self._models[work.version]
        one.note_bytes(exchange)
        earlier = [(each.arm, each.update) for each in one.delivered]
        found = parts.sorter.read([exchange], one.specs, sent, earlier)
        if found.updates and staleness > self._options.max_staleness:
            text = f"{STALE}: {staleness} steps old, at most {self._options.max_staleness}"
            found.refuse(work.arm, text)
        (result,) = parts.work.noted(parts.sorter.results(found))
        result = replace(result, staleness=staleness, begin_s=work.begin_s)
        update = found.updates.get(work.arm)
        one.any_empty |= bool(found.empty)
        sizes = {} if update is None else {work.arm: update.num_examples}
        parts.membership.learn_sizes(one.number, sizes | dict.fromkeys(found.empty, 0.0))
        if parts.membership.sizes_changed:
            parts.set_floors()
        table = parts.membership.table
        there = table.available & table.member
        there[[other.arm for other in self._work.values()]] = True
        there[self._late(parts.timed.now() - begin_s)] = False
        there[work.arm] = True
        if exchange.rtt_s is not None:
            self._overdue.note(exchange.rtt_s)
            if self._floor_cost.note(work.arm, exchange.rtt_s):
                self._say_floor_cost()
        self._learn(one, work, exchange, result, update, there)
        one.refuse(found.before)
        if update is not None:
            place = len(one.results)
            one.delivered.append(_Delivered(place, work.arm, update, sent, staleness))
        one.results.append(result)
        parts.membership.note_results([result], parts.timed.now())

    def _learn(
        self,
        one: BufferedStep,
        work: _Work,
        exchange: Exchange,
        result: ArmResult,
        update: Update | None,
        there: BoolArray,
    ) -> None:
        """Let the deadline and the policy learn from a piece of work, as from a round of one."""
        deadline, policy = self._parts.deadline, self._parts.policy
        table = self._parts.membership.table
        told = self._parts.work.learn([exchange], table)
        deadline.learn(told, table)
        if self._parts.work.by_speed:
            result = replace(result, rtt_s=told[0].rtt_s)
        if deadline.is_found:
            one.deadline_s = max(one.deadline_s or 0.0, work.deadline_s)
            policy.set_tau_max(work.deadline_s, unit_s=deadline.unit_s)
        policy.tell_one(work.selection, result, update, there)
        if deadline.is_found:
            policy.set_tau_max(deadline.level_s, unit_s=deadline.unit_s)

    def _say_floor_cost(self) -> None:
        """Say once what floors cost in speed, if it is much."""
        table, floors = self._parts.membership.table, self._parts.policy.floors
        if floors is None:
            return
        line = self._floor_cost.line(np.where(table.member, floors, 0.0), table.names)
        if line is not None:
            LOGGER.info("%s", line)

    # -- checkpoints ----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what the next step depends on, the models that are worked from among it."""
        return {
            "version": self._version,
            "decisions": self._decisions,
            "weights": self._weights.state_dict(),
            "longest_s": self._overdue.longest_s,
            "work": [
                {
                    "node": str(node),
                    "arm": work.arm,
                    "version": work.version,
                    "begin_s": work.begin_s,
                    "deadline_s": work.deadline_s,
                    "available": work.selection.context.available.copy(),
                    "drawn": work.selection.drawn,
                }
                for node, work in self._work.items()
            ],
            "models": models_state(self._models),
        }

    def load_state_dict(self, state: Mapping[str, Any], *, at_work: bool) -> None:
        """Go on where :meth:`state_dict` left off.

        Parameters
        ----------
        state : mapping
            What it returned.
        at_work : bool
            Whether the grid still has the work that was under way, as a virtual one does; what a
            fleet's server had sent before it was started anew is lost.
        """
        self._version, self._decisions = state["version"], state["decisions"]
        self._weights.load_state_dict(state["weights"])
        self._overdue.longest_s = state.get("longest_s", 0.0)
        if not at_work:
            return
        self._models = models_of(state["models"])
        for each in state["work"]:
            self._work[int(each["node"])] = _restored(each)


def _restored(state: Mapping[str, Any]) -> _Work:
    available: BoolArray = np.asarray(state["available"], dtype=np.bool_)
    mask = np.zeros_like(available)
    mask[state["arm"]] = True
    drawn = None if state["drawn"] is None else np.asarray(state["drawn"])
    selection = Selection(RoundContext(1, available), mask, drawn)
    begin_s, deadline_s = state["begin_s"], state["deadline_s"]
    return _Work(state["arm"], selection, state["version"], begin_s, deadline_s)
