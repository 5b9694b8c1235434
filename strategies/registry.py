"""The policies by name: what the user can ask for."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Any, Final

import numpy as np

from flower_scheduling.errors import ConfigError, UnknownPolicyError, did_you_mean, nearest
from flower_scheduling.loading import load_object

from .base import SchedulingPolicy
from .comparators.bsfl import Bsfl
from .comparators.e3cs import E3cs
from .comparators.fedcs import FedCs
from .comparators.kl_ucb import KlUcb
from .comparators.oort import Oort
from .comparators.pisces import Pisces
from .comparators.pyramidfl import PyramidFl
from .comparators.rbcs_f import RbcsF
from .comparators.switching_ucb import DiscountedUcb, SlidingWindowUcb
from .comparators.tifl import TiFl
from .comparators.tscsf_b import TscsfB
from .comparators.ucb_tuned import UcbTuned
from .policies.cs_ucb import CsUcb, ModifiedCsUcb
from .policies.cs_ucb_adaptive import CsUcbAdaptive
from .policies.cs_ucb_q import CsUcbQ
from .policies.cs_ucb_q_adaptive import CsUcbQAdaptive
from .policies.cs_ucb_q_loss import CsUcbQLoss
from .policies.local_accuracy import LocalAccuracy
from .policies.oracle import Oracle
from .policies.proportional_fair import ProportionalFair
from .policies.round_robin import RoundRobin
from .policies.uniform import Uniform

_COMMON: Final = ("num_arms", "num_selected", "tau_max_s", "rng", "batch_shape", "channels")
_ENTRY_POINTS: Final = "flower_scheduling.policies"
"""Group in which installed packages offer policies: a SchedulingPolicy class, or a PolicySpec."""


def _nothing(num_arms: int, rng: np.random.Generator) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy that can be built by name.

    Attributes
    ----------
    name : str
        What the user types.
    build : callable
        Takes the policy's parameters as keywords.
    summary : str
        One line for help texts and tables.
    needs : tuple of str
        Names in ``RoundOutcome.reported`` without which the policy has nothing to learn from.
    uses : tuple of str
        Names in ``RoundOutcome.reported`` that it learns from if clients report them.
    comparator : bool
        Of other authors, there to compare with.
    example : callable
        Takes ``num_arms`` and a generator, returns parameters of the policy's own with which the
        conformance suite tries it; those with a default may be left out.
    """

    name: str
    build: Callable[..., SchedulingPolicy]
    summary: str
    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    comparator: bool = False
    example: Callable[[int, np.random.Generator], Mapping[str, Any]] = _nothing

    @classmethod
    def of(cls, build: Callable[..., SchedulingPolicy], name: str = "") -> PolicySpec:
        """Describe a policy class, or what builds a policy, by its own attributes.

        The summary is the first line of its docstring; ``needs`` and ``uses`` are class attributes.
        """
        lines = (inspect.getdoc(build) or "").splitlines()
        return cls(
            name or str(getattr(build, "name", getattr(build, "__name__", "policy"))),
            build,
            lines[0] if lines else "",
            needs=tuple(getattr(build, "needs", ())),
            uses=tuple(getattr(build, "uses", ())),
        )

    @property
    def reports(self) -> tuple[str, ...]:
        """Names in ``RoundOutcome.reported`` that clients should be asked for."""
        return self.needs + self.uses

    @property
    def keeps_floors(self) -> bool:
        """Whether the policy takes participation floors."""
        return "min_participation" in self.parameters()

    def parameters(self) -> dict[str, bool]:
        """Return the keywords that :attr:`build` takes, and whether each is required."""
        return {
            name: parameter.default is parameter.empty
            for name, parameter in self._signature().items()
        }

    def options(self) -> dict[str, int | float | bool | str | None]:
        """Return the policy's own plain parameters with their defaults; ``None``: it has none.

        Floors, which come from a rule, and what every policy takes are not among them.
        """
        return {
            name: None if parameter.default is parameter.empty else parameter.default
            for name, parameter in self._signature().items()
            if name not in _COMMON
            and (parameter.default is parameter.empty or type(parameter.default) in _PLAIN)
        }

    def _signature(self) -> dict[str, inspect.Parameter]:
        found = dict(inspect.signature(self.build).parameters)
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in found.values()):
            bases = (
                inspect.getmro(self.build) if isinstance(self.build, type) else [SchedulingPolicy]
            )
            for base in bases:  # what one class passes on, another takes
                if base is not object and "__init__" in vars(base):
                    found = {**inspect.signature(base).parameters, **found}
        return {
            name: parameter
            for name, parameter in found.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        }


_PLAIN: Final = (int, float, bool, str)


