"""The simulation that settings describe: of the built-in app, or of another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from flower_scheduling.strategies.flower import RoundHook

from ..settings import SimulationConfig
from .apps.settings import AppConfig

if TYPE_CHECKING:
    from .runner import SimulationResult


class AnySimulation(Protocol):
    """A simulation that is ready to run."""

    @property
    def config(self) -> SimulationConfig:
        """Its settings."""

    def run(self, hooks: Sequence[RoundHook] = (), *, resume: bool = False) -> SimulationResult:
        """Run all rounds."""


def create_simulation(config: SimulationConfig, *, resume: bool = False) -> AnySimulation:
    """Return the simulation that settings describe; what is wrong with them is refused.

    Raises
    ------
    SchedulingError
        If a setting does not fit, or data or an app cannot be had.
    """
    if isinstance(config, AppConfig):
        from .apps.app_simulation import AppSimulation

        return AppSimulation(config, resume=resume)
    from .runner import Simulation

    return Simulation(config)
