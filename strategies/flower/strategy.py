"""Schedule the clients of any Flower strategy: select, measure, learn, aggregate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MetricRecord,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from flower_scheduling.client.wire.arrays import decode_array
from flower_scheduling.client.wire.protocol import REPORT
from flower_scheduling.errors import ConfigError, SchedulingError

from ..base import SchedulingPolicy
from ..fairness import FloorRule
from .arm_table import ArmTable
from .grids import SelectedNodesGrid
from .membership import Membership
from .policy_runner import PolicyLike, PolicyRunner
from .record import RoundHook, RoundRecord
from .replies import ArraySpec, ReplyChecker, Update
from .reply_sorter import ReplySorter
from .state import load_strategy_state, strategy_state
from .timed_grid import LOGGER, TimedExchange, TimedGrid
from .wrapped import WrappedStrategy

_MIN_TTL_S = 60.0
_WARN_WITHOUT_STEP = 10


@dataclass(slots=True)
class _Run:
    """One :meth:`ScheduledStrategy.start`: what rounds share."""

    grid: Grid
    timed: TimedExchange
    specs: Mapping[str, ArraySpec]
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    deadline_s: float
    result: Result
    begin_s: float = math.nan  # when the first round's selection began
    rounds_without_step: int = 0  # in a row


class ScheduledStrategy(Strategy):
    """Let a scheduling policy choose the clients of each round of another Flower strategy.

    The policy selects the super arm, the wrapped strategy builds the messages for exactly these
    nodes, the grid measures each round trip on the server's clock, the policy learns from it, and
    the wrapped strategy aggregates what arrived in time. Replies that are late, in error or
    unusable count as failures: reward 0, never aggregated.

    Must be the outermost strategy, run by its own :meth:`start`.

    Parameters
    ----------
    strategy : Strategy
        Any Flower strategy that trains all the nodes it sees (``fraction_train = 1``).
    policy : str, SchedulingPolicy or callable
        Name of a policy in :data:`.POLICIES` or ``module:Class``; a policy built with
        ``num_arms=0``, which grows as clients join; or a class or function that builds one from
        ``num_arms``, ``num_selected``, ``tau_max_s`` and ``rng``.
    num_selected : int
        Size N of the super arm.
    tau_max_s : float
        Deadline of a round [s], tau_max in the paper.
    fairness : str or FloorRule
        Floors c_k for policies that keep them: numbers, ``dev-1=0.6,dev-2=0.5``, ``equal:0.2``,
        ``proportional:2``, ``heuristic:0.5``, ``none``. The default guarantees each client half of
        its proportional share of rounds, (N/2) s_k / sum s. Clients whose size is unknown count as
        average.
    availability : float
        Assumed probability that a client is available, for the feasibility check of the floors.
    seed : int
        Seed of the policy's random choices.
    min_clients : int, optional
        Clients to wait for before the first round; ``num_selected`` by default.
    wait_s : float
        Bound on that wait, and on the wait of each round in which too few clients are
        available [s]. Such a round then counts with nothing selected.
    query_timeout_s : float
        Longest wait for a joining client to tell its name and size [s].
    min_replies : int
        Smallest number of usable updates that may change the model.
    eval_every : int
        Rounds between two server-side evaluations; the last round is always evaluated.
    client_eval_every : int
        Rounds between two evaluations on the clients of the round's super arm; 0: never.
    client_eval_timeout_s : float, optional
        Deadline of such an evaluation [s]; ``tau_max_s`` by default.
    max_update_norm : float, optional
        Largest Euclidean distance of an update from the round's model; what is farther away
        counts as failed. Off by default: the right value depends on model and step size.
    explain : bool
        Whether each :class:`RoundRecord` explains the selection of its clients.
    hooks : sequence of callable
        Called after each round with its :class:`RoundRecord` and the current model.
    stop_when : callable, optional
        Ends the run after a round for whose record it returns true.
    **policy_params
        Passed to the policy, e.g. ``beta=1e-3``.

    Raises
    ------
    ConfigError, UnknownPolicyError
        If a setting is out of range or does not fit the wrapped strategy.

    Examples
    --------
    >>> strategy = ScheduledStrategy(FedAvg(), policy="cs-ucb-q", num_selected=5, tau_max_s=30)
    >>> result = strategy.start(grid, initial_arrays, num_rounds=100)
    """

    def __init__(
        self,
        strategy: Strategy,
        policy: PolicyLike = "cs-ucb-q-adaptive",
        *,
        num_selected: int,
        tau_max_s: float,
        fairness: str | FloorRule = "heuristic:0.5",
        availability: float = 1.0,
        seed: int = 0,
        min_clients: int | None = None,
        wait_s: float = 60.0,
        query_timeout_s: float = 60.0,
        min_replies: int = 1,
        eval_every: int = 1,
        client_eval_every: int = 0,
        client_eval_timeout_s: float | None = None,
        max_update_norm: float | None = None,
        explain: bool = False,
        hooks: Sequence[RoundHook] = (),
        stop_when: Callable[[RoundRecord], bool] | None = None,
        **policy_params: Any,
    ) -> None:
        if not isinstance(strategy, Strategy):
            raise ConfigError(
                "strategy", strategy, "must be a Flower strategy of flwr.serverapp.strategy"
            )
        self._num_selected = num_selected
        self._tau_max_s = tau_max_s
        self._policy = PolicyRunner(
            policy,
            num_selected=num_selected,
            tau_max_s=tau_max_s,
            seed=seed,
            fairness=fairness,
            availability=availability,
            params=policy_params,
        )
        self._wrapped = WrappedStrategy(
            strategy, num_selected=num_selected, min_replies=min_replies
        )
        if any(isinstance(inner, ScheduledStrategy) for inner in self._wrapped.chain):
            message = "is scheduled already: wrap a strategy once"
            raise ConfigError("strategy", "a ScheduledStrategy", message)
        self._membership = Membership(wait_s, query_timeout_s)
        checker = ReplyChecker(
            self._wrapped.weighted_by_key,
            fixed_shapes=self._wrapped.fixed_shapes,
            max_update_norm=max_update_norm,
        )
        self._sorter = ReplySorter(checker, self._membership.table)
        self._min_clients = num_selected if min_clients is None else min_clients
        self._eval_every = _at_least("eval_every", eval_every, 1)
        self._client_eval_every = _at_least("client_eval_every", client_eval_every, 0)
        self._client_eval_timeout_s = client_eval_timeout_s or tau_max_s
        self._explain = explain
        self._hooks = list(hooks)
        self._stop_when = stop_when
        self._open_round: int | None = None
        self._run: _Run | None = None
        self._resumed: Mapping[str, Any] | None = None

    @property
    def policy(self) -> SchedulingPolicy:
        """The learning policy; exists from the first round on."""
        return self._policy.policy

    @property
    def arms(self) -> ArmTable:
        """The clients so far."""
        return self._membership.table

    @property
    def floors(self) -> list[float] | None:
        """Least share of rounds of each arm; ``None`` for a policy without floors."""
        return self._policy.floors

    @property
    def queues(self) -> list[float] | None:
        """Virtual queue of each arm [rounds owed]; ``None`` for a policy without queues."""
        queue = self._policy.queue
        return None if queue is None else [float(debt) for debt in queue]

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next round depends on, the model apart; for a round hook.

        Returns
        -------
        dict
            Mappings, lists, plain values and numpy arrays; nothing that needs pickle.

        Raises
        ------
        ConfigError
            If the wrapped strategy holds something that cannot be saved, by name.
        SchedulingError
            Before the first round.
        """
        if self._run is None:
            raise SchedulingError("there is nothing to save before start()")
        now_s = self._run.timed.now()
        return {
            "round": self.policy.last_round,
            "now_s": now_s,
            "begin_s": self._run.begin_s,
            "rounds_without_step": self._run.rounds_without_step,
            "policy": self.policy.state_dict(),
            "arms": self.arms.state(),
            **self._sorter.state(),
            "wrapped": strategy_state(self._wrapped.outer),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let :meth:`start` go on where :meth:`state_dict` left off.

        Parameters
        ----------
        state : mapping
            What :meth:`state_dict` returned. ``start`` wants the model of that round.

        Raises
        ------
        ConfigError
            If it is of other settings.
        """
        self.arms.load_state(state["arms"])
        self._policy.load(len(self.arms), state["policy"])
        load_strategy_state(self._wrapped.outer, state["wrapped"])
        self._sorter.load_state(state)
        self._resumed = state

    def require_savable(self) -> None:
        """Refuse, by name, a wrapped strategy that holds what :meth:`state_dict` cannot save.

        Raises
        ------
        ConfigError
            If there is something.
        """
        strategy_state(self._wrapped.outer)

    def add_hook(self, hook: RoundHook) -> None:
        """Call ``hook`` after each round, after those that are there."""
        self._hooks.append(hook)

    # -- Flower's strategy interface ----------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the wrapped strategy configure training for the nodes that ``grid`` shows."""
        self._require_own_round(server_round)
        if requested := self._policy.requested_metrics:
            config[REPORT] = " ".join(requested)
        nodes = set(grid.get_node_ids())
        with self._wrapped.without_minimum_counts() as inner:
            messages = list(inner.configure_train(server_round, arrays, config, grid))
        destinations = [message.metadata.dst_node_id for message in messages]
        if len(destinations) != len(nodes) or set(destinations) != nodes:
            raise SchedulingError(
                f"{type(self._wrapped.outer).__name__} configured {len(destinations)} messages "
                f"for the {len(nodes)} selected clients: it must train each of them once"
            )
        for message in messages:
            # Flower's default of 12 hours would lock a crashed device out for that long.
            message.metadata.ttl = max(_MIN_TTL_S, 4 * self._tau_max_s)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the wrapped strategy aggregate the usable replies."""
        self._require_own_round(server_round)
        replies = list(replies)
        with self._wrapped.for_replies(len(replies)) as inner:
            return inner.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the wrapped strategy configure evaluation for the nodes that ``grid`` shows."""
        self._require_own_round(server_round)
        with self._wrapped.without_minimum_counts() as inner:
            return list(inner.configure_evaluate(server_round, arrays, config, grid))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Let the wrapped strategy aggregate evaluation results."""
        self._require_own_round(server_round)
        return self._wrapped.outer.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log what schedules what."""
        LOGGER.info(
            "\t├──> Scheduling: %s, %d clients per round, deadline %g s",
            self._policy.name,
            self._num_selected,
            self._tau_max_s,
        )
        self._wrapped.outer.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds; signature and result are Flower's.

        A round ends with its last reply, at ``tau_max_s`` or at ``timeout`` [s], whichever comes
        first. ``evaluate_fn`` is called before the first round, every ``eval_every`` rounds and
        after the last. After :meth:`load_state_dict` the rounds go on from there.
        """
        if self._run is not None:
            raise SchedulingError(
                "start() runs once, its policy has learned: build a new ScheduledStrategy"
            )
        self.summary()
        timed = grid if isinstance(grid, TimedExchange) else TimedGrid(grid)
        run = _Run(
            grid=grid,
            timed=timed,
            specs=ArraySpec.of(initial_arrays),
            train_config=ConfigRecord() if train_config is None else train_config,
            evaluate_config=ConfigRecord() if evaluate_config is None else evaluate_config,
            deadline_s=min(timeout, self._tau_max_s),
            result=Result(arrays=initial_arrays),
        )
        self._run = run
        first_round = 1
        if self._resumed is None:
            self._evaluate(run, 0, evaluate_fn)
        else:
            first_round = self._resumed["round"] + 1
            run.rounds_without_step = self._resumed["rounds_without_step"]
            if timed.now() == self._resumed["now_s"]:  # a virtual clock: as if nothing had happened
                run.begin_s = self._resumed["begin_s"]
        if first_round <= num_rounds and math.isnan(run.begin_s):
            self._membership.wait_for(timed, self._min_clients, f"round {first_round}")
        for server_round in range(first_round, num_rounds + 1):
            self._open_round = server_round
            record = self._run_round(run, server_round)
            if server_round == num_rounds or server_round % self._eval_every == 0:
                metrics = self._evaluate(run, server_round, evaluate_fn)
                record = replace(
                    record, accuracy=_metric(metrics, "accuracy"), loss=_metric(metrics, "loss")
                )
            for hook in self._hooks:
                hook(record, run.result.arrays)
            self._open_round = None
            if self._stop_when is not None and self._stop_when(record):
                break
        return run.result

    # -- one round ----------------------------------------------------------------------------

    def _run_round(self, run: _Run, server_round: int) -> RoundRecord:
        """Select, measure, learn, aggregate."""
        run.timed.begin_round(server_round)
        self._membership.wait_for(run.timed, self._wrapped.quorum, f"round {server_round}")
        if self._policy.grow(len(self.arms)) or self._membership.sizes_changed:
            self._set_floors()
        if math.isnan(run.begin_s):  # how long the first clients took to come is no cost of a run
            run.begin_s = self._begin_s(run.timed.now())
        available = np.flatnonzero(self.arms.available).tolist()
        absent = np.flatnonzero(~self.arms.member).tolist()
        selection = self._policy.ask(server_round, self.arms, self._wrapped.quorum)
        explanation = self._policy.explain(selection) if self._explain else None
        arms = np.flatnonzero(selection.mask).tolist()
        node_grid = SelectedNodesGrid(run.grid, self.arms.node_ids(arms))

        round_begin_s = run.timed.now()
        exchanges = []
        if arms:
            messages = list(
                self.configure_train(server_round, run.result.arrays, run.train_config, node_grid)
            )
            exchanges = run.timed.exchange(messages, run.deadline_s)
        round_s = run.timed.now() - round_begin_s

        results, updates = self._sorter.training(exchanges, run.specs, run.result.arrays)
        self._membership.learn_sizes({arm: one.num_examples for arm, one in updates.items()})
        if self._membership.sizes_changed:
            self._set_floors()
        self._policy.tell(selection, results, list(updates.values()))
        arrays, metrics, no_step = self._step(server_round, bool(arms), updates, run.specs)
        if arrays is not None:
            run.result.arrays = arrays
        self._warn_without_step(run, server_round, no_step)
        if metrics is not None:
            run.result.train_metrics_clientapp[server_round] = metrics
        if arms and self._client_eval_every and server_round % self._client_eval_every == 0:
            self._evaluate_on_clients(run, server_round, node_grid)
        return RoundRecord(
            round=server_round,
            time_s=run.timed.now() - run.begin_s,
            round_s=round_s,
            num_arms=len(self.arms),
            available=available,
            results=results,
            stepped=arrays is not None,
            no_step=no_step,
            absent=absent,
            explanation=explanation,
            queue=self._policy.queue if self._explain else None,
        )

    def _begin_s(self, now_s: float) -> float:
        """Return when the run began, on the grid's clock; a pause before a resumption is none."""
        if self._resumed is None:
            return now_s
        return float(now_s - (self._resumed["now_s"] - self._resumed["begin_s"]))

    def _set_floors(self) -> None:
        self._membership.sizes_changed = False
        self._policy.set_floors(self._membership.arms)

    def _step(
        self,
        server_round: int,
        selected: bool,
        updates: Mapping[int, Update],
        specs: Mapping[str, ArraySpec],
    ) -> tuple[ArrayRecord | None, MetricRecord | None, str | None]:
        """Aggregate the usable updates: new model or none, its metrics, why there is none."""
        if not selected:
            return None, None, "quorum" if self.arms.num_available else "nobody-available"
        if not updates:
            return None, None, "no-replies"
        if len(updates) < self._wrapped.quorum:
            return None, None, "quorum"
        try:
            arrays, metrics = self.aggregate_train(
                server_round, [update.message for update in updates.values()]
            )
            if arrays is None:
                return None, metrics, "aggregation"
            return _cast(arrays, specs, fixed=self._wrapped.fixed_shapes), metrics, None
        except Exception as error:  # a fault in a round must not end the run
            LOGGER.warning("round %d: no step, aggregation failed: %s", server_round, error)
            return None, None, "aggregation"

    def _warn_without_step(self, run: _Run, server_round: int, no_step: str | None) -> None:
        """Warn when the model stays as it is for 10, 20, 40, ... rounds."""
        run.rounds_without_step = 0 if no_step is None else run.rounds_without_step + 1
        tens, odd = divmod(run.rounds_without_step, _WARN_WITHOUT_STEP)
        if not odd and tens.bit_count() == 1:
            LOGGER.warning(
                "round %d: the model has not changed for %d rounds, now for the reason: %s",
                server_round,
                run.rounds_without_step,
                no_step,
            )

    def _evaluate_on_clients(self, run: _Run, server_round: int, node_grid: Grid) -> None:
        """Let the round's super arm measure the new model; the policy learns nothing from it."""
        messages = list(
            self.configure_evaluate(server_round, run.result.arrays, run.evaluate_config, node_grid)
        )
        exchanges = run.timed.exchange(messages, self._client_eval_timeout_s)
        replies = self._sorter.evaluation(exchanges)
        try:
            metrics = self.aggregate_evaluate(server_round, replies)
        except Exception as error:
            LOGGER.warning("round %d: evaluation on clients failed: %s", server_round, error)
            return
        if metrics is not None:
            run.result.evaluate_metrics_clientapp[server_round] = metrics

    def _evaluate(
        self,
        run: _Run,
        server_round: int,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> MetricRecord | None:
        """Measure the model on the server."""
        metrics = evaluate_fn(server_round, run.result.arrays) if evaluate_fn else None
        if metrics is not None:
            run.result.evaluate_metrics_serverapp[server_round] = metrics
        return metrics

    def _require_own_round(self, server_round: int) -> None:
        if self._open_round != server_round:
            raise SchedulingError(
                "ScheduledStrategy must be the outermost strategy and run by its own start(): "
                "wrap the other strategy inside it instead"
            )


def _cast(arrays: ArrayRecord, specs: Mapping[str, ArraySpec], *, fixed: bool) -> ArrayRecord:
    """Return the aggregate in the dtypes of the initial model (FedAdam returns float64)."""
    if arrays.keys() != specs.keys():
        raise SchedulingError(f"the aggregate has arrays {sorted(arrays)}, not {sorted(specs)}")
    cast = ArrayRecord()
    for key, array in arrays.items():
        view, spec = decode_array(array), specs[key]
        if fixed and view.shape != spec.shape:
            raise SchedulingError(f"the aggregate's {key!r} has shape {view.shape}")
        if view.dtype.kind in "fc" and not np.isfinite(view).all():
            raise SchedulingError(f"the aggregate's {key!r} is not finite")
        same = view.dtype == spec.dtype
        cast[key] = array if same else Array(np.ascontiguousarray(view, dtype=spec.dtype))
    return cast


def _metric(metrics: MetricRecord | None, key: str) -> float | None:
    value = metrics.get(key) if metrics is not None else None
    # A diverged model has no loss that could be written down.
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _at_least(key: str, value: int, minimum: int) -> int:
    if value < minimum:
        raise ConfigError(key, value, f"must be at least {minimum}")
    return value
