"""The simulation's program: its name in help texts and errors, and flags of its commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from .cluster import Cluster

_Command = TypeVar("_Command", bound=Callable[..., Any])

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


def strategies_option(
    help_text: str, *, old: str = "", commas: bool = False
) -> Callable[[_Command], _Command]:
    """Return the flag ``--strategy`` of commands that take several policies.

    Its parameter is called ``strategies``: the names in the order given, each once.

    Parameters
    ----------
    help_text : str
        Which policies there are, and which are the default.
    old : str, optional
        An earlier name of the flag, which goes on working; help texts do not list it.
    commas : bool
        Whether a value may be several names with commas between.
    """

    def names(context: click.Context, option: click.Parameter, given: Sequence[str]) -> list[str]:
        parts = [part for each in given for part in (each.split(",") if commas else [each])]
        found = list(dict.fromkeys(part.strip() for part in parts if part.strip()))
        if given and not found:
            raise click.UsageError("--strategy must name at least one policy")
        return found

    return click.option(
        "--strategy",
        *([old] if old else []),
        "strategies",
        cls=_Renamed,
        multiple=True,
        metavar="NAME",
        callback=names,
        help=f"May be given several times. {help_text}",
    )


class _Renamed(click.Option):
    """Option whose help text has its first name alone."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        names, self.opts = self.opts, self.opts[:1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names
