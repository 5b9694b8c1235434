from __future__ import annotations

import sys

import numpy as np
import pytest

from flower_scheduling.client.learning.partitions import build_partition
from flower_scheduling.errors import ClientConfigError, ConfigError, MissingExtraError

pytestmark = pytest.mark.filterwarnings("default")  # what flwr-datasets imports leaves sockets open

LABELS = np.tile(np.arange(10), 60)


def test_without_flower_datasets_it_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    monkeypatch.setattr("flower_scheduling.extras.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'flower-client-scheduling\[part"):
        build_partition("flower:iid", LABELS, 4, 0)


@pytest.mark.parametrize("text", ["flower", "flower:dirichlet,alpha"])
def test_the_syntax(text):
    with pytest.raises(ConfigError, match=r"must read flower:NAME\[,KEY=VALUE,\.\.\.\]"):
        build_partition(text, LABELS, 4, 0)


@pytest.mark.parametrize(
    ("text", "num_labels"),
    [
        ("flower:iid", 10),
        ("flower:linear", 10),
        ("flower:pathological,num-classes-per-partition=2", 2),
        ("flower:dirichlet,alpha=100", 10),
    ],
)
def test_partitions_of_flower_datasets(text, num_labels):
    pytest.importorskip("flwr_datasets", exc_type=ImportError)
    parts, again, other = (build_partition(text, LABELS, 5, seed) for seed in (1, 1, 2))
    assert len(parts) == 5
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    assert {len(np.unique(LABELS[part])) for part in parts} == {num_labels}
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(parts, other, strict=True))


@pytest.mark.parametrize(
    ("text", "error", "fault"),
    [
        ("flower:pathologicl", ConfigError, "did you mean pathological"),
        ("flower:vertical-even", ConfigError, "must be followed by one of"),
        ("flower:dirichlet", ConfigError, "alpha=VALUE is missing"),
        ("flower:dirichlet,alfa=3", ConfigError, "alfa is none of its arguments, alpha"),
        ("flower:dirichlet,alpha=x", ConfigError, "alpha must not be 'x'"),
        ("flower:pathological,num-classes-per-partition=20", ClientConfigError, "greater than"),
    ],
)
def test_what_does_not_fit_is_one_line(text, error, fault):
    pytest.importorskip("flwr_datasets", exc_type=ImportError)
    with pytest.raises(error, match=fault) as caught:
        build_partition(text, LABELS, 5, 1)
    assert "\n" not in str(caught.value)
