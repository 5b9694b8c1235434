"""Partitioners of Flower Datasets, on the labels of our data sets.

A partitioner there divides a table. It gets one of two columns, the label and the index of each
sample, and what it returns are indices: images are never copied.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flower_scheduling.errors import ClientConfigError, ConfigError, nearest, one_line
from flower_scheduling.extras import require_extra

__all__ = ["partition_flower"]

_SUFFIX: Final = "Partitioner"
_OURS: Final = frozenset(["num_partitions", "partition_by", "seed", "shuffle"])
_LABEL, _INDEX = "label", "index"
_KINDS: Final[Mapping[type, Callable[[str], Any]]] = {
    bool: lambda text: {"true": True, "false": False}[text.lower()],
    int: int,
    float: float,
    str: str,
}


def partition_flower(
    labels: NDArray[np.integer],
    num_partitions: int,
    rng: np.random.Generator,
    name: str,
    options: Mapping[str, str],
) -> list[NDArray[np.int64]]:
    """Build a partition by a partitioner of Flower Datasets.

    Parameters
    ----------
    labels : (num_samples,) integer
        Label of every sample.
    num_partitions : int, >= 1
        Number of clients K.
    rng : numpy.random.Generator
        Shuffles the samples first, since some partitioners cut them in their order, and gives the
        partitioner its seed.
    name : str
        Its class in kebab case, without the ending: ``shard`` for ``ShardPartitioner``.
    options : mapping of str to str
        Its other arguments, in kebab case.

    Returns
    -------
    list of num_partitions int64 arrays
        Sorted sample indices per client.

    Raises
    ------
    MissingExtraError
        If Flower Datasets is not installed.
    ConfigError, ClientConfigError
        If there is no such partitioner, an argument does not fit it, or a part is empty.
    """
    require_extra("the partitioner flower", "partitioners")
    written = f"flower:{','.join([name, *(f'{key}={text}' for key, text in options.items())])}"
    cls = _class(name, written)
    parameters = inspect.signature(cls).parameters
    arguments = _arguments(parameters, options, written)
    order = rng.permutation(len(labels))
    seed = int(rng.integers(2**32))
    ours = {"num_partitions": num_partitions, "partition_by": _LABEL, "seed": seed}
    arguments |= {key: value for key, value in ours.items() if key in parameters}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            partitioner = cls(**arguments)
            partitioner.dataset = _table(labels, order)
            parts = [
                np.sort(np.asarray(partitioner.load_partition(number)[_INDEX], dtype=np.int64))
                for number in range(num_partitions)
            ]
    except Exception as error:  # each partitioner raises kinds of its own
        reason = str(error) or type(error).__name__
        raise ClientConfigError(one_line(f"partitioner = {written!r}: {reason}")) from None
    for number, part in enumerate(parts):
        if not len(part):
            raise ClientConfigError(f"partitioner = {written!r}: part {number} is empty")
    return parts


def _class(name: str, written: str) -> Any:
    from flwr_datasets import partitioner

    known = {}
    for each in partitioner.__all__:
        cls = getattr(partitioner, each)
        if each.startswith("Vertical"):  # they divide columns, not samples
            continue
        if "num_partitions" in inspect.signature(cls).parameters and _settable(cls):
            known[_kebab(each.removesuffix(_SUFFIX))] = cls
    if name not in known:
        message = f"flower must be followed by one of {', '.join(known)}"
        raise ConfigError("partitioner", written, message, nearest(name, known))
    return known[name]


def _settable(cls: Any) -> bool:
    """Return whether all that a class needs can be written as a text."""
    return all(
        parameter.default is not parameter.empty or _kind(parameter) is not None
        for key, parameter in inspect.signature(cls).parameters.items()
        if key not in _OURS
    )


def _kebab(name: str) -> str:
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in name).lstrip("-")


def _kind(parameter: inspect.Parameter) -> Callable[[str], Any] | None:
    """Return what reads an argument from a text; ``None``: it cannot be written as one."""
    text = parameter.annotation
    words = text if isinstance(text, str) else getattr(text, "__name__", None) or str(text)
    for kind in (float, int, bool, str):  # "int | float" is a float
        if kind.__name__ in words.replace("'", "").replace("[", " ").replace("|", " ").split():
            return _KINDS[kind]
    return str if "Literal" in words else None


def _arguments(
    parameters: Mapping[str, inspect.Parameter], options: Mapping[str, str], written: str
) -> dict[str, Any]:
    """Read the options by the annotations of the class."""
    settable = {
        key.replace("_", "-"): key
        for key, parameter in parameters.items()
        if key not in _OURS and _kind(parameter) is not None
    }
    arguments = {}
    for option, text in options.items():
        if option not in settable:
            message = f"{option} is none of its arguments, {', '.join(settable) or 'it has none'}"
            raise ConfigError("partitioner", written, message, nearest(option, settable))
        read = _kind(parameters[settable[option]])
        assert read is not None
        try:
            arguments[settable[option]] = read(text)
        except (ValueError, KeyError):
            message = f"{option} must not be {text!r}"
            raise ConfigError("partitioner", written, message) from None
    for option, key in settable.items():
        if parameters[key].default is inspect.Parameter.empty and key not in arguments:
            raise ConfigError("partitioner", written, f"{option}=VALUE is missing")
    return arguments


def _table(labels: NDArray[np.integer], order: NDArray[np.int64]) -> Any:
    """Return a table of Flower Datasets' kind with a row for each sample, in an order."""
    from datasets import Dataset

    return Dataset.from_dict({_LABEL: np.asarray(labels)[order], _INDEX: order})
