"""Reports as one HTML file that needs no network: template, figures, versions."""

from __future__ import annotations

import base64
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from flower_scheduling.palette import css_colours

_VERSIONS: Final = ("flower-client-scheduling", "flwr", "torch", "numpy", "scipy")


def render(template: str, **values: Any) -> str:
    """Fill a template in; whatever it is given is escaped.

    Parameters
    ----------
    template : str
        Its path below ``simulation/``; it extends ``base.html.j2``.
    **values
        What it speaks of. A figure is embedded by the macro ``picture``, from the bytes of an SVG
        file: as an image, so that nothing in it can act on the page.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("flower_scheduling.simulation", "."),
        autoescape=True,
        undefined=StrictUndefined,
    )
    environment.filters["base64"] = _base64
    return environment.get_template(template).render(colours=css_colours(), **values)


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of what results may depend on."""
    found = {"python": platform.python_version()}
    for name in _VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a checkout that is not installed
            continue
    return found


def listed_versions(versions: dict[str, str]) -> str:
    """Return versions as one line."""
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
