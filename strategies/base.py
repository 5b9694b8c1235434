"""The interface of scheduling policies: context, selection and outcome of a round."""

from __future__ import annotations

import copy
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral, Real
from typing import Any, ClassVar, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_scheduling.errors import ArrayError, ConfigError, RoundOrderError

from .update_sketch import SKETCH_SIZE

FloatArray: TypeAlias = NDArray[np.float64]
BoolArray: TypeAlias = NDArray[np.bool_]
IntArray: TypeAlias = NDArray[np.int64]

STATE_VERSION: Final = 1
"""Version of what :meth:`SchedulingPolicy.state_dict` returns."""


def check_count(key: str, value: object, *, minimum: int) -> int:
    """Return `value` as an int if it is an integer >= `minimum`, else raise ConfigError."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise ConfigError(key, value, f"must be an integer >= {minimum}")
    return int(value)


def check_real(
    key: str,
    value: object,
    *,
    above: float = -math.inf,
    at_least: float = -math.inf,
    at_most: float = math.inf,
) -> float:
    """Return `value` as a float if it is a finite number in range, else raise ConfigError."""
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
        if math.isfinite(number) and number > above and at_least <= number <= at_most:
            return number
    bounds = [
        f"{sign} {bound:g}"
        for sign, bound in ((">", above), (">=", at_least), ("<=", at_most))
        if math.isfinite(bound)
    ]
    allowed = " ".join(["must be a finite number", " and ".join(bounds)])
    raise ConfigError(key, value, allowed.strip())


@dataclass(frozen=True, slots=True)
class RoundContext:
    """What is known before a round.

    Attributes
    ----------
    round : int
        Round number t, from 1.
    available : (*batch, num_arms) bool
        Arms that may be selected now, A(t).
    member : (*batch, num_arms) bool, optional
        Arms that belong to the fleet at all. An arm that has left accrues no queue debt, one
        that is merely unavailable does. ``None`` (the paper): every arm is a member.
    """

    round: int
    available: BoolArray
    member: BoolArray | None = None


@dataclass(frozen=True)
class Selection:
    """A super arm, S(t): the answer of a policy to one :class:`RoundContext`.

    Attributes
    ----------
    context : RoundContext
        The question that this answers.
    mask : (*batch, num_arms) bool
        True for the selected arms.
    drawn : (*batch, num_arms) array, optional
        What was drawn for each arm, where a policy needs it to explain the selection.
    """

    context: RoundContext
    mask: BoolArray
    drawn: NDArray[Any] | None = field(default=None, repr=False, compare=False)

    @property
    def round(self) -> int:
        """Round number t of the question."""
        return self.context.round

    @cached_property
    def positions(self) -> IntArray:
        """Where the mask is true, as increasing indices into the flattened mask.

        Few arms are selected: work on these positions costs less than on whole arrays. Computed
        once; the mask must not change afterwards.
        """
        return self.mask.ravel().nonzero()[0]


@dataclass(frozen=True)
class Explanation:
    """Why a super arm was selected: what each arm scored, in parts that add up.

    Attributes
    ----------
    rule : str
        ``"largest"``: the available arms with the largest scores were selected. ``"smallest"``:
        those with the smallest. ``"drawn"``: a random draw, in which a larger score is likelier.
    unit : str
        Of the scores: ``"s"``, or empty where they are numbers.
    parts : mapping of str to (*batch, num_arms) float64
        Named in the order in which they add up, see below. An infinity of either sign is allowed
        in one part of an arm, for an arm that comes before or after all others; NaN is not.
    tie_break : (*batch, num_arms) float64, optional
        What decided between equal scores, the larger first; what that leaves tied was drawn.

    Notes
    -----
    Policies have these parts in common, in this order:

    - ``mean``: what the measured times say, or the expected ones where they are known; ``time``
      where that is no mean of the arm, but what its mean time adds to the round or takes from its
      utility;
    - ``failures``: what failing costs, where it is estimated apart;
    - ``bonus``: optimism about what is not known well; infinite where an untried arm comes first
      or last, and beyond all costs where an arm goes first for another reason;
    - ``draw``: how far a random draw lies from the mean;
    - ``queue``: what the arm is owed.

    After them come what only some have: ``accuracy`` and ``loss``, as clients report them;
    ``turn``, how many arms come before this one; ``floor`` and ``weight``, the shares of the two
    in a probability; ``chance``, what is drawn without regard to the arm.
    """

    rule: Literal["largest", "smallest", "drawn"]
    unit: str
    parts: Mapping[str, FloatArray]
    tie_break: FloatArray | None = None

    @property
    def score(self) -> FloatArray:
        """Sum of the parts, (*batch, num_arms)."""
        return np.asarray(sum(self.parts.values()))


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What was measured in a round; every array is read only where the selection is true.

    Attributes
    ----------
    round_trip_time_s : (*batch, num_arms) float64
        Measured round-trip time tau_k(t) [s], push to arrival on the server's clock. Values above
        tau_max are clipped; values of arms that did not complete do not matter (may be NaN).
    completed : (*batch, num_arms) bool
        False where the arm delivered nothing useful in time; it then counts as tau_max.
    reported : mapping of str to (*batch, num_arms) float64
        Values reported by clients (``local_accuracy``, ``loss``), NaN where unknown. A value
        that no client reported may be missing.
    update_sketch : (*batch, num_arms, SKETCH_SIZE) float64, optional
        What each client's update changed of the model, see :mod:`.update_sketch`; NaN where that
        is not known. ``None``: of no client, or the policy does not learn from it.
    """

    round_trip_time_s: FloatArray
    completed: BoolArray
    reported: Mapping[str, FloatArray] = field(default_factory=dict)
    update_sketch: FloatArray | None = None


