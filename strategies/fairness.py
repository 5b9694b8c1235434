"""Participation floors: how often each client must be selected, and whether that can be done."""

from __future__ import annotations

import math
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from flower_scheduling.errors import ConfigError, nearest
from flower_scheduling.names import unknown_names

from .base import FloatArray, IntArray, check_count, check_real

_BELOW_ONE: Final = math.nextafter(1.0, 0.0)
_MAX_COMBINATIONS: Final = 2**16
_TOLERANCE: Final = 1e-9  # rounding of sums of floors and probabilities
_NAMES_SHOWN: Final = 5


def check_min_participation(
    value: ArrayLike, num_arms: int, key: str = "min_participation"
) -> FloatArray:
    """Return participation floors as an array of their own, if they are valid.

    Parameters
    ----------
    value : (num_arms,) array-like of float, in [0, 1)
        Least fraction of rounds of each arm, c.
    num_arms : int
        Number of arms, K.
    key : str
        What errors call them.

    Returns
    -------
    (num_arms,) float64

    Raises
    ------
    ConfigError
        If the values are not numbers, not in [0, 1), or not one per arm.
    """
    try:
        array = np.asarray(value)
    except ValueError:  # a ragged list
        array = np.empty(0, dtype=np.object_)
    if array.dtype.kind not in "iuf" or array.shape != (num_arms,):
        raise ConfigError(key, value, f"must be {num_arms} numbers, one per arm")
    wrong = np.flatnonzero(~((array >= 0) & (array < 1)))  # also catches NaN
    if wrong.size:
        arm = int(wrong[0])
        raise ConfigError(f"{key}[{arm}]", float(array[arm]), "must be in [0, 1)")
    return array.astype(np.float64)


class FloorRule(ABC):
    """How the participation floors c follow from the sizes of the clients' data sets."""

    @abstractmethod
    def floors(
        self, num_examples: ArrayLike, num_selected: int, names: Sequence[str] | None = None
    ) -> FloatArray:
        """Compute the floor of every arm.

        Parameters
        ----------
        num_examples : (num_arms,) array-like of float, >= 0
            Size s_k of each client's data set.
        num_selected : int, >= 1
            Most arms per round, N.
        names : sequence of str, optional
            What the arms are called.

        Returns
        -------
        (num_arms,) float64, in [0, 1)
            Least fraction of rounds of each arm, c.

        Raises
        ------
        ConfigError
            If the sizes are not finite numbers >= 0, or the rule does not fit their number.
        """


@dataclass(frozen=True, slots=True)
class GivenFloors(FloorRule):
    """One number per arm.

    Attributes
    ----------
    values : tuple of float, in [0, 1)
        The floors, by arm.
    """

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        check_min_participation(self.values, len(self.values), "fairness")

    def floors(  # noqa: D102
        self, num_examples: ArrayLike, num_selected: int, names: Sequence[str] | None = None
    ) -> FloatArray:
        return check_min_participation(self.values, _sizes(num_examples).size, "fairness")


@dataclass(frozen=True, slots=True)
class NamedFloors(FloorRule):
    """Floors of some clients by name, in whatever order they join; 0 for all others.

    Attributes
    ----------
    values : mapping of str to float, in [0, 1)
        The floors.
    """

    values: Mapping[str, float]

    def __post_init__(self) -> None:
        for name, value in self.values.items():
            check_real(f"fairness of {name}", value, at_least=0.0, at_most=_BELOW_ONE)

    def floors(  # noqa: D102
        self, num_examples: ArrayLike, num_selected: int, names: Sequence[str] | None = None
    ) -> FloatArray:
        count = _sizes(num_examples).size
        if names is None or len(names) != count:
            raise ConfigError(
                "fairness", dict(self.values), f"is by name, and the {count} arms have none"
            )
        values = {_normal(name): value for name, value in self.values.items()}
        return np.array([values.get(_normal(name), 0.0) for name in names], dtype=np.float64)

    def unknown(self, names: Iterable[str]) -> set[str]:
        """Return the names that none of these clients has."""
        known = set(map(_normal, names))
        return {name for name in self.values if _normal(name) not in known}

    def unknown_message(self, names: Iterable[str]) -> str:
        """Say in one line which names none of these clients has; empty if there is none."""
        names = list(names)
        if not (unknown := self.unknown(names)):
            return ""
        own = set(map(_normal, self.values))
        return unknown_names(unknown, [name for name in names if _normal(name) not in own])


