from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from profiles import examples

from flower_scheduling.client.learning.partitions import PARTITIONERS, build_partition

LABELS = np.random.default_rng(0).integers(10, size=2_000)

TEXTS = {
    "iid": st.just("iid") | st.integers(1, 50).map("iid:{}".format),
    "sizes": st.none(),  # needs the number of clients, see below
    "by-label": st.tuples(st.integers(1, 300), st.integers(1, 20)).map(
        lambda size: f"by-label:{size[0]},{size[1]}"
    ),
    "dirichlet": st.tuples(st.floats(1e-3, 1e9), st.integers(1, 40)).map(
        lambda value: f"dirichlet:{value[0]},{value[1]}"
    ),
    "own-labels": st.none(),  # likewise
}


def test_every_partitioner_is_tried():
    """But those of Flower Datasets, which have tests of their own."""
    assert TEXTS.keys() == PARTITIONERS.keys() - {"flower"}


@examples(100)
@given(st.data(), st.sampled_from(sorted(TEXTS)), st.integers(0, 2**64 - 1))
def test_parts_are_disjoint_nonempty_and_reproducible(data, name, seed):
    num_partitions = data.draw(st.integers(2, 40))
    if name == "sizes":
        sizes = st.lists(st.integers(1, 50), min_size=num_partitions, max_size=num_partitions)
        text = "sizes:" + ",".join(map(str, data.draw(sizes)))
    elif name == "own-labels":
        owners = data.draw(st.integers(1, num_partitions - 1))
        text = f"own-labels:{owners},{data.draw(st.integers(1, 9))}"
    else:
        text = data.draw(TEXTS[name])
    parts = build_partition(text, LABELS, num_partitions, seed)

    assert len(parts) == num_partitions
    assert all(len(part) > 0 for part in parts)
    together = np.concatenate(parts)
    assert together.dtype == np.int64
    assert together.min() >= 0
    assert together.max() < len(LABELS)
    assert len(np.unique(together)) == len(together)
    again = build_partition(text, LABELS, num_partitions, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
