"""Schedule the clients of any Flower strategy: select, measure, learn, aggregate."""

from __future__ import annotations

import logging
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
from flower_scheduling.client.wire.protocol import LOCAL_ACCURACY, REPORT, TRAIN_LOSS
from flower_scheduling.errors import ConfigError, InvalidReplyError, SchedulingError

from ..base import BoolArray, FloatArray, RoundContext, RoundOutcome, SchedulingPolicy, Selection
from ..fairness import FloorRule, check_feasibility, parse_floors
from ..registry import POLICIES, build_policy
from .arm_discovery import Newcomers
from .arm_table import ArmTable
from .grids import SelectedNodesGrid
from .record import ArmResult, RoundHook, RoundRecord, failure_kind
from .replies import OTHER_NAMES, ArraySpec, ReplyChecker, Signature, Update, client_timing
from .schema_vote import NameVote
from .state import load_strategy_state, strategy_state
from .timed_grid import LOGGER, TIMEOUT, Exchange, TimedExchange, TimedGrid
from .wrapped import WrappedStrategy

_ANSWER_STEP_S = 0.05
_SAY_AGAIN_S = 10.0
_MIN_TTL_S = 60.0
_SAY_WITHOUT_STEP = 10
_LARGEST_FLOOR = float(np.nextafter(1.0, 0.0))
"""A floor is below 1; a rule may ask for more when a client holds most of the data."""
_MAX_REASON_LENGTH = 300
"""What a client says of itself goes to log and record, but not at any length."""
_REPORTS = {"local_accuracy": (LOCAL_ACCURACY,), "loss": (TRAIN_LOSS, "train_loss", "loss")}
"""What a policy learns from (``PolicySpec.reports``) and the metric in which clients report it: the
name in our protocol first, then those that are usual in Flower's apps."""
_SAY_WITHOUT_REPORT = 10