@dataclass(frozen=True, slots=True)
class EqualFloors(FloorRule):
    """The same floor for every arm, whatever its data; 0 asks for nothing.

    Attributes
    ----------
    value : float, in [0, 1)
        The floor.
    """

    value: float = 0.0

    def __post_init__(self) -> None:
        check_real("equal", self.value, at_least=0.0, at_most=_BELOW_ONE)

    def floors(  # noqa: D102
        self, num_examples: ArrayLike, num_selected: int, names: Sequence[str] | None = None
    ) -> FloatArray:
        return np.full(_sizes(num_examples).size, self.value)


@dataclass(frozen=True, slots=True)
class ProportionalFloors(FloorRule):
    """c_k = rho s_k / sum(s), as in the paper's figure over rho.

    A floor of 1 or more, which a small or very uneven fleet can produce, is set just below 1:
    no client can be owed more than every round.

    Attributes
    ----------
    scale : float, >= 0
        The paper's rho, the number of places per round that are spoken for.
    """

    scale: float

    def __post_init__(self) -> None:
        check_real("proportional", self.scale, at_least=0.0)

    def floors(  # noqa: D102
        self, num_examples: ArrayLike, num_selected: int, names: Sequence[str] | None = None
    ) -> FloatArray:
        return _shares(num_examples, self.scale)


@dataclass(frozen=True, slots=True)
class HeuristicFloors(FloorRule):
    """The paper's heuristic (section II): a part phi of what shares by size would give.

    c_min = phi N s_min / sum(s) for the smallest data set and c_k = (s_k / s_min) c_min for the
    others, which is c_k = phi N s_k / sum(s). Capped just below 1 like
    :class:`ProportionalFloors`.

    Attributes
    ----------
    phi : float, in [0, 1]
        Part of the places per round that is spoken for.
    """

    phi: float

    def __post_init__(self) -> None:
        check_real("heuristic", self.phi, at_least=0.0, at_most=1.0)

    def floors(  # noqa: D102
        self, num_examples: ArrayLike, num_selected: int, names: Sequence[str] | None = None
    ) -> FloatArray:
        return _shares(num_examples, self.phi * num_selected)


def _normal(name: str) -> str:
    """Return a name in one Unicode form: two keyboards may write the same letter differently."""
    return unicodedata.normalize("NFC", name)


_RULES: Final[Mapping[str, Callable[[float], FloorRule]]] = {
    "equal": EqualFloors,
    "proportional": ProportionalFloors,
    "heuristic": HeuristicFloors,
}
_FORMS: Final = (
    '"none", floors by name such as "dev-1=0.6,dev-2=0.5", {}"equal:0.2", "proportional:2.0" or '
    '"heuristic:0.5"'
)
_NUMBERS: Final = 'numbers by client such as "0.6,0.5,0.4", '


def parse_floors(text: str, *, numbers: bool = True) -> FloorRule:
    """Read a floor rule as the user writes it.

    Parameters
    ----------
    text : str
        ``"none"``, ``"0.6,0.5,0.4"``, ``"dev-1=0.6,dev-2=0.5"``, ``"equal:0.2"``,
        ``"proportional:2.0"`` or ``"heuristic:0.5"``.
    numbers : bool
        Whether it may be the second form, a number for each arm: not where clients join in any
        order.

    Returns
    -------
    FloorRule

    Raises
    ------
    ConfigError
        If the text is of none of these forms, or a number is out of range.
    """
    forms = f"must be {_FORMS.format(_NUMBERS if numbers else '')}"
    if not isinstance(text, str):
        raise ConfigError("fairness", text, forms)
    name, colon, argument = (part.strip() for part in text.strip().lower().partition(":"))
    try:
        if "=" in text:
            return _parse_named(text)
        if not colon:
            if name == "none":
                return EqualFloors(0.0)
            values = tuple(float(number) for number in name.split(","))
            if not numbers:
                raise ConfigError("fairness", text, f"{forms}: clients join in any order")
            return GivenFloors(values)
        return _RULES[name](float(argument))
    except ConfigError:
        raise
    except (KeyError, ValueError):
        hint = "" if name in _RULES else nearest(name, ["none", *_RULES])
        raise ConfigError("fairness", text, forms, hint) from None


def floors_text(rule: FloorRule) -> str:
    """Return the text that :func:`parse_floors` makes a rule of; empty for one of another kind."""
    if isinstance(rule, GivenFloors):
        return ",".join(map(str, rule.values))
    if isinstance(rule, NamedFloors):
        return ",".join(f"{name}={value}" for name, value in rule.values.items())
    if isinstance(rule, EqualFloors):
        return f"equal:{rule.value}"
    if isinstance(rule, ProportionalFloors):
        return f"proportional:{rule.scale}"
    return f"heuristic:{rule.phi}" if isinstance(rule, HeuristicFloors) else ""