class _Registry(Mapping[str, PolicySpec]):
    """Policies by name: ours, registered ones, those of installed packages, ``module:Class``."""

    def __init__(self, specs: Iterable[PolicySpec]) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._faults: dict[str, str] = {}
        self._searched = False

    def __getitem__(self, name: str) -> PolicySpec:
        if name not in self._specs:
            self._search_installed()
        if name not in self._specs and isinstance(name, str) and ":" in name:
            self._specs[name] = PolicySpec.of(load_object(name, type, "strategy"), name)
        return self._specs[name]

    def __iter__(self) -> Iterator[str]:
        self._search_installed()
        return iter([name for name in self._specs if ":" not in name])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        try:
            self[name]  # type: ignore[index]  # what is no text is not in it
        except (KeyError, TypeError, ConfigError):
            return False
        return True

    def add(self, spec: PolicySpec) -> None:
        known = self._specs.get(spec.name)
        if known is not None and known.build is not spec.build:
            raise ConfigError("name", spec.name, "another policy is registered under it")
        self._specs[spec.name] = spec

    def fault(self, name: object) -> str:
        """Return why an installed policy of that name cannot be used, or nothing."""
        return self._faults.get(str(name), "")

    def _search_installed(self) -> None:
        if self._searched:
            return
        self._searched = True
        for point in entry_points(group=_ENTRY_POINTS):
            try:
                found = point.load()
                spec = found if isinstance(found, PolicySpec) else PolicySpec.of(found)
                self.add(replace(spec, name=point.name))
            except Exception as error:  # a foreign package may raise anything
                source = point.dist.name if point.dist is not None else point.value
                fault = f"{point.value} of {source} cannot be used: {type(error).__name__}: {error}"
                self._faults[point.name] = " ".join(fault.split())


def _comparator(build: type[SchedulingPolicy], summary: str, **more: Any) -> PolicySpec:
    return PolicySpec(build.name, build, summary, comparator=True, **more)


def _any_queue_weight(num_arms: int, rng: np.random.Generator) -> Mapping[str, Any]:
    beta = float(rng.choice([0.0, 1e-3, 0.3, 1.0]))
    return {"beta": beta, "truncate": bool(rng.integers(2))}


def _any_tiers(num_arms: int, rng: np.random.Generator) -> Mapping[str, Any]:
    return {
        "num_tiers": int(rng.integers(1, 5)),
        "interval": int(rng.integers(1, 5)),
        "credits": int(rng.integers(1, 5)),
    }


POLICIES: Final = _Registry(
    (
        PolicySpec(Uniform.name, Uniform, "uniformly at random"),
        PolicySpec(RoundRobin.name, RoundRobin, "all clients in turn"),
        PolicySpec(
            LocalAccuracy.name,
            LocalAccuracy,
            "lowest last reported local accuracy first",
            needs=("local_accuracy",),
        ),
        PolicySpec(CsUcb.name, CsUcb, "learns which clients are fast (the paper's Algorithm 1)"),
        PolicySpec(
            ModifiedCsUcb.name,
            ModifiedCsUcb,
            "learns which clients are fast among those available, untried clients first",
        ),
        PolicySpec(
            CsUcbQ.name,
            CsUcbQ,
            "learns which clients are fast, keeps participation floors (the paper's Algorithm 2)",
            example=_any_queue_weight,
        ),
        PolicySpec(
            CsUcbAdaptive.name,
            CsUcbAdaptive,
            "learns which clients are fast within few rounds, and again when that changes",
        ),
        PolicySpec(
            CsUcbQAdaptive.name,
            CsUcbQAdaptive,
            "the same, and keeps participation floors, slow clients in company",
        ),
        PolicySpec(
            CsUcbQLoss.name,
            CsUcbQLoss,
            "the same, and trains more where losses are high: for data that differ",
            needs=("loss",),
        ),
        PolicySpec(
            ProportionalFair.name,
            ProportionalFair,
            "the same time for all clients, keeps participation floors: for buffered mode",
        ),
        PolicySpec(
            Oracle.name,
            Oracle,
            "knows the expected times; for studies",
            example=lambda num_arms, rng: {"expected_time_s": np.arange(num_arms) % 3 + 1.0},
        ),
        _comparator(UcbTuned, "UCB with a bonus by each client's variance (Auer et al., 2002)"),
        _comparator(KlUcb, "UCB by Bernoulli divergence (Garivier and Cappé, 2011)"),
        _comparator(DiscountedUcb, "UCB that discounts the past (Garivier and Moulines, 2011)"),
        _comparator(
            SlidingWindowUcb,
            "UCB of the last rounds alone (Garivier and Moulines, 2011)",
            example=lambda num_arms, rng: {"window": int(rng.integers(1, 8))},
        ),
        _comparator(TscsfB, "Thompson sampling, keeps participation floors (Huang et al., 2020)"),
        _comparator(
            RbcsF, "shortest estimated round, keeps participation floors (Huang et al., 2021)"
        ),
        _comparator(
            E3cs,
            "exponential weights, keeps participation floors (Huang et al., 2022)",
            example=lambda num_arms, rng: {"graded": bool(rng.integers(2))},
        ),
        _comparator(Bsfl, "UCB of the slowest client, and equal shares (Ben Ami et al., 2025)"),
        _comparator(
            Oort,
            "loss and time of each client, with exploration (Lai et al., 2021)",
            uses=("loss",),
        ),
        _comparator(
            FedCs,
            "smallest mean time first (Nishio and Yonetani, 2019)",
            example=lambda num_arms, rng: {"candidate_fraction": rng.choice([0.5, 1.0])},
        ),
        _comparator(
            TiFl,
            "clients of one speed per round, slow ones too (Chai et al., 2020)",
            uses=("loss",),
            example=_any_tiers,
        ),
        _comparator(
            PyramidFl,
            "loss and time as in Oort, with other constants (Li et al., 2022)",
            uses=("loss",),
        ),
        _comparator(
            Pisces,
            "loss and staleness, where clients are not waited for (Jiang et al., 2022)",
            uses=("loss",),
        ),
    )
)
"""Every policy by name: what command lines, help texts, benchmark and shared tests read."""


