"""Policy of a run: built or given, grown as arms join, with floors by their sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flower_scheduling.client.wire.protocol import LOCAL_ACCURACY, TRAIN_LOSS
from flower_scheduling.errors import ConfigError, SchedulingError
from flower_scheduling.schema import kebab

from ..base import (
    BoolArray,
    Explanation,
    FloatArray,
    RoundContext,
    RoundOutcome,
    SchedulingPolicy,
    Selection,
    check_real,
)
from ..deadline import AUTO, LONGEST_S, GivenDeadline
from ..fairness import FloorRule, NamedFloors, check_feasibility, floors_text, parse_floors
from ..floors import FloorPolicy, QueuePolicy
from ..policy_spec import PolicySpec
from ..registry import build_policy, channel_params, require_runnable
from ..share_bound import ShareBound
from ..update_sketch import SKETCH_SIZE
from .arm_table import ArmTable
from .record import ArmResult
from .replies import Update
from .timed_grid import LOGGER

PolicyLike: TypeAlias = str | SchedulingPolicy | Callable[..., SchedulingPolicy]
"""What a strategy schedules by: a policy's name, a policy without arms yet, or what builds one."""

_LARGEST_FLOOR: Final = float(np.nextafter(1.0, 0.0))
"""A floor is below 1; a rule may ask for more when a client holds most of the data."""
_REPORTS: Final = {"local_accuracy": (LOCAL_ACCURACY,), "loss": (TRAIN_LOSS, "train_loss", "loss")}
"""Metrics in which clients report what a policy learns from (``PolicySpec.reports``): the name in
our protocol first, then those that are usual in Flower's apps."""
_WARN_WITHOUT_REPORT: Final = 10
_WARN_OF_NAMES: Final = (1, 100, 1000, 10_000)  # rounds in which no client has a floor's name
_OWN_KEYS: Final = ("beta", "truncate")
"""Parameters of policies that are settings of their own; others are options."""


