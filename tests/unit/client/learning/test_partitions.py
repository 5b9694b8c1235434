from __future__ import annotations

import numpy as np
import pytest

from flower_scheduling.client.learning.partitions import (
    PARTITIONERS,
    build_partition,
    check_partitioner,
    partition_by_label,
    partition_dirichlet,
)
from flower_scheduling.errors import ClientConfigError, ConfigError

LABELS = np.random.default_rng(0).integers(10, size=6_000).astype(np.uint8)


def sizes(parts):
    return [len(part) for part in parts]


def test_iid_parts_are_equal_and_use_all_but_a_remainder():
    assert sizes(build_partition("iid", LABELS, 20, 0)) == [300] * 20
    assert sizes(build_partition("iid", LABELS, 7, 0)) == [857] * 7
    assert sizes(build_partition("iid:50", LABELS, 3, 0)) == [50] * 3


def test_dirichlet_gives_to_small_parts_what_the_largest_has(monkeypatch):
    """By the heap as by looking through all parts, which takes minutes for a large fleet."""

    def slowly(labels, num_partitions, rng, alpha, min_size):
        parts = [[] for _ in range(num_partitions)]
        for label in np.unique(labels):
            pool = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet(np.full(num_partitions, alpha))
            ends = np.rint(np.cumsum(shares) * len(pool)).astype(np.int64)
            for part, chunk in zip(parts, np.split(pool, ends[:-1]), strict=True):
                part.extend(chunk.tolist())
        for part in parts:
            while len(part) < min_size:
                donor = max(parts, key=len)
                part.append(donor.pop(int(rng.integers(len(donor)))))
        return [sorted(part) for part in parts]

    for num_partitions, alpha, min_size in ((200, 0.1, 3), (600, 0.05, 10), (40, 0.3, 140)):
        case = num_partitions, np.random.default_rng(1), alpha, min_size
        found = partition_dirichlet(LABELS, *case)
        case = num_partitions, np.random.default_rng(1), alpha, min_size
        assert [part.tolist() for part in found] == slowly(LABELS, *case)


def test_given_sizes():
    assert sizes(build_partition("sizes:1500,1000,500", LABELS, 3, 0)) == [1500, 1000, 500]
    assert sizes(build_partition(" sizes : 15 , 10 ", LABELS, 2, 0)) == [15, 10]


def test_own_labels_are_held_by_the_first_clients_alone():
    parts = build_partition("own-labels:2,3", LABELS, 5, 1)
    held = [np.unique(LABELS[part]).tolist() for part in parts]
    assert held == [[7, 8, 9]] * 2 + [[0, 1, 2, 3, 4, 5, 6]] * 3
    assert len(set(sizes(parts)[:2])) == len(set(sizes(parts)[2:])) == 1
    assert len(np.unique(np.concatenate(parts))) == sum(sizes(parts)) > 0.99 * len(LABELS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("own-labels:5,2", "5 clients: must be from 1 to 4"),
        ("own-labels:2,10", "10 labels: must be from 1 to 9"),
        ("own-labels:2", "must read own-labels:CLIENTS,LABELS"),
    ],
)
def test_own_labels_leave_something_to_the_others(text, message):
    with pytest.raises((ClientConfigError, ConfigError), match=message):
        build_partition(text, LABELS, 5, 0)


def test_by_label_is_the_papers():
    parts = build_partition("by-label:1000,200", LABELS, 10, 3)
    held = [np.unique(LABELS[part]).tolist() for part in parts]
    assert held == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [0], [1], [2], [3], [4], [5], [6], [7]]
    assert sizes(parts) == [1000, 1000] + [200] * 8
    assert np.bincount(LABELS[parts[0]]).tolist() == [200] * 5


def test_by_label_on_mnist_has_the_default_sizes(mnist):
    labels = mnist.train_labels.numpy()
    assert sizes(build_partition("by-label", labels, 10, 0)) == [10_000] * 2 + [1_000] * 8


