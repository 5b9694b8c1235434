"""Client scheduling for federated learning with Flower: the one name that all of it is imported by.

``from flower_scheduling import ScheduledStrategy`` wraps a Flower strategy; the packages are
``strategies`` (policies and the adapter), ``client``, ``server`` and ``simulation``.
"""

from __future__ import annotations

import os
from importlib import import_module

if not os.path.isdir(os.path.join(__path__[0], "client")):
    # A checkout, or the bundle that ``flwr run`` makes of it: the packages lie beside this folder.
    __path__.append(os.path.dirname(__path__[0]))

TYPE_CHECKING = False  # typing takes milliseconds, in which an interrupt would be a traceback
if TYPE_CHECKING:
    from typing import Any

    from .strategies import (
        POLICIES,
        PolicySpec,
        RoundContext,
        RoundOutcome,
        SchedulingPolicy,
        build_policy,
        register,
    )
    from .strategies.flower import (
        RoundRecord,
        ScheduledServer,
        ScheduledStrategy,
        ScheduledWorkflow,
    )

_HOME = {
    "POLICIES": "strategies",
    "PolicySpec": "strategies",
    "RoundContext": "strategies",
    "RoundOutcome": "strategies",
    "RoundRecord": "strategies.flower",
    "ScheduledServer": "strategies.flower",
    "ScheduledStrategy": "strategies.flower",
    "ScheduledWorkflow": "strategies.flower",
    "SchedulingPolicy": "strategies",
    "build_policy": "strategies",
    "register": "strategies",
}

__all__ = [
    "POLICIES",
    "PolicySpec",
    "RoundContext",
    "RoundOutcome",
    "RoundRecord",
    "ScheduledServer",
    "ScheduledStrategy",
    "ScheduledWorkflow",
    "SchedulingPolicy",
    "build_policy",
    "register",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: Flower takes a second that policies need not."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
