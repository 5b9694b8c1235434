"""Client-scheduling policies: which clients train in a round, learned from how long they take."""

if "." not in __name__:  # a checkout is on sys.path: nothing is to be loaded twice
    raise ImportError("in a checkout, too, this package is flower_scheduling.strategies")

from flower_scheduling.errors import (
    ArrayError,
    ConfigError,
    RoundOrderError,
    SchedulingError,
    UnknownPolicyError,
    did_you_mean,
)

from .base import Explanation, RoundContext, RoundOutcome, SchedulingPolicy, Selection
from .fairness import (
    EqualFloors,
    Feasibility,
    FloorRule,
    GivenFloors,
    HeuristicFloors,
    NamedFloors,
    ProportionalFloors,
    check_feasibility,
    parse_floors,
)
from .floors import FloorPolicy, QueuePolicy
from .policy_spec import PolicySpec
from .registry import POLICIES, build_policy, find_policy, parse_options, register
from .selection import top_arms

__all__ = [
    "POLICIES",
    "ArrayError",
    "ConfigError",
    "EqualFloors",
    "Explanation",
    "Feasibility",
    "FloorPolicy",
    "FloorRule",
    "GivenFloors",
    "HeuristicFloors",
    "NamedFloors",
    "PolicySpec",
    "ProportionalFloors",
    "QueuePolicy",
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
    "find_policy",
    "parse_floors",
    "parse_options",
    "register",
    "top_arms",
]