def register(spec: PolicySpec) -> None:
    """Make a policy usable by name, in this process.

    Installed packages do the same through the entry-point group ``flower_scheduling.policies``;
    a class in any module can be named ``module:Class`` without either.

    Raises
    ------
    ConfigError
        If another policy has that name.
    """
    POLICIES.add(spec)


def find_policy(name: object) -> PolicySpec:
    """Return the policy of a name.

    Raises
    ------
    UnknownPolicyError
        If there is none; the text has the nearest name and all of them.
    ConfigError
        If it is named ``module:Class`` and cannot be imported.
    """
    try:
        return POLICIES[name]  # type: ignore[index]  # what is no text is unknown
    except (KeyError, TypeError):
        reason = POLICIES.fault(name)
        if isinstance(name, str) and name.endswith(".py"):
            reason = f"{name} is a file: write {name}:CLASS, the class of the policy"
        raise UnknownPolicyError(
            reason
            or f"no policy is named {name!r}{did_you_mean(name, POLICIES)}; there are "
            + ", ".join(POLICIES)
        ) from None


def parse_options(name: str, text: str) -> dict[str, int | float | bool | str]:
    """Parse a policy's parameters from text, ``key=value,key=value``.

    Parameters
    ----------
    name : str
        The policy.
    text : str
        Keys as in :meth:`PolicySpec.options`, ``-`` or ``_`` between words.

    Raises
    ------
    ConfigError
        If the policy has no such parameter, or it is of another type.
    """
    known = find_policy(name).options()
    found: dict[str, int | float | bool | str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in pair.partition("="))
        key = key.replace("-", "_")
        if not equals or key not in known or key in found:
            listed = ", ".join(known) or "none"
            message = f"must be KEY=VALUE with parameters of {name} ({listed}), each once"
            raise ConfigError("strategy-option", pair, message, nearest(key, known))
        try:
            word = value.lower() if value in ("True", "False") else value
            plain = tomllib.loads(f"value = {word}")["value"]
        except tomllib.TOMLDecodeError:
            plain = value
        kind = type(known[key])
        if kind is float and type(plain) is int:
            plain = float(plain)
        if type(plain) not in _PLAIN or (known[key] is not None and type(plain) is not kind):
            words = {int: "a whole number", float: "a number", bool: "true or false"}
            what = words.get(kind, "a number, a text, true or false")
            raise ConfigError("strategy-option", pair, f"{key} must be {what}")
        found[key] = plain
    return found


def channel_params(spec: PolicySpec, num_channels: int) -> dict[str, Any]:
    """Return the parameters with which a policy is built that selects for one free channel.

    Parameters
    ----------
    spec : PolicySpec
        The policy.
    num_channels : int
        Number of channels, N.
    """
    if "channels" in spec.parameters():
        return {"num_selected": num_channels, "channels": True}
    return {"num_selected": 1}


def build_policy(name: str, **params: Any) -> SchedulingPolicy:
    """Build a policy by name.

    Parameters
    ----------
    name : str
        A key of :data:`POLICIES`, or ``module:Class``.
    **params
        ``num_arms``, ``num_selected``, ``tau_max_s``, ``rng``, optionally ``batch_shape``, and the
        policy's own.

    Returns
    -------
    SchedulingPolicy

    Raises
    ------
    UnknownPolicyError
        If there is no such policy; the text has the nearest name and all of them.
    ConfigError
        If the policy does not take a parameter, one is missing, or a value is wrong.
    """
    spec = find_policy(name)
    taken = spec.parameters()
    for param, value in params.items():
        if param not in taken:
            message = f"is no parameter of {name}, which takes {', '.join(taken)}"
            raise ConfigError(param, value, message, nearest(param, taken))
    for param, required in taken.items():
        if required and param not in params:
            raise ConfigError(param, None, f"is missing: {name} needs it")
    policy = spec.build(**params)
    if not isinstance(policy, SchedulingPolicy):
        raise ConfigError("strategy", name, f"built a {type(policy).__name__}, not a policy")
    return policy
