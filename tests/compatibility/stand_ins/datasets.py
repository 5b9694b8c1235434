"""Calls of the apps that the folder's stand-in for Hugging Face's datasets does not have.

The suite renames that stand-in to ``folder_datasets``.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import folder_datasets
import numpy as np
from folder_datasets import Dataset, DatasetDict, concatenate_datasets, load_dataset

__all__ = ["Dataset", "DatasetDict", "concatenate_datasets", "load_dataset", "load_from_disk"]
__path__: list[str] = []  # a package, for those that import a module of it

utils: Any = types.ModuleType("datasets.utils")
utils.logging = types.ModuleType("datasets.utils.logging")
utils.logging.disable_progress_bar = utils.logging.enable_progress_bar = lambda: None
sys.modules.update({"datasets.utils": utils, "datasets.utils.logging": utils.logging})


def make(name: str, size: int, seed: int) -> Dataset:
    """Make a data set of a name; the folder's knows no text."""
    if "imdb" not in name:
        return folder_datasets.make(name, size, seed)
    labels = np.random.default_rng(seed).integers(0, 2, size).tolist()
    texts = [f"a {['bad', 'good'][label]} film" for label in labels]
    return Dataset({"text": texts, "label": labels})


def load_from_disk(path: str) -> DatasetDict:
    """Stand for a partition on a device's disk; the folder's name has its number."""
    number = int("".join(filter(str.isdigit, path)) or 0)
    return make("mnist", 40 + 20 * number, number).train_test_split(test_size=0.2, seed=42)


def _split(
    self: Dataset, test_size: float = 0.25, train_size: float | None = None, seed: int = 0
) -> DatasetDict:
    order = np.random.default_rng(seed).permutation(len(self))
    tested = int(len(self) * (test_size if train_size is None else 1 - train_size))
    return DatasetDict({"train": self.select(order[tested:]), "test": self.select(order[:tested])})


def _with_columns(self: Dataset, columns: dict[str, Any]) -> Dataset:
    return Dataset(columns, self.t, self.f)


def _map(self: Dataset, function: Any, batched: bool = False) -> Dataset:
    assert batched, "one example at a time is not needed by any app"
    return _with_columns(self, {**self.c, **function(dict(self.c))})


def _remove_columns(self: Dataset, name: str) -> Dataset:
    return _with_columns(self, {key: column for key, column in self.c.items() if key != name})


def _rename_column(self: Dataset, old: str, new: str) -> Dataset:
    columns = {new if key == old else key: column for key, column in self.c.items()}
    return _with_columns(self, columns)


def _of_each(method: Any) -> Any:
    return lambda self, *a, **k: DatasetDict({n: method(d, *a, **k) for n, d in self.items()})


Dataset.train_test_split = _split
for _method in (_map, _remove_columns, _rename_column):
    setattr(Dataset, _method.__name__[1:], _method)
    setattr(DatasetDict, _method.__name__[1:], _of_each(_method))
