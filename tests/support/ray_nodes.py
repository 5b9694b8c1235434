"""A Ray cluster of two local nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def two_ray_nodes() -> Iterator[str]:
    """Run a cluster of two nodes of one processor each; yield the address of its head."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        yield str(cluster.address)
    finally:
        cluster.shutdown()
