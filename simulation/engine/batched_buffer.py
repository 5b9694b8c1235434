"""Buffered steps without messages: the counterpart of batched training for channels."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from flower_scheduling.strategies import RoundContext, RoundOutcome
from flower_scheduling.strategies.base import BoolArray, FloatArray, IntArray, Selection
from flower_scheduling.strategies.flower.buffer.steps import GIVE_UP, Overdue, StepWeights
from flower_scheduling.strategies.registry import find_policy

from .batched import BatchedRun, WeightArray

__all__ = ["BufferedRun"]

_NO_LOSS: Final = float("nan")


@dataclass(frozen=True, slots=True)
class _Work:
    """A piece of work under way."""

    arm: int
    selection: Selection
    step: int  # in which its client was asked
    repeat: int  # how often before, in this step
    version: int  # of the model that it began from
    model: WeightArray
    begin_s: float
    time_s: float
    on_time: bool
    steps: int
    compute_s: float


@dataclass(frozen=True, slots=True)
class _Delivered:
    arm: int
    version: int
    sent: WeightArray
    trained: WeightArray
    steps: int


class BufferedRun(BatchedRun):
    """A run of buffered steps, as ``ScheduledStrategy`` makes them on a ``VirtualGrid``."""

    def _begin(self) -> None:
        config = self._config
        self._size = config.buffer_size or (config.num_selected + 1) // 2
        even = {"true": True, "false": False}.get(config.even_weights)
        by_data = find_policy(config.strategy).by_data
        self._weights = StepWeights(not by_data if even is None else even)
        self._version = self._decisions = self._ends = self._sent = 0
        # By end, and in the order of asking where two end together.
        self._under_way: list[tuple[float, int, _Work]] = []
        self._at_work: BoolArray = np.zeros(config.num_clients, dtype=np.bool_)
        self._overdue = Overdue()
        self._idle = self._at_work

    def _play_round(self, t: int) -> None:
        """Keep the channels busy until the step has its updates, and make it."""
        self._step_number = t
        delivered: list[_Delivered] = []
        asked: Counter[int] = Counter()
        num_ends = 0
        while len(delivered) < self._size and num_ends < GIVE_UP * self._size:
            self._fill(t, asked)
            if not self._under_way:
                self._wait_for_rests(self._environment.round(self._decisions).available)
                self._fill(t, asked)  # once more, as after a wait for clients
            if not self._under_way:
                break
            delivered += self._end()
            num_ends += 1
        if delivered:
            self._step_from(delivered)

    def _fill(self, t: int, asked: Counter[int]) -> None:
        """Give each free channel to an idle client, as far as the policy wants it."""
        config = self._config
        while len(self._under_way) < config.num_selected:
            self._decisions += 1
            draw = self._environment.round(self._decisions)
            busy = self._at_work | (self._busy_until_s > self._time_s)
            busy |= self._rest_end_s > self._time_s
            available = draw.available & ~busy
            self._note_sizes(available)
            self._idle = available
            there = available | self._awaited()
            selection = self._policy.ask(RoundContext(self._ends + 1, available, there))
            if not selection.positions.size:
                break
            arm = int(selection.positions[0])
            steps = int(self._ask_steps(selection.positions[:1], available | self._at_work)[0])
            compute_s = float(draw.compute_s[arm] * (steps / config.local_steps))
            time_s = float(compute_s + (draw.download_s[arm] + draw.upload_s[arm]))
            on_time = bool(time_s < self._deadline_s and not draw.failed[arm])
            if time_s >= self._deadline_s and config.late == "busy" and not draw.failed[arm]:
                self._busy_until_s[arm] = self._time_s + time_s
            work = _Work(
                arm, selection, t, asked[arm], self._version, self._model, self._time_s, time_s,
                on_time, steps, compute_s,
            )  # fmt: skip
            asked[arm] += 1
            self._sent += 1
            end_s = self._time_s + (time_s if on_time else self._deadline_s)
            heapq.heappush(self._under_way, (end_s, self._sent, work))
            self._at_work[arm] = True

    def _awaited(self) -> BoolArray:
        """Return which clients are at work, without those whose work is overdue."""
        awaited = self._at_work.copy()
        for _, _, work in self._under_way:
            if self._overdue.is_overdue(self._time_s - work.begin_s):
                awaited[work.arm] = False
        return awaited

    def _end(self) -> list[_Delivered]:
        """Let the next piece of work end; return its update, if it can be used."""
        end_s, _, work = heapq.heappop(self._under_way)
        self._time_s = max(self._time_s, end_s)
        arm, shape = work.arm, self._at_work.shape
        self._at_work[arm] = False
        there = self._idle | self._awaited()
        there[arm] = True
        if work.on_time:
            self._overdue.note(work.time_s)
        trained, loss = self._trained(work) if work.on_time else (None, _NO_LOSS)
        usable = trained is not None
        if usable and self._version - work.version > self._config.max_staleness:
            usable = False
        reported: dict[str, FloatArray] = {name: np.full(shape, np.nan) for name in self._reports}
        if "loss" in reported and usable:
            reported["loss"][arm] = loss
        one: IntArray = np.array([arm])
        if "local_accuracy" in reported and usable:
            reported["local_accuracy"] = self._data.local_accuracies(work.model, one)
        self._ends += 1
        context = RoundContext(self._ends, work.selection.context.available, there)
        selection = Selection(context, work.selection.mask, work.selection.drawn)
        times: FloatArray = np.full(shape, np.nan)
        times[arm] = work.time_s
        if trained is not None:
            times[arm] = self._learn_work(arm, work.steps, work.time_s, work.compute_s)
        sketches = None
        if usable and trained is not None:
            sketches = self._sketched(one, trained[np.newaxis], work.model)
        completed = selection.mask & usable
        self._policy.tell(selection, RoundOutcome(times, completed, reported, sketches))
        if work.on_time:
            self._note_result(arm, work.time_s, usable=usable)
        self._selections[arm] += 1
        self._failures[arm] += not usable
        if self._hook is not None:
            self._hook(self._step_number, selection.mask, selection.mask & usable, self._time_s)
        if not usable or trained is None:
            return []
        return [_Delivered(arm, work.version, work.model, trained, work.steps)]

    def _trained(self, work: _Work) -> tuple[WeightArray | None, float]:
        """Return the model that a client has trained, none if it has diverged, and its loss."""
        updates = work.model[np.newaxis].copy()
        one: IntArray = np.array([work.arm])
        loss, usable = self._train(updates, work.step, one, np.array([work.steps]), work.repeat)
        return (updates[0] if usable[0] else None), float(loss[0])

    def _step_from(self, delivered: list[_Delivered]) -> None:
        """Change the model as FedAvg does, of updates as if trained from it."""
        arms = [each.arm for each in delivered]
        sizes = self._data.sizes[arms].astype(np.float64)
        factors, length = self._weights.of_step(arms, sizes.tolist())
        updates = np.empty((len(delivered), self._model.size), dtype=np.float32)
        for row, each in zip(updates, delivered, strict=True):
            scale = length * (1.0 + self._version - each.version) ** (
                -self._config.staleness_discount
            )
            scale *= self._scale(each.steps)
            if each.sent is self._model and scale == 1.0:
                row[...] = each.trained
                continue
            np.subtract(each.trained, each.sent, out=row)
            if scale != 1.0:
                row *= scale
            row += self._model
        weights = sizes * factors
        updates *= (weights / weights.sum()).astype(np.float32)[:, np.newaxis]
        self._model = updates.sum(axis=0)
        self._version += 1