class PolicyRunner:
    """Build a policy and keep it in step with the arms of a run.

    Parameters
    ----------
    policy : str, SchedulingPolicy or callable
        Name of a policy; or a policy with ``num_arms = 0``, which grows as arms join; or a class or
        function that takes ``num_arms``, ``num_selected``, ``tau_max_s`` and ``rng``.
    num_selected, tau_max_s, seed
        As in :class:`.ScheduledStrategy`, but that ``num_selected`` is N + M: what a policy
        selects. If the deadline is found, see :meth:`set_tau_max`.
    fairness : str or FloorRule
        Floors c_k of the arms.
    availability : float
        Probability that a client is available, for the feasibility check of the floors.
    params : mapping
        Parameters of the policy's own.
    channels : bool
        Whether it selects for one free channel at a time, of ``num_selected``. Floors are then
        shares of the pieces of work that end, a piece at a time, not of rounds: c_k / N.
    num_spare : int
        M: of what is selected, so many need not answer. Floors are shares of rounds in which an
        arm is among the others.
    max_share : float
        Largest share of rounds of any arm, in the sense of floors, see :class:`.ShareBound`.

    Raises
    ------
    ConfigError, UnknownPolicyError
        If there is no such policy or a parameter is wrong.
    """

    def __init__(
        self,
        policy: PolicyLike,
        *,
        num_selected: int,
        tau_max_s: GivenDeadline,
        seed: int,
        fairness: str | FloorRule,
        availability: float,
        params: Mapping[str, Any],
        channels: bool = False,
        num_spare: int = 0,
        max_share: float = 1.0,
    ) -> None:
        self.num_selected = num_selected
        self._shares = ShareBound(max_share, num_selected if channels else 1)
        self._above_share = ""  # which floor is, if one is
        self._num_counted = num_selected - num_spare
        self._channels = channels
        self._tau_max_s = tau_max_s
        self._seed = seed
        self._rule = parse_floors(fairness) if isinstance(fairness, str) else fairness
        self._floors_text = fairness if isinstance(fairness, str) else floors_text(self._rule)
        self._availability = availability
        self._params = params
        self._given = policy
        self._policy: SchedulingPolicy | None = None
        self._floor_warning = ""
        self._checked_floors = 0.0  # largest sum of the members' floors that was found feasible
        self._unknown: set[str] = set()  # names with a floor that no arm has
        self._unknown_rounds = 0
        if isinstance(policy, str):
            spec = require_runnable(policy, params)
        elif isinstance(policy, SchedulingPolicy):
            spec = PolicySpec.of(type(policy))
        elif callable(policy):
            spec = PolicySpec.of(policy)
        else:
            raise ConfigError("policy", policy, "must be a name, a SchedulingPolicy or a builder")
        self.name = spec.name
        self._spec = spec
        unknown = [name for name in spec.reports if name not in _REPORTS]
        if unknown:
            known = ", ".join(_REPORTS)
            raise ConfigError("policy", self.name, f"learns from {unknown[0]}: known are {known}")
        self._reports = {name: _REPORTS[name] for name in spec.reports}
        self._without_report = dict.fromkeys(self._reports, 0.0)  # rounds so far
        self._build(num_arms=0)  # refuses bad settings here, not in the first round

    def settings(self) -> dict[str, int | float | bool | str]:
        """Return what the policy was asked for under the keys of a run's settings."""
        own = {key: value for key, value in self._params.items() if key in _OWN_KEYS}
        options = {key: value for key, value in self._params.items() if key not in _OWN_KEYS}
        return {
            "strategy": self.name,
            "num-selected": self._num_counted,
            **({"num-spare": spare} if (spare := self.num_selected - self._num_counted) else {}),
            "tau-max-s": AUTO if self._tau_max_s == AUTO else float(self._tau_max_s),
            "strategy-option": ",".join(f"{kebab(key)}={value}" for key, value in options.items()),
            **{key: value for key, value in own.items() if isinstance(value, bool | int | float)},
            **({"fairness": self._floors_text} if self._floors_text else {}),
            **({"max-share": self._shares.max_share} if self._shares.bounds else {}),
            "seed": self._seed,
        }

    @property
    def policy(self) -> SchedulingPolicy:
        """The policy; exists from the first round on."""
        if self._policy is None:
            raise SchedulingError("the policy is built in the first round: call start() first")
        return self._policy

    @property
    def requested_metrics(self) -> list[str]:
        """Metrics that clients are asked to report."""
        return [names[0] for names in self._reports.values()]

    @property
    def needs_updates(self) -> bool:
        """Whether the policy learns from sketches of updates."""
        return self._spec.needs_updates

    @property
    def keeps_floors(self) -> bool:
        """Whether the policy has participation floors."""
        return self._spec.keeps_floors

    @property
    def by_data(self) -> bool:
        """Whether the policy selects by what clients report or send, see :class:`.PolicySpec`."""
        return self._spec.by_data

    @property
    def floors(self) -> list[float] | None:
        """Least share of rounds of each arm; ``None`` for a policy without floors."""
        if not isinstance(self._policy, FloorPolicy):
            return None
        floors: list[float] = self._policy.min_participation.tolist()
        return floors

    @property
    def queue(self) -> FloatArray | None:
        """Virtual queue of each arm [rounds], a copy; ``None`` for a policy without queues."""
        return self._policy.virtual_queue.copy() if isinstance(self._policy, QueuePolicy) else None

    def grow(self, num_arms: int) -> bool:
        """Give the policy so many arms; return whether there are new ones."""
        if self._policy is None:
            self._policy = self._build(num_arms)
        elif num_arms > self._policy.num_arms:
            self._policy.add_arms(num_arms - self._policy.num_arms)
        else:
            return False
        return True

    def set_floors(self, arms: ArmTable) -> None:
        """Compute the floors of arms by their sizes and names.

        Arms that are gone keep their floor, and their size takes nothing from the others'.
        """
        policy = self.policy
        if not isinstance(policy, FloorPolicy):
            return
        sizes, names, gone = arms.sizes, arms.names, arms.gone
        empty = sizes == 0
        sizes[gone] = 0.0
        known = sizes[sizes > 0]
        sizes[np.isnan(sizes)] = known.mean() if known.size else 1.0
        sizes = sizes if sizes.any() else np.ones(len(arms))
        floors = np.minimum(self._rule.floors(sizes, self._num_counted, names), _LARGEST_FLOOR)
        floors = self._below_share(floors, names)
        if self._channels:
            floors /= self.num_selected
        floors[gone] = policy.min_participation[gone]
        floors[empty] = 0.0
        policy.min_participation = floors
        self._checked_floors = 0.0
        if isinstance(self._rule, NamedFloors):
            unknown = self._rule.unknown(names)
            joined = self._unknown - unknown
            if self._unknown_rounds and joined:
                LOGGER.info("%s has joined, and its floor counts", ", ".join(sorted(joined)))
            self._unknown = unknown

    def _below_share(self, floors: FloatArray, names: Sequence[str]) -> FloatArray:
        """Return floors that the largest share leaves room for; note the first that it does not."""
        if not self._shares.bounds:
            return floors
        most = self._shares.max_share
        above = np.flatnonzero(floors > most)
        self._above_share = ""
        if above.size:
            arm = int(above[0])
            self._above_share = f"is below the floor of {names[arm]}, {floors[arm]:.3g}"
        return np.minimum(floors, most)

    @property
    def clients_needed(self) -> int:
        """Clients that there must be for the largest share; 0 where there is none."""
        return self._shares.clients_for(self._num_counted)

    def require_shares(self, arms: ArmTable) -> None:
        """Refuse a largest share that the clients of the first round, or their floors, forbid.

        Floors of clients that join later are cut off at it.

        Raises
        ------
        ConfigError
            If there are fewer than N over the share of them, or a floor is larger.
        """
        self._shares.require_clients(self._num_counted, int(np.count_nonzero(arms.member)))
        if self._above_share:
            raise ConfigError("max_share", self._shares.max_share, self._above_share)

    def selectable(self, arms: ArmTable) -> BoolArray:
        """Return the available arms that have not had their largest share, (num_arms,) bool."""
        return self._shares.allowed(arms.available)

    def ask(self, server_round: int, arms: ArmTable, quorum: int) -> Selection:
        """Select the super arm; none if fewer arms are available than a step needs.

        Arms that have had their largest share are not available, as long as a step has enough.
        """
        available, member = arms.available, arms.member
        self._check_floors(arms.names, member)
        if np.count_nonzero(available) < quorum:
            available = np.zeros_like(available)  # spare the clients work that makes no step
        available = self._shares.allowed(available, quorum)
        return self._ask(RoundContext(server_round, available, member), arms)

    def ask_one(
        self, arms: ArmTable, at_work: Sequence[int], overdue: Sequence[int] = ()
    ) -> Selection:
        """Select an arm for a free channel; none where the channel is to stay free.

        Parameters
        ----------
        arms : ArmTable
            Of which those that are available, and not at work, are idle.
        at_work : sequence of int
            Arms at work. A client may be free again while its reply is still to be taken.
        overdue : sequence of int
            Those of them that count as away, since they take too long.
        """
        available, member = arms.available.copy(), arms.member
        there = available.copy()
        there[list(at_work)] = True
        there[list(overdue)] = False
        available[list(at_work)] = False
        # With none at work one must begin: shares move when work ends.
        allowed = self._shares.allowed(available, 0 if at_work else 1)
        there &= allowed | ~available  # an arm that is barred keeps no channel free for itself
        available = allowed
        self._check_floors(arms.names, member)
        return self._ask(RoundContext(self.policy.last_round + 1, available, there & member), arms)

    def _ask(self, context: RoundContext, arms: ArmTable) -> Selection:
        available = context.available
        with self._naming_the_policy():
            selection = self.policy.ask(context)
        mask = selection.mask
        most = 1 if self._channels else self.num_selected
        if (count := np.count_nonzero(mask)) > most:
            raise SchedulingError(f"{self.name} selected {count} arms, at most {most}")
        if (mask & ~available).any():
            arm = int(np.flatnonzero(mask & ~available)[0])
            name = arms.arms[arm].name
            raise SchedulingError(f"{self.name} selected {name}, which is not available")
        return selection

    def _check_floors(self, names: Sequence[str], member: BoolArray) -> None:
        """Warn if the floors of the members cannot be kept, or are by names that no arm has.

        Arms that are away are owed nothing, so the others may have all that a round can serve.
        """
        policy = self._policy
        if not isinstance(policy, FloorPolicy):
            return
        if self._unknown and isinstance(self._rule, NamedFloors):
            self._unknown_rounds += 1
            if self._unknown_rounds in _WARN_OF_NAMES:
                message = self._rule.unknown_message(names)
                LOGGER.warning("fairness: %s", message)
        scale = self.num_selected if self._channels else 1
        total = scale * float(policy.min_participation @ member)
        if total <= self._checked_floors:
            return
        self._checked_floors = total
        there = np.flatnonzero(member)
        feasibility = check_feasibility(
            np.minimum(scale * policy.min_participation[there], _LARGEST_FLOOR),
            self._num_counted,
            self._availability,
        )
        if feasibility.feasible:
            return
        message = feasibility.message([names[arm] for arm in there.tolist()])
        if message != self._floor_warning:
            self._floor_warning = message
            LOGGER.warning("%s", message)

    def owed(self) -> set[int]:
        """Return the arms that are owed a round or more by their floor."""
        queue = self.queue
        return set() if queue is None else set(np.flatnonzero(queue >= 1.0).tolist())

    def explain(self, selection: Selection) -> Explanation | None:
        """Return why the super arm was selected."""
        return self.policy.explain(selection)

    def tell(
        self,
        selection: Selection,
        results: Sequence[ArmResult],
        updates: Mapping[int, Update],
        late_rtt_s: Mapping[int, float | None] | None = None,
    ) -> None:
        """Let the policy learn from a round.

        With spare clients it is told of what was waited for, as if nothing else had been selected,
        and of the late replies that came meanwhile, with their true times: a policy that never
        heard of a late arm would take it for untried for ever. A late reply pays no debt here: the
        virtual queue of its arm is that of an arm that was not selected. One whose update is used
        pays when it is (:meth:`note_used`).

        Parameters
        ----------
        selection : Selection
            What :meth:`ask` returned.
        results : sequence of ArmResult
            Of the super arm.
        updates : mapping of int to Update
            By arm, those that completed.
        late_rtt_s : mapping of int to float or None, optional
            By arm, times of late replies of earlier rounds [s], ``None`` for a failure; without it
            there are no spare clients.
        """
        shape = selection.mask.shape
        rtt_s = np.full(shape, np.nan)
        completed = np.zeros(shape, dtype=np.bool_)
        for result in results:
            rtt_s[result.arm] = math.nan if result.rtt_s is None else result.rtt_s
            completed[result.arm] = result.completed
        if late_rtt_s is not None:
            mask = np.zeros(shape, dtype=np.bool_)
            mask[[result.arm for result in results]] = True
            for arm, taken_s in late_rtt_s.items():
                rtt_s[arm] = math.nan if taken_s is None else taken_s
                completed[arm] = taken_s is not None
                mask[arm] = True
            selection = Selection(selection.context, mask, selection.drawn)
        self._shares.tell(shape[-1], [result.arm for result in results])
        done = list(updates)
        reported = {name: np.full(shape, np.nan) for name in self._reports}
        for name, keys in self._reports.items():
            reported[name][done] = [_reported(update, keys) for update in updates.values()]
            self._warn_without_report(name, bool(done), bool(np.isfinite(reported[name]).any()))
        sketches = self._sketches(updates, shape) if self.needs_updates else None
        queue = self.queue
        with self._naming_the_policy():
            self.policy.tell(selection, RoundOutcome(rtt_s, completed, reported, sketches))
        if late_rtt_s and queue is not None and isinstance(self.policy, QueuePolicy):
            member = selection.context.member
            floors = self.policy.min_participation
            owed = floors if member is None else floors * member
            late = list(late_rtt_s)
            self.policy.virtual_queue[late] = (queue + owed)[late]

    def _sketches(self, updates: Mapping[int, Update], shape: tuple[int, ...]) -> FloatArray:
        """Return the sketches of updates, NaN where there is none."""
        sketches = np.full((*shape, SKETCH_SIZE), np.nan)
        for arm, update in updates.items():
            if update.sketch is not None:
                sketches[arm] = update.sketch
        return sketches

    def note_taken(self, arms: Sequence[int]) -> None:
        """Let late updates of arms, which are going to be used, count for their largest share."""
        self._shares.charge(self.policy.num_arms, arms)

    def note_used(self, arms: Sequence[int]) -> None:
        """Let late updates that were used pay the debts of their arms, after :meth:`tell`.

        A round in which one is used counts as one that has served its arm: together with
        :meth:`tell`, its virtual queue becomes max(Q + c - 1, 0).
        """
        if isinstance(self.policy, QueuePolicy):
            queue = self.policy.virtual_queue
            for arm in arms:
                queue[arm] = max(queue[arm] - 1.0, 0.0)

    def tell_one(
        self,
        selection: Selection,
        result: ArmResult,
        update: Update | None,
        there: BoolArray,
    ) -> None:
        """Let the policy learn from a piece of work that has ended.

        Parameters
        ----------
        selection : Selection
            What :meth:`ask_one` returned for it, when there may have been fewer arms.
        result : ArmResult
            What became of it.
        update : Update or None
            What it delivered, if it completed.
        there : (num_arms,) bool
            Arms that are idle or at work now.
        """
        num_arms = self.policy.num_arms
        context = selection.context
        available = _grown(context.available, num_arms)
        drawn = None if selection.drawn is None else _grown(selection.drawn, num_arms)
        now = RoundContext(self.policy.last_round + 1, available, there)
        mask = _grown(selection.mask, num_arms)
        updates = {} if update is None else {result.arm: update}
        self.tell(Selection(now, mask, drawn), [result], updates)

    def set_tau_max(self, deadline_s: float, *, unit_s: float) -> None:
        """Let the policy know a deadline that is found.

        tau_max is two things to a policy: what a failure costs, and the unit of rewards
        1 - tau / tau_max. A policy that learns seconds (:attr:`.SchedulingPolicy.in_seconds`) is
        given the present deadline. For one that learns rewards, like CS-UCB, rewards of different
        units would not compare, and one of an hour would make all arms alike: it is given the unit
        that :meth:`.RoundDeadline.learn` settles once and for all. A failure then counts as one
        unit, whatever was waited for it, and so does a time beyond it. A policy that was given as
        an object keeps the tau_max that it was built with.

        Parameters
        ----------
        deadline_s : float
            Deadline of the round that is told, or what that of the next one will be about [s].
        unit_s : float
            Unit of rewards [s].
        """
        if not isinstance(self._given, SchedulingPolicy):
            self.policy.tau_max_s = deadline_s if self.policy.in_seconds else unit_s

    def share_state(self) -> dict[str, Any]:
        """Return what the largest share depends on; empty if there is none."""
        return self._shares.state() if self._shares.bounds else {}

    def load(
        self, num_arms: int, state: Mapping[str, Any], shares: Mapping[str, Any] | None = None
    ) -> None:
        """Go on with the state of a policy of so many arms, and that of their shares.

        Raises
        ------
        ConfigError
            If it is of another policy or other settings.
        """
        policy = self._build(num_arms)
        if self._tau_max_s == AUTO and policy is not self._given:  # a part of what was learned
            policy.tau_max_s = check_real("state['tau_max_s']", state.get("tau_max_s"), above=0.0)
        policy.load_state_dict(state)
        self._policy = policy
        if shares and self._shares.bounds:
            self._shares.load_state(shares)

    @contextmanager
    def _naming_the_policy(self) -> Iterator[None]:
        """Turn an exception in a policy of somebody else's into an error that names it."""
        try:
            yield
        except SchedulingError:
            raise
        except Exception as error:
            if type(self.policy).__module__.startswith("flower_scheduling."):
                raise
            text = f"the policy {self.name} raised {type(error).__name__}: {error}"
            raise SchedulingError(text) from error

    def _build(self, num_arms: int) -> SchedulingPolicy:
        if isinstance(self._given, SchedulingPolicy):
            return self._grown(self._given, num_arms)
        params = {
            "num_arms": num_arms,
            "num_selected": self.num_selected,
            "tau_max_s": LONGEST_S if self._tau_max_s == AUTO else self._tau_max_s,
            "rng": np.random.default_rng(self._seed),
            **self._params,
        }
        if self._channels:
            params |= channel_params(self._spec, self.num_selected)
        if isinstance(self._given, str):
            return build_policy(self._given, **params)
        policy = self._given(**params)
        if not isinstance(policy, SchedulingPolicy):
            raise ConfigError("policy", self.name, f"built a {type(policy).__name__}, not a policy")
        return policy

    def _grown(self, policy: SchedulingPolicy, num_arms: int) -> SchedulingPolicy:
        """Return the policy that was given, checked, with so many arms."""
        if self._params:
            name = next(iter(self._params))
            raise ConfigError(name, self._params[name], "is a matter of the policy that was given")
        if self._policy is None and (policy.shape != (0,) or policy.last_round):
            message = "must have num_arms = 0 and no rounds: arms are added as clients join"
            raise ConfigError("policy", f"{self.name} of {policy.num_arms} arms", message)
        knows = getattr(policy, "channels", False)
        num_selected = 1 if self._channels and not knows else self.num_selected
        if knows and not self._channels:
            raise ConfigError("policy", self.name, 'was built for channels: mode="buffered"')
        for name, value in (("num_selected", num_selected), ("tau_max_s", self._tau_max_s)):
            if value != AUTO and getattr(policy, name) != value:
                raise ConfigError(name, value, f"the policy was built with {getattr(policy, name)}")
        if num_arms > policy.num_arms:
            policy.add_arms(num_arms - policy.num_arms)
        return policy

    def _warn_without_report(self, name: str, any_done: bool, any_reported: bool) -> None:
        """Warn once if no client reports, for some rounds, what the policy learns from."""
        if any_reported:
            self._without_report[name] = -math.inf
        elif any_done:
            self._without_report[name] += 1
            if self._without_report[name] == _WARN_WITHOUT_REPORT:
                names = " or ".join(repr(key) for key in self._reports[name])
                LOGGER.warning("no client reports the metric %s: %s does without", names, self.name)


def _grown(array: NDArray[Any], num_arms: int) -> NDArray[Any]:
    """Return an array by arm with room for those that have joined since."""
    return np.pad(array, (0, num_arms - array.size))


def _reported(update: Update, names: Sequence[str]) -> float:
    """Return the metric that a client reports under the first of these names; NaN if none."""
    values = (update.metrics.get(name) for name in names)
    found = next((float(v) for v in values if isinstance(v, int | float)), math.nan)
    return found if math.isfinite(found) else math.nan
