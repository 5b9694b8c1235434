"""Variables of the environment that are meant for a program, and those that only look like it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final

from .errors import ConfigError, nearest

# What Kubernetes sets for each service of a namespace and Docker for each link, after the name of
# the service in capitals; what the value is like, where the name alone does not tell.
_LINKS: Final = tuple(
    (name, re.compile(value, re.DOTALL))
    for name, value in (
        (r"_SERVICE_HOST", r".*"),
        (r"_SERVICE_PORT(_\w+)?", r"\d+"),
        (r"_PORT", r"(tcp|udp|sctp)://.*"),
        (r"_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|ADDR|PORT|START|END|PORT_START|PORT_END))?", r".*"),
        (r"_NAME", r"/[^/]+/[^/]+"),
        (r"_ENV_\w+", r".*"),
    )
)


def is_link_variable(prefix: str, name: str, value: str) -> bool:
    """Tell whether Kubernetes or Docker has set a variable for a service.

    A service that is called like a program, ``flower-server``, or begins so,
    ``flower-server-metrics``, has variables that begin like those of the program's flags.

    Parameters
    ----------
    prefix : str
        What the program's variables begin with, ``FLOWER_SERVER``.
    name, value : str
        The variable.
    """
    rest = name.removeprefix(prefix)
    return rest != name and any(
        re.fullmatch(rf"(_\w+)?{link}", rest) and found.fullmatch(value) for link, found in _LINKS
    )


def check_environment(prefix: str, known: Iterable[str]) -> None:
    """Refuse variables that look like a program's and set none of its flags: typing errors.

    Parameters
    ----------
    prefix : str
        What the program's variables begin with.
    known : iterable of str
        Those that it reads. An empty variable counts as absent.

    Raises
    ------
    ConfigError
        If there is one, with the nearest that is known.
    """
    known = set(known)
    for name in sorted(os.environ.keys() - known):
        value = os.environ[name]
        if value and name.startswith(f"{prefix}_") and not is_link_variable(prefix, name, value):
            hint = nearest(name, sorted(known))
            # Without its value, which may be a secret.
            raise ConfigError("environment", name, "is set, and no flag of this program", hint)
