"""The optional parts of an installation, and one clear line where one is missing."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from .errors import MissingExtraError

PROJECT: Final = "flower-client-scheduling"
# What each part imports beyond what a client and a server need for any app.
EXTRAS: Final = {
    "learning": ("torch", "torchvision"),
    "partitioners": ("datasets", "flwr_datasets"),
    "page": ("prometheus_client", "starlette", "uvicorn"),
    "app-simulation": ("jinja2", "matplotlib", "scipy"),
    "simulation": ("jinja2", "matplotlib", "scipy", "torch", "torchvision"),
    "zstd": ("zstandard",),
}
BUILT_IN_APP: Final = "the built-in app"
"""What needs the extra ``learning``; other apps bring what they import."""


def install_command(*extras: str) -> str:
    """Return the command that installs this project with extras."""
    return f"pip install '{PROJECT}[{','.join(extras)}]'"


def require_extra(what: str, extra: str) -> None:
    """Refuse what an extra is needed for that is not installed.

    Parameters
    ----------
    what : str
        What needs it, e.g. ``"--page"``.
    extra : str
        Key of :data:`EXTRAS`.

    Raises
    ------
    MissingExtraError
        If a package of it is missing.
    """
    if missing := [name for name in EXTRAS[extra] if find_spec(name) is None]:
        raise MissingExtraError(
            f"{what} needs {PROJECT}[{extra}], {missing[0]} is not installed: "
            f"{install_command(extra)}"
        )