@dataclass(slots=True)
class _Measured:
    """What one round of training brought in, in the order of arms."""

    results: list[ArmResult]
    updates: list[Update]  # of those that completed


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
    policy : str
        Name of a policy in :data:`strategies.POLICIES`.
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
        Whether each :class:`RoundRecord` says why its clients were selected.
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
        policy: str = "cs-ucb-q-adaptive",
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
        self._policy_name = policy
        self._policy_params = policy_params
        self._fairness = parse_floors(fairness) if isinstance(fairness, str) else fairness
        self._availability = availability
        self._seed = seed
        self._build_policy(num_arms=0)  # refuses bad settings here, not in the first round
        self._wrapped = WrappedStrategy(
            strategy, num_selected=num_selected, min_replies=min_replies
        )
        if any(isinstance(inner, ScheduledStrategy) for inner in self._wrapped.chain):
            raise ConfigError(
                "strategy", "a ScheduledStrategy", "is scheduled already: wrap a strategy once"
            )
        self._names, self._evaluation_names = NameVote(), NameVote()
        self._checker = ReplyChecker(
            self._wrapped.weighted_by_key,
            fixed_shapes=self._wrapped.fixed_shapes,
            max_update_norm=max_update_norm,
        )
        self._min_clients = num_selected if min_clients is None else min_clients
        self._wait_s = wait_s
        self._eval_every = _at_least("eval_every", eval_every, 1)
        self._client_eval_every = _at_least("client_eval_every", client_eval_every, 0)
        self._client_eval_timeout_s = client_eval_timeout_s or tau_max_s
        self._explain = explain
        self._hooks = list(hooks)
        self._stop_when = stop_when
        self._reports = {name: _REPORTS[name] for name in POLICIES[policy].reports}
        self._without_report = dict.fromkeys(self._reports, 0.0)  # rounds so far

        self.arms = ArmTable()
        self._newcomers = Newcomers(query_timeout_s)
        self._floors_due = True
        self._policy: SchedulingPolicy | None = None
        self._open_round: int | None = None
        self._run: _Run | None = None
        self._resumed: Mapping[str, Any] | None = None
        self._floor_warning = ""
        self._logged: set[tuple[str, int, str]] = set()

    @property
    def policy(self) -> SchedulingPolicy:
        """The learning policy; exists from the first round on."""
        if self._policy is None:
            raise SchedulingError("the policy is built in the first round: call start() first")
        return self._policy

    @property
    def floors(self) -> list[float] | None:
        """Least share of rounds of each arm; ``None`` for a policy without floors."""
        floors = getattr(self._policy, "min_participation", None)
        return None if floors is None else [float(floor) for floor in floors]

    @property
    def queues(self) -> list[float] | None:
        """Virtual queue of each arm [rounds owed]; ``None`` for a policy without queues."""
        queues = getattr(self._policy, "virtual_queue", None)
        return None if queues is None else [float(queue) for queue in queues]

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
            "names": self._names.state(),
            "evaluation_names": self._evaluation_names.state(),
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
        policy = self._build_policy(len(self.arms))
        policy.load_state_dict(state["policy"])
        load_strategy_state(self._wrapped.outer, state["wrapped"])
        self._names.load_state(state["names"])
        self._evaluation_names.load_state(state["evaluation_names"])
        self._policy = policy
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
        if self._reports:
            config[REPORT] = " ".join(names[0] for names in self._reports.values())
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
            self._policy_name,
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
            self._wait_for(timed, self._min_clients, f"round {first_round}")
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

    # -- who is there -------------------------------------------------------------------------

    def _wait_for(self, grid: TimedExchange, num_clients: int, what: str) -> None:
        """Wait until enough clients are available, within the bound."""
        begin_s = grid.now()
        end_s = begin_s + self._wait_s
        self._sync(grid)
        said: tuple[int, float] | None = None
        while (available := self.arms.num_available) < num_clients:
            # Not from the time waited: what is left by that may be too little to move a clock.
            left_s = end_s - grid.now()
            if left_s <= 0.0:
                return
            waited_s = self._wait_s - left_s
            if said is None or available != said[0] or waited_s - said[1] >= _SAY_AGAIN_S:
                said = (available, waited_s)
                LOGGER.info(
                    "waiting for clients for %s: %d of %d available, %.0f of %.0f s",
                    what,
                    available,
                    num_clients,
                    waited_s,
                    self._wait_s,
                )
            grid.wait(min(_ANSWER_STEP_S, left_s) if len(self._newcomers) else left_s)
            self._sync(grid)

    def _sync(self, grid: TimedExchange) -> None:
        """Find out who is there, and ask newcomers who they are."""
        self.arms.sync(grid)
        self._newcomers.ask(grid, self.arms.unqueried())
        self._floors_due |= self._newcomers.collect(grid)
        self.arms.silent = self._newcomers.silent

    def _gather(self, grid: TimedExchange, server_round: int) -> None:
        """Find out who is available, bring policy and floors up to date."""
        self._wait_for(grid, self._wrapped.quorum, f"round {server_round}")
        num_arms = len(self.arms)
        if self._policy is None:
            self._policy = self._build_policy(num_arms)
        elif num_arms > self._policy.num_arms:
            self._policy.add_arms(num_arms - self._policy.num_arms)
            self._floors_due = True
        if self._floors_due:
            self._floors_due = False
            self._set_floors()

    def _build_policy(self, num_arms: int) -> SchedulingPolicy:
        return build_policy(
            self._policy_name,
            num_arms=num_arms,
            num_selected=self._num_selected,
            tau_max_s=self._tau_max_s,
            rng=np.random.default_rng(self._seed),
            **self._policy_params,
        )

    def _set_floors(self) -> None:
        policy = self.policy
        if not hasattr(policy, "min_participation"):
            return
        known = [arm.num_examples for arm in self.arms.arms if arm.num_examples is not None]
        average = sum(known) / len(known) if known else 1.0
        sizes = [float(arm.num_examples or average) for arm in self.arms.arms]
        names = [arm.name for arm in self.arms.arms]
        floors = self._fairness.floors(sizes, self._num_selected, names)
        floors = np.minimum(floors, _LARGEST_FLOOR)
        feasibility = check_feasibility(floors, self._num_selected, self._availability)
        message = feasibility.message(names)
        if not feasibility.feasible and message != self._floor_warning:
            self._floor_warning = message
            LOGGER.warning("%s", message)
        policy.min_participation = floors

    # -- one round ----------------------------------------------------------------------------

    def _run_round(self, run: _Run, server_round: int) -> RoundRecord:
        """Select, measure, learn, aggregate."""
        run.timed.begin_round(server_round)
        self._gather(run.timed, server_round)
        if math.isnan(run.begin_s):  # how long the first clients took to come is no cost of a run
            run.begin_s = self._begin_s(run.timed.now())
        available = np.flatnonzero(self.arms.available).tolist()
        absent = np.flatnonzero(~self.arms.member).tolist()
        selection = self._ask(server_round)
        explanation = self.policy.explain(selection) if self._explain else None
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

        measured = self._read(exchanges, run.specs, run.result.arrays)
        self._tell(selection, measured)
        arrays, metrics, no_step = self._step(server_round, measured, run.specs)
        if arrays is not None:
            run.result.arrays = arrays
        self._note_step(run, server_round, no_step)
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
            results=measured.results,
            stepped=arrays is not None,
            no_step=no_step,
            absent=absent,
            explanation=explanation,
            queue=self._queue() if self._explain else None,
        )

    def _queue(self) -> FloatArray | None:
        queue: FloatArray | None = getattr(self.policy, "virtual_queue", None)
        return None if queue is None else queue.copy()

    def _begin_s(self, now_s: float) -> float:
        """Return when the run began, on the grid's clock; a pause before a resumption is none."""
        if self._resumed is None:
            return now_s
        return float(now_s - (self._resumed["now_s"] - self._resumed["begin_s"]))

    def _ask(self, server_round: int) -> Selection:
        available: BoolArray = self.arms.available
        if self.arms.num_available < self._wrapped.quorum:
            available = np.zeros_like(available)  # too few for a step: spare them the work
        return self.policy.ask(RoundContext(server_round, available, self.arms.member))

    def _read(
        self, exchanges: Sequence[Exchange], specs: Mapping[str, ArraySpec], model: ArrayRecord
    ) -> _Measured:
        """Sort the replies into usable updates and failures, in the order of arms."""
        by_arm = {self.arms.arm_of(exchange.node_id).index: exchange for exchange in exchanges}
        selected = sorted(by_arm)
        reason: dict[int, str | None] = {}
        timing: dict[int, tuple[float | None, float | None]] = {}
        updates: dict[int, Update] = {}
        for arm in selected:
            exchange = by_arm[arm]
            timing[arm] = (None, None)
            if exchange.reply is None:
                reason[arm] = exchange.failure
                continue
            try:
                updates[arm] = self._checker.read(exchange.reply, specs, model)
            except InvalidReplyError as error:
                reason[arm] = str(error)
                continue
            reason[arm] = None
            timing[arm] = client_timing(exchange.reply)
        agreed = self._names.agree({arm: update.signature for arm, update in updates.items()})
        for arm in sorted(updates.keys() - agreed):
            reason[arm] = f"{OTHER_NAMES}: record or metric names unlike the other clients'"
            del updates[arm]
        for arm, why in reason.items():
            if why is not None:
                reason[arm] = why = why[:_MAX_REASON_LENGTH]
                self._log_failure("no update", arm, why)
        self._learn_sizes(updates)
        results = [
            ArmResult(arm, self.arms.arms[arm].name, by_arm[arm].rtt_s, reason[arm], *timing[arm])
            for arm in selected
        ]
        return _Measured(results, list(updates.values()))

    def _log_failure(self, what: str, arm: int, why: str) -> None:
        """Say why there is nothing from a client, once per kind and client."""
        if (kind := (what, arm, failure_kind(why))) in self._logged:
            return
        self._logged.add(kind)
        # A missed deadline is ordinary on a fading link.
        level = logging.INFO if why == TIMEOUT else logging.WARNING
        LOGGER.log(level, "%s from %s: %s", what, self.arms.arms[arm].name, why)

    def _learn_sizes(self, updates: Mapping[int, Update]) -> None:
        """Take a client's first ``num-examples`` as its size where it did not answer the query."""
        news = [arm for arm in updates if self.arms.arms[arm].num_examples is None]
        for arm in news:
            self.arms.arms[arm].num_examples = max(1, round(updates[arm].num_examples))
        if news:
            self._set_floors()

    def _tell(self, selection: Selection, measured: _Measured) -> None:
        shape = selection.mask.shape
        rtt_s = np.full(shape, np.nan)
        completed = np.zeros(shape, dtype=np.bool_)
        for result in measured.results:
            rtt_s[result.arm] = math.nan if result.rtt_s is None else result.rtt_s
            completed[result.arm] = result.completed
        reported = {name: np.full(shape, np.nan) for name in self._reports}
        if reported:
            done = [result.arm for result in measured.results if result.completed]
            for name, keys in self._reports.items():
                reported[name][done] = [_reported(update, keys) for update in measured.updates]
                self._note_reports(name, bool(done), bool(np.isfinite(reported[name]).any()))
        self.policy.tell(selection, RoundOutcome(rtt_s, completed, reported))

    def _note_reports(self, name: str, anybody: bool, reports: bool) -> None:
        """Say once if nobody reports, for some rounds, what the policy is there to learn from."""
        if reports:
            self._without_report[name] = -math.inf
        elif anybody:
            self._without_report[name] += 1
            if self._without_report[name] == _SAY_WITHOUT_REPORT:
                names = " or ".join(repr(key) for key in self._reports[name])
                LOGGER.warning(
                    "no client reports the metric %s: %s does without", names, self._policy_name
                )

    def _step(
        self, server_round: int, measured: _Measured, specs: Mapping[str, ArraySpec]
    ) -> tuple[ArrayRecord | None, MetricRecord | None, str | None]:
        """Aggregate the usable updates: new model or none, its metrics, why there is none."""
        num_updates = len(measured.updates)
        if not measured.results:
            return None, None, "quorum" if self.arms.num_available else "nobody-available"
        if num_updates == 0:
            return None, None, "no-replies"
        if num_updates < self._wrapped.quorum:
            return None, None, "quorum"
        try:
            arrays, metrics = self.aggregate_train(
                server_round, [update.message for update in measured.updates]
            )
            if arrays is None:
                return None, metrics, "aggregation"
            return _cast(arrays, specs, fixed=self._wrapped.fixed_shapes), metrics, None
        except Exception as error:  # a fault in a round must not end the run
            LOGGER.warning("round %d: no step, aggregation failed: %s", server_round, error)
            return None, None, "aggregation"

    def _note_step(self, run: _Run, server_round: int, no_step: str | None) -> None:
        """Say so when the model stays as it is for 10, 20, 40, ... rounds."""
        run.rounds_without_step = 0 if no_step is None else run.rounds_without_step + 1
        tens, odd = divmod(run.rounds_without_step, _SAY_WITHOUT_STEP)
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
        replies = self._usable_evaluations(exchanges)
        try:
            metrics = self.aggregate_evaluate(server_round, replies)
        except Exception as error:
            LOGGER.warning("round %d: evaluation on clients failed: %s", server_round, error)
            return
        if metrics is not None:
            run.result.evaluate_metrics_clientapp[server_round] = metrics

    def _usable_evaluations(self, exchanges: Iterable[Exchange]) -> list[Message]:
        """Return the replies that may be averaged: of finite metrics, and under the same names."""
        signatures: dict[int, Signature] = {}
        replies: dict[int, Message] = {}
        for exchange in exchanges:
            arm = self.arms.arm_of(exchange.node_id).index
            if exchange.reply is None:
                self._log_failure("no evaluation", arm, exchange.failure or "")
                continue
            try:
                signatures[arm] = self._checker.read_evaluation(exchange.reply)
                replies[arm] = exchange.reply
            except InvalidReplyError as error:
                self._log_failure("no evaluation", arm, str(error))
        agreed = self._evaluation_names.agree(signatures)
        for arm in sorted(signatures.keys() - agreed):
            self._log_failure("no evaluation", arm, f"{OTHER_NAMES}: unlike the other clients'")
        return [replies[arm] for arm in sorted(agreed)]

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


def _reported(update: Update, names: Sequence[str]) -> float:
    """Return the metric that a client reports under the first of these names; NaN if none."""
    values = (update.metrics.get(name) for name in names)
    return next((float(v) for v in values if isinstance(v, int | float)), math.nan)
