"""Settings of a client: what Flower's node and run configuration and a request say, checked."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, field_validator, model_validator

from flower_scheduling.errors import ConfigError, DataUnavailableError
from flower_scheduling.schema import Strict, kebab

if TYPE_CHECKING:
    from flwr.app import Context

__all__ = [
    "ClientSettings",
    "DeviceSettings",
    "NodeSettings",
    "RunSettings",
    "TrainRequest",
]

PAPER_PAYLOAD_BITS: Final = 5000.0  # size of a transfer in the paper [bit]

_Request = TypeVar("_Request", bound="TrainRequest")

# Node configurations may hold a number where a text is meant: a client may be called 17.
Text = Annotated[str, BeforeValidator(str)]


class Section(Strict):
    """Base of settings that are some of the kebab-case keys of a configuration."""

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Self:
        """Read the own keys of a configuration, which may hold others.

        Raises
        ------
        ConfigError
            If a key is missing, or a value has the wrong type or range.
        """
        found = {name: config.get(key) for name, key in _keys(cls).items()}
        return cls(**{name: value for name, value in found.items() if value is not None})


@functools.cache
def _keys(section: type[Section]) -> dict[str, str]:
    return {name: kebab(name) for name in section.model_fields}


class NodeSettings(Section):
    """Identity of a client and place of its data, from the node configuration.

    Attributes
    ----------
    partition_id : int, in [0, num_partitions)
        Index of the client's share of the data.
    num_partitions : int, >= 1
        Number of shares.
    name : str
        Name of the client, by default ``client-`` and the share.
    data_dir : str
        Cache folder of the data, empty for the run's.
    dataset : str or None
        Data set that this client is meant for; the run's if it is left out.
    """

    where: ClassVar[str] = "node config "

    partition_id: int = Field(ge=0)
    num_partitions: int = Field(ge=1)
    name: Text = Field(default_factory=lambda found: f"client-{found.get('partition_id')}")
    data_dir: Text | None = None
    dataset: Text | None = None

    @model_validator(mode="after")
    def _check_share(self) -> Self:
        if self.partition_id >= self.num_partitions:
            raise ConfigError(
                f"{self.where}partition-id",
                self.partition_id,
                f"must be below num-partitions = {self.num_partitions}",
            )
        return self


class RunSettings(Section):
    """Task and hyperparameters of local training, from the run configuration.

    Attributes
    ----------
    model : str
        Name in ``flower_scheduling.client.learning.models.MODELS``.
    batch_size : int, >= 1
        Minibatch size.
    learning_rate : float, > 0
        Step size of local SGD.
    local_steps : int, >= 1
        Steps per round.
    partitioner : str
        Text form of the partition.
    seed : int, >= 0
        Seed of the partition and of the minibatches.
    data_dir : str
        Cache folder of the data, empty for the default.
    dataset : str
        Name of the data set, see ``flower_scheduling.client.learning.datasets``.
    """

    where: ClassVar[str] = "run config "

    model: str
    batch_size: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    local_steps: int = Field(ge=1)
    partitioner: str
    seed: int = Field(ge=0)
    data_dir: Text = ""
    dataset: str = "mnist"  # all that earlier servers know


@dataclass(frozen=True, slots=True, eq=False)  # hashed by identity, which is fast
class ClientSettings:
    """Node and run settings of one client in one run."""

    node: NodeSettings
    run: RunSettings

    @property
    def data_dir(self) -> str:
        """The device's own data folder, or the run's: a device knows better where its disk is."""
        return self.run.data_dir if self.node.data_dir is None else self.node.data_dir

    @classmethod
    def from_context(cls, context: Context) -> ClientSettings:
        """Read the settings from Flower's context.

        Returns
        -------
        ClientSettings
            Checked settings; equal configurations give the same object.

        Raises
        ------
        ConfigError
            If a key is missing, or a value has the wrong type or range.
        DataUnavailableError
            If the run is on another data set than this client is meant for.
        """
        # Cached: every message asks, and reading takes as long as a small training step.
        return _read(
            *map(context.node_config.get, _NODE_KEYS), *map(context.run_config.get, _RUN_KEYS)
        )


_NODE_KEYS: Final = tuple(map(kebab, NodeSettings.model_fields))
_RUN_KEYS: Final = tuple(map(kebab, RunSettings.model_fields))


@functools.lru_cache(maxsize=None, typed=True)  # typed: True must not pass for 1
def _read(*values: object) -> ClientSettings:
    of_node = dict(zip(_NODE_KEYS, values, strict=False))
    of_run = dict(zip(_RUN_KEYS, values[len(_NODE_KEYS) :], strict=True))
    node, run = NodeSettings.from_config(of_node), RunSettings.from_config(of_run)
    if node.dataset not in (None, run.dataset):
        raise DataUnavailableError(
            f"this client is started for the data set {node.dataset}, the server trains on"
            f" {run.dataset}: start it with --dataset {run.dataset}, or without"
        )
    return ClientSettings(node, run)


class TrainRequest(Section):
    """Configuration record of a training request.

    Attributes
    ----------
    server_round : int, >= 0
        Number of the round.
    proximal_mu : float, >= 0
        Weight of FedProx's term.
    report : str
        Names of optional metrics, with blanks between.
    repeat : int, >= 0
        How often the client was asked before in this step.
    data_digest : str
        Digest of the server's data set; empty: it is not compared.
    local_steps : int, >= 1, or None
        Steps to make instead of those of the run configuration.
    """

    where: ClassVar[str] = "request "

    server_round: int = Field(ge=0)
    proximal_mu: float = Field(0.0, ge=0)
    report: Text = ""
    repeat: int = Field(0, ge=0)
    data_digest: Text = ""
    local_steps: int | None = Field(None, ge=1)

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Self:
        """Read the own keys of a request; equal requests may give the same object."""
        try:
            request: Self = _read_request(cls, *map(config.get, _REQUEST_KEYS))
        except TypeError:  # of lists, which are refused as what they are
            return super().from_config(config)
        return request


_REQUEST_KEYS: Final = tuple(map(kebab, TrainRequest.model_fields))


@functools.lru_cache(maxsize=64, typed=True)  # all clients of a round have the same
def _read_request(cls: type[_Request], *values: object) -> _Request:
    return super(TrainRequest, cls).from_config(dict(zip(_REQUEST_KEYS, values, strict=True)))


class DeviceSettings(Section):
    """Emulated link and processor of a device, from the node configuration.

    Command lines and the environment give numbers as text; an empty text counts as left out.

    Attributes
    ----------
    link : str or None
        Law of the link; ``None``: no emulated link, and none of the next three keys.
    distance_m : float, > 0
        Distance from the access point [m]; must be given with a link.
    bandwidth_hz : float, > 0
        Bandwidth of the link [Hz].
    payload_bits : float, > 0, or None
        Size of a transfer [bit]; ``None``, given as ``model``: the real size of the arrays.
    compute : tuple of two floats, > 0, or None
        Smallest and largest rate of local updates [examples/s], given as ``RATE`` or
        ``LOW-HIGH``; ``None``: as fast as this machine.
    """

    where: ClassVar[str] = "node config "

    link: Literal["rayleigh"] | None = None
    distance_m: float = Field(1.0, gt=0)
    bandwidth_hz: float = Field(15e3, gt=0)
    payload_bits: float | None = Field(PAPER_PAYLOAD_BITS, gt=0)
    compute: tuple[float, float] | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Self:
        """Read the own keys of a node configuration."""
        return super().from_config({key: each for key, each in config.items() if each != ""})

    @field_validator("distance_m", "bandwidth_hz", "payload_bits", mode="before")
    @classmethod
    def _parse_number(cls, value: object) -> object:
        try:
            return float(value) if isinstance(value, str) else value
        except ValueError:
            return value  # refused by the field's type

    @field_validator("payload_bits", mode="before")
    @classmethod
    def _parse_payload(cls, value: object) -> object:
        return None if value == "model" else value

    @field_validator("compute", mode="before")
    @classmethod
    def _parse_rates(cls, value: Any) -> tuple[float, float]:
        low, dash, high = str(value).partition("-")
        with_high = high if dash else low
        try:
            rates = float(low), float(with_high)
        except ValueError:
            rates = math.nan, math.nan
        if not 0 < rates[0] <= rates[1] < math.inf:
            raise ConfigError(
                f"{cls.where}compute", value, "must be RATE or LOW-HIGH, in examples per second"
            )
        return rates

    @model_validator(mode="before")
    @classmethod
    def _check_link(cls, given: dict[str, object]) -> dict[str, object]:
        if "link" not in given:
            for name in ("distance_m", "bandwidth_hz", "payload_bits"):
                if name in given:
                    key = cls.where + kebab(name)
                    raise ConfigError(key, given[name], "needs link = rayleigh")
        elif given["link"] == "rayleigh" and "distance_m" not in given:
            raise ConfigError(f"{cls.where}link", given["link"], "needs distance-m, in metres")
        return given
