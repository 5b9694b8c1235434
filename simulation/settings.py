"""Settings of a simulation: the server's and the environment's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from flower_scheduling.client.link.model import ComputeModel, LinkModel
from flower_scheduling.errors import ConfigError
from flower_scheduling.server.settings.base import CompressionSettings, Settings, setting
from flower_scheduling.server.settings.run import LONGEST_WAIT_S, ServerConfig
from flower_scheduling.strategies.deadline import AUTO

from .environments.nonstationary import NonstationaryEnvironment
from .environments.paper import Environment

# Presets that ``--scenario`` names; any flag overrides their values.
SCENARIOS: Final[Mapping[str, Mapping[str, int | float | str]]] = {
    # Numerical results of the paper: all clients always there, equal i.i.d. data.
    "ideal": {
        "strategy": "cs-ucb",
        "num-clients": 20,
        "num-selected": 5,
        "availability": "1",
        "partitioner": "iid",
        "fairness": "none",
        "rounds": 2000,
        "eval-every": 20,
        "target-accuracy": 0.0,
    },
    # Two clients hold five digits and much data, eight hold one digit and little; each client is
    # there in nine rounds of ten; c_k = (N/2) s_k / sum s. The sizes are ours, the paper's unknown.
    "non-ideal": {
        "strategy": "cs-ucb-q",
        "num-clients": 10,
        "num-selected": 4,
        "availability": "0.9",
        "partitioner": "by-label:10000,1000",
        "fairness": "proportional:2",
        "rounds": 5000,
        "eval-every": 20,
        "target-accuracy": 0.84,
    },
}

_MOST_CLIENTS: Final = 10**6

# Payload that stands for the real size of the model.
MODEL_PAYLOAD: Final = "model"


class RadioSettings(Settings):
    """Settings of the paper's radio cell and computing model."""

    cell_radius_m: float = setting(500.0, "Radius of the cell [m].", gt=0)
    path_loss_intercept_db: float = setting(128.1, "Path loss at 1 km [dB].", ge=-1000, le=1000)
    path_loss_slope_db: float = setting(
        37.6, "Path loss per decade of distance [dB].", ge=-1000, le=1000
    )
    tx_power_dbm: float = setting(23.0, "Transmit power [dBm].", ge=-300, le=300)
    noise_dbm: float = setting(-107.0, "Noise power [dBm].", ge=-300, le=300)
    bandwidth_hz: float = setting(15e3, "Bandwidth per client [Hz].", gt=0)
    base_rate: float = setting(
        20.0, "Computing speed: client k does (0.5k+0.5..0.5k+1.5) times this [1/s].", gt=0
    )

    def link_model(self, download_bits: float, upload_bits: float | None = None) -> LinkModel:
        """Return the link on which transfers have so many bits, by default as many both ways."""
        return LinkModel(
            cell_radius_m=self.cell_radius_m,
            path_loss_intercept_db=self.path_loss_intercept_db,
            path_loss_slope_db=self.path_loss_slope_db,
            tx_power_dbm=self.tx_power_dbm,
            noise_dbm=self.noise_dbm,
            bandwidth_hz=self.bandwidth_hz,
            download_bits=download_bits,
            upload_bits=download_bits if upload_bits is None else upload_bits,
        )


