"""Over-asking: how many spare clients a policy asks for by itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from .base import SchedulingPolicy
from .registry import find_policy

GivenSpares: TypeAlias = int | Literal["auto"]
"""A number of spare clients M, or ``"auto"``: as many as the policy asks for by itself."""


def spares_of(
    policy: str | SchedulingPolicy | Callable[..., SchedulingPolicy], num_selected: int
) -> int:
    """Return how many spare clients a policy asks for by itself, beside N.

    Those with which N + M is :attr:`.SchedulingPolicy.over_asking` times N, rounded down: none but
    for policies whose paper says so. A policy that was given as an object asks for none, as it was
    built for a number of clients.

    Parameters
    ----------
    policy : str, SchedulingPolicy or callable
        Its name, itself, or what builds it.
    num_selected : int
        N.

    Raises
    ------
    UnknownPolicyError
        If there is no such policy.
    """
    if isinstance(policy, SchedulingPolicy):
        return 0
    build: Any = find_policy(policy).build if isinstance(policy, str) else policy
    factor = getattr(build, "over_asking", 1.0)
    return math.floor(num_selected * factor + 1e-9) - num_selected
