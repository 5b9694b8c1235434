"""Client-scheduling policies: which clients train in a round, learned from how long they take."""

from strategies.base import (
    ArrayError,
    ConfigError,
    RoundContext,
    RoundOrderError,
    RoundOutcome,
    SchedulingError,
    SchedulingPolicy,
    Selection,
    UnknownPolicyError,
    did_you_mean,
)
from strategies.fairness import (
    EqualFloors,
    Feasibility,
    FloorRule,
    GivenFloors,
    HeuristicFloors,
    ProportionalFloors,
    check_feasibility,
    parse_floors,
)
from strategies.registry import POLICIES, PolicySpec, build_policy

__all__ = [
    "POLICIES",
    "ArrayError",
    "ConfigError",
    "EqualFloors",
    "Feasibility",
    "FloorRule",
    "GivenFloors",
    "HeuristicFloors",
    "PolicySpec",
    "ProportionalFloors",
    "RoundContext",
    "RoundOrderError",
    "RoundOutcome",
    "SchedulingError",
    "SchedulingPolicy",
    "Selection",
    "UnknownPolicyError",
    "build_policy",
    "check_feasibility",
    "did_you_mean",
    "parse_floors",
]
