"""The Flower ClientApp: trains, evaluates and describes one client's share of MNIST.

It runs unchanged on a stock SuperNode, behind our own stream connection and in the simulation.
What it is told comes from ``context.node_config`` (who it is) and ``context.run_config`` (what
is trained); what it keeps between messages is kept per process, and can always be made anew.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from flower_scheduling._flwr import Mod
from flower_scheduling.errors import ClientConfigError

from .learning.mnist import load_mnist
from .learning.models import NUM_CLASSES, Model, create_model, evaluate, minibatch_rng, train
from .learning.partitions import build_partition
from .link.emulation import emulation_mod
from .wire import protocol

__all__ = ["ClientSettings", "app", "create_client_app"]

_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What a client is told, checked.

    Attributes
    ----------
    partition_id : int, in [0, num_partitions)
        Which share of the data is this client's (node config ``partition-id``).
    num_partitions : int, >= 1
        How many shares there are (node config ``num-partitions``).
    name : str
        The client's name (node config ``name``; by default ``client-`` and the share).
    model : str
        Name in ``flower_scheduling.client.learning.models.MODELS`` (run config ``model``).
    batch_size : int, >= 1
        Minibatch size (run config ``batch-size``).
    learning_rate : float, > 0
        Step size of local SGD (run config ``learning-rate``).
    local_steps : int, >= 1
        Steps per round (run config ``local-steps``).
    partitioner : str
        Text form of the partition (run config ``partitioner``).
    seed : int, >= 0
        Seed of the partition and of the minibatches (run config ``seed``).
    data_dir : str
        Cache folder of the data, empty for the default (node or run config ``data-dir``).
    """

    partition_id: int
    num_partitions: int
    name: str
    model: str
    batch_size: int
    learning_rate: float
    local_steps: int
    partitioner: str
    seed: int
    data_dir: str

    @classmethod
    def from_context(cls, context: Context) -> ClientSettings:
        """Read the settings from Flower's context.

        Parameters
        ----------
        context : Context
            Its ``node_config`` and ``run_config`` are read.

        Returns
        -------
        ClientSettings
            Checked settings; equal configs give the same object.

        Raises
        ------
        ClientConfigError
            If a key is missing, or a value has the wrong type or range.
        """
        node, run = context.node_config, context.run_config
        # Reading and checking costs as much as training, and a client asks at every message.
        return _read_settings(
            *map(node.get, _NODE_KEYS),
            *map(run.get, _RUN_KEYS),
        )


_NODE_KEYS: Final = ("partition-id", "num-partitions", "name", "data-dir")
_RUN_KEYS: Final = (
    "model",
    "batch-size",
    "learning-rate",
    "local-steps",
    "partitioner",
    "seed",
    "data-dir",
)


@functools.lru_cache(maxsize=None, typed=True)  # typed: True must not pass for 1
def _read_settings(*values: object) -> ClientSettings:
    node = dict(zip(_NODE_KEYS, values, strict=False))
    run = dict(zip(_RUN_KEYS, values[len(_NODE_KEYS) :], strict=True))
    num_partitions = _integer("node config", node, "num-partitions", at_least=1)
    partition_id = _integer("node config", node, "partition-id", at_least=0)
    if partition_id >= num_partitions:
        raise ClientConfigError(
            f"node config partition-id = {partition_id}:"
            f" must be below num-partitions = {num_partitions}"
        )
    # A device knows better than the run where its disk is.
    data_dir = node["data-dir"] if node["data-dir"] is not None else run["data-dir"]
    return ClientSettings(
        partition_id=partition_id,
        num_partitions=num_partitions,
        name=f"client-{partition_id}" if node["name"] is None else str(node["name"]),
        model=_text("run config", run, "model"),
        batch_size=_integer("run config", run, "batch-size", at_least=1),
        learning_rate=_number("run config", run, "learning-rate", positive=True),
        local_steps=_integer("run config", run, "local-steps", at_least=1),
        partitioner=_text("run config", run, "partitioner"),
        seed=_integer("run config", run, "seed", at_least=0),
        data_dir="" if data_dir is None else str(data_dir),
    )


def _value(where: str, config: Mapping[str, object], key: str) -> object:
    value = config.get(key)
    if value is None:
        raise ClientConfigError(f"{where} lacks {key!r}")
    return value


def _integer(where: str, config: Mapping[str, object], key: str, at_least: int) -> int:
    value = _value(where, config, key)
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ClientConfigError(
            f"{where} {key} = {value!r}: must be a whole number of at least {at_least}"
        )
    return value


def _number(where: str, config: Mapping[str, object], key: str, positive: bool) -> float:
    value = _value(where, config, key)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
        if math.isfinite(number) and (number > 0.0 or (number == 0.0 and not positive)):
            return number
    bound = "above 0" if positive else "of at least 0"
    raise ClientConfigError(f"{where} {key} = {value!r}: must be a number {bound}")