def _parse_named(text: str) -> NamedFloors:
    values: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = part.rpartition("=")  # a name may hold the sign itself
        name = name.strip()
        if not equals or not name or name in values:
            raise ConfigError(
                "fairness", text, "must be NAME=FLOOR, separated by commas, each name once"
            )
        values[name] = float(number)
    return NamedFloors(values)


@dataclass(frozen=True, slots=True)
class Feasibility:
    """Whether participation floors can be met by any policy at all.

    Attributes
    ----------
    feasible : bool
        False: the floors of `arms` cannot be met together.
    exact : bool
        False: only a necessary condition was checked, so that ``feasible`` is not proven.
    arms : tuple of int
        The tightest set of arms that was found.
    asked : float
        Sum of their floors [selections per round].
    served : float
        How many of them a round can serve on average, E min(N, number of available among them).
    """

    feasible: bool
    exact: bool
    arms: tuple[int, ...]
    asked: float
    served: float

    def message(self, names: Sequence[str] | None = None) -> str:
        """Say it in one line.

        Parameters
        ----------
        names : sequence of str, optional
            Names of all arms; ``client <index>`` if left out.

        Returns
        -------
        str
        """
        if self.feasible:
            if self.exact:
                return "participation floors are feasible"
            return (
                "participation floors pass a necessary condition; "
                "with this many different availabilities sufficiency was not checked"
            )
        shown = [
            names[arm] if names is not None else f"client {arm}" for arm in self.arms[:_NAMES_SHOWN]
        ]
        if len(self.arms) > _NAMES_SHOWN:
            shown.append(f"{len(self.arms) - _NAMES_SHOWN} more")
        who = " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))
        return (
            f"participation floors cannot be met: {who} ask for {self.asked:.4g} selections per "
            f"round, at most {self.served:.4g} can be served; lower the floors, or select more "
            "clients per round"
        )


def check_feasibility(
    min_participation: ArrayLike, num_selected: int, availability: ArrayLike = 1.0
) -> Feasibility:
    """Decide whether participation floors are feasible.

    With arms available independently, c is feasible if and only if for every set S of arms

        sum of c_k over S <= E min(N, number of available arms in S)

    (only if: no policy serves S better; if: max-flow min-cut over the availability sets). Among
    arms of equal availability the right-hand side depends on their number alone, so the worst set
    takes those with the largest floors, and it is enough to try, for each group of equal
    availability, how many. With more than 2^16 combinations only a necessary condition is
    checked: single arms, all arms, and the leading arms by c, by c / alpha and within each group.

    Parameters
    ----------
    min_participation : (num_arms,) array-like of float, in [0, 1)
        Least fraction of rounds of each arm, c.
    num_selected : int, >= 1
        Most arms per round, N.
    availability : scalar or (num_arms,) array-like of float, in [0, 1]
        Probability alpha_k that arm k is available in a round.

    Returns
    -------
    Feasibility

    Raises
    ------
    ConfigError
        If an argument is out of range or of the wrong length.
    """
    size = np.size(min_participation)
    floors = check_min_participation(min_participation, size)
    num_selected = check_count("num_selected", num_selected, minimum=1)
    alpha = _availability(availability, size)

    # An arm that asks for nothing only loosens the condition.
    asking = np.flatnonzero(floors > 0)
    groups = [
        arms[np.argsort(-floors[arms], kind="stable")]
        for arms in (asking[alpha[asking] == value] for value in np.unique(alpha[asking]))
    ]
    exact = math.prod(group.size + 1 for group in groups) <= _MAX_COMBINATIONS
    candidates = _group_prefixes if exact else _likely_sets
    if len(groups) == 1 and alpha[groups[0][0]] == 1.0:  # a fleet, with arms in thousands
        exact, candidates = True, _certain_prefixes
    excess, arms = max(
        candidates(groups, floors, alpha, num_selected),
        key=lambda candidate: candidate[0],
        default=(0.0, asking[:0]),
    )
    asked = float(floors[arms].sum())
    return Feasibility(
        feasible=bool(excess <= _TOLERANCE),
        exact=exact,
        arms=tuple(int(arm) for arm in np.sort(arms)),
        asked=asked,
        served=max(0.0, round(asked - excess, 12)),
    )


