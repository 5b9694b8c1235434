"""What a policy says of itself, so that it can be built, listed and tried by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .base import SchedulingPolicy

PLAIN: Final = (int, float, bool, str)
"""Types of the parameters that can be given as text."""
_OF_A_RUN: Final = {"num_arms", "num_selected", "tau_max_s", "rng"}
_COMMON: Final = ("num_arms", "num_selected", "tau_max_s", "rng", "batch_shape", "channels")


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
    needs_updates : bool
        Whether it learns from ``RoundOutcome.update_sketch``, and not from times alone.
    comparator : bool
        Of other authors, there to compare with: set of those in ``strategies/comparators/``.
    example : callable
        Takes ``num_arms`` and a generator, returns parameters of the policy's own with which the
        conformance suite tries it; those with a default may be left out.
    """

    name: str
    build: Callable[..., SchedulingPolicy]
    summary: str
    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    needs_updates: bool = False
    comparator: bool = False
    example: Callable[[int, np.random.Generator], Mapping[str, Any]] = _nothing

    @classmethod
    def of(
        cls,
        build: Callable[..., SchedulingPolicy],
        name: str = "",
        *,
        summary: str = "",
        example: Callable[[int, np.random.Generator], Mapping[str, Any]] = _nothing,
    ) -> PolicySpec:
        """Describe a policy class, or what builds a policy, by its own attributes.

        ``name``, ``needs``, ``uses`` and ``needs_updates`` are class attributes; without a summary
        it is the first line of the docstring.
        """
        lines = (inspect.getdoc(build) or "").splitlines()
        return cls(
            name or str(getattr(build, "name", getattr(build, "__name__", "policy"))),
            build,
            summary or (lines[0] if lines else ""),
            needs=tuple(getattr(build, "needs", ())),
            uses=tuple(getattr(build, "uses", ())),
            needs_updates=bool(getattr(build, "needs_updates", False)),
            example=example,
        )

    @property
    def reports(self) -> tuple[str, ...]:
        """Names in ``RoundOutcome.reported`` that clients should be asked for."""
        return self.needs + self.uses

    @property
    def by_times_alone(self) -> bool:
        """Whether the policy has something to learn from where only times are measured."""
        return not self.needs and not self.needs_updates

    @property
    def by_data(self) -> bool:
        """Whether the policy selects by what training says of the clients' data."""
        return bool(self.reports) or self.needs_updates

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

    def lacks(self) -> set[str]:
        """Return the parameters that must be given and that a run does not give by itself."""
        return {name for name, required in self.parameters().items() if required} - _OF_A_RUN

    def options(self) -> dict[str, int | float | bool | str | None]:
        """Return the policy's own plain parameters with their defaults; ``None``: it has none.

        Floors, which come from a rule, and what every policy takes are not among them.
        """
        return {
            name: None if parameter.default is parameter.empty else parameter.default
            for name, parameter in self._signature().items()
            if name not in _COMMON
            and (parameter.default is parameter.empty or type(parameter.default) in PLAIN)
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