def test_by_label_spreads_a_size_that_does_not_divide():
    first, _ = partition_by_label(LABELS, 2, np.random.default_rng(0), large=12)
    assert np.bincount(LABELS[first]).tolist() == [3, 3, 2, 2, 2]


def test_by_label_starts_over_after_the_last_digit():
    parts = build_partition("by-label:10,5", LABELS, 14, 0)
    assert LABELS[parts[12]].tolist() == [0] * 5
    assert not set(parts[12]) & set(parts[2])


def test_dirichlet_skews_with_small_alpha():
    def largest_share(alpha):
        parts = build_partition(f"dirichlet:{alpha}", LABELS, 10, 0)
        return np.mean([np.bincount(LABELS[part]).max() / len(part) for part in parts])

    assert largest_share(0.05) > 0.6
    assert largest_share(1e6) < 0.15


def test_dirichlet_tops_up_the_smallest():
    parts = partition_dirichlet(LABELS, 100, np.random.default_rng(0), alpha=0.01, min_size=20)
    assert min(sizes(parts)) == 20
    assert sum(sizes(parts)) == len(LABELS)


def test_a_partition_follows_from_its_seed():
    for text in ("iid", "by-label:100,50", "dirichlet:0.3"):
        first, again, other = (build_partition(text, LABELS, 5, seed) for seed in (1, 1, 2))
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    ("text", "num_partitions", "message"),
    [
        (
            "iidd",
            2,
            "partitioner = 'iidd': must be one of iid, sizes, by-label, dirichlet, own-labels, "
            "flower (did you mean iid?)",
        ),
        (
            "zzz",
            2,
            "partitioner = 'zzz': must be one of iid, sizes, by-label, dirichlet, own-labels",
        ),
        ("iid", 0, "num-partitions = 0: must be at least 1"),
        ("iid", 7000, "6000 samples are too few for 7000 parts"),
        ("iid:0", 2, "a size of 0 samples: must be at least 1"),
        ("iid:1,2", 2, "'iid:1,2': must read iid[:SIZE]"),
        ("sizes:4000,2001", 2, "sizes sum to 6001 samples: must be at most the 6000 there are"),
        ("sizes:1,2,3", 2, "has 3 numbers, must have one for each of 2 clients"),
        ("sizes:1,x", 2, "'sizes:1,x': must read sizes:SIZE,SIZE,..."),
        ("by-label", 10, "use smaller sizes or fewer clients"),
        ("by-label:10,400", 22, "needs 802 samples of label 0"),
        ("by-label:10,5", 1, "by-label with 1 part: must have at least 2"),
        ("dirichlet", 2, "'dirichlet': must read dirichlet:ALPHA[,MIN_SIZE]"),
        ("dirichlet:0", 2, "alpha = 0.0: must be between 0.001 and 1e9"),
        ("dirichlet:nan", 2, "alpha = nan: must be between"),
        ("dirichlet:1,601", 10, "6000 samples are too few for 10 parts of at least 601"),
    ],
)
def test_errors_say_what_would_be_right(text, num_partitions, message):
    with pytest.raises((ConfigError, ClientConfigError)) as caught:
        build_partition(text, LABELS, num_partitions, 0)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_negative_seed_is_refused():
    with pytest.raises(ConfigError, match="seed = -1: must be at least 0"):
        build_partition("iid", LABELS, 2, -1)


def test_registry_describes_itself():
    for name, spec in PARTITIONERS.items():
        assert spec.name == name
        assert spec.usage.startswith(name)
        assert spec.summary


def test_texts_are_checked_without_data_at_hand() -> None:
    for text in ("iid", "iid:100", "sizes:1500,1000", "by-label:10000,1000", "dirichlet:0.3"):
        check_partitioner(text)
    check_partitioner("own-labels:40,2")
    for text in (
        "foo",
        "iid:x",
        "sizes:",
        "dirichlet:foo",
        "dirichlet",
        "by-label:1,2,3",
        "iid:0",
        "own-labels:x,1",
    ):
        with pytest.raises((ConfigError, ClientConfigError)):
            check_partitioner(text)
