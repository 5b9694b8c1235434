"""Scenarios: what a fleet is like, as a TOML file."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from flower_scheduling.client.link.model import ComputeModel
from flower_scheduling.errors import ConfigError, nearest
from flower_scheduling.strategies.base import FloatArray, check_count, check_real
from flower_scheduling.strategies.fairness import check_feasibility, check_min_participation

from ..environments.nonstationary import World
from ..environments.paper import Environment

FOLDER: Final = Path(__file__).parents[1] / "scenarios"
_ARRAYS: Final = ("availability", "failure_probability", "joins_at_round", "distance_m")
_SHARES: Final = {"failing_share": "failure_probability", "joining_share": "joins_at_round"}
"""Share of the clients, from the first on, that the other setting is about."""
_WITH_FLOORS: Final = frozenset(
    ("availability", "failure_probability", "failing_share", "distance_m", "base_rate", "rate_step")
)
"""What a world may have where there are floors."""
_RATES: Final = ("base_rate", "rate_step")
_NOT_FOR_FILES: Final = frozenset(
    ("num_arms", "batch_shape", "seed", "link", "compute", "reference_tau_max_s")
)


@dataclass(frozen=True)
class Scenario:
    """A fleet and how long it runs.

    Attributes
    ----------
    name : str
        What the user types: the file's name.
    summary : str
        One line.
    num_clients, num_selected, rounds, seeds : int
        K, N, T, and independent repetitions.
    tau_max_s : float
        Deadline [s].
    target : float
        Total time, relative to whoever knows everything, that our best policy is to keep to; 0:
        none.
    floors : tuple of float
        Participation floors c of each client; empty: none.
    world : mapping
        Parameters of :class:`.World`, and of its computing model ``base_rate`` and
        ``rate_step``. ``failing_share`` and ``joining_share`` limit ``failure_probability`` and
        ``joins_at_round`` to the first so many of the clients. A list of fewer values than clients
        is spread over them in equal parts.
    """

    name: str
    summary: str
    num_clients: int = 20
    num_selected: int = 5
    tau_max_s: float = 5.0
    rounds: int = 5000
    seeds: int = 100
    target: float = 0.0
    floors: tuple[float, ...] = ()
    world: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, name: str) -> Self:
        """Read a scenario of the suite by its name, or any by the path of its file.

        Raises
        ------
        ConfigError
            If there is none, or a setting is unknown, of the wrong type or out of range.
        """
        path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
        if not path.exists():
            known = suite()
            message = f"must be a TOML file, or one of {', '.join(known)}"
            raise ConfigError("scenario", name, message, nearest(name, known))
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(
                "scenario", name, f"must be a readable TOML file ({reason})"
            ) from None
        values = {key.replace("-", "_"): value for key, value in found.items()}
        allowed_keys = {each.name for each in fields(cls)} - {"name"}
        _refuse_unknown(path.stem, values, allowed_keys)
        if not isinstance(values.get("summary"), str):
            raise ConfigError(
                f"{path.stem}: summary", values.get("summary"), "must be a line of text"
            )
        world = values.pop("world", {})
        if not isinstance(world, dict):
            raise ConfigError(f"{path.stem}: world", world, "must be a table")
        floors = values.pop("floors", ())
        scenario = cls(
            **{"name": path.stem, **values},
            world={key.replace("-", "_"): value for key, value in world.items()},
        )
        try:
            return scenario._checked(floors)
        except ConfigError as error:
            raise ConfigError(
                f"{path.stem}: {error.key}", error.value, error.message, error.hint
            ) from None

    def environment(self) -> partial[World]:
        """Return the world without its batch shape and seed, for a study."""
        world = dict(self.world)
        for share, what in _SHARES.items():
            if share in world:
                count = round(world.pop(share) * self.num_clients)
                value, other = world.get(what, 1), 0.0 if what == "failure_probability" else 1
                world[what] = [value] * count + [other] * (self.num_clients - count)
        for key in _ARRAYS:
            if key in world:
                values = world[key] if isinstance(world[key], list) else [world[key]]
                world[key] = _spread(values, self.num_clients)
        rates = {key: world.pop(key) for key in _RATES if key in world}
        if rates:
            world["compute"] = ComputeModel(**rates)
        # Plain data, so that the study's pieces can be told apart.
        return partial(
            World, num_arms=self.num_clients, reference_tau_max_s=self.tau_max_s, **world
        )

    @property
    def availability(self) -> FloatArray:
        """Probability that each client is available in a round, for the optimum with floors."""
        found = self.environment().keywords.get("availability", 1.0)
        return np.array(np.broadcast_to(found, self.num_clients), dtype=np.float64)

    def _checked(self, floors: object) -> Self:
        for name in ("num_clients", "num_selected", "rounds"):
            check_count(name, getattr(self, name), minimum=1)
        check_count("seeds", self.seeds, minimum=2)
        check_real("tau_max_s", self.tau_max_s, above=0.0)
        check_real("target", self.target, at_least=0.0)
        known = {*inspect.signature(World).parameters, *inspect.signature(Environment).parameters}
        known |= {*_SHARES, *_RATES}
        _refuse_unknown("world", self.world, known - _NOT_FOR_FILES - {"parameters"})
        for share in _SHARES:
            check_real(share, self.world.get(share, 0.0), at_least=0.0, at_most=1.0)
        try:
            self.environment()()  # refuses what is out of range
        except ConfigError:
            raise
        except (ValueError, TypeError) as error:
            raise ConfigError("world", dict(self.world), f"must be in range: {error}") from None
        spread = [floors] * self.num_clients if isinstance(floors, int | float) else floors
        if not isinstance(spread, list | tuple):
            raise ConfigError("floors", floors, "must be a number, or one per client")
        if not spread:
            return self
        if untidy := sorted(self.world.keys() - _WITH_FLOORS):
            message = f"the optimum under floors is not known in a world with {', '.join(untidy)}"
            raise ConfigError("floors", floors, message)
        checked = check_min_participation(np.array(spread), self.num_clients)
        feasibility = check_feasibility(checked, self.num_selected, self.availability)
        if not feasibility.feasible:
            raise ConfigError("floors", floors, f"must be feasible: {feasibility.message()}")
        return replace(self, floors=tuple(checked.tolist()))


def suite() -> list[str]:
    """Return the names of the scenarios that belong to the league."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def _refuse_unknown(where: str, found: Mapping[str, Any], known: set[str]) -> None:
    for key in found:
        if key not in known:
            shown = sorted(name.replace("_", "-") for name in known)
            said = key.replace("_", "-")
            raise ConfigError(
                f"{where}: {said}",
                found[key],
                "is no setting",
                nearest(said, shown),
            )


def _spread(values: list[float], count: int) -> list[float]:
    """Spread values over so many clients, in equal parts."""
    if not values or count % len(values):
        raise ConfigError("list", values, f"must be of as many values as divide {count}")
    return [value for value in values for _ in range(count // len(values))]