class SchedulingPolicy(ABC):
    """Chooses the super arm of each round and learns from how long its arms took.

    One object serves one deployment (no batch axis) or a whole Monte-Carlo study (one row of the
    batch per seed). It is pure: no clock, no I/O, and randomness from ``rng`` alone.

    :meth:`ask` reads and :meth:`tell` learns. Every round is told once, in increasing order, also
    a round in which no arm was selected. Short supply is ordinary: with fewer than
    ``num_selected`` arms available all of them are taken, with none the super arm is empty.

    Where clients are not waited for (:class:`.ScheduledStrategy`, buffered mode), N channels are
    refilled one by one: :meth:`ask` selects one arm for a free channel, of those that are idle, or
    none, and :meth:`tell` learns of each piece of work when it ends, in the order of ends. A round
    is then the end of one piece of work, and ``RoundContext.member`` are the arms that are idle or
    at work. Any policy built with ``num_selected=1`` can do that. One that wants to know how many
    channels there are has a parameter ``channels``, and is built with it and with N.

    Parameters
    ----------
    num_arms : int, >= 0
        Number of arms, K. It may grow, see :meth:`add_arms`.
    num_selected : int, >= 1
        Most arms per round, N.
    tau_max_s : float, > 0
        Deadline of a round tau_max [s]: the time of an arm that fails, and the unit of rewards.
    rng : numpy.random.Generator
        Source of every random choice; it belongs to the policy from now on.
    batch_shape : tuple of int
        Leading axes of every array, ``()`` in a deployment.

    Attributes
    ----------
    shape : tuple of int
        ``(*batch, num_arms)``.
    play_count : (*batch, num_arms) int64
        How often each arm was selected, z.
    mean_reward : (*batch, num_arms) float64
        Mean reward of each arm in [0, 1], y; 0 while it was never selected.

    Raises
    ------
    ConfigError
        If a parameter has the wrong type or is out of range.
    """

    name: ClassVar[str]
    """What the user types, the same as in the registry; by default from the class's name."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Names in ``RoundOutcome.reported`` without which there is nothing to learn from."""
    uses: ClassVar[tuple[str, ...]] = ()
    """Names in ``RoundOutcome.reported`` that are learned from if clients report them."""
    needs_updates: ClassVar[bool] = False
    """Whether it learns from ``RoundOutcome.update_sketch``, and not from times alone."""
    in_seconds: ClassVar[bool] = False
    """Whether what it selects by is learned in seconds: ``tau_max_s`` is what a failure costs, and
    may change between rounds. Otherwise it is the unit of rewards too, and stays."""

    # What state_dict, load_state_dict and add_arms have to know about a subclass; each of them is
    # the name of an attribute.
    _per_arm: ClassVar[Mapping[str, float]] = {"play_count": 0, "mean_reward": 0.0}
    """Arrays whose last axis is the arms, and the value of a new arm."""
    _per_row: ClassVar[tuple[str, ...]] = ()
    """Arrays of the batch's shape."""
    over_asking: ClassVar[float] = 1.0
    """How many times N clients it asks for in rounds, of which the first N to answer count, unless
    a number of spare clients is given."""
    _settings: ClassVar[tuple[str, ...]] = ("num_selected", "tau_max_s")
    """Scalars without which what was learned means something else."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:  # an inherited one would be another policy's
            cls.name = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()

    def __init__(
        self,
        *,
        num_arms: int,
        num_selected: int,
        tau_max_s: float,
        rng: np.random.Generator,
        batch_shape: tuple[int, ...] = (),
    ) -> None:
        self.num_arms = check_count("num_arms", num_arms, minimum=0)
        self.num_selected = check_count("num_selected", num_selected, minimum=1)
        self.tau_max_s = check_real("tau_max_s", tau_max_s, above=0.0)
        if not isinstance(rng, np.random.Generator):
            raise ConfigError("rng", rng, "must be a numpy.random.Generator")
        if not isinstance(batch_shape, tuple):
            raise ConfigError("batch_shape", batch_shape, "must be a tuple of integers >= 1")
        self.batch_shape = tuple(check_count("batch_shape", n, minimum=1) for n in batch_shape)
        self.shape = (*self.batch_shape, self.num_arms)
        self._rng = rng
        self._last_round = 0
        self.play_count = np.zeros(self.shape, dtype=np.int64)
        self.mean_reward = np.zeros(self.shape)

    @property
    def last_round(self) -> int:
        """Last round that the policy was told, 0 before the first."""
        return self._last_round

    def ask(self, context: RoundContext) -> Selection:
        """Choose the super arm of a round.

        Nothing but the generator moves; asking twice is allowed and may answer differently.

        Parameters
        ----------
        context : RoundContext
            The round, later than any round told, and the available arms.

        Returns
        -------
        Selection
            At most ``num_selected`` available arms per row.

        Raises
        ------
        RoundOrderError
            If the round was told already.
        ArrayError
            If a mask has the wrong shape or type, that of the policy's own answer among them.
        """
        self._check_context(context)
        answer = self._select(context)
        selection = Selection(context, *(answer if isinstance(answer, tuple) else (answer,)))
        self._check_mask(f"what {self.name} selects", selection.mask)
        return selection

    def tell(self, selection: Selection, outcome: RoundOutcome) -> None:
        """Learn what the selected arms did in a round.

        The reward of arm k is r = 1 - min(tau_k, tau_max) / tau_max, and 0 if it did not
        complete; y is its running mean and z counts selections (the paper's updates of y and z,
        whose ``r_k(t-1)`` we read as the reward just observed).

        Parameters
        ----------
        selection : Selection
            What :meth:`ask` answered for this round.
        outcome : RoundOutcome
            What was measured; read only where ``selection.mask`` is true.

        Raises
        ------
        RoundOrderError
            If this round or a later one was told already.
        ArrayError
            If an array has the wrong shape or type, or an arm that completed took a negative
            time or NaN. Nothing is learned then.
        """
        self._check_context(selection.context)
        self._check_mask("selection.mask", selection.mask)
        self._check_mask("outcome.completed", outcome.completed)
        self._check_array("outcome.round_trip_time_s", outcome.round_trip_time_s)
        if outcome.round_trip_time_s.dtype.kind not in "iuf":
            raise ArrayError(
                f"outcome.round_trip_time_s is {outcome.round_trip_time_s.dtype}, must be numbers"
            )
        for name, values in outcome.reported.items():
            self._check_array(f"outcome.reported[{name!r}]", values)
        if outcome.update_sketch is not None:
            self._check_sketch(outcome.update_sketch)
        arms = selection.positions
        tau_s = np.where(
            outcome.completed.take(arms), outcome.round_trip_time_s.take(arms), self.tau_max_s
        )
        if arms.size and not tau_s.min() >= 0.0:  # also true for NaN
            raise ArrayError("outcome.round_trip_time_s is negative or NaN for a completed arm")
        reward = 1.0 - np.minimum(tau_s, self.tau_max_s) / self.tau_max_s

        play_count, mean_reward = self.play_count.reshape(-1), self.mean_reward.reshape(-1)
        plays = play_count.take(arms)
        plays += 1
        mean = mean_reward.take(arms)
        mean += (reward - mean) / plays
        play_count[arms] = plays
        mean_reward[arms] = mean
        self._learn(selection, outcome)
        self._last_round = selection.round

    def explain(self, selection: Selection) -> Explanation | None:
        """Return why a super arm was selected; nothing moves.

        Parameters
        ----------
        selection : Selection
            What :meth:`ask` just answered for a round that was not yet told.

        Returns
        -------
        Explanation or None
            The scores that :meth:`ask` used, in parts; ``None``: this policy has none to show.

        Raises
        ------
        RoundOrderError
            If the round was told already: what was learned since would explain something else.
        ArrayError
            If the selection has the wrong shape, or lacks what was drawn for it.
        """
        self._check_context(selection.context)
        self._check_mask("selection.mask", selection.mask)
        return self._explain(selection)

    def add_arms(self, count: int, **per_arm: ArrayLike) -> None:
        """Append untried arms.

        Parameters
        ----------
        count : int, >= 0
            How many; they get the next indices.
        **per_arm
            Values of the policy's per-arm parameters for the new arms, ``(count,)``.

        Raises
        ------
        ConfigError
            If the policy has no such parameter, or a value is wrong.
        """
        count = check_count("count", count, minimum=0)
        given = {name: self._check_per_arm(name, value, count) for name, value in per_arm.items()}
        for name, fill in self._per_arm.items():
            old = getattr(self, name)
            new = given.get(name, np.full((*old.shape[:-1], count), fill, dtype=old.dtype))
            self._assign(name, np.concatenate([old, new], axis=-1))
        self.num_arms += count
        self.shape = (*self.batch_shape, self.num_arms)
        self._refresh(grown=count > 0 and self._last_round > 0)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next round depends on, as copies.

        Returns
        -------
        dict
            Scalars, arrays and the generator's state (a nested dict); nothing that needs pickle.
        """
        state: dict[str, Any] = {
            "version": STATE_VERSION,
            "policy": self.name,
            "num_arms": self.num_arms,
            "batch_shape": list(self.batch_shape),
            "round": self._last_round,
            "rng": copy.deepcopy(self._rng.bit_generator.state),
        }
        state.update({name: getattr(self, name) for name in self._settings})
        state.update({name: getattr(self, name).copy() for name in self._array_names()})
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` left off.

        Parameters
        ----------
        state : mapping
            What :meth:`state_dict` returned, perhaps by way of JSON (lists for arrays).

        Raises
        ------
        ConfigError
            If the state is of another policy, version, shape or setting, or incomplete. The
            policy is unchanged then.
        """
        expected: dict[str, Any] = {"version": STATE_VERSION, "policy": self.name}
        expected["num_arms"] = self.num_arms
        expected["batch_shape"] = list(self.batch_shape)
        expected.update({name: getattr(self, name) for name in self._settings})
        for name in (*expected, "round", "rng", *self._array_names()):
            if name not in state:
                raise ConfigError(f"state[{name!r}]", None, "must be present")
        for name, value in expected.items():
            found = list(state[name]) if name == "batch_shape" else state[name]
            if found != value:
                raise ConfigError(
                    f"state[{name!r}]", found, f"must be {value!r}, as in this policy"
                )

        last_round = check_count("state['round']", state["round"], minimum=0)
        arrays = {name: self._loaded_array(name, state[name]) for name in self._array_names()}
        try:
            self._rng.bit_generator.state = copy.deepcopy(state["rng"])
        except (TypeError, ValueError, KeyError) as error:
            kind = type(self._rng.bit_generator).__name__
            raise ConfigError(
                "state['rng']", state["rng"], f"must be the state of a {kind}"
            ) from error
        for name, array in arrays.items():
            self._assign(name, array)
        self._last_round = last_round
        self._refresh(grown=False)

    @abstractmethod
    def _select(self, context: RoundContext) -> BoolArray | tuple[BoolArray, NDArray[Any]]:
        """Return the mask of the super arm; `context` was checked.

        With it goes what was drawn for each arm, where :meth:`_explain` needs it.
        """

    def _explain(self, selection: Selection) -> Explanation | None:
        """Return the scores behind `selection`, which was checked, in arrays of their own."""
        return None

    def _drawn(self, selection: Selection) -> NDArray[Any]:
        """Return what was drawn for each arm, for :meth:`_explain`."""
        if selection.drawn is None:
            raise ArrayError("selection.drawn is missing: ask gives it")
        self._check_array("selection.drawn", selection.drawn)
        return selection.drawn

    def _learn(  # noqa: B027 (most policies learn nothing else)
        self, selection: Selection, outcome: RoundOutcome
    ) -> None:
        """Update what a subclass learns besides y and z, which have moved already.

        Whatever is wrong in `outcome` must be raised by :meth:`tell` before this is reached.
        """

    def _refresh(self, *, grown: bool) -> None:  # noqa: B027 (most derive nothing)
        """Recompute what a subclass derives from its arrays, which were just replaced."""

    def _check_per_arm(self, name: str, value: ArrayLike, count: int) -> FloatArray:
        """Return the checked values of a per-arm parameter for `count` arms."""
        raise ConfigError(name, value, f"is no per-arm parameter of {self.name}")

    def _assign(self, name: str, array: NDArray[Any]) -> None:
        setattr(self, name, array)

    def _array_names(self) -> tuple[str, ...]:
        return (*self._per_arm, *self._per_row)

    def _loaded_array(self, name: str, value: ArrayLike) -> NDArray[Any]:
        current: NDArray[Any] = getattr(self, name)
        try:
            array = np.array(value, dtype=current.dtype)  # a copy
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"state[{name!r}]", value, f"must be of type {current.dtype}"
            ) from error
        if array.shape != current.shape:
            raise ConfigError(f"state[{name!r}].shape", array.shape, f"must be {current.shape}")
        return array

    def _check_context(self, context: RoundContext) -> None:
        if not isinstance(context.round, Integral):
            raise RoundOrderError(f"round {context.round!r} is no whole number")
        if context.round <= self._last_round:
            raise RoundOrderError(
                f"round {context.round} is over: the next one is {self._last_round + 1} or later"
            )
        self._check_mask("context.available", context.available)
        if context.member is not None:
            self._check_mask("context.member", context.member)

    def _check_mask(self, name: str, mask: BoolArray) -> None:
        self._check_array(name, mask)
        if mask.dtype != np.bool_:
            raise ArrayError(f"{name} is {mask.dtype}, must be bool")

    def _check_sketch(self, sketch: FloatArray) -> None:
        self._check_array("outcome.update_sketch", sketch, SKETCH_SIZE)
        if sketch.dtype.kind not in "iuf":
            raise ArrayError(f"outcome.update_sketch is {sketch.dtype}, must be numbers")

    def _check_array(self, name: str, array: object, *more: int) -> None:
        """Require an array of this policy's shape, with ``more`` axes behind."""
        if not isinstance(array, np.ndarray):
            raise ArrayError(f"{name} is a {type(array).__name__}, must be a numpy array")
        if array.shape != (*self.shape, *more):
            raise ArrayError(f"{name} has shape {array.shape}, must be {(*self.shape, *more)}")
