"""Partitions of a data set's sample indices among clients, functions of the labels and a seed.

Every client computes the whole partition and takes its part, so that no index is sent.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flower_scheduling.errors import ClientConfigError, ConfigError, nearest

__all__ = [
    "PARTITIONERS",
    "PartitionerSpec",
    "build_partition",
    "check_partitioner",
    "partition_by_label",
    "partition_dirichlet",
    "partition_iid",
    "partition_own_labels",
    "partition_sizes",
]

IndexArray: TypeAlias = NDArray[np.int64]
LabelArray: TypeAlias = NDArray[np.integer]

# Keeps the partition's random stream apart from others that start from the same seed.
_STREAM: Final = int.from_bytes(b"partition", "big")


def partition_iid(
    labels: LabelArray, num_partitions: int, rng: np.random.Generator, size: int | None = None
) -> list[IndexArray]:
    """Give every client the same number of samples, drawn without regard to their label.

    Parameters
    ----------
    labels : (num_samples,) integer
        Label of every sample; only their number counts.
    num_partitions : int, >= 1
        Number of clients K.
    rng : numpy.random.Generator
        Source of the shuffle.
    size : int, >= 1, optional
        Samples per client; by default as many as there are for all. The fewer than K samples that
        remain are left out: equal weights matter more than they do.

    Returns
    -------
    list of num_partitions (size,) int64
        Sorted sample indices per client.

    Raises
    ------
    ClientConfigError
        If there are too few samples.
    """
    if size is None:
        size = len(labels) // num_partitions
        if size == 0:
            raise ClientConfigError(f"{len(labels)} samples are too few for {num_partitions} parts")
    return partition_sizes(labels, [size] * num_partitions, rng)


def partition_sizes(
    labels: LabelArray, sizes: Sequence[int], rng: np.random.Generator
) -> list[IndexArray]:
    """Give each client a given number of samples, drawn without regard to their label.

    Parameters
    ----------
    labels : (num_samples,) integer
        Label of every sample; only their number counts.
    sizes : sequence of int, >= 1
        Samples s_k of each client.
    rng : numpy.random.Generator
        Source of the shuffle.

    Returns
    -------
    list of len(sizes) (sizes[k],) int64
        Sorted sample indices per client.

    Raises
    ------
    ClientConfigError
        If a size is not positive, or they sum to more than there is.
    """
    _require_positive(sizes)
    if sum(sizes) > len(labels):
        raise ClientConfigError(
            f"sizes sum to {sum(sizes)} samples: must be at most the {len(labels)} there are"
        )
    shuffled = rng.permutation(len(labels))
    ends = np.cumsum(sizes)
    return [np.sort(part) for part in np.split(shuffled[: ends[-1]], ends[:-1])]


def partition_by_label(
    labels: LabelArray,
    num_partitions: int,
    rng: np.random.Generator,
    large: int = 10_000,
    small: int = 1_000,
) -> list[IndexArray]:
    """Build the paper's non-i.i.d. data: two clients with half of the digits, the rest with one.

    Client 1 holds the lower and client 2 the upper half of the labels, in equal shares; clients 3,
    4, ... hold label 0, 1, ..., starting over after the last. The paper says "two clients have
    samples of 5 digits and the other clients have samples of only 1 digit" and gives no sizes;
    the defaults are ours.

    Parameters
    ----------
    labels : (num_samples,) integer
        Label of every sample.
    num_partitions : int, >= 2
        Number of clients K; 10 in the paper.
    rng : numpy.random.Generator
        Decides which samples of a label a client gets.
    large : int, >= 1
        Samples of clients 1 and 2.
    small : int, >= 1
        Samples of every other client.

    Returns
    -------
    list of num_partitions int64 arrays
        Sorted sample indices per client.

    Raises
    ------
    ClientConfigError
        If there are fewer than two clients, a size is not positive, or a label runs out.
    """
    _require_positive((large, small))
    if num_partitions < 2:
        raise ClientConfigError(f"by-label with {num_partitions} part: must have at least 2")
    classes = np.unique(labels)
    wanted = np.zeros((num_partitions, len(classes)), dtype=np.int64)
    half = (len(classes) + 1) // 2
    for client, held in enumerate((range(half), range(half, len(classes)))):
        for rank, column in enumerate(held):
            wanted[client, column] = large // len(held) + (rank < large % len(held))
    for client in range(2, num_partitions):
        wanted[client, (client - 2) % len(classes)] = small

    parts: list[list[IndexArray]] = [[] for _ in range(num_partitions)]
    for column, label in enumerate(classes):
        pool = rng.permutation(np.flatnonzero(labels == label))
        ends = np.cumsum(wanted[:, column])
        if ends[-1] > len(pool):
            raise ClientConfigError(
                f"by-label needs {ends[-1]} samples of label {label}, of which there are"
                f" {len(pool)}: use smaller sizes or fewer clients"
            )
        for client, chunk in enumerate(np.split(pool[: ends[-1]], ends[:-1])):
            parts[client].append(chunk)
    return [np.sort(np.concatenate(chunks)) for chunks in parts]


def partition_dirichlet(
    labels: LabelArray,
    num_partitions: int,
    rng: np.random.Generator,
    alpha: float,
    min_size: int = 1,
) -> list[IndexArray]:
    """Share each label among the clients in proportions drawn from a Dirichlet distribution.

    Small ``alpha`` gives each client few labels, large ``alpha`` approaches i.i.d. data. All
    samples are used. A client left with fewer than ``min_size`` samples gets random ones of the
    largest part at that moment: drawing anew until it fits, as is common, may never end.

    Parameters
    ----------
    labels : (num_samples,) integer
        Label of every sample.
    num_partitions : int, >= 1
        Number of clients K.
    rng : numpy.random.Generator
        Source of the proportions and of the shuffles.
    alpha : float, > 0
        Concentration.
    min_size : int, >= 1
        Fewest samples of a client.

    Returns
    -------
    list of num_partitions int64 arrays
        Sorted sample indices per client.

    Raises
    ------
    ConfigError, ClientConfigError
        If ``alpha`` or ``min_size`` is out of range, or there are too few samples.
    """
    # Below 1e-3 nearly every share is 0 in double precision; above 1e9 all are equal to 4 digits.
    if not 1e-3 <= alpha <= 1e9:
        raise ConfigError("dirichlet alpha", alpha, "must be between 0.001 and 1e9")
    _require_positive((min_size,))
    if num_partitions * min_size > len(labels):
        raise ClientConfigError(
            f"{len(labels)} samples are too few for {num_partitions} parts of at least {min_size}"
        )
    parts: list[list[int]] = [[] for _ in range(num_partitions)]
    for label in np.unique(labels):
        pool = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(num_partitions, alpha))
        ends = np.rint(np.cumsum(shares) * len(pool)).astype(np.int64)
        for part, chunk in zip(parts, np.split(pool, ends[:-1]), strict=True):
            part.extend(chunk.tolist())
    # The largest part first, of equal ones the first; with the size that it had when it was put in.
    donors = [(-len(part), number) for number, part in enumerate(parts)]
    heapq.heapify(donors)
    for part in parts:
        while len(part) < min_size:
            while -donors[0][0] != len(parts[donors[0][1]]):
                known = donors[0][1]
                heapq.heapreplace(donors, (-len(parts[known]), known))
            donor = parts[donors[0][1]]
            part.append(donor.pop(int(rng.integers(len(donor)))))
    return [np.sort(np.asarray(part, dtype=np.int64)) for part in parts]


def partition_own_labels(
    labels: LabelArray,
    num_partitions: int,
    rng: np.random.Generator,
    num_owners: int,
    num_labels: int,
) -> list[IndexArray]:
    """Give some labels to the first clients alone, and all others, alike, to the rest.

    What stragglers know that no other client knows: where the first clients are the slow ones, a
    model that is trained without them never sees those labels.

    Parameters
    ----------
    labels : (num_samples,) integer
        Label of every sample.
    num_partitions : int, >= 2
        Number of clients K.
    rng : numpy.random.Generator
        Source of the shuffles.
    num_owners : int, in [1, num_partitions - 1]
        Clients 1, 2, ... that hold the labels of their own, in equal parts.
    num_labels : int, in [1, number of labels - 1]
        How many labels these are: the last ones.

    Returns
    -------
    list of num_partitions int64 arrays
        Sorted sample indices per client.

    Raises
    ------
    ClientConfigError
        If a number is out of range, or there are too few samples.
    """
    classes = np.unique(labels)
    for what, number, most in (
        ("clients", num_owners, num_partitions - 1),
        ("labels", num_labels, len(classes) - 1),
    ):
        if not 1 <= number <= most:
            raise ClientConfigError(
                f"own-labels for {number} {what}: must be from 1 to {most}, one less than there are"
            )
    own = np.isin(labels, classes[-num_labels:])
    parts: list[IndexArray] = []
    for held, clients in ((own, num_owners), (~own, num_partitions - num_owners)):
        indices = np.flatnonzero(held)
        parts += [indices[part] for part in partition_iid(indices, clients, rng)]
    return parts


def _require_positive(sizes: Iterable[int]) -> None:
    for size in sizes:
        if size < 1:
            raise ClientConfigError(f"a size of {size} samples: must be at least 1")


Arguments: TypeAlias = Sequence[str]
Partitioner: TypeAlias = Callable[
    [LabelArray, int, np.random.Generator, Arguments], list[IndexArray]
]


@dataclass(frozen=True, slots=True)
class PartitionerSpec:
    """Entry of the registry of partitioners.

    Attributes
    ----------
    name : str
        Text before the colon.
    usage : str
        The full syntax.
    summary : str
        One line for help texts.
    build : callable
        ``build(labels, num_partitions, rng, arguments)``, with the comma-separated texts after
        the colon as arguments.
    """

    name: str
    usage: str
    summary: str
    build: Partitioner


def _build_iid(
    labels: LabelArray, num_partitions: int, rng: np.random.Generator, arguments: Arguments
) -> list[IndexArray]:
    size = _integers("iid", arguments, at_most=1)
    return partition_iid(labels, num_partitions, rng, *size)


def _build_sizes(
    labels: LabelArray, num_partitions: int, rng: np.random.Generator, arguments: Arguments
) -> list[IndexArray]:
    sizes = _integers("sizes", arguments)
    if len(sizes) != num_partitions:
        raise ClientConfigError(
            f"sizes: has {len(sizes)} numbers, must have one for each of {num_partitions} clients"
        )
    return partition_sizes(labels, sizes, rng)


def _build_by_label(
    labels: LabelArray, num_partitions: int, rng: np.random.Generator, arguments: Arguments
) -> list[IndexArray]:
    sizes = _integers("by-label", arguments, at_most=2)
    return partition_by_label(labels, num_partitions, rng, *sizes)


def _build_dirichlet(
    labels: LabelArray, num_partitions: int, rng: np.random.Generator, arguments: Arguments
) -> list[IndexArray]:
    try:
        alpha = float(arguments[0])
    except (IndexError, ValueError):
        raise _usage_error("dirichlet", arguments) from None
    min_size = _integers("dirichlet", arguments[1:], at_most=1)
    return partition_dirichlet(labels, num_partitions, rng, alpha, *min_size)


def _build_own_labels(
    labels: LabelArray, num_partitions: int, rng: np.random.Generator, arguments: Arguments
) -> list[IndexArray]:
    numbers = _integers("own-labels", arguments)
    if len(numbers) != 2:
        raise _usage_error("own-labels", arguments)
    return partition_own_labels(labels, num_partitions, rng, *numbers)


def _build_flower(
    labels: LabelArray, num_partitions: int, rng: np.random.Generator, arguments: Arguments
) -> list[IndexArray]:
    from .flower_partitions import partition_flower

    if not arguments:
        raise _usage_error("flower", arguments)
    options = dict(_pair(argument, arguments) for argument in arguments[1:])
    return partition_flower(labels, num_partitions, rng, arguments[0], options)


def _pair(argument: str, arguments: Arguments) -> tuple[str, str]:
    key, equals, value = (part.strip() for part in argument.partition("="))
    if not equals:
        raise _usage_error("flower", arguments)
    return key, value


# By the name that command line and TOML use.
PARTITIONERS: Final[Mapping[str, PartitionerSpec]] = {
    spec.name: spec
    for spec in (
        PartitionerSpec("iid", "iid[:SIZE]", "equal parts of shuffled samples", _build_iid),
        PartitionerSpec(
            "sizes",
            "sizes:SIZE,SIZE,...",
            "parts of the given sizes, one per client, of shuffled samples",
            _build_sizes,
        ),
        PartitionerSpec(
            "by-label",
            "by-label[:LARGE[,SMALL]]",
            "two clients hold half of the labels each, every other client a single label",
            _build_by_label,
        ),
        PartitionerSpec(
            "dirichlet",
            "dirichlet:ALPHA[,MIN_SIZE]",
            "labels shared in Dirichlet proportions; the smaller alpha, the more skewed",
            _build_dirichlet,
        ),
        PartitionerSpec(
            "own-labels",
            "own-labels:CLIENTS,LABELS",
            "the last labels are held by the first clients alone, the others by the rest alike",
            _build_own_labels,
        ),
        PartitionerSpec(
            "flower",
            "flower:NAME[,KEY=VALUE,...]",
            "a partitioner of Flower Datasets, e.g. pathological,num-classes-per-partition=2",
            _build_flower,
        ),
    )
}


def build_partition(
    partitioner: str, labels: LabelArray, num_partitions: int, seed: int
) -> list[IndexArray]:
    """Build a partition from its textual form.

    Parameters
    ----------
    partitioner : str
        ``NAME`` or ``NAME:ARGUMENT,...``: ``iid``, ``sizes:1500,1000,500``, ``by-label``,
        ``by-label:10000,1000``, ``dirichlet:0.3``, ``flower:shard,num-shards-per-partition=2``; see
        :data:`PARTITIONERS`.
    labels : (num_samples,) integer
        Label of every sample.
    num_partitions : int, >= 1
        Number of clients K.
    seed : int, >= 0
        The same seed gives the same partition.

    Returns
    -------
    list of num_partitions int64 arrays
        Sorted sample indices per client. No sample is in two parts and no part is empty.

    Raises
    ------
    ConfigError, ClientConfigError
        If the text is not understood, a number is out of range or the data do not suffice.
    """
    name, _, text = partitioner.strip().partition(":")
    spec = PARTITIONERS.get(name.strip())
    if spec is None:
        listed = ", ".join(PARTITIONERS)
        hint = nearest(name, PARTITIONERS)
        raise ConfigError("partitioner", partitioner, f"must be one of {listed}", hint)
    if num_partitions < 1:
        raise ConfigError("num-partitions", num_partitions, "must be at least 1")
    if seed < 0:
        raise ConfigError("seed", seed, "must be at least 0")
    arguments = [argument.strip() for argument in text.split(",")] if text else []
    return spec.build(labels, num_partitions, np.random.default_rng([seed, _STREAM]), arguments)


def check_partitioner(partitioner: str) -> None:
    """Check a partitioner's text before the data and the number of clients are known.

    Raises
    ------
    ConfigError, ClientConfigError
        If the name is unknown or the numbers do not fit it.
    """
    name, _, text = partitioner.strip().partition(":")
    arguments = text.split(",")
    num_partitions = 3
    if name.strip() == "sizes":
        num_partitions = len(arguments)
    elif name.strip() == "own-labels":
        num_partitions = max(_integers("own-labels", arguments)[0] + 1, 2)
    build_partition(partitioner, np.tile(np.arange(10), 6000), num_partitions, 0)


def _integers(name: str, arguments: Arguments, at_most: int | None = None) -> list[int]:
    if at_most is not None and len(arguments) > at_most:
        raise _usage_error(name, arguments)
    try:
        return [int(argument) for argument in arguments]
    except ValueError:
        raise _usage_error(name, arguments) from None


def _usage_error(name: str, arguments: Arguments) -> ConfigError:
    written = f"{name}:{','.join(arguments)}" if arguments else name
    return ConfigError("partitioner", written, f"must read {PARTITIONERS[name].usage}")