class SimulationConfig(ServerConfig, CompressionSettings, RadioSettings):
    """Settings of a simulation: the server's, and the number, places and speeds of the clients."""

    wait_s: float = setting(
        0.0, "Longest wait for clients in a round [virtual s].", ge=0, le=LONGEST_WAIT_S
    )
    checkpoint_every: int = setting(500, "Rounds between two checkpoints (0: never).", ge=0)
    scenario: str = setting("non-ideal", "Preset of the paper: ideal or non-ideal.")
    num_clients: int = setting(10, "Clients in the fleet, K.", ge=1, le=_MOST_CLIENTS)
    availability: str = setting(
        "1", "Probability that a client is there in a round; one, or one per client."
    )
    failure_probability: str = setting("0", "Probability that a selected client never answers.")
    joins: str = setting("", "Late joiners, CLIENT:ROUND, e.g. 3:200,4:500 (from 1).")
    slowdowns: str = setting("", "Drift, CLIENT:ROUND:FACTOR, e.g. 10:500:20 (20 times slower).")
    late: Literal["abandon", "busy"] = setting(
        "abandon", "What a client does past the deadline: abandon (the paper) or busy."
    )
    compute_law: Literal["uniform", "lognormal", "pareto"] = setting(
        "uniform",
        "Computing times: of uniform speeds (the paper), or times a factor of mean 1, lognormal or "
        "pareto.",
    )
    compute_shape: float = setting(
        1.0, "Of that factor: standard deviation of its logarithm, or Pareto's index.", gt=0, le=10
    )
    distances_m: str = setting("", "Distance of each client [m] (default: drawn on the disc).")
    payload_bits: str = setting("5000", "Bits per transfer, or 'model' for its real size.")
    samples_per_round: int = setting(
        0, "Examples per local update (0: batch-size x local-steps).", ge=0
    )

    @model_validator(mode="after")
    def _check_simulation(self) -> Self:
        self.require("scenario", self.scenario in SCENARIOS, "one of " + ", ".join(SCENARIOS))
        self.require(
            "num_selected",
            self.num_selected <= self.num_clients,
            f"at most num-clients = {self.num_clients}",
        )
        most = self.num_clients - self.num_selected
        self.require(
            "num_spare",
            self.num_spare == AUTO or self.num_spare <= most,
            f"at most num-clients - num-selected = {most}",
        )
        self.require(
            "min_clients",
            self.min_clients <= self.num_clients,
            f"at most num-clients = {self.num_clients}",
        )
        least = self.num_selected / self.num_clients
        self.require(
            "max_share",
            self.max_share >= least * (1.0 - 1e-9),
            f"at least num-selected / num-clients = {least:.3g}",
        )
        if self.distances_m:
            self.require(
                "distances_m",
                all(d > 0 for d in self._numbers("distances_m", count=self.num_clients)),
                "distances above 0",
            )
        self.per_client("availability")
        self.per_client("failure_probability")
        self._events("joins", 2)
        self._events("slowdowns", 3)
        if self.compute_law != "uniform":
            alone = f"empty with compute-law {self.compute_law}"
            self.require("slowdowns", not self.slowdowns, alone)
        else:
            self.require("compute_shape", self.compute_shape == 1.0, "1 with compute-law uniform")
        if self.compute_law == "pareto":
            self.require("compute_shape", self.compute_shape > 1, "above 1, for a mean of 1")
        return self

    @property
    def spare(self) -> int:
        """Spare clients, M, of those that there are."""
        return min(super().spare, self.num_clients - self.num_selected)

    @property
    def label(self) -> str:
        """What the run is called."""
        return self.strategy if self.mode == "rounds" else f"{self.strategy} {self.mode}"

    def per_client(self, name: str) -> NDArray[np.float64]:
        """Return a setting that is one probability or one per client, (num_clients,)."""
        values = self._numbers(name)
        allowed = f"a number in [0, 1], or {self.num_clients} of them"
        self.require(name, len(values) in (1, self.num_clients), allowed)
        self.require(name, all(0 <= value <= 1 for value in values), allowed)
        return np.broadcast_to(np.asarray(values), self.num_clients).copy()

    def environment(
        self, model_bits: int, download_share: float = 1.0, upload_share: float = 1.0
    ) -> Environment:
        """Build the environment: distances, availability, failures and speeds of the clients.

        Parameters
        ----------
        model_bits : int
            Real size of the model, used where the payload says so [bit].
        download_share, upload_share : float
            Share of a transfer's bits that cross, above 0.
        """
        bits = float(model_bits)
        if self.payload_bits != MODEL_PAYLOAD:
            (bits,) = self._numbers("payload_bits", count=1)
            self.require("payload_bits", bits > 0, f"above 0, or '{MODEL_PAYLOAD}'")
        joins_at_round = np.ones(self.num_clients, dtype=np.int64)
        for client, join_round in self._events("joins", 2):
            joins_at_round[int(client) - 1] = self.draw_of(join_round)
        slow_from_round = np.ones(self.num_clients, dtype=np.int64)
        slow_factor = np.ones(self.num_clients)
        for client, slow_round, factor in self._events("slowdowns", 3):
            slow_from_round[int(client) - 1] = self.draw_of(slow_round)
            slow_factor[int(client) - 1] = factor
        distances = None
        if self.distances_m:
            distances = np.asarray(self._numbers("distances_m", count=self.num_clients))
        laws: dict[str, Any] = {
            "num_arms": self.num_clients,
            "seed": self.seed,
            "link": self.link_model(download_share * bits, upload_share * bits),
            "compute": ComputeModel(
                samples_per_round=self.samples_per_round or self.batch_size * self.local_steps,
                base_rate=self.base_rate,
            ),
            "availability": self.per_client("availability"),
            "failure_probability": self.per_client("failure_probability"),
            "joins_at_round": joins_at_round,
            "distance_m": distances,
        }
        if self.compute_law == "uniform":
            return Environment(**laws, slow_from_round=slow_from_round, slow_factor=slow_factor)
        return NonstationaryEnvironment(
            **laws, compute_law=self.compute_law, compute_shape=self.compute_shape
        )

    def draw_of(self, server_round: float) -> int:
        """Return the environment's draw with which a round begins: of channels each has its own."""
        completed = int(server_round) - 1
        if self.mode != "buffered" or completed == 0:
            return completed + 1
        # N pieces of work begin with the first step, and one more for each that has ended since.
        return self.num_selected + completed * (self.buffer_size or (self.num_selected + 1) // 2)

    def _numbers(self, name: str, count: int | None = None) -> list[float]:
        text = str(getattr(self, name))
        allowed = "numbers separated by commas" if count != 1 else "a number"
        try:
            values = [float(part) for part in text.split(",")]
        except ValueError:
            raise ConfigError(name.replace("_", "-"), text, f"must be {allowed}") from None
        self.require(name, count in (None, len(values)), f"{count} numbers separated by commas")
        self.require(name, bool(np.isfinite(values).all()), "finite numbers")
        return values

    def _events(self, name: str, width: int) -> list[tuple[float, ...]]:
        """Parse ``CLIENT:ROUND[:FACTOR],...``; clients count from 1."""
        text = str(getattr(self, name))
        allowed = "CLIENT:ROUND" + (":FACTOR" if width == 3 else "") + ", separated by commas"
        events = []
        for part in filter(None, text.split(",")):
            try:
                event = tuple(float(number) for number in part.split(":"))
            except ValueError:
                event = ()
            self.require(name, len(event) == width and bool(np.isfinite(event).all()), allowed)
            client, event_round = event[:2]
            self.require(
                name,
                client in range(1, self.num_clients + 1),
                f"{allowed}, with CLIENT from 1 to {self.num_clients}",
            )
            self.require(
                name,
                event_round >= 1 and event_round == int(event_round),
                f"{allowed}, with ROUND from 1",
            )
            self.require(name, width == 2 or event[-1] > 0, f"{allowed}, with FACTOR above 0")
            events.append(event)
        clients = [event[0] for event in events]
        self.require(name, len(set(clients)) == len(clients), f"{allowed}, each client once")
        return events
