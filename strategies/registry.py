"""The policies by name: what the user can ask for."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import Any, Final

from flower_scheduling.errors import ConfigError, UnknownPolicyError, nearest
from flower_scheduling.loading import load_object

from . import comparators, policies
from .base import SchedulingPolicy
from .policy_spec import PLAIN, PolicySpec

_ENTRY_POINTS: Final = "flower_scheduling.policies"
"""Group in which installed packages offer policies: a SchedulingPolicy class, or a PolicySpec."""


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


def _ours() -> Iterator[PolicySpec]:
    """Yield what the modules of the two packages declare, in the order of their names."""
    for package in (policies, comparators):
        for module in iter_modules(package.__path__, f"{package.__name__}."):
            for declared in vars(import_module(module.name)).values():
                if isinstance(declared, PolicySpec):
                    yield replace(declared, comparator=package is comparators)


POLICIES: Final = _Registry(_ours())
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


def runnable_policies() -> list[str]:
    """Return the policies that need nothing but what any run can give them."""
    return [name for name, spec in POLICIES.items() if not spec.lacks()]


def find_policy(
    name: object, key: str = "policy", among: Iterable[str] | None = None
) -> PolicySpec:
    """Return the policy of a name.

    Parameters
    ----------
    name : str
        A key of :data:`POLICIES`, or ``module:Class``.
    key : str
        The setting, for errors.
    among : iterable of str, optional
        The policies that an error lists; by default those that any run can have.

    Raises
    ------
    UnknownPolicyError
        If there is none; the text has the nearest name and all of them.
    ConfigError
        If it is named ``module:Class`` and cannot be imported.
    """
    try:
        return POLICIES[name]  # type: ignore[index]  # what is no text is unknown
    except ConfigError as error:
        raise ConfigError(key, error.value, error.message, error.hint) from error
    except (KeyError, TypeError):
        reason = POLICIES.fault(name)
        if isinstance(name, str) and name.endswith(".py"):
            reason = f"is a file: must be {name}:CLASS, the class of the policy"
        if reason:
            raise UnknownPolicyError(key, name, reason) from None
        known = runnable_policies() if among is None else list(among)
        raise UnknownPolicyError(key, name, must_be_one_of(known), nearest(name, known)) from None


def must_be_one_of(names: Iterable[str]) -> str:
    """Return what an error about a policy's name says would be right."""
    return f"must be one of {', '.join(names)}, or MODULE:CLASS"


def require_runnable(name: str, given: Iterable[str] = (), key: str = "policy") -> PolicySpec:
    """Return the policy of a name, for a run.

    Parameters
    ----------
    name : str
        As :func:`find_policy` takes it.
    given : iterable of str
        Its parameters that are given.
    key : str
        The setting, for errors.

    Raises
    ------
    UnknownPolicyError, ConfigError
        As :func:`find_policy`, or if it needs a parameter that no run has.
    """
    spec = find_policy(name, key)
    if lacking := sorted(spec.lacks() - {*given}):
        raise ConfigError(key, name, f"needs {lacking[0]}: a run has no such value")
    return spec


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
        if type(plain) not in PLAIN or (known[key] is not None and type(plain) is not kind):
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
    spec = find_policy(name, among=POLICIES)
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
