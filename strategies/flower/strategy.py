"""Schedule the clients of any Flower strategy: select, measure, learn, aggregate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, overload

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from flower_scheduling.client.wire.arrays import decode_array
from flower_scheduling.errors import ConfigError, NoStepError, SchedulingError, one_line
from flower_scheduling.reasons import TIMEOUT

from ..base import SchedulingPolicy, check_count, check_real
from ..deadline import AUTO, GivenDeadline
from ..fairness import FloorRule
from ..local_work import EQUAL
from ..over_asking import GivenSpares, spares_of
from .arm_table import ArmTable
from .buffer.late import DROP, USE, LateUpdates
from .buffer.steps import BufferedStep, BufferOptions, Channels, require_any_set
from .client_evaluation import AVAILABLE, ClientEvaluation
from .following import RecordingOptions, StartedRun, follow, overridable
from .idle import FAIRNESS, LEAST_WORK, MAX_STALENESS, MOST_WORK, idle_arguments
from .logs.round_log import RoundLog
from .membership import Membership
from .old_api.ported import PortedStrategy
from .old_api.records import OldReplyChecker
from .own_start import StartCall, StartGuide
from .policy_runner import PolicyLike, PolicyRunner
from .record import RoundHook, RoundRecord, failure_kind, finite_metrics
from .replies import ArraySpec, ReplyChecker
from .reply_sorter import ReplySorter
from .round import RoundParts, TrainingRound
from .round_deadline import RoundDeadline
from .spares import SpareClients
from .state import load_strategy_state, strategy_state
from .timed_grid import LOGGER, SpareExchange, TimedExchange, TimedGrid
from .updates.pieces import is_finite
from .updates.work_by_speed import LocalWork
from .wrapped import WrappedStrategy

_WARN_WITHOUT_STEP = 10
_WARN_ALL_LATE = 3
_MOST_NAMED = 5

ROUNDS: Final = "rounds"
"""Mode in which a super arm is waited for."""
BUFFERED: Final = "buffered"
"""Mode in which channels are refilled one by one."""


@dataclass(slots=True)
class _Run:
    """One :meth:`ScheduledStrategy.start`: what rounds share."""

    parts: RoundParts
    specs: Mapping[str, ArraySpec]
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    timeout_s: float  # longest deadline
    result: Result
    hooks: Sequence[RoundHook]  # before the strategy's own
    log: RoundLog
    channels: Channels | None = None  # in buffered mode
    learned: tuple[int, int] = (0, 0)  # their progress when the last step was over
    begin_s: float = math.nan  # when the first round's selection began
    last_round: int = 0
    rounds_without_step: int = 0  # in a row
    rounds_all_late: int = 0  # likewise, for all selected clients
    any_update: bool = False  # whether a client has trained
    told_of_names: bool = False
    last: RoundRecord | None = None


class ScheduledStrategy(Strategy):
    """Let a scheduling policy choose the clients of each round of another Flower strategy.

    The policy selects the super arm, the wrapped strategy builds the messages for exactly these
    nodes, the grid measures each round trip on the server's clock, the policy learns from it, and
    the wrapped strategy aggregates what arrived in time. Replies that are late, in error or
    unusable count as failures: reward 0, never aggregated.

    Must be the outermost strategy, run by its own :meth:`start`. Attributes that it has not got
    are those of the wrapped strategy.

    Parameters
    ----------
    strategy : Strategy
        Any Flower strategy. Its own sampling gives way to the policy's: of the nodes that it is
        shown, those selected, it trains all. A ``start`` of its own runs the rounds.
    policy : str, SchedulingPolicy or callable
        Name of a policy in :data:`.POLICIES` or ``module:Class``; a policy built with
        ``num_arms=0``, which grows as clients join; or a class or function that builds one from
        ``num_arms``, ``num_selected``, ``tau_max_s`` and ``rng``.
    num_selected : int
        Size N of the super arm; in buffered mode the number of channels, of clients at work.
    tau_max_s : float or "auto"
        Deadline of a round [s], tau_max in the paper. ``"auto"``, the default: it is found from
        measured times and may differ from round to round, in buffered mode from client to client,
        see :class:`.AutoDeadline`.
    fairness : str or FloorRule
        Floors c_k for policies that keep them: numbers, ``dev-1=0.6,dev-2=0.5``, ``equal:0.2``,
        ``proportional:2``, ``heuristic:0.5``, ``none``. The default guarantees each client half of
        its proportional share of rounds, (N/2) s_k / sum s. Clients whose size is unknown count as
        average.
    max_share : float
        Largest share of rounds that any client may take, whatever the policy and what the client
        claims; 1: any. In any T rounds it takes fewer than ``max_share`` T + 2. In buffered mode,
        as for floors, N completed pieces of work count as a round. Must be at least N / K, K the
        clients, and above all floors. A round has fewer than N clients where the others have had
        their share, but no fewer than the wrapped strategy needs for a step: only then does one
        take more.
    num_spare : int or "auto"
        Spare clients M: N + M are asked, and the round ends when N have answered, and those that
        are owed a round by their floor. The others' times are learned when they answer. Not in
        buffered mode. ``"auto"``, the default: none, but for a policy that asks for more than N by
        its own rule, as ``oort`` asks for 1.3 N.
    late_updates : str
        What becomes of updates of spare clients that come after the round has ended: ``"drop"``, or
        ``"use"``: they go into the next step, as if they had been trained from the model of that
        moment, and count for floors.
    availability : float
        Assumed probability that a client is available, for the feasibility check of the floors.
    seed : int
        Seed of the policy's random choices.
    min_clients : int, optional
        Clients to wait for before the first round; by default ``num_selected``, or what
        ``max_share`` needs, or the wrapped strategy's ``min_available_nodes`` asks for beyond
        Flower's default.
    wait_s : float
        Bound on that wait, and on the wait of each round in which too few clients are
        available [s]. Such a round then counts with nothing selected.
    query_timeout_s : float
        Longest wait for a joining client to tell its name and size [s].
    min_replies : int
        Smallest number of usable updates that may change the model.
    eval_every : int
        Rounds between two server-side evaluations; the last round is always evaluated.
    client_eval_every : int, optional
        Rounds between two evaluations on clients, 0: never. By default the wrapped strategy
        decides: Flower's evaluate in each round, unless ``fraction_evaluate = 0``.
    client_eval_on : str
        Clients that the wrapped strategy may ask: those ``available``, of which it samples its
        ``fraction_evaluate``, or those ``selected`` in the round.
    client_eval_timeout_s : float, optional
        Deadline of such an evaluation [s]; ``tau_max_s`` by default, and if that is ``"auto"`` it
        is found from what evaluations take.
    fixed_shapes : bool, optional
        Whether a reply must be what Flower's aggregation rules take: one record of arrays like
        the model's, one of metrics with a weight. By default it must, unless the wrapped strategy
        has an ``aggregate_train`` of its own, whose business the records then are.
    max_update_norm : float, optional
        Largest Euclidean distance of an update from the round's model; what is farther away
        counts as failed. Off by default: the right value depends on model and step size.
    accept_unchanged : bool, optional
        Whether updates that nothing was done for count as others do: the model as it was sent, or
        another client's update (:class:`.FreeRiders`). By default they are failures, unless the
        wrapped strategy has an ``aggregate_train`` of its own, whose business they then are.
    explain : bool, optional
        Whether each :class:`RoundRecord` explains the selection of its clients; by default if
        there is a run directory, which then has it for the page.
    hooks : sequence of callable
        Called after each round with its :class:`RoundRecord` and the current model.
    stop_when : callable, optional
        Ends the run after a round for whose record it returns true.
    log_every_s : float
        Least time between two lines of the log [s]; 0: a line for each round; infinite: none.
    run_dir : str or Path, optional
        Folder for settings, rounds, models and checkpoints, as ``flower-server`` writes it; it
        must not exist yet, or be empty. Under ``flower-server --app`` the folder is that of
        ``--run-dir``.
    resume : bool
        Whether to go on with the run in ``run_dir`` from its last checkpoint, if there is one.
    tracker : str
        Where rounds are reported as well: ``tensorboard``, ``mlflow``, ``wandb``, or several with
        commas between. Needs ``run_dir``.
    checkpoint_every : int
        Rounds between two checkpoints in the run directory; 0: never.
    mode : str
        ``"rounds"``: a super arm is waited for. ``"buffered"``: as soon as one of N clients is
        done, another one is selected for its channel, and the model changes after every
        ``buffer_size`` usable updates, each of which counts as if it had been trained from the
        model of that moment: w + (w_k - w_sent). What is said of rounds here goes for these steps;
        floors are shares of completed updates.
    buffer_size : int, optional
        Usable updates of a step in buffered mode, B; half of ``num_selected`` by default. With
        fewer of them the model changes more often, and each update counts for more.
    max_staleness : int
        Steps after which an update is not used any more, in buffered mode or as a late one.
    staleness_discount : float
        A stale update counts (1 + s)^-discount, s the steps since its model was sent.
    even_weights : bool, optional
        Whether, in buffered mode, an update weighs less the more of them its client delivers, so
        that the data of clients that are often selected do not count for more. By default it does,
        unless the policy selects by what clients report or send, and so means them to count for
        more.
    local_work : str
        How many local steps clients make: ``"equal"``, as many as their app has it, or
        ``"equal-time"``, as many as fit into the time of the N-th fastest of those available. An
        update of any number of steps then counts as one of the base work, see
        :class:`.WorkBySpeed`. The app must read
        ``message.content["scheduling"]["local-steps"]`` and reply with it. Policies learn times of
        equal work, and floors and aggregation weights stay those of the data.
    local_steps : int, optional
        Base work [local steps], or whatever the app counts its work in; ``"equal-time"`` needs it.
    least_work, most_work : float
        Bounds of what a client is asked for, in times of the base work.
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

    @overridable
    def __init__(
        self,
        strategy: Strategy,
        policy: PolicyLike = "cs-ucb-q-adaptive",
        *,
        num_selected: int,
        tau_max_s: GivenDeadline = AUTO,
        num_spare: GivenSpares = AUTO,
        late_updates: str = DROP,
        max_share: float = 1.0,
        fairness: str | FloorRule = FAIRNESS,
        availability: float = 1.0,
        seed: int = 0,
        min_clients: int | None = None,
        wait_s: float = 60.0,
        query_timeout_s: float = 60.0,
        min_replies: int = 1,
        eval_every: int = 1,
        client_eval_every: int | None = None,
        client_eval_on: str = AVAILABLE,
        client_eval_timeout_s: float | None = None,
        fixed_shapes: bool | None = None,
        max_update_norm: float | None = None,
        accept_unchanged: bool | None = None,
        explain: bool | None = None,
        hooks: Sequence[RoundHook] = (),
        stop_when: Callable[[RoundRecord], bool] | None = None,
        log_every_s: float = 0.0,
        run_dir: str | Path | None = None,
        resume: bool = False,
        tracker: str = "",
        checkpoint_every: int = 1,
        mode: str = ROUNDS,
        buffer_size: int | None = None,
        max_staleness: int = MAX_STALENESS,
        staleness_discount: float = 0.0,
        even_weights: bool | None = None,
        local_work: str = EQUAL,
        local_steps: int | None = None,
        least_work: float = LEAST_WORK,
        most_work: float = MOST_WORK,
        **policy_params: Any,
    ) -> None:
        if not isinstance(strategy, Strategy):
            raise ConfigError(
                "strategy",
                strategy,
                "must be a Flower strategy of flwr.serverapp.strategy",
                "one of Flower's old API, of flwr.server.strategy, goes into a ScheduledServer, "
                "its workflow into a ScheduledWorkflow",
            )
        if mode not in (ROUNDS, BUFFERED):
            raise ConfigError("mode", mode, f"must be {ROUNDS} or {BUFFERED}")
        if mode == ROUNDS and buffer_size is not None:
            raise ConfigError("buffer_size", buffer_size, f'needs mode="{BUFFERED}"')
        if mode == BUFFERED and num_spare not in (0, AUTO):
            message = 'needs mode="rounds": a free channel waits for no client'
            raise ConfigError("num_spare", num_spare, message)
        check_count("num_selected", num_selected, minimum=1)
        check_count("seed", seed, minimum=0)
        check_count("min_replies", min_replies, minimum=0)
        if min_clients is not None:
            check_count("min_clients", min_clients, minimum=0)
        check_real("availability", availability, at_least=0.0, at_most=1.0)
        _check_bound("wait_s", wait_s)
        _check_bound("query_timeout_s", query_timeout_s)
        _check_bound("log_every_s", log_every_s)
        _check_bound("max_update_norm", math.inf if max_update_norm is None else max_update_norm)
        if accept_unchanged is not None and not isinstance(accept_unchanged, bool):
            raise ConfigError("accept_unchanged", accept_unchanged, "must be true, false or None")
        if not isinstance(fairness, str | FloorRule):
            raise ConfigError("fairness", fairness, "must be a text or a FloorRule")
        if run_dir is not None and not (isinstance(run_dir, str | Path) and str(run_dir)):
            raise ConfigError("run_dir", run_dir, "must be a folder, or None for no record")
        if num_spare == AUTO:
            num_spare = 0 if mode == BUFFERED else spares_of(policy, num_selected)
        size = (num_selected + 1) // 2 if buffer_size is None else buffer_size
        self._num_selected = num_selected
        self._max_staleness, self._discount = max_staleness, staleness_discount
        self._spares = SpareClients(num_selected, num_spare, late_updates)
        if self._spares.uses_late:
            require_any_set(strategy, "late_updates", late_updates, 'use late_updates="drop"')
            BufferOptions(size, max_staleness, staleness_discount)  # checks the numbers
        self._deadline = RoundDeadline(tau_max_s, self._spares.num_asked)
        self._policy = PolicyRunner(
            policy,
            num_selected=self._spares.num_asked,
            num_spare=num_spare,
            tau_max_s=tau_max_s,
            seed=seed,
            fairness=fairness,
            availability=availability,
            params=policy_params,
            channels=mode == BUFFERED,
            max_share=max_share,
        )
        even = not self._policy.by_data if even_weights is None else even_weights
        self._buffer = (
            BufferOptions(size, max_staleness, staleness_discount, even)
            if mode == BUFFERED
            else None
        )
        if self._buffer is not None:
            self._buffer.require_fit(strategy, min_replies)
        self._wrapped = WrappedStrategy(
            strategy,
            num_selected=num_selected if self._buffer is None else size,
            min_replies=min_replies,
        )
        if any(isinstance(inner, ScheduledStrategy) for inner in self._wrapped.chain):
            message = "is scheduled already: wrap a strategy once"
            raise ConfigError("strategy", "a ScheduledStrategy", message)
        self._idle = idle_arguments(
            in_steps=mode == BUFFERED or self._spares.uses_late,
            buffered=mode == BUFFERED,
            by_speed=local_work != EQUAL,
            keeps_floors=self._policy.keeps_floors,
            fairness=fairness,
            max_staleness=max_staleness,
            staleness_discount=staleness_discount,
            even_weights=even_weights,
            least_work=least_work,
            most_work=most_work,
        )
        self._work = LocalWork(
            local_work, local_steps, num_selected, least_work, most_work, self._wrapped.chain
        )
        own_rule = self._wrapped.own_train_rule
        self._free_form = own_rule if fixed_shapes is None else not fixed_shapes
        old = isinstance(strategy, PortedStrategy)  # whose clients can answer no queries
        self._unit = "round" if self._buffer is None else "step"
        self._membership = Membership(wait_s, query_timeout_s, asks=not old, unit=self._unit)
        checker_of: Callable[..., ReplyChecker] = ReplyChecker
        if isinstance(strategy, PortedStrategy):
            checker_of = partial(OldReplyChecker, as_they_are=strategy.as_they_are)
        checker = checker_of(
            self._wrapped.weighted_by_key,
            fixed_shapes=not (self._free_form or self._wrapped.shapes_grow),
            own_train_rule=self._free_form,
            own_evaluate_rule=self._wrapped.own_evaluate_rule,
            max_update_norm=max_update_norm,
        )
        self._sorter = ReplySorter(
            checker,
            self._membership.table,
            accept_unchanged=own_rule if accept_unchanged is None else accept_unchanged,
            sketches=self._policy.needs_updates,
        )
        if min_clients is None:
            needed = self._policy.clients_needed
            min_clients = max(num_selected, needed, self._wrapped.min_available)
        self._min_clients = min_clients
        self._eval_every = check_count("eval_every", eval_every, minimum=1)
        self._evaluation = ClientEvaluation(
            client_eval_every, client_eval_on, client_eval_timeout_s or tau_max_s
        )
        self._explain = explain
        self._hooks = list(hooks)
        self._stop_when = stop_when
        self._log_every_s = log_every_s
        self._recording = RecordingOptions(
            "" if run_dir is None else str(run_dir),
            resume,
            tracker,
            check_count("checkpoint_every", checkpoint_every, minimum=0),
        )
        self._running = False
        self._earlier_rounds = 0  # of earlier runs
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
    def buffered(self) -> bool:
        """Whether it runs in buffered mode, in steps instead of rounds."""
        return self._buffer is not None

    @property
    def floors(self) -> list[float] | None:
        """Least share of rounds of each arm; ``None`` for a policy without floors."""
        return self._policy.floors

    @property
    def queues(self) -> list[float] | None:
        """Virtual queue of each arm [rounds owed]; ``None`` for a policy without queues."""
        queue = self._policy.queue
        return None if queue is None else queue.tolist()

    @property
    def recording(self) -> RecordingOptions:
        """What the app wants to be recorded."""
        return self._recording

    @property
    def asked_settings(self) -> dict[str, int | float | bool | str]:
        """What the app has asked for, by the keys of a run's settings."""
        chain = " around ".join(type(inner).__name__ for inner in self._wrapped.chain)
        settings = {**self._policy.settings(), "wrapped": chain}
        if self._buffer is not None:
            settings |= {"mode": BUFFERED, "buffer-size": self._buffer.size}
        if self._spares.uses_late:
            settings["late-updates"] = USE
        return settings | self._work.settings()

    @property
    def learned_rounds(self) -> int:
        """Rounds of this run that the policy has learned from, one that is not over included."""
        run = self._run
        if run is None or run.channels is None:
            return self.policy.last_round - self._earlier_rounds
        return run.last_round + (run.channels.progress != run.learned)

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
        now_s = self._run.parts.timed.now()
        return {
            "round": self._run.last_round,
            "earlier_rounds": self._earlier_rounds,
            "now_s": now_s,
            "begin_s": self._run.begin_s,
            "rounds_without_step": self._run.rounds_without_step,
            "policy": self.policy.state_dict(),
            **({"shares": shares} if (shares := self._policy.share_state()) else {}),
            "arms": self.arms.state(),
            **self._sorter.state(),
            "deadline": self._deadline.state(),
            "evaluation_deadline": self._evaluation.deadline.state(),
            **({"local_work": work} if (work := self._work.state()) else {}),
            "wrapped": strategy_state(self._wrapped.outer),
            **(
                {}
                if (channels := self._run.channels) is None
                else {"channels": channels.state_dict()}
            ),
            **({"late": self._run.parts.late.state_dict()} if self._spares.uses_late else {}),
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
        self._policy.load(len(self.arms), state["policy"], state.get("shares"))
        load_strategy_state(self._wrapped.outer, state["wrapped"])
        self._sorter.load_state(state)
        self._deadline.load_state(state.get("deadline"))
        self._work.load_state(state.get("local_work"))
        self._evaluation.deadline.load_state(state.get("evaluation_deadline"))
        self._resumed = state

    def require_savable(self) -> None:
        """Refuse, by name, a wrapped strategy that holds what :meth:`state_dict` cannot save.

        Raises
        ------
        ConfigError
            If there is something, or the strategy has a ``start`` of its own.
        """
        if self._wrapped.own_start:
            raise _no_resumption(self._wrapped.name)
        strategy_state(self._wrapped.outer)

    def add_hook(self, hook: RoundHook) -> None:
        """Call ``hook`` after each round, after those that are there."""
        self._hooks.append(hook)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped strategy."""
        if name.startswith("_"):  # of objects that are not built yet, too
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._wrapped.outer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the wrapped strategy: all that are public are its own."""
        target = self if name.startswith("_") or hasattr(type(self), name) else self._wrapped.outer
        object.__setattr__(target, name, value)

    # -- Flower's strategy interface ----------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Refuse to be run by another strategy's ``start``."""
        raise _not_outermost()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Refuse to be run by another strategy's ``start``."""
        raise _not_outermost()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Refuse to be run by another strategy's ``start``."""
        raise _not_outermost()

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Refuse to be run by another strategy's ``start``."""
        raise _not_outermost()

    def summary(self) -> None:
        """Log what schedules what."""
        LOGGER.info(
            "\t├──> Scheduling: %s, N = %d%s, deadline %s",
            self._policy.name,
            self._num_selected,
            _spare_text(self._spares),
            "auto" if self._deadline.is_found else f"{self._deadline.level_s:g} s",
        )
        for line in self._idle:
            LOGGER.warning(line)
        if text := self._work.describe():
            LOGGER.info("\t├──> Local work: %s", text)
        if (fraction := self._wrapped.fraction_train) < 1:
            LOGGER.info(
                "\t├──> fraction_train = %g: of those available, %d clients train in each round",
                fraction,
                self._num_selected,
            )
        if self._free_form:
            LOGGER.info(
                "\t├──> %s has a rule of its own: replies may have any records, keys and shapes "
                "(fixed_shapes=True: those of the model alone)",
                self._wrapped.name,
            )
        self._wrapped.outer.summary()

    @overload
    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result: ...

    @overload
    def start(self, *args: Any, **kwargs: Any) -> Result: ...

    def start(self, *args: Any, **kwargs: Any) -> Result:
        """Run the rounds; signature and result are those of the wrapped strategy, or Flower's.

        A round ends with its last reply, at its deadline or at ``timeout`` [s], whichever comes
        first. ``evaluate_fn`` is called before the first round, every ``eval_every`` rounds and
        after the last. After :meth:`load_state_dict` the rounds go on from there. Called again,
        it begins another run with what the policy has learned.

        A wrapped strategy's own ``start`` is given what was given here. Where that is no
        ``initial_arrays``, the model to begin with is that of its first ``configure_train``.

        Raises
        ------
        ConfigError
            If the wrapped strategy cannot aggregate such a model, or a setting of the run
            directory is wrong.
        SchedulingError
            If the arguments do not fit the signature, it runs already, no client has examples, or
            the wrapped strategy configures messages that do not fit the selection.
        NoStepError
            If rounds were run and none changed the model, after all was written and closed.
        """
        if self._running:
            raise SchedulingError("start() runs already")
        call = StartCall.of(self._wrapped.outer, args, kwargs)
        del args, kwargs
        grid, arrays, num_rounds = call.grid, call.get("initial_arrays"), call.get("num_rounds")
        own_start = self._wrapped.own_start
        if isinstance(arrays, ArrayRecord):
            self._check_model(arrays)
        elif not own_start:
            kind = f"a {type(arrays).__name__}"
            raise ConfigError("initial_arrays", kind, "must be an ArrayRecord of flwr.app")
        else:
            arrays = ArrayRecord()
        if own_start and num_rounds is None:  # it has another word for them
            num_rounds = 0
        num_rounds = check_count("num_rounds", num_rounds, minimum=0)
        self.summary()
        if self._run is not None:
            self._earlier_rounds = self.policy.last_round
        wanted = SpareExchange if self._spares.num_spare else TimedExchange
        timed = grid if isinstance(grid, wanted) else TimedGrid(grid)
        started = StartedRun(self, timed, arrays, num_rounds, self._explain)
        del arrays
        self._running = True
        try:
            with ExitStack() as stack:
                if own_start:
                    run, result = self._run_own_start(started, call, stack)
                else:
                    stack.enter_context(follow(started, self._recording))
                    run, evaluate_fn = self._new_run(started, call), call.get("evaluate_fn")
                    del call  # which holds the first model
                    result = self._run_rounds(run, started.num_rounds, evaluate_fn)
                run.log.on_end(self.arms.arms, self.floors)
        finally:
            self._running = False
            self._resumed = None
        _require_step(run, result)
        return result

    def _check_model(self, arrays: ArrayRecord) -> None:
        """Refuse a first model that the wrapped strategy cannot aggregate; say what is odd."""
        if not arrays and not self._free_form and not self._wrapped.own_start:
            raise ConfigError(
                "initial_arrays",
                "an empty ArrayRecord",
                "must have an array at least",
                "fixed_shapes=False if clients bring the model",
            )
        self._wrapped.check_model(ArraySpec.of(arrays))
        _note_odd_values(arrays)

    def _new_run(self, started: StartedRun, call: StartCall) -> _Run:
        timeout = call.get("timeout")
        timeout_s = float(timeout) if isinstance(timeout, int | float) else math.inf
        parts = RoundParts(
            grid=call.grid,
            timed=started.grid,
            membership=self._membership,
            policy=self._policy,
            sorter=self._sorter,
            wrapped=self._wrapped,
            deadline=self._deadline,
            spares=self._spares,
            late=LateUpdates(self._max_staleness, self._discount),
            work=self._work,
            free_form=self._free_form,
            explain=bool(started.explain),
            unit=self._unit,
        )
        if self._resumed is None:  # else it is known later whether the clock is the same
            self.arms.end_rests()
        # The run goes on without the model that it began with.
        arrays, started.arrays = started.arrays, ArrayRecord()
        self._run = _Run(
            parts=parts,
            specs=ArraySpec.of(arrays),
            train_config=call.get("train_config") or ConfigRecord(),
            evaluate_config=call.get("evaluate_config") or ConfigRecord(),
            timeout_s=timeout_s,
            result=Result(arrays=arrays),
            hooks=started.hooks,
            log=RoundLog(started.num_rounds, self._log_every_s, started.earlier),
        )
        if self._buffer is not None:
            self._run.channels = Channels(parts, self._buffer, timeout)
        return self._run

    def _run_rounds(
        self,
        run: _Run,
        num_rounds: int,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> Result:
        """Run the rounds as Flower's ``start`` does."""
        parts, result = run.parts, run.result
        if self._resumed is None:
            self._evaluate(run, 0, evaluate_fn)
        else:
            run.last_round = self._resumed["round"]
            self._earlier_rounds = self._resumed.get("earlier_rounds", 0)
            run.rounds_without_step = self._resumed["rounds_without_step"]
            # A virtual clock goes on as if nothing had happened.
            virtual = parts.timed.now() == self._resumed["now_s"]
            if virtual:
                run.begin_s = self._resumed["begin_s"]
            else:
                self.arms.end_rests()
            if run.channels is not None:
                run.channels.load_state_dict(self._resumed["channels"], at_work=virtual)
            if self._spares.uses_late:
                parts.late.load_state_dict(self._resumed["late"], at_work=virtual)
        for server_round in range(run.last_round + 1, num_rounds + 1):
            one: TrainingRound | BufferedStep
            if run.channels is not None:
                one = self._run_buffered(run, run.channels, server_round)
            else:
                one = self._begin_round(run, server_round, result.arrays)
                self._train(run, one)
            on_clients = self._evaluate_on_clients(run, one)
            time_s = parts.timed.now() - run.begin_s  # the server's evaluation is no part of it
            metrics = None
            if server_round == num_rounds or server_round % self._eval_every == 0:
                metrics = self._evaluate(run, server_round, evaluate_fn)
            record = self._end_round(run, one, result.arrays, metrics, on_clients, time_s)
            if self._stop_when is not None and self._stop_when(record):
                break
        return result

    # Messages are not kept in variables of the run: they would hold a model for a round more.

    def _train(self, run: _Run, one: TrainingRound) -> None:
        result = run.result
        replies = one.exchange(one.configure(result.arrays, run.train_config), run.timeout_s)
        arrays, metrics = one.aggregate(replies, consume=True)
        if arrays is not None:
            result.arrays = arrays
        if metrics is not None:
            result.train_metrics_clientapp[one.number] = metrics

    def _run_buffered(self, run: _Run, channels: Channels, server_round: int) -> BufferedStep:
        """Let the channels work until the model can change, and change it."""
        result = run.result
        self._prepare(run, server_round, f"step {server_round}", wait_for=0)
        one = BufferedStep(run.parts, server_round, result.arrays, run.specs)
        channels.run_step(one, result.arrays, run.train_config, run.begin_s)
        arrays, metrics = channels.step(one)
        if arrays is not None:
            result.arrays = arrays
        if metrics is not None:
            result.train_metrics_clientapp[one.number] = metrics
        return one

    def _evaluate_on_clients(
        self, run: _Run, one: TrainingRound | BufferedStep
    ) -> MetricRecord | None:
        parts, evaluation, result = run.parts, self._evaluation, run.result
        config, number = run.evaluate_config, one.number
        asked = evaluation.configure(parts, number, result.arrays, config, one.arms)
        metrics = evaluation.aggregate(parts, number, evaluation.exchange(parts, asked))
        if metrics is not None:
            result.evaluate_metrics_clientapp[number] = metrics
        return metrics

    def _run_own_start(
        self, started: StartedRun, call: StartCall, stack: ExitStack
    ) -> tuple[_Run, Result]:
        """Let the wrapped strategy's own ``start`` run the rounds.

        The run is followed from its first round on: until then its model may not be known, and
        ``start`` may refuse what it was given.
        """
        name = self._wrapped.name
        if self._resumed is not None:
            raise _no_resumption(name)
        run = self._new_run(started, call)

        def begin(arrays: ArrayRecord) -> None:
            if arrays is not run.result.arrays:
                self._check_model(arrays)
                run.result.arrays, run.specs = arrays, ArraySpec.of(arrays)
            started.arrays = arrays
            stack.enter_context(follow(started, self._recording))
            started.arrays = ArrayRecord()
            run.parts.explain = bool(started.explain)

        def begin_round(server_round: int, arrays: ArrayRecord) -> TrainingRound:
            if not guide.num_rounds:
                begin(arrays)
            return self._begin_round(run, server_round, arrays)

        guide_of = getattr(self._wrapped.outer, "start_guide", StartGuide)
        guide: StartGuide = guide_of(
            run.parts.grid,
            run.parts,
            self._evaluation,
            begin_round=begin_round,
            end_round=partial(self._end_round, run),
            deadline_s=run.timeout_s,
        )
        with self._wrapped.guided_by(guide):
            result = call.run(guide, guide.noting)
            guide.end_round()
        if not guide.num_rounds:
            if call.get("num_rounds") != 0:
                raise SchedulingError(
                    f"{name}.start() trained no round through its configure_train and "
                    "aggregate_train: nothing was scheduled"
                )
            begin(run.result.arrays)
        return run, result

    # -- one round ----------------------------------------------------------------------------

    def _begin_round(self, run: _Run, server_round: int, arrays: ArrayRecord) -> TrainingRound:
        """Wait for clients, and select."""
        run.parts.timed.begin_round(server_round)
        policy_round = self._prepare(
            run, server_round, f"round {server_round}", wait_for=self._wrapped.quorum
        )
        specs = run.specs if arrays is run.result.arrays else None
        one = TrainingRound(run.parts, server_round, policy_round, arrays, specs)
        one.select()
        return one

    def _prepare(self, run: _Run, server_round: int, what: str, wait_for: int) -> int:
        """Wait for so many clients, or at first for more; return the policy's round."""
        timed = run.parts.timed
        policy_round = self._earlier_rounds + server_round
        if math.isnan(run.begin_s):
            self._membership.wait_for(timed, self._min_clients, what)
            self._membership.wait_for_first(timed)
        self.arms.round = policy_round
        self._membership.wait_for(timed, wait_for, what)
        if self.arms.all_empty():
            raise SchedulingError(
                f"no client has examples: all {len(self.arms)} said that they have 0"
            )
        self._membership.note_members()
        run.parts.grow()
        if math.isnan(run.begin_s):  # how long the first clients took to come is no cost of a run
            if self._resumed is None:
                self._policy.require_shares(self.arms)
            self._log_fleet()
            run.begin_s = self._begin_s(timed.now())
        return policy_round

    def _log_fleet(self) -> None:
        """Say with how many clients a run begins, and whether these are fewer than are wanted."""
        known, wanted = len(self.arms), self._num_selected
        text = "starts with %d client%s (a larger min-clients waits for more)"
        LOGGER.info(text, known, "" if known == 1 else "s")
        if known < wanted:
            what = "per round" if self._buffer is None else "at work"
            LOGGER.warning("%d clients %s wanted, %d known", wanted, what, known)
        if (spare := self._spares.num_spare) and known < wanted + spare:
            LOGGER.warning(
                "%d spare clients wanted, %d known beyond the %d that a round waits for",
                spare,
                max(known - wanted, 0),
                wanted,
            )

    def _end_round(
        self,
        run: _Run,
        one: TrainingRound | BufferedStep,
        arrays: ArrayRecord,
        metrics: MetricRecord | None,
        on_clients: MetricRecord | None,
        time_s: float | None = None,
    ) -> RoundRecord:
        """Record the round, and call the hooks."""
        run.result.arrays, run.specs, run.last_round = arrays, one.specs, one.number
        self._warn_without_step(run, one.number, one.no_step)
        record = replace(
            one.record(run.parts.timed.now() - run.begin_s if time_s is None else time_s),
            accuracy=_metric(metrics, "accuracy"),
            loss=_metric(metrics, "loss"),
            diverged=_is_odd(metrics, "loss"),
            client_metrics=finite_metrics(on_clients),
            server_metrics=self._server_metrics(run, metrics),
        )
        run.last = record
        run.any_update |= any(record.completed)
        self._warn_all_late(run, record)
        if run.channels is not None:
            run.learned = run.channels.progress
        run.log.on_round(record)
        for hook in [*run.hooks, *self._hooks]:
            hook(record, arrays)
        return record

    def _begin_s(self, now_s: float) -> float:
        """Return when the run began, on the grid's clock; a pause before a resumption is none."""
        if self._resumed is None:
            return now_s
        return float(now_s - (self._resumed["now_s"] - self._resumed["begin_s"]))

    def _warn_without_step(self, run: _Run, server_round: int, no_step: str | None) -> None:
        """Warn when the model stays as it is for 10, 20, 40, ... rounds."""
        run.rounds_without_step = 0 if no_step is None else run.rounds_without_step + 1
        tens, odd = divmod(run.rounds_without_step, _WARN_WITHOUT_STEP)
        if not odd and tens.bit_count() == 1:
            LOGGER.warning(
                "%s %d: the model has not changed for %d %ss, now for the reason: %s",
                self._unit,
                server_round,
                run.rounds_without_step,
                self._unit,
                no_step,
            )

    def _server_metrics(self, run: _Run, metrics: MetricRecord | None) -> dict[str, float] | None:
        """Return what ``evaluate_fn`` finds beside accuracy and loss; say once if that is all."""
        if metrics and not {"accuracy", "loss"} & metrics.keys() and not run.told_of_names:
            run.told_of_names = True
            names = ", ".join(list(map(one_line, metrics))[:_MOST_NAMED])
            more = f" and {len(metrics) - _MOST_NAMED} more" if len(metrics) > _MOST_NAMED else ""
            LOGGER.warning(
                "no 'accuracy' or 'loss' among %s%s: curves and the best model need one, "
                "so let evaluate_fn return one under that name too",
                names,
                more,
            )
        found = finite_metrics(metrics) or {}
        return {k: v for k, v in found.items() if k not in ("accuracy", "loss")} or None

    def _warn_all_late(self, run: _Run, record: RoundRecord) -> None:
        """Warn once when all selected clients miss the deadline round after round."""
        kinds = {failure_kind(reason or "") for reason in record.reason}
        run.rounds_all_late = run.rounds_all_late + 1 if kinds == {TIMEOUT} else 0
        if run.rounds_all_late == _WARN_ALL_LATE:
            text = "%s %d: for %d %ss %s"
            late = _all_late_text(run)
            LOGGER.warning(text, self._unit, record.round, _WARN_ALL_LATE, self._unit, late)

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


def _require_step(run: _Run, result: Result) -> None:
    """End a run with an error in which no round did anything to the model.

    A wrapped strategy that returns metrics and no arrays, as for analytics, has done its work.
    """
    last = run.last
    metrics = getattr(result, "train_metrics_clientapp", None)  # of a start of its own anything
    if last is None or run.rounds_without_step < last.round or (metrics and run.any_update):
        return
    failures = list(zip(last.names, last.reason, strict=True))
    advice = _all_late_text(run) if run.rounds_all_late else ""
    error = NoStepError(last.no_step or "", failures, advice, run.parts.unit)
    error.result = result
    raise error


def _all_late_text(run: _Run) -> str:
    deadline = run.parts.deadline
    found_s = None if run.last is None else run.last.deadline_s
    deadline_s = min(run.timeout_s, deadline.level_s if found_s is None else found_s)
    text = f"all selected clients missed the deadline of {deadline_s:g} s"
    if deadline_s == run.timeout_s:
        text += "; raise the timeout of start()"
    elif not deadline.is_found:
        text += "; raise tau_max_s"
    late_s = getattr(run.parts.timed, "fastest_late_s", math.inf)  # not every grid sees them
    return text if late_s == math.inf else f"{text} (the fastest late reply took {late_s:.3g} s)"


def _spare_text(spares: SpareClients) -> str:
    if not spares.num_spare:
        return ""
    return f" and {spares.num_spare} spare{', late updates used' if spares.uses_late else ''}"


def _no_resumption(name: str) -> ConfigError:
    message = "has a start() of its own, which begins with round 1: it cannot be resumed"
    return ConfigError("strategy", name, message)


def _not_outermost() -> SchedulingError:
    return SchedulingError(
        "ScheduledStrategy must be the outermost strategy and run by its own start(): "
        "wrap the other strategy inside it instead"
    )


def _note_odd_values(arrays: ArrayRecord) -> None:
    """Say where the first model is not finite: in a mask that is meant, elsewhere it is not."""
    for key, array in arrays.items():
        view = decode_array(array)
        if view.dtype.kind in "fc" and not is_finite(view):
            count = int(np.count_nonzero(~np.isfinite(view)))
            LOGGER.warning(
                "the initial model's %r is not finite in %d of %d values: these stay as they are",
                key,
                count,
                view.size,
            )


def _metric(metrics: MetricRecord | None, key: str) -> float | None:
    value = metrics.get(key) if metrics is not None else None
    # A diverged model has no loss that could be written down.
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _is_odd(metrics: MetricRecord | None, key: str) -> bool:
    value = metrics.get(key) if metrics is not None else None
    return isinstance(value, int | float) and not math.isfinite(value)


def _check_bound(key: str, value: float) -> None:
    """Refuse what is no number >= 0; infinite is no bound at all."""
    if value != math.inf:
        check_real(key, value, at_least=0.0)
