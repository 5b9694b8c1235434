"""The Flower ClientApp: trains, evaluates and describes one client's share of a data set.

It runs unchanged on a stock SuperNode, behind our own stream connection and in the simulation.
Data and model are kept per process between messages, and can always be made anew.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from flower_scheduling._flwr import Mod, new_record, new_reply
from flower_scheduling.allocator import give_back
from flower_scheduling.errors import ClientConfigError, DataUnavailableError

from .learning.datasets import data_digest, load_data
from .learning.images import ImageSpec
from .learning.models import Model, create_model
from .learning.partitions import build_partition
from .learning.training import evaluate, minibatch_rng, train
from .link.emulation import emulation_mod
from .settings import ClientSettings, TrainRequest
from .wire import protocol

__all__ = ["app", "create_client_app"]

_Record = TypeVar("_Record")
_LARGE_BYTES: Final = 2**20  # of a model; a smaller one may stay in its request


class _LocalClient:
    """Settings, data and model of one client, kept between messages."""

    __slots__ = ("images", "labels", "lock", "model", "pixels", "settings", "targets")

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        node, run = settings.node, settings.run
        data = load_data(run.dataset, settings.data_dir)
        parts = _partition(
            run.partitioner, node.num_partitions, run.seed, run.dataset, settings.data_dir
        )
        indices = torch.from_numpy(parts[node.partition_id])
        self.images = data.train_images[indices]
        self.labels = data.train_labels[indices]
        # As numpy arrays: tensors take as long to become some as a small training step.
        self.pixels, self.targets = self.images.numpy(), self.labels.numpy()
        self.model, self.lock = _shared_model(run.model, data.spec)


# Caches without a bound: a process serves the clients of one run, or of a few.
_local_client = functools.cache(_LocalClient)


@functools.cache
def _partition(
    partitioner: str, num_partitions: int, seed: int, dataset: str, data_dir: str
) -> list[NDArray[np.int64]]:
    labels = load_data(dataset, data_dir).train_labels.numpy()
    return build_partition(partitioner, labels, num_partitions, seed)


@functools.cache
def _shared_model(name: str, spec: ImageSpec) -> tuple[Model, threading.Lock]:
    """Return the model that all clients of this process use, and the lock to hold meanwhile."""
    return create_model(name, spec=spec), threading.Lock()


def create_client_app(mods: Sequence[Mod] = ()) -> ClientApp:
    """Create the ClientApp.

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
    node, run, model = client.settings.node, client.settings.run, client.model
    arrays = _record(message, protocol.ARRAYS, ArrayRecord)
    config = dict(_record(message, protocol.CONFIG, ConfigRecord).items())
    if isinstance(asked := message.content.get(protocol.REQUEST), ConfigRecord):
        config.update(asked.items())
    request = TrainRequest.from_config(config)
    if request.data_digest:
        _require_same_data(client.settings, request.data_digest)
    metrics: dict[str, float] = {protocol.NUM_EXAMPLES: len(client.targets)}

    with client.lock:
        if protocol.LOCAL_ACCURACY in request.report.split():
            model.load(arrays)
            _, accuracy = evaluate(model, client.images, client.labels)
            metrics[protocol.LOCAL_ACCURACY] = accuracy
        begin_s = time.perf_counter()
        model.load(arrays)
        del arrays
        _let_go(message, model)
        started_s = time.perf_counter()
        metrics[protocol.TRAIN_LOSS] = train(
            model,
            client.pixels,
            client.targets,
            batch_size=run.batch_size,
            learning_rate=run.learning_rate,
            local_steps=request.local_steps or run.local_steps,
            rng=minibatch_rng(run.seed, node.partition_id, request.server_round, request.repeat),
            proximal_mu=request.proximal_mu,
        )
        trained_s = time.perf_counter()
        if model.num_bytes > _LARGE_BYTES:
            give_back()  # the gradients' room
        updated = model.arrays()
        codec_s = time.perf_counter() - trained_s + started_s - begin_s

    timing = {protocol.COMPUTE_S: trained_s - started_s, protocol.CODEC_S: codec_s}
    content = {
        protocol.ARRAYS: updated,
        protocol.METRICS: new_record(MetricRecord, metrics),
        protocol.TIMING: new_record(ConfigRecord, timing),
    }
    if request.local_steps is not None:
        done = {protocol.LOCAL_STEPS: request.local_steps}
        content[protocol.REQUEST] = new_record(ConfigRecord, done)
    return new_reply(message, new_record(RecordDict, content))


def _evaluate(message: Message, context: Context) -> Message:
    """Compute the received model's loss and accuracy on local data."""
    client = _local_client(ClientSettings.from_context(context))
    with client.lock:
        client.model.load(_record(message, protocol.ARRAYS, ArrayRecord))
        _let_go(message, client.model)
        loss, accuracy = evaluate(client.model, client.images, client.labels)
    metrics = MetricRecord(
        {
            protocol.NUM_EXAMPLES: len(client.targets),
            protocol.EVAL_LOSS: loss,
            protocol.EVAL_ACCURACY: accuracy,
        }
    )
    return Message(RecordDict({protocol.METRICS: metrics}), reply_to=message)


def _query(message: Message, context: Context) -> Message:
    """Report the client's name, and how many examples of each label it has."""
    client = _local_client(ClientSettings.from_context(context))
    info = ConfigRecord(
        {
            protocol.NAME: client.settings.node.name,
            protocol.NUM_EXAMPLES: len(client.targets),
            protocol.LABEL_COUNTS: torch.bincount(
                client.labels, minlength=client.model.spec.num_classes
            ).tolist(),
        }
    )
    return Message(RecordDict({protocol.CLIENT_INFO: info}), reply_to=message)


def _require_same_data(settings: ClientSettings, digest: str) -> None:
    """Refuse to train on other data than the server's of the same name: shares would overlap."""
    dataset = settings.run.dataset
    if (own := data_digest(dataset, settings.data_dir)) != digest:
        raise DataUnavailableError(
            f"the files of {dataset} on this client are not those of the server (digest {own}, the"
            f" server's is {digest}): copy the server's data folder"
        )


def _let_go(message: Message, model: Model) -> None:
    """Drop large arrays once the model has their values: gradients and reply need the room.

    A mod that needs them later holds their record, as Flower's own do.
    """
    if model.num_bytes > _LARGE_BYTES:
        del message.content[protocol.ARRAYS]
        give_back()


def _record(message: Message, name: str, kind: type[_Record]) -> _Record:
    """Return a record of a request, or refuse a request that lacks it."""
    record = message.content.get(name)
    if not isinstance(record, kind):
        raise ClientConfigError(f"request lacks the {kind.__name__} {name!r}")
    return record


app = create_client_app([emulation_mod])
