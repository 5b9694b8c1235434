"""Settings of the paper's numerical section, full and quick."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Self, TypeVar

import numpy as np
from pydantic import model_validator

from flower_scheduling.client.link.model import ComputeModel, LinkModel
from flower_scheduling.errors import ConfigError
from flower_scheduling.server.settings.base import setting
from flower_scheduling.strategies import check_feasibility, parse_floors

from ..settings import RadioSettings

_Number = TypeVar("_Number", int, float)
# Largest number in a list; whole ones may be too large for a float, and compare all the same.
_LARGEST: Final = 1e300
_MOST: Final = 10**7
_MOST_CLIENTS: Final = 10**4
# Most entries of a list: each one is a figure's point or curve, and a run of its own.
_MOST_NUMBERS: Final = 100

# ``--quick`` sets these: the same figures from few seeds and shorter runs.
QUICK: Final[Mapping[str, int | str]] = {
    "drops": 200,
    "sweep-drops": 60,
    "scale-drops": 8,
    "training-seeds": 3,
    "channels": "1,3,5,8",
    "scale-channels": "4,8",
    "scale-rounds": 5000,
    "ideal-training-rounds": 1000,
    "non-ideal-training-rounds": 1000,
}


class PaperConfig(RadioSettings):
    """Settings of the paper's section; the defaults are the paper's, where it gives them."""

    seed: int = setting(0, "Seed of everything.", ge=0, lt=2**31)
    drops: int = setting(2000, "Placements of the clients, most figures.", ge=2, le=_MOST)
    sweep_drops: int = setting(600, "Placements per number of channels.", ge=2, le=_MOST)
    scale_drops: int = setting(60, "Placements per fairness scale.", ge=2, le=_MOST)
    training_seeds: int = setting(10, "Training runs per policy.", ge=2, le=_MOST)

    tau_max_s: float = setting(5.0, "Deadline of a round [s].", gt=0)
    ideal_clients: int = setting(20, "K, ideal scenario.", ge=2, le=_MOST_CLIENTS)
    ideal_selected: int = setting(5, "N, ideal scenario.", ge=1, le=_MOST)
    ideal_rounds: int = setting(5000, "T, ideal scenario.", ge=40, le=_MOST)
    channels: str = setting("1,2,3,4,5,6,7,8,9,10", "Values of N of the sweep.")

    availability: float = setting(0.9, "alpha of each client, non-ideal.", gt=0, le=1)
    floors: str = setting("0.6,0.5,0.4", "c of the trade-off figures.")
    tradeoff_selected: int = setting(2, "N of the trade-off figures.", ge=1, le=_MOST)
    tradeoff_distances_m: str = setting(
        "450,300,150", "Where its clients are [m]; empty: drawn, as in the other figures."
    )
    tradeoff_rounds: int = setting(20_000, "T of the trade-off figures.", ge=40, le=_MOST)
    betas: str = setting("0.01,0.001,0.0001,0.00001", "Its betas.")
    beta: float = setting(1e-3, "beta of all other figures.", gt=0, le=1)

    scale_clients: int = setting(20, "K of the fairness scale.", ge=2, le=_MOST_CLIENTS)
    scale_channels: str = setting("4,6,8,10", "Its values of N.")
    scale_rhos: str = setting("1,2,3", "Its fairness scales rho.")
    scale_rounds: int = setting(20_000, "Its T.", ge=40, le=_MOST)

    ideal_training_rounds: int = setting(5000, "Training, ideal.", ge=20, le=_MOST)
    non_ideal_training_rounds: int = setting(4000, "Training, non-ideal.", ge=20, le=_MOST)
    non_ideal_clients: int = setting(10, "K of non-ideal training.", ge=3, le=_MOST_CLIENTS)
    non_ideal_selected: int = setting(4, "N of non-ideal training.", ge=1, le=_MOST)
    large_share: int = setting(10_000, "Examples of the clients with five digits.")
    small_share: int = setting(1000, "Examples of the clients with one digit.")
    equal_share: int = setting(2500, "Examples of every client in the run with equal sizes.")
    batch_size: int = setting(2, "Examples per minibatch.", ge=1, le=_MOST)
    learning_rate: float = setting(0.001, "Step size of local SGD.", gt=0)
    local_steps: int = setting(1, "Minibatches per client and round.", ge=1, le=_MOST)

    payload_bits: float = setting(5000.0, "Size of a transfer [bit].")

    @model_validator(mode="after")
    def _check_paper(self) -> Self:
        for name, clients in (("ideal", self.ideal_clients), ("non_ideal", self.non_ideal_clients)):
            selected = f"{name}_selected"
            self.require(selected, getattr(self, selected) <= clients, f"at most {clients}")
        for name, values, most in (
            ("channels", self.channel_counts, self.ideal_clients),
            ("scale_channels", self.scale_channel_counts, self.scale_clients),
        ):
            self.require(name, all(1 <= n <= most for n in values), f"whole numbers, 1 to {most}")
        self.require("betas", all(0 < b <= 1 for b in self.beta_values), "numbers in (0, 1]")
        self.require(
            "scale_rhos",
            all(0 < rho <= _MOST_CLIENTS for rho in self.rho_values),
            f"numbers above 0, at most {_MOST_CLIENTS}",
        )
        num_arms = len(self.floor_values)
        self.require("tradeoff_selected", self.tradeoff_selected < num_arms, f"below {num_arms}")
        if (distances := self.distance_values) is not None:
            self.require(
                "tradeoff_distances_m",
                len(distances) == num_arms and min(distances) > 0,
                f"{num_arms} numbers above 0, one per floor",
            )
        try:
            self.link(), self.compute()
        except ValueError as error:  # NAME = VALUE: must be ...
            name, _, rest = str(error).partition(" = ")
            key = {"download_bits": "payload-bits"}.get(name, name.replace("_", "-"))
            value, _, message = rest.partition(": ")
            raise ConfigError(key, value, message or rest) from None
        self._require_feasible()
        return self

    @classmethod
    def from_text(cls, pairs: Mapping[str, str], *, quick: bool) -> Self:
        """Build from ``key=value`` texts, on top of the full or the quick settings.

        Raises
        ------
        ConfigError
            If a key is unknown, or a value has the wrong type or is out of range.
        """
        known = cls.settings()
        values: dict[str, Any] = dict(QUICK) if quick else {}
        for key, text in pairs.items():
            kind = known[key].kind if key in known else str
            try:
                values[key] = kind(text)
            except ValueError:
                values[key] = text  # from_mapping says what would be right
        return cls.from_mapping(values)

    @property
    def channel_counts(self) -> list[int]:
        """Values of N of the sweep."""
        return self._numbers("channels", int)

    @property
    def scale_channel_counts(self) -> list[int]:
        """Values of N of the fairness scale."""
        return self._numbers("scale_channels", int)

    @property
    def rho_values(self) -> list[float]:
        """Fairness scales, increasing."""
        return sorted(self._numbers("scale_rhos", float))

    @property
    def beta_values(self) -> list[float]:
        """Betas of the trade-off, decreasing."""
        return sorted(self._numbers("betas", float), reverse=True)

    @property
    def floor_values(self) -> list[float]:
        """Participation floors of the trade-off."""
        return self._numbers("floors", float)

    @property
    def distance_values(self) -> list[float] | None:
        """Distances of the trade-off's clients [m]; ``None``: drawn."""
        return self._numbers("tradeoff_distances_m", float) if self.tradeoff_distances_m else None

    def scale_floors(self, rho: float) -> list[float]:
        """Return c_k = rho s_k / sum s. The slower a client computes, the more data it holds.

        The paper gives no sizes for this figure. Ours fall linearly, s_k ~ K + 1 - k, as those of
        its three clients (1500, 1000, 500) do.
        """
        sizes = np.arange(self.scale_clients, 0, -1, dtype=np.float64)
        return [float(c) for c in rho * sizes / sizes.sum()]

    def link(self) -> LinkModel:
        """Return the law of download and upload times."""
        return self.link_model(self.payload_bits)

    def compute(self) -> ComputeModel:
        """Return the law of the local update times."""
        return ComputeModel(
            samples_per_round=self.batch_size * self.local_steps, base_rate=self.base_rate
        )

    def _numbers(self, name: str, kind: Callable[[str], _Number]) -> list[_Number]:
        text = str(getattr(self, name))
        allowed = f"different numbers separated by commas, {_MOST_NUMBERS} at most"
        try:
            values = [kind(part) for part in text.split(",", _MOST_NUMBERS - 1)]
        except ValueError:
            raise ConfigError(name.replace("_", "-"), text, f"must be {allowed}") from None
        distinct = len(set(values)) == len(values) or name in ("floors", "tradeoff_distances_m")
        self.require(name, all(abs(value) <= _LARGEST for value in values) and distinct, allowed)
        return values

    def _require_feasible(self) -> None:
        """Refuse floors that no policy can keep, with the clients that ask for too much."""
        parse_floors(self.floors)
        cases = [("floors", self.floor_values, self.tradeoff_selected)]
        cases += [
            ("scale_rhos", self.scale_floors(rho), num_selected)
            for rho in self.rho_values
            for num_selected in self.scale_channel_counts
        ]
        for name, floors, num_selected in cases:
            self.require(name, max(floors) < 1, "such that every floor is below 1")
            feasibility = check_feasibility(floors, num_selected, self.availability)
            self.require(name, feasibility.feasible, f"feasible: {feasibility.message()}")
