"""Scenarios of the benchmark: an environment and how long it runs, each a TOML file."""

from __future__ import annotations

import tomllib
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Self

import numpy as np
from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from flower_scheduling.client.link.model import ComputeModel
from flower_scheduling.errors import ConfigError, nearest
from flower_scheduling.schema import Strict, kebab
from flower_scheduling.server.settings.base import Settings
from flower_scheduling.strategies.base import FloatArray
from flower_scheduling.strategies.fairness import check_feasibility, check_min_participation

from ..environments.nonstationary import NonstationaryEnvironment

FOLDER: Final = Path(__file__).parents[1] / "scenarios"
_PER_CLIENT: Final = ("availability", "failure_probability", "joins_at_round", "distance_m")
# Settings that may be limited to a share of the clients, the first ones, and the others' value.
_SHARES: Final[dict[str, tuple[str, float]]] = {
    "failing_share": ("failure_probability", 0.0),
    "joining_share": ("joins_at_round", 1.0),
}
# What an environment may have where there are floors: of all else the optimum is not known.
_WITH_FLOORS: Final = frozenset(
    ("availability", "failure_probability", "failing_share", "distance_m", "base_rate", "rate_step")
)


def _numbers(value: object, info: ValidationInfo) -> object:
    for each in value if isinstance(value, list) else [value]:
        if not isinstance(each, int | float) or isinstance(each, bool):
            message = "must be a number, or one per client"
            raise ConfigError(kebab(str(info.field_name)), value, message)
    return value


_PerClient = Annotated[float | list[float], BeforeValidator(_numbers)]


class EnvironmentTable(Strict):
    """Table ``[world]`` of a scenario: parameters of :class:`.NonstationaryEnvironment`.

    ``failing_share`` and ``joining_share`` limit ``failure_probability`` and ``joins_at_round`` to
    the first so many of the clients; ``base_rate`` and ``rate_step`` are of the computing model. A
    list of fewer values than clients is spread over them in equal parts. Ranges are those of the
    environment.
    """

    where = "world: "
    availability: _PerClient | None = None
    failure_probability: _PerClient | None = None
    failing_share: float | None = Field(default=None, ge=0, le=1)
    joins_at_round: _PerClient | None = None
    joining_share: float | None = Field(default=None, ge=0, le=1)
    distance_m: _PerClient | None = None
    base_rate: float | None = None
    rate_step: float | None = None
    compute_law: str | None = None
    compute_shape: float | None = None
    reversed_from_round: int | None = None
    drift: float | None = None
    daily: float | None = None
    period: int | None = None
    leave_probability: float | None = None
    return_probability: float | None = None


class Scenario(Settings):
    """An environment, the deadline and super arm size, and how many rounds and seeds it runs.

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
        Total time, relative to the clairvoyant oracle, that our best policy is to keep to; 0: none.
    floors : float or list of float
        Participation floors c, of all clients or of each; empty: none.
    world : EnvironmentTable
        The environment.
    """

    name: str
    summary: str
    num_clients: int = Field(20, ge=1)
    num_selected: int = Field(5, ge=1)
    tau_max_s: float = Field(5.0, gt=0)
    rounds: int = Field(5000, ge=1)
    seeds: int = Field(100, ge=2)
    target: float = Field(0.0, ge=0)
    floors: _PerClient = Field(default_factory=list)
    world: EnvironmentTable = EnvironmentTable()

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
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            message = f"must be a readable TOML file ({reason})"
            raise ConfigError("scenario", name, message) from None
        try:
            if "name" in values:
                raise ConfigError("name", values["name"], "is no setting")
            if isinstance(world := values.get("world"), dict):
                values["world"] = {key.replace("-", "_"): value for key, value in world.items()}
            return cls.from_mapping({**values, "name": path.stem})
        except ConfigError as error:
            key = f"{path.stem}: {error.key}"
            raise ConfigError(key, error.value, error.message, error.hint) from None

    def environment(self) -> partial[NonstationaryEnvironment]:
        """Return the environment without its batch shape and seed, for a study."""
        world = self.world.model_dump(exclude_none=True)
        for share, (what, other) in _SHARES.items():
            if share in world:
                count = round(world.pop(share) * self.num_clients)
                value = world.get(what, 1.0)
                world[what] = [value] * count + [other] * (self.num_clients - count)
        for key in _PER_CLIENT:
            if key in world:
                values = world[key] if isinstance(world[key], list) else [world[key]]
                world[key] = _spread(key, values, self.num_clients)
        rates = {key: world.pop(key) for key in ("base_rate", "rate_step") if key in world}
        if rates:
            world["compute"] = ComputeModel(**rates)
        # Plain data, so that jobs can be told apart by it.
        return partial(
            NonstationaryEnvironment,
            num_arms=self.num_clients,
            reference_tau_max_s=self.tau_max_s,
            **world,
        )

    @property
    def availability(self) -> FloatArray:
        """Probability that each client is available in a round, for the optimum with floors."""
        found = self.environment().keywords.get("availability", 1.0)
        return np.array(np.broadcast_to(found, self.num_clients), dtype=np.float64)

    @property
    def min_participation(self) -> list[float]:
        """Participation floors of each client; empty: none."""
        return self.floors if isinstance(self.floors, list) else [self.floors] * self.num_clients

    @model_validator(mode="after")
    def _check_environment_and_floors(self) -> Self:
        most = f"at most num-clients = {self.num_clients}"
        self.require("num_selected", self.num_selected <= self.num_clients, most)
        try:
            self.environment()()  # refuses what is out of range
        except ConfigError:
            raise
        except (ValueError, TypeError) as error:
            given: dict[str, Any] = self.world.model_dump(exclude_none=True)
            raise ConfigError("world", given, f"must be in range: {error}") from None
        if not self.availability.any():
            message = "must be above 0 for some client"
            raise ConfigError("availability", self.world.availability, message)
        if self.world.compute_shape is not None and self.world.compute_law in {None, "uniform"}:
            message = "has no effect without a compute-law, lognormal or pareto"
            raise ConfigError("compute-shape", self.world.compute_shape, message)
        if not self.min_participation:
            return self
        if beyond := sorted(map(kebab, self.world.model_fields_set - _WITH_FLOORS)):
            message = f"the optimum under floors is not known in a world with {', '.join(beyond)}"
            raise ConfigError("floors", self.floors, message)
        floors = check_min_participation(self.min_participation, self.num_clients)
        feasibility = check_feasibility(floors, self.num_selected, self.availability)
        self.require("floors", feasibility.feasible, f"feasible: {feasibility.message()}")
        return self


def suite() -> list[str]:
    """Return the names of the scenarios that belong to the benchmark."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def _spread(key: str, values: list[float], count: int) -> list[float]:
    """Spread values over so many clients, in equal parts."""
    if not values or count % len(values):
        raise ConfigError(kebab(key), values, f"must be of as many values as divide {count}")
    return [value for value in values for _ in range(count // len(values))]
