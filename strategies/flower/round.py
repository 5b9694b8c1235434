"""One round of a run: select, send, measure, check, aggregate, learn, record."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from flower_scheduling._flwr import FastRecordDict, new_record
from flower_scheduling.allocator import collect, give_back
from flower_scheduling.client.wire.arrays import decode_array, encode_array
from flower_scheduling.client.wire.protocol import REPORT, REQUEST
from flower_scheduling.errors import SchedulingError, TooFewClientsError
from flower_scheduling.reasons import (
    AGGREGATION,
    NO_EXAMPLES,
    NO_REPLIES,
    NOBODY_AVAILABLE,
    NOT_CONFIGURED,
    QUORUM,
)

from ..base import Explanation, FloatArray, Selection
from .buffer.late import LateUpdate, LateUpdates
from .buffer.staleness import rebased
from .grids import SelectedNodesGrid
from .membership import Membership
from .policy_runner import PolicyRunner
from .record import ArmResult, RoundRecord
from .replies import LARGEST_VALUE, ArraySpec
from .reply_sorter import ODD, ReplySorter, SortedReplies
from .round_deadline import RoundDeadline
from .spares import Answers, SpareClients
from .timed_grid import LOGGER, Exchange, TimedExchange
from .updates.pieces import is_finite
from .updates.work_by_speed import LocalWork
from .wrapped import WrappedStrategy

_MIN_TTL_S: Final = 60.0
_MOST_SHOWN: Final = 5
_LARGE_BYTES: Final = 2**20  # of a model; the room of smaller replies is used again
_HUGE_BYTES: Final = 32 * 2**20  # of a model whose replies are not left to the garbage collector


@dataclass(slots=True)
class RoundParts:
    """What the rounds of a run share.

    Attributes
    ----------
    grid : Grid
        The grid that the app was given.
    timed : TimedExchange
        The same, able to measure.
    membership, policy, sorter, wrapped
        The parts of the strategy.
    deadline : RoundDeadline
        Deadline of each round.
    spares : SpareClients
        How many are asked, and waited for.
    late : LateUpdates
        Updates that come after their round, where they are used.
    work : LocalWork
        How much local work clients are asked for.
    free_form : bool
        Whether replies may have any records, keys and shapes.
    explain : bool
        Whether records explain the selection.
    unit : str
        What rounds are called in the log: steps in buffered mode.
    told_of_subset : bool
        Whether it was said that the strategy trains a part of the super arm.
    """

    grid: Grid
    timed: TimedExchange
    membership: Membership
    policy: PolicyRunner
    sorter: ReplySorter
    wrapped: WrappedStrategy
    deadline: RoundDeadline
    spares: SpareClients
    late: LateUpdates
    work: LocalWork
    free_form: bool
    explain: bool
    unit: str = "round"
    told_of_subset: bool = False

    def sync(self) -> None:
        """Read the connected clients; the policy grows with those that are new."""
        self.membership.sync(self.timed)
        self.grow()

    def grow(self) -> None:
        """Let the policy grow with the arms, and its floors follow."""
        if self.policy.grow(len(self.membership.table)) or self.membership.sizes_changed:
            self.set_floors()

    def set_floors(self) -> None:
        """Let the policy's floors follow the sizes that are known now."""
        self.membership.sizes_changed = False
        self.policy.set_floors(self.membership.table)


def set_ttl(messages: Iterable[Message], deadline_s: float) -> None:
    """Let messages expire soon after their deadline.

    Flower's default of 12 hours would lock a crashed device out for that long.
    """
    for message in messages:
        message.metadata.ttl = max(_MIN_TTL_S, 4 * deadline_s)


