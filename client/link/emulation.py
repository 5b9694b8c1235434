"""Emulated link and processor: a Flower client mod that waits as the models say.

With it a fleet on one desk behaves like one behind fading radio links. The node configuration
describes the device, so the mod works in our own client and on a stock SuperNode
(``--node-config``) alike, and does nothing where nothing is configured.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, UserConfig

from flower_scheduling._flwr import ClientAppCallable

from ..settings import DeviceSettings
from ..wire.compression import WIRE_SHARE
from ..wire.protocol import (
    BASE_STEPS,
    CODEC_S,
    COMPUTE_S,
    CONFIG,
    LINK_S,
    LOCAL_STEPS,
    NUM_EXAMPLES,
    REQUEST,
    SERVER_ROUND,
    TIMING,
)
from .model import LinkModel

__all__ = ["EmulatedDevice", "emulated", "emulation_mod"]


@dataclass(frozen=True, slots=True)
class EmulatedDevice:
    """Link and processor of an emulated device, as a node configuration describes them.

    Attributes
    ----------
    name : str
        The client's name, from which its random draws follow.
    link : LinkModel or None
        Law of its link; ``None``: no emulated link.
    distance_m : float
        Distance from the access point [m].
    payload_bits : float or None
        Size of a transfer [bit]; ``None``: the real size of the arrays.
    compute_rate : tuple of two floats, or None
        Smallest and largest rate of local updates [examples/s], drawn afresh for each round;
        ``None``: as fast as this machine.
    """

    name: str
    link: LinkModel | None
    distance_m: float
    payload_bits: float | None
    compute_rate: tuple[float, float] | None

    @classmethod
    def from_node_config(cls, config: UserConfig) -> EmulatedDevice | None:
        """Read the keys of :class:`..settings.DeviceSettings`.

        Returns
        -------
        EmulatedDevice or None
            ``None`` if neither a link nor a compute rate is configured.

        Raises
        ------
        ConfigError
            If a value is wrong, or a link lacks its distance.
        """
        settings = DeviceSettings.from_config(config)
        if settings.link is None and settings.compute is None:
            return None
        return cls(
            name=str(config.get("name", config.get("partition-id", ""))),
            link=None if settings.link is None else LinkModel(bandwidth_hz=settings.bandwidth_hz),
            distance_m=settings.distance_m,
            payload_bits=settings.payload_bits,
            compute_rate=settings.compute,
        )

    def rng(self, server_round: int, kind: str = MessageType.TRAIN) -> np.random.Generator:
        """Return the random stream of one exchange, a function of name, round and kind alone.

        Training keeps the stream of recorded runs, which has no number for its kind.
        """
        digest = hashlib.sha256(self.name.encode()).digest()
        own = [] if kind == MessageType.TRAIN else [1]
        return np.random.default_rng([int.from_bytes(digest[:8], "big"), server_round, *own])

    def link_s(self, rng: np.random.Generator, bits: float, share: float = 1.0) -> float:
        """Draw the time of one transfer of arrays of that size [s], 0 without link or arrays.

        ``share`` is what is left of them by compression.
        """
        if self.link is None or bits <= 0:
            return 0.0
        size = share * (bits if self.payload_bits is None else self.payload_bits)
        return float(self.link.draw_transfer_s(rng, size, self.distance_m))

    def compute_s(self, rng: np.random.Generator, num_examples: float) -> float:
        """Draw the time of a local update over so many examples [s], 0 without a rate."""
        if self.compute_rate is None:
            return 0.0
        return num_examples / float(rng.uniform(*self.compute_rate))


def emulation_mod(
    message: Message,
    context: Context,
    call_next: ClientAppCallable,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Message:
    """Delay training and evaluation as the device's link and processor would.

    Waits for the download, lets the ClientApp work, waits for what its work would have taken
    longer on the emulated processor, then for the upload. The reply's timing record has both.

    Parameters
    ----------
    message, context, call_next
        As for every Flower client mod.
    sleep : callable
        Waits for a number of seconds.
    """
    kind = message.metadata.message_type.partition(".")[0]
    device = None
    if kind in (MessageType.TRAIN, MessageType.EVALUATE):
        device = _device(tuple(sorted(context.node_config.items())))
    if device is None:
        return call_next(message, context)
    config = message.content.get(CONFIG)
    server_round = config.get(SERVER_ROUND, 0) if isinstance(config, ConfigRecord) else 0
    rng = device.rng(server_round if isinstance(server_round, int) else 0, kind)

    download_share, upload_share = WIRE_SHARE.get()
    download_s = device.link_s(rng, _bits(message), download_share)
    upload_fading = rng.spawn(1)[0]  # apart from how many numbers the computing draws
    sleep(download_s)
    started = time.perf_counter()
    reply = call_next(message, context)
    codec_s = _codec_s(reply)
    compute_s = time.perf_counter() - started - codec_s
    if kind == MessageType.TRAIN:
        num_examples = _trained_examples(context.run_config, reply) * _work_share(message, reply)
        wanted_s = device.compute_s(rng, num_examples)
        if wanted_s > compute_s:
            sleep(wanted_s - compute_s)
            compute_s = wanted_s
    if not reply.has_content():
        return reply
    upload_s = device.link_s(upload_fading, _bits(reply), upload_share)
    sleep(upload_s)
    reply.content[TIMING] = ConfigRecord(
        {COMPUTE_S: compute_s, CODEC_S: codec_s, LINK_S: download_s + upload_s}
    )
    return reply


def emulated(client_app: ClientAppCallable) -> ClientAppCallable:
    """Return an app that answers as if it ran on the device of its node configuration."""
    return lambda message, context: emulation_mod(message, context, client_app)


def _trained_examples(run_config: UserConfig, reply: Message) -> int:
    """Return over how many examples an update was computed.

    Those of minibatches, where the run configuration has them, else what the reply says.
    """
    keys = ("batch-size", "local-steps")
    if any(key in run_config for key in keys):
        batch_size, local_steps = (int(run_config.get(key, 1)) for key in keys)
        return batch_size * local_steps
    records = reply.content.metric_records.values() if reply.has_content() else ()
    found = (record.get(NUM_EXAMPLES) for record in records)
    return next((int(each) for each in found if isinstance(each, int | float)), 1)


def _work_share(message: Message, reply: Message) -> float:
    """Return how much local work a client has done, in times of the usual one."""
    asked = message.content.get(REQUEST)
    done = reply.content.get(REQUEST) if reply.has_content() else None
    if not isinstance(asked, ConfigRecord) or not isinstance(done, ConfigRecord):
        return 1.0
    base, steps = asked.get(BASE_STEPS), done.get(LOCAL_STEPS)
    return steps / base if isinstance(base, int) and isinstance(steps, int) and base else 1.0


def _codec_s(reply: Message) -> float:
    """Return the time that the app took to read and write messages, where it says so [s]."""
    timing = reply.content.get(TIMING) if reply.has_content() else None
    codec_s = timing.get(CODEC_S) if isinstance(timing, ConfigRecord) else None
    return codec_s if isinstance(codec_s, float) else 0.0


@functools.lru_cache(maxsize=1024)
def _device(node_config: tuple[tuple[str, str | int | float | bool], ...]) -> EmulatedDevice | None:
    return EmulatedDevice.from_node_config(dict(node_config))


def _bits(message: Message) -> float:
    """Return the size of the arrays in a message [bit]."""
    records = [r for r in message.content.values() if isinstance(r, ArrayRecord)]
    return 8.0 * sum(len(array.data) for record in records for array in record.values())
