"""The policies by name: what the user can ask for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from flower_scheduling.errors import ConfigError, UnknownPolicyError, did_you_mean, nearest

from .base import SchedulingPolicy
from .comparators.bsfl import Bsfl
from .comparators.e3cs import E3cs
from .comparators.fedcs import FedCs
from .comparators.kl_ucb import KlUcb
from .comparators.oort import Oort
from .comparators.rbcs_f import RbcsF
from .comparators.switching_ucb import DiscountedUcb, SlidingWindowUcb
from .comparators.tscsf_b import TscsfB
from .comparators.ucb_tuned import UcbTuned
from .policies.cs_ucb import CsUcb, ModifiedCsUcb
from .policies.cs_ucb_adaptive import CsUcbAdaptive
from .policies.cs_ucb_q import CsUcbQ
from .policies.cs_ucb_q_adaptive import CsUcbQAdaptive
from .policies.cs_ucb_q_loss import CsUcbQLoss
from .policies.local_accuracy import LocalAccuracy
from .policies.oracle import Oracle
from .policies.round_robin import RoundRobin
from .policies.uniform import Uniform


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
    """

    name: str
    build: Callable[..., SchedulingPolicy]
    summary: str
    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    comparator: bool = False

    @property
    def reports(self) -> tuple[str, ...]:
        """Names in ``RoundOutcome.reported`` that clients should be asked for."""
        return self.needs + self.uses

    def parameters(self) -> dict[str, bool]:
        """Return the keywords that :attr:`build` takes, and whether each is required."""
        found = dict(inspect.signature(self.build).parameters)
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in found.values()):
            found = {**inspect.signature(SchedulingPolicy).parameters, **found}
        return {
            name: parameter.default is parameter.empty
            for name, parameter in found.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        }


def _comparator(
    build: type[SchedulingPolicy], summary: str, uses: tuple[str, ...] = ()
) -> PolicySpec:
    return PolicySpec(build.name, build, summary, uses=uses, comparator=True)


POLICIES: Final[Mapping[str, PolicySpec]] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            PolicySpec(Uniform.name, Uniform, "uniformly at random"),
            PolicySpec(RoundRobin.name, RoundRobin, "everybody in turn"),
            PolicySpec(
                LocalAccuracy.name,
                LocalAccuracy,
                "lowest last reported local accuracy first",
                needs=("local_accuracy",),
            ),
            PolicySpec(CsUcb.name, CsUcb, "learns who is fast (the paper's Algorithm 1)"),
            PolicySpec(
                ModifiedCsUcb.name,
                ModifiedCsUcb,
                "learns who is fast among those available, untried clients first",
            ),
            PolicySpec(
                CsUcbQ.name,
                CsUcbQ,
                "learns who is fast and keeps participation floors (the paper's Algorithm 2)",
            ),
            PolicySpec(
                CsUcbAdaptive.name,
                CsUcbAdaptive,
                "learns who is fast within few rounds, and again when that changes",
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
            PolicySpec(Oracle.name, Oracle, "knows the expected times; for studies"),
            _comparator(UcbTuned, "UCB with a bonus by each client's variance (Auer et al., 2002)"),
            _comparator(KlUcb, "UCB by Bernoulli divergence (Garivier and Cappé, 2011)"),
            _comparator(DiscountedUcb, "UCB that discounts the past (Garivier and Moulines, 2011)"),
            _comparator(
                SlidingWindowUcb, "UCB of the last rounds alone (Garivier and Moulines, 2011)"
            ),
            _comparator(
                TscsfB, "Thompson sampling, keeps participation floors (Huang et al., 2020)"
            ),
            _comparator(
                RbcsF, "shortest estimated round, keeps participation floors (Huang et al., 2021)"
            ),
            _comparator(
                E3cs, "exponential weights, keeps participation floors (Huang et al., 2022)"
            ),
            _comparator(Bsfl, "UCB of the slowest client, and equal shares (Ben Ami et al., 2025)"),
            _comparator(
                Oort,
                "loss and time of each client, with exploration (Lai et al., 2021)",
                uses=("loss",),
            ),
            _comparator(FedCs, "smallest mean time first (Nishio and Yonetani, 2019)"),
        )
    }
)
"""Every policy; command lines, help texts and the shared tests read it."""


def build_policy(name: str, **params: Any) -> SchedulingPolicy:
    """Build a policy by name.

    Parameters
    ----------
    name : str
        A key of :data:`POLICIES`.
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
    spec = POLICIES.get(name) if isinstance(name, str) else None
    if spec is None:
        raise UnknownPolicyError(
            f"no policy is named {name!r}{did_you_mean(name, POLICIES)}; there are "
            + ", ".join(POLICIES)
        )
    taken = spec.parameters()
    for param, value in params.items():
        if param not in taken:
            hint = nearest(param, taken)
            raise ConfigError(
                param, value, f"is no parameter of {name}, which takes {', '.join(taken)}", hint
            )
    for param, required in taken.items():
        if required and param not in params:
            raise ConfigError(param, None, f"is missing: {name} needs it")
    return spec.build(**params)
