"""The simulation's program: its name in help texts and errors, and a flag of its commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from .cluster import Cluster

_SCRIPT = "flower-simulation"
_INSTALLED = "flower_scheduling.simulation"


def program_name() -> str:
    """Return the command that the program was started with, ``python -m simulation`` if unknown."""
    if Path(sys.argv[0]).stem == _SCRIPT:
        return _SCRIPT
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return f"python -m {_INSTALLED if spec and spec.parent == _INSTALLED else 'simulation'}"


processes_option = click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=os.cpu_count() or 1,
    show_default="all cores",
    help="Processes; results do not depend on it.",
)
"""Flag of the commands that work in several processes."""


class _ClusterType(click.ParamType[Cluster]):
    name = "cluster"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Cluster:
        return value if isinstance(value, Cluster) else Cluster.parse(value)


cluster_option = click.option(
    "--cluster",
    type=_ClusterType(),
    metavar="ENGINE:HOST:PORT",
    help="Compute on a Dask or Ray cluster that runs this version, dask:HOST:PORT or "
    "ray:HOST:PORT, instead of in processes here.",
)
"""Flag of the studies, whose jobs are independent of each other."""
