"""Settings of the paper's numerical section; quick and full are two sets of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np

from flower_scheduling.client.link.model import ComputeModel, LinkModel
from flower_scheduling.errors import ConfigError
from flower_scheduling.server.settings.base import Settings
from flower_scheduling.strategies import check_feasibility, parse_floors

_Number = TypeVar("_Number", int, float)

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
"""What ``--quick`` sets: the same figures from few seeds and shorter runs."""


@dataclass(frozen=True)
class PaperConfig(Settings):
    """What to compute. The defaults are the paper's settings, where it gives them."""

    seed: int = field(default=0, metadata={"help": "Seed of everything."})
    drops: int = field(default=2000, metadata={"help": "Placements of the clients, most figures."})
    sweep_drops: int = field(default=600, metadata={"help": "Placements per number of channels."})
    scale_drops: int = field(default=60, metadata={"help": "Placements per fairness scale."})
    training_seeds: int = field(default=10, metadata={"help": "Training runs per policy."})

    tau_max_s: float = field(default=5.0, metadata={"help": "Deadline of a round [s]."})
    ideal_clients: int = field(default=20, metadata={"help": "K, ideal scenario."})
    ideal_selected: int = field(default=5, metadata={"help": "N, ideal scenario."})
    ideal_rounds: int = field(default=5000, metadata={"help": "T, ideal scenario."})
    channels: str = field(
        default="1,2,3,4,5,6,7,8,9,10", metadata={"help": "Values of N of the sweep."}
    )

    availability: float = field(default=0.9, metadata={"help": "alpha of each client, non-ideal."})
    floors: str = field(default="0.6,0.5,0.4", metadata={"help": "c of the trade-off figures."})
    tradeoff_selected: int = field(default=2, metadata={"help": "N of the trade-off figures."})
    tradeoff_distances_m: str = field(
        default="450,300,150",
        metadata={"help": "Where its clients are [m]; empty: drawn, as in the other figures."},
    )
    tradeoff_rounds: int = field(default=20_000, metadata={"help": "T of the trade-off figures."})
    betas: str = field(default="0.01,0.001,0.0001,0.00001", metadata={"help": "Its betas."})
    beta: float = field(default=1e-3, metadata={"help": "beta of all other figures."})

    scale_clients: int = field(default=20, metadata={"help": "K of the fairness scale."})
    scale_channels: str = field(default="4,6,8,10", metadata={"help": "Its values of N."})
    scale_rhos: str = field(default="1,2,3", metadata={"help": "Its fairness scales rho."})
    scale_rounds: int = field(default=20_000, metadata={"help": "Its T."})

    ideal_training_rounds: int = field(default=5000, metadata={"help": "Training, ideal."})
    non_ideal_training_rounds: int = field(default=4000, metadata={"help": "Training, non-ideal."})
    non_ideal_clients: int = field(default=10, metadata={"help": "K of non-ideal training."})
    non_ideal_selected: int = field(default=4, metadata={"help": "N of non-ideal training."})
    large_share: int = field(
        default=10_000, metadata={"help": "Examples of the clients with five digits."}
    )
    small_share: int = field(
        default=1000, metadata={"help": "Examples of the clients with one digit."}
    )
    equal_share: int = field(
        default=2500, metadata={"help": "Examples of every client in the run with equal sizes."}
    )
    batch_size: int = field(default=2, metadata={"help": "Examples per minibatch."})
    learning_rate: float = field(default=0.001, metadata={"help": "Step size of local SGD."})
    local_steps: int = field(default=1, metadata={"help": "Minibatches per client and round."})

    payload_bits: float = field(default=5000.0, metadata={"help": "Size of a transfer [bit]."})
    cell_radius_m: float = field(default=500.0, metadata={"help": "Radius of the cell [m]."})
    path_loss_intercept_db: float = field(
        default=128.1, metadata={"help": "Path loss at 1 km [dB]."}
    )
    path_loss_slope_db: float = field(default=37.6, metadata={"help": "Per decade of distance."})
    tx_power_dbm: float = field(default=23.0, metadata={"help": "Transmit power [dBm]."})
    noise_dbm: float = field(default=-107.0, metadata={"help": "Noise power [dBm]."})
    bandwidth_hz: float = field(default=15e3, metadata={"help": "Bandwidth per client [Hz]."})
    base_rate: float = field(default=20.0, metadata={"help": "Computing speed, see the paper."})

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            most = _MOST_CLIENTS if name.endswith("_clients") else _MOST
            self.require(name, getattr(self, name) >= least, f"at least {least}")
            self.require(name, getattr(self, name) <= most, f"at most {most}")
        self.require("seed", 0 <= self.seed < 2**31, "0 or more, and below 2^31")
        for name in ("tau_max_s", "learning_rate"):
            self.require(name, getattr(self, name) > 0, "above 0")
        for name in ("availability", "beta"):
            self.require(name, 0 < getattr(self, name) <= 1, "above 0, at most 1")
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

    @classmethod
    def from_text(cls, pairs: Mapping[str, str], *, quick: bool) -> PaperConfig:
        """Build from ``key=value`` texts, on top of the full or the quick settings.

        Raises
        ------
        ConfigError
            If a key is unknown, or a value has the wrong type or is out of range.
        """
        known = cls.settings()
        values: dict[str, Any] = dict(QUICK) if quick else {}
        for key, text in pairs.items():
            kind = cls.type_of(known[key]) if key in known else str
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
        return LinkModel(
            cell_radius_m=self.cell_radius_m,
            path_loss_intercept_db=self.path_loss_intercept_db,
            path_loss_slope_db=self.path_loss_slope_db,
            tx_power_dbm=self.tx_power_dbm,
            noise_dbm=self.noise_dbm,
            bandwidth_hz=self.bandwidth_hz,
            download_bits=self.payload_bits,
            upload_bits=self.payload_bits,
        )

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


_LEAST: Final = {
    "drops": 2,
    "sweep_drops": 2,
    "scale_drops": 2,
    "training_seeds": 2,
    "ideal_clients": 2,
    "ideal_selected": 1,
    "ideal_rounds": 40,
    "tradeoff_selected": 1,
    "tradeoff_rounds": 40,
    "scale_clients": 2,
    "scale_rounds": 40,
    "ideal_training_rounds": 20,
    "non_ideal_training_rounds": 20,
    "non_ideal_clients": 3,
    "non_ideal_selected": 1,
    "batch_size": 1,
    "local_steps": 1,
}
"""Smallest value of a setting: what an error bar or a curve needs."""
_LARGEST: Final = 1e300
"""Largest number in a list; whole ones may be too large for a float, and compare all the same."""
_MOST: Final = 10**7
_MOST_CLIENTS: Final = 10**4
_MOST_NUMBERS: Final = 100
"""Most entries of a list: each one is a figure's point or curve, and a run of its own."""
