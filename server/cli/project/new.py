"""Writing a new project: a Flower app that runs at once, from templates in this package."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Final

from flower_scheduling.client.wire.frames import package_version
from flower_scheduling.errors import ConfigError

__all__ = ["create_project"]

_SUFFIX: Final = ".tmpl"
_NAMES: Final = {"gitignore": ".gitignore"}  # hidden files are no package data
# What pip, Flower and Docker Compose all take as a name.
_NAME: Final = re.compile(r"[a-z](?:[a-z0-9-]*[a-z0-9])?")


def create_project(folder: Path) -> list[Path]:
    """Write a project into a folder, whose name becomes the project's.

    Parameters
    ----------
    folder : Path
        New, or empty.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    ConfigError
        If the name cannot be a project's, or the folder holds something.
    OSError
        If it cannot be written.
    """
    folder = folder.absolute()
    name = folder.name
    if not _NAME.fullmatch(name):
        message = "a project's name begins with a letter and has small letters, digits and hyphens"
        raise ConfigError("name", name, f"must be such as my-fleet: {message}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        message = f"{folder} is there and not empty: choose another name, or move it away"
        raise ConfigError("name", name, message)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    templates = sorted(files(__package__).joinpath("templates").iterdir(), key=lambda t: t.name)
    for template in templates:
        if not template.name.endswith(_SUFFIX):
            continue
        stem = template.name.removesuffix(_SUFFIX)
        text = template.read_text(encoding="utf-8")
        text = text.replace("@NAME@", name).replace("@VERSION@", package_version())
        target = folder / _NAMES.get(stem, stem)
        target.write_text(text, encoding="utf-8", newline="\n")
        written.append(target)
    return written