class ModelStep:
    """A change of the model by the wrapped strategy's rule, of which nothing may end the run.

    Parameters
    ----------
    parts : RoundParts
        What rounds share.
    number : int
        Flower's number of the round, from 1.
    arrays : ArrayRecord
        The model before it.
    specs : mapping of str to ArraySpec, optional
        Its shapes and dtypes, where they are known.

    Attributes
    ----------
    no_step : str or None
        Why the model does not change.
    specs : mapping of str to ArraySpec
        Shapes and dtypes of the model; after the step of the new one.
    """

    def __init__(
        self,
        parts: RoundParts,
        number: int,
        arrays: ArrayRecord,
        specs: Mapping[str, ArraySpec] | None = None,
    ) -> None:
        self.number = number
        self.no_step: str | None = None
        self.specs = ArraySpec.of(arrays) if specs is None else specs
        self._parts = parts
        self._arrays = arrays

    def _aggregated(
        self, replies: list[Message], consume: bool
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        wrapped = self._parts.wrapped
        arrays, metrics = wrapped.aggregate_train(self.number, replies, consume=consume)
        if arrays is None:
            self.no_step = AGGREGATION
            return None, metrics
        model = fitted(arrays, self._arrays, self.specs)
        before = {key: spec.shape for key, spec in self.specs.items()}
        now = {key: tuple(array.shape) for key, array in model.items()}
        if now != before:
            self.specs = ArraySpec.of(model)
            if not wrapped.shapes_grow:
                _log_change(f"{self._parts.unit} {self.number}", before, now)
        return model, metrics

    def _failed(self, error: Exception) -> tuple[None, None]:
        text = "%s %d: the model is as before, aggregation failed: %s"
        LOGGER.warning(text, self._parts.unit, self.number, error)
        self.no_step = AGGREGATION
        return None, None

    def _free(self) -> None:
        """Hold no model of this round while the next one is under way."""
        self._arrays = ArrayRecord()
        size = sum(spec.num_bytes for spec in self.specs.values())
        if size > _HUGE_BYTES:
            collect()
        elif size > _LARGE_BYTES:
            give_back()


class TrainingRound(ModelStep):
    """One round: :meth:`select`, :meth:`configure`, :meth:`exchange`, :meth:`aggregate`.

    Parameters
    ----------
    parts : RoundParts
        What rounds share.
    number : int
        Flower's number of the round, from 1.
    policy_round : int
        The policy's, which counts on over several runs.
    arrays : ArrayRecord
        The model before the round.
    specs : mapping of str to ArraySpec, optional
        Its shapes and dtypes, where they are known.

    Attributes
    ----------
    arms : list of int
        The super arm; after :meth:`exchange` without those that were not waited for.
    deadline_s : float
        Deadline [s]; NaN before :meth:`select`.
    """

    def __init__(
        self,
        parts: RoundParts,
        number: int,
        policy_round: int,
        arrays: ArrayRecord,
        specs: Mapping[str, ArraySpec] | None = None,
    ) -> None:
        super().__init__(parts, number, arrays, specs)
        self._policy_round = policy_round
        self._selection: Selection | None = None
        self._explanation: Explanation | None = None
        self._num_arms = 0
        self._available: list[int] = []
        self._absent: list[int] = []
        self._left_out: list[int] = []
        self.arms: list[int] = []
        self.deadline_s = math.nan
        self._begin_s = math.nan
        self._round_s = 0.0
        self._sent_bytes: int | None = None
        self._received_bytes: int | None = None
        self._sorted = SortedReplies({})
        self._late: list[int] = []
        self._late_rtt_s: dict[int, float | None] = {}
        self._told_s: dict[int, float | None] = {}  # by arm, times of the base work
        self._late_results: list[ArmResult] = []
        self._results: list[ArmResult] = []
        self._queue: FloatArray | None = None
        self._tried = False  # whether it came to an aggregation

    def select(self) -> None:
        """Let the policy select the super arm of the arms that are available now."""
        parts = self._parts
        table = parts.membership.table
        self._take_in(parts.spares.look(parts.timed))
        self._num_arms = len(table)
        self._available = np.flatnonzero(table.available).tolist()
        self._absent = np.flatnonzero(~table.member).tolist()
        self._left_out = table.left_out(parts.timed.now())
        self._selection = parts.policy.ask(self._policy_round, table, parts.wrapped.quorum)
        if parts.explain:
            self._explanation = parts.policy.explain(self._selection)
        self.arms = np.flatnonzero(self._selection.mask).tolist()
        if self.arms:  # without those that have had their largest share
            self._available = np.flatnonzero(self._selection.context.available).tolist()
        else:
            self.no_step = QUORUM if table.num_available else NOBODY_AVAILABLE
        slowdown = parts.work.ask(self.arms, table.available)
        self.deadline_s = parts.deadline.of(self.arms, slowdown)
        self._begin_s = parts.timed.now()

    def configure(self, arrays: ArrayRecord, config: ConfigRecord) -> list[Message]:
        """Return the wrapped strategy's messages to the super arm, or to a part of it."""
        if not self.arms:
            return []
        parts = self._parts
        table, name = parts.membership.table, parts.wrapped.name
        nodes = table.node_ids(self.arms)
        grid = SelectedNodesGrid(parts.grid, nodes)
        try:
            messages = parts.wrapped.configure_train(self.number, arrays, config, grid)
        except TooFewClientsError as error:
            if len(self.arms) == parts.policy.num_selected:
                raise SchedulingError(f"{name}: {error}") from None
            messages, self.no_step = [], QUORUM
        destinations = [message.metadata.dst_node_id for message in messages]
        if len(set(destinations)) != len(destinations) or not set(destinations) <= set(nodes):
            raise SchedulingError(
                f"{name} configured {len(destinations)} messages for the {len(nodes)} selected "
                "clients: it must train each of them once at most, and no others"
            )
        if len(destinations) < len(nodes):
            self._reduce(destinations, len(nodes))
        set_ttl(messages, self.deadline_s)
        requested = parts.policy.requested_metrics
        if not (requested or parts.work.by_speed):
            return messages
        report: dict[str, Any] = {REPORT: " ".join(requested)} if requested else {}
        contents: dict[tuple[int, tuple[object, ...]], RecordDict] = {}
        for message in messages:
            arm = table.arm_of(message.metadata.dst_node_id).index
            asked = {**report, **parts.work.request(arm)}
            # Flower's strategies give all messages one content, which grids encode once.
            place = id(message.content), tuple(asked.values())
            if place not in contents:
                contents[place] = FastRecordDict(dict(message.content))
                contents[place][REQUEST] = ConfigRecord(asked)
            message.content = contents[place]
        return messages

    def _reduce(self, node_ids: list[int], num_selected: int) -> None:
        """Take for selected only the arms that the wrapped strategy has messages for."""
        parts = self._parts
        assert self._selection is not None
        self.arms = sorted(parts.membership.table.arm_of(node).index for node in node_ids)
        mask = np.zeros_like(self._selection.mask)
        mask[self.arms] = True
        self._selection = Selection(self._selection.context, mask, self._selection.drawn)
        if not self.arms:
            self.no_step = self.no_step or NOT_CONFIGURED
        if not parts.told_of_subset:
            parts.told_of_subset = True
            LOGGER.warning(
                "round %d: %s trains %d of the %d selected clients: it samples by itself",
                self.number,
                parts.wrapped.name,
                len(node_ids),
                num_selected,
            )

    def exchange(self, messages: list[Message], deadline_s: float) -> list[Message]:
        """Send the messages, measure, and return the replies that may be aggregated.

        The round's own deadline holds, or ``deadline_s`` if that is shorter [s].
        """
        parts = self._parts
        self.deadline_s = min(self.deadline_s, deadline_s)
        table, spares = parts.membership.table, parts.spares
        owed = parts.policy.owed() if spares.num_spare else ()
        return self.take(spares.exchange(parts.timed, table, messages, self.deadline_s, owed))

    def take(self, answers: Answers) -> list[Message]:
        """Return the replies that may be aggregated of messages that were sent by other means."""
        parts = self._parts
        table, spares = parts.membership.table, parts.spares
        exchanges = answers.exchanges
        self._late, self._late_rtt_s = answers.late, answers.late_rtt_s
        self.arms = [arm for arm in self.arms if arm not in set(answers.late)]
        if spares.uses_late:
            parts.late.note_late(table.node_ids(answers.late), self._arrays)
            parts.work.note_late(answers.late)
            self._take_in(answers.since)
        told = parts.work.learn(exchanges, table)
        parts.deadline.learn(told, table)
        if parts.work.by_speed:
            self._told_s = {table.arm_of(each.node_id).index: each.rtt_s for each in told}
        told_late = parts.work.learn(answers.late_exchanges, table)
        parts.deadline.learn(told_late, table)
        for each in told_late:
            arm = table.arm_of(each.node_id).index
            if self._late_rtt_s[arm] is not None:
                self._late_rtt_s[arm] = each.rtt_s
        self._round_s = parts.timed.now() - self._begin_s
        self._sent_bytes = _sum(exchange.sent_bytes for exchange in exchanges)
        self._received_bytes = _sum(exchange.received_bytes for exchange in exchanges)
        self._sorted = found = parts.sorter.training(exchanges, self.specs, self._arrays)
        if not parts.free_form:
            found.refuse_odd()
        sizes = {arm: update.num_examples for arm, update in found.updates.items()}
        parts.membership.learn_sizes(self._policy_round, sizes | dict.fromkeys(found.empty, 0.0))
        if parts.membership.sizes_changed:
            parts.set_floors()
        return [update.message for update in found.updates.values()]

    def _take_in(self, ended: Iterable[Exchange]) -> None:
        """Keep late replies for the next step; note those that failed."""
        parts = self._parts
        if not parts.spares.uses_late:
            return
        arms = []
        for exchange in ended:
            failed = parts.late.take_in(exchange)
            if not parts.membership.table.knows(exchange.node_id):
                continue  # it has come back as another node
            arms.append(parts.membership.table.arm_of(exchange.node_id).index)
            if failed is not None:
                found = parts.sorter.read([exchange], self.specs, failed.sent)
                results = parts.late.results(failed, parts.sorter.results(found))
                self._late_results += parts.work.noted(results, late=True)
        parts.policy.note_taken(arms)

    def _late_updates(self) -> list[LateUpdate]:
        """Return the late updates that go into this step."""
        parts = self._parts
        if not parts.spares.uses_late:
            return []
        used, results, sizes = parts.late.read(
            parts.sorter, parts.membership.table, self._sorted, self.specs, parts.free_form
        )
        before = len(self._late_results)
        used = [replace(each, place=each.place + before) for each in used]
        self._late_results += parts.work.noted(results, late=True)
        parts.membership.learn_sizes(self._policy_round, sizes)
        if parts.membership.sizes_changed:
            parts.set_floors()
        return used

    def _presented(self, replies: list[Message], late: list[LateUpdate]) -> list[Message]:
        """Return replies and late updates as updates of the model of this step."""
        parts = self._parts
        if not (late or parts.work.by_speed):
            return replies
        presented = [
            rebased(
                reply,
                self._arrays,
                self._arrays,
                per_step=parts.work.scale(reply),
            )
            for reply in replies
        ]
        for each in late:
            per_step = parts.work.scale(each.update.message)
            presented.append(parts.late.presented(each, self._arrays, per_step))
        return presented

    def aggregate(
        self, replies: list[Message], *, consume: bool = False
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the new model, or none, and the metrics; then let the policy learn.

        Parameters
        ----------
        replies : list of Message
            What :meth:`exchange` returned.
        consume : bool
            Whether the replies are not used afterwards: they may lose their arrays on the way.
        """
        arrays, metrics = self._step(replies, consume)
        if self._parts.spares.uses_late:
            self._parts.late.end_round(stepped=arrays is not None)
        self.end()
        if consume:  # no model of this round stays while the next one is under way
            self._sorted = SortedReplies({})
            self._free()
        return arrays, metrics

    def end(self) -> None:
        """Let the policy learn, if it has not."""
        if self._selection is None:
            return
        parts = self._parts
        if not self._tried and self.no_step is None:  # a start of the app's own gave it up
            self.no_step = AGGREGATION if self._sorted.updates else NO_REPLIES
        self._results = parts.work.noted(parts.sorter.results(self._sorted))
        parts.work.warn(self._results)
        told = self._results
        if parts.work.by_speed:
            told = [replace(each, rtt_s=self._told_s[each.arm]) for each in told]
        deadline = parts.deadline
        if deadline.is_found:
            parts.policy.set_tau_max(self.deadline_s, unit_s=deadline.unit_s)
        late_s = self._late_rtt_s if parts.spares.num_spare else None
        parts.policy.tell(self._selection, told, self._sorted.updates, late_s)
        parts.policy.note_used([each.arm for each in self._late_results if each.completed])
        parts.membership.note_results([*self._late_results, *self._results], parts.timed.now())
        if deadline.is_found:
            parts.policy.set_tau_max(deadline.level_s, unit_s=deadline.unit_s)
        self._selection = None
        if parts.explain:
            self._queue = parts.policy.queue

    def _step(
        self, replies: list[Message], consume: bool
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        found, quorum = self._sorted, self._parts.wrapped.quorum
        self._tried = True
        if self.no_step is not None:
            return None, None
        if not found.updates:
            self.no_step = NO_EXAMPLES if found.empty else NO_REPLIES
            return None, None
        if len(found.updates) < quorum:
            self.no_step = QUORUM
            return None, None
        late = self._late_updates()
        kept = {id(update.message) for update in found.updates.values()}
        replies = [reply for reply in replies if id(reply) in kept]  # without copies of late ones
        if len(replies) + len(late) < quorum:
            self.no_step = QUORUM
            return None, None
        try:
            return self._aggregated(self._presented(replies, late), consume)
        except Exception as error:  # a fault in a round must not end the run
            if not 0 < len(found.odd) <= len(found.updates) - quorum:
                return self._failed(error)
        # One reply of other names must not cost the others their round.
        odd = {id(found.updates[arm].message) for arm in found.odd}
        names = {update.signature for arm, update in found.updates.items() if arm not in found.odd}
        found.refuse_odd()
        replies = [reply for reply in replies if id(reply) not in odd]
        for each in late:
            if each.update.signature not in names:
                result = self._late_results[each.place]
                self._late_results[each.place] = self._parts.sorter.refused(result, ODD)
        late = [each for each in late if each.update.signature in names]
        try:
            return self._aggregated(self._presented(replies, late), consume)
        except Exception as error:
            return self._failed(error)

    def record(self, time_s: float) -> RoundRecord:
        """Return what the round leaves behind; ``time_s`` is its end since the run's begin."""
        used_late = {each.arm for each in self._late_results if each.completed}
        served = used_late.union(each.arm for each in self._results)
        return RoundRecord(
            round=self.number,
            time_s=time_s,
            round_s=self._round_s,
            num_arms=self._num_arms,
            available=self._available,
            results=self._results,
            stepped=self.no_step is None,
            no_step=self.no_step,
            absent=[arm for arm in self._absent if arm not in served],
            left_out=self._left_out,
            sent_bytes=self._sent_bytes,
            received_bytes=self._received_bytes,
            explanation=self._explanation,
            queue=self._queue,
            deadline_s=self.deadline_s if self._parts.deadline.is_found else None,
            late=self._late,
            late_updates=self._late_results,
        )


def fitted(arrays: ArrayRecord, model: ArrayRecord, specs: Mapping[str, ArraySpec]) -> ArrayRecord:
    """Return an aggregate in the dtypes of the model before it: FedAdam returns float64.

    Arrays that the model has not got, or in other shapes, stay as they are. Where the model's own
    value is not finite or huge, as in masks, and arithmetic has none for it, the model's is kept.

    Raises
    ------
    SchedulingError
        If a value is not finite where the model's is an ordinary number.
    """
    result: dict[str, Array] = {}
    for key, array in arrays.items():
        view, spec = decode_array(array), specs.get(key)
        like = spec is not None and view.shape == spec.shape
        changed = False
        if view.dtype.kind in "fc" and not is_finite(view):
            own = decode_array(model[key]) if like else None
            lost = ~np.isfinite(view)
            if own is None or (np.abs(own[lost]) <= LARGEST_VALUE).any():
                raise SchedulingError(f"the aggregate's {key!r} is not finite")
            view, changed = np.where(lost, own, view), True
        if spec is not None and view.dtype != spec.dtype and view.dtype.kind in "fbiu":
            view, changed = _converted(view, spec.dtype), True
        result[key] = encode_array(view) if changed else array
    return new_record(ArrayRecord, result)


def _converted(view: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return numbers in another dtype, those for whole numbers rounded."""
    if dtype.kind in "iu" and view.dtype.kind == "f":
        info = np.iinfo(dtype)
        return np.asarray(np.clip(np.rint(view), info.min, info.max), dtype=dtype)
    if dtype.kind == "b":
        return np.asarray(np.rint(view) != 0)
    return np.asarray(view, dtype=dtype)


def _sum(sizes: Iterable[int | None]) -> int | None:
    """Return the sum of what is known; none if nothing is."""
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def _log_change(
    when: str, before: Mapping[str, tuple[int, ...]], now: Mapping[str, tuple[int, ...]]
) -> None:
    """Warn that the model has other arrays than before: few mean that."""
    keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    changes = [f"{key!r} {_change(before.get(key), now.get(key))}" for key in keys[:_MOST_SHOWN]]
    if len(keys) > _MOST_SHOWN:
        changes.append(f"and {len(keys) - _MOST_SHOWN} more")
    LOGGER.warning("%s: the model has changed: %s", when, ", ".join(changes))


def _change(before: tuple[int, ...] | None, now: tuple[int, ...] | None) -> str:
    if before is None:
        return f"is new, of shape {now}"
    return "is gone" if now is None else f"was {before}, is {now}"