def _group_prefixes(
    groups: list[IntArray], floors: FloatArray, alpha: FloatArray, num_selected: int
) -> Iterator[tuple[float, IntArray]]:
    """Yield, for every combination of leading arms of the groups, asked - served and the arms.

    The last and largest group is done at once: only its best length is yielded.
    """
    if not groups:
        return
    *others, last = sorted(groups, key=len)
    # Only P(j arms available) for j < N matters: E min(N, X) = N - sum_j (N - j) P(X = j).
    last_pmf = np.array(list(_growing_pmf(_nobody(num_selected), alpha[last])))
    last_asked = np.concatenate([[0.0], np.cumsum(floors[last])])
    places = np.arange(num_selected, 0, -1)

    def extend(
        depth: int, pmf: FloatArray, asked: float, arms: list[IntArray]
    ) -> Iterator[tuple[float, IntArray]]:
        if depth == len(others):
            # Places left to the last group: sum_a (N - a - b) P(a), for each b.
            left = np.convolve(places, pmf[::-1])[num_selected - 1 :][:num_selected]
            excess = asked + last_asked - (num_selected - last_pmf @ left)
            best = int(np.argmax(excess))
            yield float(excess[best]), np.concatenate([*arms, last[:best]])
            return
        group = others[depth]
        for length, longer in enumerate(_growing_pmf(pmf, alpha[group])):
            yield from extend(
                depth + 1,
                longer,
                asked + float(floors[group[:length]].sum()),
                [*arms, group[:length]],
            )

    yield from extend(0, _nobody(num_selected), 0.0, [])


def _certain_prefixes(
    groups: list[IntArray], floors: FloatArray, alpha: FloatArray, num_selected: int
) -> Iterator[tuple[float, IntArray]]:
    """Yield asked - served and the tightest leading arms of a group that is always available."""
    (group,) = groups
    asked = np.concatenate([[0.0], np.cumsum(floors[group])])
    excess = asked - np.minimum(num_selected, np.arange(group.size + 1))
    best = int(np.argmax(excess))
    yield float(excess[best]), group[:best]


def _nobody(num_selected: int) -> FloatArray:
    """Return P(j arms available) for j < N when there are none."""
    pmf = np.zeros(num_selected)
    pmf[0] = 1.0
    return pmf


def _growing_pmf(pmf: FloatArray, alpha: FloatArray) -> Iterator[FloatArray]:
    """Yield P(j arms available) for j < N without and then with each further arm."""
    yield pmf
    for probability in alpha:
        arrives = pmf * probability
        pmf = pmf - arrives
        pmf[1:] += arrives[:-1]
        yield pmf


def _likely_sets(
    groups: list[IntArray], floors: FloatArray, alpha: FloatArray, num_selected: int
) -> Iterator[tuple[float, IntArray]]:
    """Yield asked - served and the arms of sets that are likely to be the tightest."""
    asking = np.concatenate(groups)
    worst = asking[np.argmax(floors[asking] - alpha[asking])]
    yield float(floors[worst] - alpha[worst]), np.array([worst])
    with np.errstate(divide="ignore"):
        ratio = floors[asking] / alpha[asking]
    by_floor = asking[np.argsort(-floors[asking], kind="stable")]
    by_ratio = asking[np.argsort(-ratio, kind="stable")]
    for order in (by_floor, by_ratio, *groups):
        pmf = np.array(list(_growing_pmf(_nobody(num_selected), alpha[order])))
        served = num_selected - pmf @ np.arange(num_selected, 0, -1)
        excess = np.concatenate([[0.0], np.cumsum(floors[order])]) - served
        best = int(np.argmax(excess))
        yield float(excess[best]), order[:best]


def _sizes(num_examples: ArrayLike) -> FloatArray:
    array = np.asarray(num_examples)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iuf"):
        raise ConfigError("num_examples", num_examples, "must be one number per arm")
    if not (np.isfinite(array) & (array >= 0)).all():
        raise ConfigError("num_examples", num_examples, "must be finite and >= 0")
    return array.astype(np.float64)


def _shares(num_examples: ArrayLike, places: float) -> FloatArray:
    """Divide `places` per round by size; no client gets more than (just below) every round."""
    sizes = _sizes(num_examples)
    total = sizes.sum()
    if sizes.size and not total > 0:
        raise ConfigError("num_examples", num_examples, "must be positive for at least one arm")
    return np.minimum(places * sizes / total if sizes.size else sizes, _BELOW_ONE)


def _availability(value: ArrayLike, num_arms: int) -> FloatArray:
    allowed = f"one probability, or {num_arms} of them, in [0, 1]"
    array = np.asarray(value)
    if array.dtype.kind not in "iuf" or array.shape not in ((), (num_arms,)):
        raise ConfigError("availability", value, f"must be {allowed}")
    if not ((array >= 0) & (array <= 1)).all():
        raise ConfigError("availability", value, f"must be {allowed}")
    return np.array(np.broadcast_to(array, (num_arms,)), dtype=np.float64)
