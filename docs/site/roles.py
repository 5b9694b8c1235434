"""Let the site show the names that docstrings refer to by Sphinx's roles, without the roles."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`[.~]*([^`]+)`")


class Roles(griffe.Extension):
    """Turns ``:class:`.Name``` into code, as Markdown has it."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of whatever was loaded."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)