def _text(where: str, config: Mapping[str, object], key: str) -> str:
    value = _value(where, config, key)
    if not isinstance(value, str):
        raise ClientConfigError(f"{where} {key} = {value!r}: must be a text")
    return value


class _LocalClient:
    """One client's settings, data and model, kept between messages."""

    __slots__ = ("images", "labels", "lock", "model", "settings")

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        data = load_mnist(settings.data_dir)
        indices = torch.from_numpy(
            _partition(
                settings.partitioner, settings.num_partitions, settings.seed, settings.data_dir
            )[settings.partition_id]
        )
        self.images = data.train_images[indices]
        self.labels = data.train_labels[indices]
        self.model, self.lock = _shared_model(settings.model)


# Caches without a bound: a process serves the clients of one run, or of a few.
_local_client = functools.cache(_LocalClient)


@functools.cache
def _partition(
    partitioner: str, num_partitions: int, seed: int, data_dir: str
) -> list[NDArray[np.int64]]:
    labels = load_mnist(data_dir).train_labels.numpy()
    return build_partition(partitioner, labels, num_partitions, seed)


@functools.cache
def _shared_model(name: str) -> tuple[Model, threading.Lock]:
    """Return the process's one model of that name, and the lock to hold while using it."""
    return create_model(name), threading.Lock()


def create_client_app(mods: Sequence[Mod] = ()) -> ClientApp:
    """Make the ClientApp.

    Parameters
    ----------
    mods : sequence of Flower client mods, optional
        Wrapped around every handler, outermost first.

    Returns
    -------
    ClientApp
        Answers ``train``, ``evaluate`` and ``query``.
    """
    client_app = ClientApp(mods=list(mods))
    client_app.train()(_train)
    client_app.evaluate()(_evaluate)
    client_app.query()(_query)
    return client_app


def _train(message: Message, context: Context) -> Message:
    """Update the received model on local data; see ``client.wire.protocol`` for the records."""
    client = _local_client(ClientSettings.from_context(context))
    settings, model = client.settings, client.model
    arrays = _record(message, protocol.ARRAYS, ArrayRecord)
    config = _record(message, protocol.CONFIG, ConfigRecord)
    server_round = _integer("request", config, protocol.SERVER_ROUND, at_least=0)
    proximal_mu = 0.0
    if protocol.PROXIMAL_MU in config:
        proximal_mu = _number("request", config, protocol.PROXIMAL_MU, positive=False)
    metrics = MetricRecord({protocol.NUM_EXAMPLES: len(client.labels)})

    with client.lock:
        if protocol.LOCAL_ACCURACY in str(config.get(protocol.REPORT, "")).split():
            model.load(arrays)
            _, accuracy = evaluate(model, client.images, client.labels)
            metrics[protocol.LOCAL_ACCURACY] = accuracy
        started = time.perf_counter()
        model.load(arrays)
        metrics[protocol.TRAIN_LOSS] = train(
            model,
            client.images,
            client.labels,
            batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
            local_steps=settings.local_steps,
            rng=minibatch_rng(settings.seed, settings.partition_id, server_round),
            proximal_mu=proximal_mu,
        )
        updated = model.arrays()
        compute_s = time.perf_counter() - started

    timing = ConfigRecord({protocol.COMPUTE_S: compute_s})
    content = RecordDict(
        {protocol.ARRAYS: updated, protocol.METRICS: metrics, protocol.TIMING: timing}
    )
    return Message(content, reply_to=message)


def _evaluate(message: Message, context: Context) -> Message:
    """Measure the received model on local data."""
    client = _local_client(ClientSettings.from_context(context))
    with client.lock:
        client.model.load(_record(message, protocol.ARRAYS, ArrayRecord))
        loss, accuracy = evaluate(client.model, client.images, client.labels)
    metrics = MetricRecord(
        {
            protocol.NUM_EXAMPLES: len(client.labels),
            protocol.EVAL_LOSS: loss,
            protocol.EVAL_ACCURACY: accuracy,
        }
    )
    return Message(RecordDict({protocol.METRICS: metrics}), reply_to=message)


def _query(message: Message, context: Context) -> Message:
    """Say who this client is and how much data it has."""
    client = _local_client(ClientSettings.from_context(context))
    info = ConfigRecord(
        {
            protocol.NAME: client.settings.name,
            protocol.NUM_EXAMPLES: len(client.labels),
            protocol.LABEL_COUNTS: torch.bincount(client.labels, minlength=NUM_CLASSES).tolist(),
        }
    )
    return Message(RecordDict({protocol.CLIENT_INFO: info}), reply_to=message)


def _record(message: Message, name: str, kind: type[_Record]) -> _Record:
    record = message.content.get(name)
    if not isinstance(record, kind):
        raise ClientConfigError(f"request lacks the {kind.__name__} {name!r}")
    return record


app = create_client_app([emulation_mod])
