"""Batched training without messages: the rounds of a simulation, many times as fast.

The paper's training figures compare policies over many seeds. Here the clients of a round are
trained together in one numpy pass; policy, latencies, partition, minibatches and arithmetic are
those of a simulation, so that a run gives the same selections, times and weights. The
test images are measured for several rounds at once, in another order of additions: an accuracy may
differ by the odd image whose two largest logits agree to six digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from flower_scheduling.client.learning.datasets import load_data
from flower_scheduling.client.learning.images import ImageData, ImageSpec
from flower_scheduling.client.learning.models import MODELS, create_model
from flower_scheduling.client.learning.partitions import build_partition
from flower_scheduling.client.learning.training import (
    draw_minibatches,
    evaluate,
    minibatch_rng,
    train_logistic,
)
from flower_scheduling.server.runs.directory import load_model
from flower_scheduling.strategies import (
    POLICIES,
    RoundContext,
    RoundOutcome,
    SchedulingPolicy,
    Selection,
    build_policy,
    parse_floors,
)
from flower_scheduling.strategies.base import BoolArray, FloatArray, IntArray
from flower_scheduling.strategies.deadline import AUTO
from flower_scheduling.strategies.floors import QueuePolicy
from flower_scheduling.strategies.flower.membership import rest_after
from flower_scheduling.strategies.flower.replies import LARGEST_VALUE
from flower_scheduling.strategies.flower.strategy import BUFFERED
from flower_scheduling.strategies.local_work import EQUAL_TIME, WorkBySpeed
from flower_scheduling.strategies.registry import channel_params, find_policy
from flower_scheduling.strategies.update_sketch import SKETCH_SIZE, sketch_of_change

from ..settings import SimulationConfig
from .batched_modules import ModuleTrainer, flat_weights, load_weights, split_weights
from .runner import Simulation

__all__ = [
    "BatchedHook",
    "TrainingCurve",
    "client_accuracies",
    "compare_batched",
    "run_batched",
]

WeightArray: TypeAlias = NDArray[np.float32]

BatchedHook: TypeAlias = Callable[[int, BoolArray, BoolArray, float], None]
"""Called after each round with its number, the clients that were selected and those that delivered
in time, both (num_clients,) bool, and the virtual time since the start [s]."""

# Settings of which only one value is supported here.
_SUPPORTED: Final[Mapping[str, object]] = {
    "aggregation": "fedavg",
    "aggregation_option": "",
    "client_eval_every": 0,
    "late_updates": "drop",
    "max_share": 1.0,
    "max_update_norm": 0.0,
    "joins": "",
    "wait_s": 0.0,
    "run_dir": "",
    "compress": "",
}

# ``ScheduledStrategy.start`` limits a round to this, however large the deadline [s].
_LONGEST_ROUND_S: Final = 3600.0
# The matrix product for 16 models takes five times that for one.
_MODELS_PER_EVALUATION: Final = 16


@dataclass(frozen=True, slots=True)
class TrainingCurve:
    """Result of one run: accuracy against rounds and time, counts and the final model.

    Attributes
    ----------
    config : SimulationConfig
        Resolved settings.
    rounds : (num_evaluations,) int64
        Rounds after which the model was evaluated; the last one is the run's last.
    time_s : (num_evaluations,) float64
        Virtual time since the start at their end [s].
    accuracy : (num_evaluations,) float64, in [0, 1]
        Fraction of the test images that were recognised.
    loss : (num_evaluations,) float64
        Mean cross-entropy of the test images; not finite where the model has diverged.
    selections, failures : (num_clients,) int64
        How often each client was selected, and how often it then delivered nothing in time.
    weights : dict of str to float32 array
        The final model by ``state_dict`` key.
    """

    config: SimulationConfig
    rounds: IntArray
    time_s: FloatArray
    accuracy: FloatArray
    loss: FloatArray
    selections: IntArray
    failures: IntArray
    weights: dict[str, WeightArray]


def run_batched(
    config: SimulationConfig,
    hook: BatchedHook | None = None,
    *,
    policy: SchedulingPolicy | None = None,
) -> TrainingCurve:
    """Run one simulation of a built-in model under FedAvg.

    Parameters
    ----------
    config : SimulationConfig
        Settings of a simulation. Models of torchvision, other aggregations, evaluation on
        clients, late joiners, waiting and run directories are not supported.
    hook : callable, optional
        Called after each round, see :data:`BatchedHook`.
    policy : SchedulingPolicy, optional
        Used instead of the policy that the settings name.

    Returns
    -------
    TrainingCurve

    Raises
    ------
    ConfigError, UnknownPolicyError, ClientConfigError
        If a setting is not supported here, or does not fit the others or the data.
    DataUnavailableError
        If the data cannot be had.

    Notes
    -----
    ``local-accuracy`` measures all data of every selected client in every round, which takes as
    long here as in a simulation: some 100 rounds per second instead of thousands. Models other
    than ``logistic`` are trained one client after the other, by autograd.
    """
    for name, value in _SUPPORTED.items():
        allowed = f"{value if value != '' else 'empty'} in batched training"
        config.require(name, getattr(config, name) == value, allowed)
    known = f"one of {', '.join(MODELS)} in batched training"
    config.require("model", config.model in MODELS, known)
    config.require("tau_max_s", config.tau_max_s != AUTO, "a number in batched training")
    Simulation(config)  # refuses what a simulation refuses
    run = BatchedRun
    if config.mode == BUFFERED:
        from .batched_buffer import BufferedRun

        run = BufferedRun
    return run(config, hook, policy).play()


def compare_batched(
    config: SimulationConfig, policies: Sequence[str], seeds: Sequence[int]
) -> dict[str, list[TrainingCurve]]:
    """Run several policies over several seeds; those of one seed see the same draws.

    Parameters
    ----------
    config : SimulationConfig
        Settings of all runs, see :func:`run_batched`; its policy and seed do not matter.
    policies : sequence of str
        Their names.
    seeds : sequence of int, >= 0
        One run of each policy per seed.

    Returns
    -------
    dict of str to list of TrainingCurve
        By policy, in the order given; its curves in the order of the seeds.

    Raises
    ------
    ConfigError, UnknownPolicyError, ClientConfigError, DataUnavailableError
        As :func:`run_batched`.
    """
    runs = {  # all of them first: a wrong name is refused before anything has run
        policy: [config.changed(strategy=policy, seed=seed) for seed in seeds]
        for policy in policies
    }
    return {policy: [run_batched(run) for run in runs[policy]] for policy in runs}


def client_accuracies(curve: TrainingCurve, clients: IntArray) -> FloatArray:
    """Measure the final model of a run on the training data of some clients.

    Parameters
    ----------
    curve : TrainingCurve
        The run.
    clients : (n,) int64, in [0, num_clients)
        Whose data.

    Returns
    -------
    (n,) float64, in [0, 1]
        Fraction of the images of each that is recognised.
    """
    config = curve.config
    data = load_data(config.dataset, config.data_dir)
    parts = build_partition(
        config.partitioner, data.train_labels.numpy(), config.num_clients, config.seed
    )
    model = create_model(config.model, config.seed, data.spec)
    for key, values in curve.weights.items():
        model.views[key][...] = values
    found = [
        evaluate(model, data.train_images[part], data.train_labels[part])[1]
        for part in (torch.from_numpy(parts[client]) for client in clients.tolist())
    ]
    return np.array(found)


@dataclass(frozen=True, slots=True)
class _Late:
    """A spare client that works on when its round has ended, and what will become known of it."""

    end_s: float
    arm: int
    steps: int
    time_s: float
    compute_s: float
    on_time: bool


class BatchedRun:
    """State of one run.

    A model is one row of numbers, in the order of its keys, so that one operation averages it.
    """

    def __init__(
        self,
        config: SimulationConfig,
        hook: BatchedHook | None,
        policy: SchedulingPolicy | None,
    ) -> None:
        data = load_data(config.dataset, config.data_dir)
        model = create_model(config.model, config.seed, data.spec)
        self._spec = data.spec
        if config.initial_model:
            model.load(load_model(Path(config.initial_model), like=model.arrays()))
        self._config = config
        self._hook = hook
        self._like = model
        self._model: WeightArray = flat_weights(model)
        self._updates: WeightArray = np.empty(
            (config.num_selected + config.spare, self._model.size), dtype=np.float32
        )
        self._data = _ClientData(config, data)
        self._modules = None
        if config.model != "logistic":
            self._modules = ModuleTrainer(config, data, self._data.parts)
        self._evaluator = _Evaluator(data, self._modules)
        self._environment = config.environment(8 * self._model.nbytes)
        self._policy = _build_policy(config) if policy is None else policy
        self._reports = POLICIES[config.strategy].reports
        self._needs_updates = POLICIES[config.strategy].needs_updates
        self._sketches: FloatArray | None = None  # of the updates that the policy learns from next
        self._seen: BoolArray = np.zeros(config.num_clients, dtype=np.bool_)
        assert config.tau_max_s != AUTO
        self._deadline_s = min(config.tau_max_s, _LONGEST_ROUND_S)
        self._busy_until_s: FloatArray = np.zeros(config.num_clients)
        self._in_a_row: IntArray = np.zeros(config.num_clients, dtype=np.int64)  # failures
        self._rest_end_s: FloatArray = np.zeros(config.num_clients)
        self._work = _work_by_speed(config)
        self._time_s = 0.0
        self._selections: IntArray = np.zeros(config.num_clients, dtype=np.int64)
        self._failures: IntArray = np.zeros(config.num_clients, dtype=np.int64)
        self._late: list[_Late] = []  # spare clients of earlier rounds that still work
        self._begin()

    def _begin(self) -> None:
        """Prepare what else a mode needs."""

    def play(self) -> TrainingCurve:
        """Run all rounds, or until the target is reached."""
        config, evaluator = self._config, self._evaluator
        target = config.target_accuracy
        for t in range(1, config.rounds + 1):
            self._play_round(t)
            if t == config.rounds or t % config.eval_every == 0:
                evaluator.add(t, self._time_s, self._model)
                # Whether to stop must be known now; else several models are measured at once.
                if target > 0 and evaluator.accuracies()[-1] >= target:
                    break
        return TrainingCurve(
            config=config,
            rounds=np.array(evaluator.rounds),
            time_s=np.array(evaluator.times_s),
            accuracy=np.array(evaluator.accuracies()),
            loss=np.array(evaluator.losses()),
            selections=self._selections,
            failures=self._failures,
            weights=split_weights(self._like, self._model),
        )

    def _play_round(self, t: int) -> None:
        """Select, train and learn, as ``ScheduledStrategy`` on a ``VirtualGrid`` does."""
        draw = self._environment.round(t)
        self._wait_for_rests(draw.available)
        member = self._rest_end_s <= self._time_s
        available = draw.available & (self._busy_until_s <= self._time_s) & member
        self._note_sizes(available)
        selection = self._policy.ask(RoundContext(t, available, member))
        arms = selection.positions
        steps = self._ask_steps(arms, available)

        # Computed as there: another order of operations changes the last digit.
        compute_s = draw.compute_s.copy()
        compute_s[arms] *= steps / self._config.local_steps
        time_s = compute_s + (draw.download_s + draw.upload_s)
        completed = (time_s < self._deadline_s) & ~draw.failed
        begin_s = self._time_s
        if self._config.late == "busy":
            slow = arms[~completed.take(arms) & ~draw.failed.take(arms)]
            self._busy_until_s[slow] = begin_s + time_s[slow]
        length_s, waited = self._length(arms, time_s, completed)
        self._time_s += length_s
        for arm, number in zip(arms[~waited].tolist(), steps[~waited].tolist(), strict=True):
            self._put_off(arm, begin_s, number, time_s[arm], compute_s[arm], completed[arm])
        arms, steps = arms[waited], steps[waited]
        on_time = completed.take(arms)

        delivered = arms[on_time]
        self._sketches = None
        reported = {name: np.full(available.shape, np.nan) for name in self._reports}
        if "local_accuracy" in reported:
            reported["local_accuracy"] = self._data.local_accuracies(self._model, delivered)
        told_s = time_s.copy()
        if delivered.size:
            loss, usable = self._step(t, delivered, steps[on_time])
            if "loss" in reported:
                reported["loss"][delivered] = loss
            useless = delivered[~usable]
            completed[useless] = False
            for arm, each in zip(delivered.tolist(), usable.tolist(), strict=True):
                self._note_result(arm, time_s[arm], usable=each)
            for values in reported.values():
                values[useless] = np.nan
            for arm, number in zip(delivered[usable].tolist(), steps[on_time][usable], strict=True):
                told_s[arm] = self._learn_work(arm, int(number), time_s[arm], compute_s[arm])
        mask = np.zeros_like(selection.mask)
        mask[arms] = True
        self._tell(Selection(selection.context, mask, selection.drawn), told_s, completed, reported)
        self._selections[arms] += 1
        self._failures[arms] += ~completed.take(arms)
        if self._hook is not None:
            self._hook(t, mask, mask & completed, self._time_s)

    def _note_result(self, arm: int, time_s: float, *, usable: bool) -> None:
        """Let a client rest whose work comes to nothing, as :class:`.Membership` does."""
        self._in_a_row[arm] = 0 if usable else self._in_a_row[arm] + 1
        rest_s = rest_after(int(self._in_a_row[arm]), time_s)
        self._rest_end_s[arm] = self._time_s + rest_s if rest_s else 0.0

    def _wait_for_rests(self, there: BoolArray) -> None:
        """Let time pass until a client is available, if some of these rest and all others work."""
        while True:
            rests = self._rest_end_s > self._time_s
            if not rests.any():
                return
            busy = self._busy_until_s > self._time_s
            if not (there & ~busy & rests).any() or (there & ~busy & ~rests).any():
                return
            ends_s = np.concatenate([self._busy_until_s[busy], self._rest_end_s[there & rests]])
            self._time_s += float(ends_s.min()) - self._time_s

    def _length(
        self, arms: IntArray, time_s: FloatArray, completed: BoolArray
    ) -> tuple[float, BoolArray]:
        """Return how long a round of these clients is [s], and which of them are waited for."""
        if not arms.size:
            return 0.0, np.zeros(0, dtype=np.bool_)
        done = completed.take(arms)
        ends_s = np.where(done, time_s.take(arms), self._deadline_s)
        length_s = float(ends_s.max())
        needed = self._config.num_selected
        if self._config.spare and np.count_nonzero(done) >= needed:
            enough_s = np.partition(ends_s[done], needed - 1)[needed - 1]
            owed = ends_s[np.isin(arms, self._owed())]
            length_s = float(max(enough_s, owed.max(initial=0.0)))
        return length_s, ends_s <= length_s

    def _owed(self) -> IntArray:
        """Return the clients that are owed a round or more, which are waited for."""
        policy = self._policy
        owed = isinstance(policy, QueuePolicy) and policy.virtual_queue >= 1.0
        return np.flatnonzero(owed)

    def _put_off(
        self, arm: int, begin_s: float, steps: int, time_s: float, compute_s: float, on_time: bool
    ) -> None:
        """Note what is known of a spare client at a later time, until when it is busy."""
        end_s = begin_s + (time_s if on_time else self._deadline_s)
        self._busy_until_s[arm] = max(self._busy_until_s[arm], end_s)
        self._late.append(_Late(end_s, arm, steps, time_s, compute_s, on_time))

    def _tell(
        self,
        selection: Selection,
        told_s: FloatArray,
        completed: BoolArray,
        reported: Mapping[str, FloatArray],
    ) -> None:
        """Let the policy learn from a round, and from the late replies that have come by now."""
        come = [each for each in self._late if each.end_s <= self._time_s]
        if not come:
            self._policy.tell(selection, RoundOutcome(told_s, completed, reported, self._sketches))
            return
        self._late = [each for each in self._late if each.end_s > self._time_s]
        mask, completed = selection.mask.copy(), completed.copy()
        for each in come:
            mask[each.arm], completed[each.arm] = True, each.on_time
            if each.on_time:
                told_s[each.arm] = self._learn_work(
                    each.arm, each.steps, each.time_s, each.compute_s
                )
        policy = self._policy
        late = [each.arm for each in come]
        before = policy.virtual_queue.copy() if isinstance(policy, QueuePolicy) else None
        told = Selection(selection.context, mask, selection.drawn)
        policy.tell(told, RoundOutcome(told_s, completed, reported, self._sketches))
        if before is not None and isinstance(policy, QueuePolicy):  # what comes late pays no debt
            policy.virtual_queue[late] = (before + policy.min_participation)[late]

    def _ask_steps(self, arms: IntArray, there: BoolArray) -> IntArray:
        """Return how many local steps these clients are asked for, of those that could work."""
        if self._work is None:
            return np.full(arms.size, self._config.local_steps)
        return self._work.ask(arms, there)

    def _learn_work(self, arm: int, steps: int, time_s: float, compute_s: float) -> float:
        """Learn from a piece of work; return what the policy is told that it took [s]."""
        if self._work is None:
            return time_s
        self._work.tell(arm, steps, time_s, compute_s)
        return self._work.at_base_s(arm, steps, time_s, compute_s)

    def _scale(self, steps: int) -> float:
        """Return how much longer or shorter to make an update of so many steps."""
        return 1.0 if self._work is None else self._work.scale(steps)

    def _note_sizes(self, available: BoolArray) -> None:
        """Set the floors when clients are seen for the first time; others count as average."""
        if not (available & ~self._seen).any():
            return
        self._seen |= available
        policy = self._policy
        if hasattr(policy, "min_participation"):
            sizes = self._data.sizes
            known = np.where(self._seen, sizes, sizes[self._seen].mean())
            rule = parse_floors(self._config.fairness)
            floors = rule.floors(known, self._config.num_selected)
            if self._config.mode == BUFFERED:  # shares of completed updates
                floors = floors / self._config.num_selected
            policy.min_participation = floors

    def _step(self, t: int, arms: IntArray, steps: IntArray) -> tuple[FloatArray, BoolArray]:
        """Train these clients and average what is usable of it.

        Parameters
        ----------
        t : int, >= 1
            Round number.
        arms : (n,) int64, n >= 1
            The clients.
        steps : (n,) int64, >= 1
            Their local steps.

        Returns
        -------
        loss : (n,) float64
            Mean minibatch loss of each client.
        usable : (n,) bool
            False for clients whose model has diverged, which the average leaves out.
        """
        data = self._data
        updates = self._updates[: arms.size]
        updates[...] = self._model
        loss, usable = self._train(updates, t, arms, steps)
        if not usable.all():
            arms, steps, updates = arms[usable], steps[usable], updates[usable]
        self._sketches = self._sketched(arms, updates, self._model)
        if arms.size:
            sizes = data.sizes[arms]
            for row, number in zip(updates, steps.tolist(), strict=True):
                if (scale := self._scale(number)) != 1.0:
                    row -= self._model
                    row *= scale
                    row += self._model
            updates *= (sizes / sizes.sum()).astype(np.float32)[:, np.newaxis]
            self._model = updates.sum(axis=0)  # one after the other, as FedAvg does
        return loss, usable

    def _train(
        self, updates: WeightArray, t: int, arms: IntArray, steps: IntArray, repeat: int = 0
    ) -> tuple[FloatArray, BoolArray]:
        """Train models in place, a row for each client; return losses, and which did not diverge.

        ``repeat`` is how often the clients were asked before in this step.
        """
        loss: FloatArray = np.empty(arms.size)
        for number in np.unique(steps).tolist():  # those of as many steps together
            rows = np.flatnonzero(steps == number)
            whole = rows.size == arms.size
            models = updates if whole else updates[rows]
            loss[rows] = self._train_alike(models, t, arms[rows], number, repeat)
            if not whole:
                updates[rows] = models
        largest = np.abs(updates).max(axis=1)  # of what is not finite it is neither
        usable: BoolArray = np.isfinite(loss) & (largest <= LARGEST_VALUE)
        return loss, usable

    def _sketched(
        self, arms: IntArray, updates: WeightArray, sent: WeightArray
    ) -> FloatArray | None:
        """Return sketches of updates, a row for each client; none if the policy needs none."""
        if not self._needs_updates:
            return None
        sketches = np.full((self._config.num_clients, SKETCH_SIZE), np.nan)
        for arm, trained in zip(arms.tolist(), updates, strict=True):
            if (sketch := sketch_of_change([(trained, sent)])) is not None:
                sketches[arm] = sketch
        return sketches

    def _train_alike(
        self, updates: WeightArray, t: int, arms: IntArray, steps: int, repeat: int
    ) -> FloatArray:
        """Train models with so many steps each; return their losses."""
        if self._modules is not None:
            return self._modules.train(updates, t, arms, steps, repeat)
        data = self._data
        weight, bias = split_models(self._spec, updates)
        return train_logistic(
            weight,
            bias,
            data.pixels,
            data.labels,
            data.minibatches(t, arms, steps, repeat),
            self._config.learning_rate,
            normalisation=data.normalisation,
        )


class _ClientData:
    """Training data of the clients.

    Attributes
    ----------
    pixels : (num_train, num_features) uint8, in [0, 255]
        All training images.
    labels : (num_train,) int64, in [0, num_classes)
        Their labels.
    normalisation : pair of (num_features,) float32, or None
        Mean and deviation of each feature.
    parts : list of (s_k,) int64
        Training images of each client.
    sizes : (num_clients,) int64, >= 1
        Number of examples of each client, s_k.
    """

    def __init__(self, config: SimulationConfig, data: ImageData) -> None:
        self.pixels: NDArray[np.uint8] = data.train_images.numpy().reshape(
            len(data.train_images), -1
        )
        self.normalisation = data.spec.flat_normalisation()
        self.labels: IntArray = data.train_labels.numpy()
        self._config = config
        self.parts = build_partition(
            config.partitioner, self.labels, config.num_clients, config.seed
        )
        self.sizes: IntArray = np.array([len(part) for part in self.parts])
        if "local_accuracy" in POLICIES[config.strategy].reports:
            self._model = create_model(config.model, config.seed, data.spec)
            indices = [torch.from_numpy(part) for part in self.parts]
            self._local_data = [(data.train_images[i], data.train_labels[i]) for i in indices]

    def minibatches(self, t: int, arms: IntArray, steps: int, repeat: int = 0) -> IntArray:
        """Draw what these clients train on in a round, (steps, len(arms), batch_size)."""
        size = self._config.batch_size
        batches: IntArray = np.empty((steps, arms.size, size), dtype=np.int64)
        for place, arm in enumerate(arms.tolist()):
            part = self.parts[arm]
            rng = minibatch_rng(self._config.seed, arm, t, repeat)
            batches[:, place] = part[
                draw_minibatches(rng, len(part), local_steps=steps, batch_size=size)
            ]
        return batches

    def local_accuracies(self, model: WeightArray, arms: IntArray) -> FloatArray:
        """Measure a model on the data of these clients, as a ClientApp does before it trains.

        Parameters
        ----------
        model : (num_weights,) float32
            Weights and biases.
        arms : (n,) int64
            The clients.

        Returns
        -------
        (num_clients,) float64, in [0, 1]
            NaN for the other clients.
        """
        load_weights(self._model, model)
        accuracies: FloatArray = np.full(len(self.parts), np.nan)
        for arm in arms.tolist():
            _, accuracies[arm] = evaluate(self._model, *self._local_data[arm])
        return accuracies


class _Evaluator:
    """Evaluator of models on the test images, several at once.

    Attributes
    ----------
    rounds : list of int
        Rounds of the models.
    times_s : list of float
        Virtual time at their end [s].
    """

    def __init__(self, data: ImageData, modules: ModuleTrainer | None = None) -> None:
        self.rounds: list[int] = []
        self.times_s: list[float] = []
        self._modules = modules
        self._pixels: WeightArray = (
            data.spec.scale(data.test_images).numpy().reshape(len(data.test_images), -1)
        )
        self._spec = data.spec
        self._labels: IntArray = data.test_labels.numpy()
        self._waiting: list[WeightArray] = []
        self._accuracies: list[float] = []
        self._losses: list[float] = []

    def add(self, t: int, time_s: float, model: WeightArray) -> None:
        """Take the model of a round, (num_weights,) float32, which must not change afterwards."""
        self.rounds.append(t)
        self.times_s.append(time_s)
        self._waiting.append(model)
        if len(self._waiting) == _MODELS_PER_EVALUATION:
            self._measure()

    def accuracies(self) -> list[float]:
        """Return the fraction recognised by each model."""
        self._measure()
        return self._accuracies

    def losses(self) -> list[float]:
        """Return the mean cross-entropy of each model."""
        self._measure()
        return self._losses

    def _measure(self) -> None:
        if self._modules is not None:
            for model in self._waiting:
                loss, accuracy = self._modules.evaluate(model)
                self._losses.append(loss)
                self._accuracies.append(accuracy)
            self._waiting.clear()
        if not self._waiting:
            return
        weight, bias = split_models(self._spec, np.stack(self._waiting))
        self._waiting.clear()
        images = np.arange(len(self._labels))
        with np.errstate(all="ignore"):  # a diverged model has no finite loss, and no other fault
            logits = (weight.reshape(-1, self._spec.num_features) @ self._pixels.T).reshape(
                *bias.shape, -1
            )  # (models, num_classes, images)
            logits += bias[:, :, np.newaxis]
            correct = np.count_nonzero(logits.argmax(axis=1) == self._labels, axis=1)
            logits -= logits.max(axis=1, keepdims=True)  # keeps exp in range
            of_label = logits[:, self._labels, images]
            loss = (np.log(np.exp(logits).sum(axis=1)) - of_label).mean(axis=1, dtype=np.float64)
        self._accuracies += (correct / len(images)).tolist()
        self._losses += loss.tolist()


def _build_policy(config: SimulationConfig) -> SchedulingPolicy:
    """Build the policy as the ServerApp does."""
    params = {
        "num_arms": config.num_clients,
        "num_selected": config.num_selected + config.spare,
        "tau_max_s": config.tau_max_s,
        "rng": np.random.default_rng(config.seed),
        **config.policy_params(),
    }
    if config.mode == BUFFERED:
        params |= channel_params(find_policy(config.strategy), config.num_selected)
    return build_policy(config.strategy, **params)


def _work_by_speed(config: SimulationConfig) -> WorkBySpeed | None:
    """Return how clients' work is set, if not equally."""
    if config.local_work != EQUAL_TIME:
        return None
    return WorkBySpeed(config.local_steps, config.num_selected, config.least_work, config.most_work)


def split_models(spec: ImageSpec, models: WeightArray) -> tuple[WeightArray, WeightArray]:
    """Return views of the weights and biases of models (n, num_weights).

    Returns
    -------
    weight : (n, num_classes, num_features) float32
    bias : (n, num_classes) float32
    """
    num_weights = spec.num_classes * spec.num_features
    weight = models[:, :num_weights].reshape(-1, spec.num_classes, spec.num_features)
    return weight, models[:, num_weights:]
