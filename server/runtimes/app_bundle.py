"""Our packages as a Flower app, for ``flwr run``."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
from pathlib import Path
from typing import Final

import tomli_w

from flower_scheduling.extras import PROJECT

from ..settings.run import ServerConfig

_PUBLISHER: Final = "client-scheduling"
_IMPORT_NAME: Final = "flower_scheduling"
_PACKAGES: Final = ("client", "server", "strategies")
# What marks a requirement as one of the built-in app, which is what is bundled
_OF_APP: Final = re.compile(r"\s*(?:;|and)\s*extra == ['\"]learning['\"]")


def write_app(folder: Path) -> Path:
    """Write our packages as a Flower app, wherever they are installed; return its folder.

    A wheel carries neither the project file nor the folder that ``flwr run`` wants. With the code
    in the bundle, SuperNodes run what the server runs, installed there or not.
    """
    folder.mkdir(parents=True)
    ours = folder / _IMPORT_NAME
    ours.mkdir()
    for file in _source(_IMPORT_NAME).glob("*.py"):
        shutil.copyfile(file, ours / file.name)
    for package in _PACKAGES:
        source = _source(f"{_IMPORT_NAME}.{package}")
        for file in sorted(source.rglob("*.py")):
            target = ours / package / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    version, requires = _metadata()
    project = {
        "project": {
            "name": PROJECT,
            "version": version,
            "description": "Bandit client scheduling for Flower",
            "license": "Apache-2.0",
            "dependencies": requires,
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": _PUBLISHER,
                    "fab-include": [f"/{_IMPORT_NAME}/**/*.py"],
                    "components": {
                        "serverapp": "flower_scheduling.server.app:app",
                        "clientapp": "flower_scheduling.client.app:app",
                    },
                    "config": dict(ServerConfig().to_mapping()),
                }
            }
        },
    }
    (folder / "pyproject.toml").write_text(tomli_w.dumps(project), encoding="utf-8")
    return folder


def _source(package: str) -> Path:
    """Return the folder of a package of ours."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _metadata() -> tuple[str, list[str]]:
    """Return our version and requirements; a checkout that is not installed has none."""
    try:
        found = importlib.metadata.metadata(PROJECT)
    except importlib.metadata.PackageNotFoundError:
        return "0.0.0", [f"flwr=={importlib.metadata.version('flwr')}"]
    needed = []
    for text in importlib.metadata.requires(PROJECT) or []:
        text, of_app = _OF_APP.subn("", text)
        if of_app or "extra ==" not in text:
            needed.append(text)
    return found["Version"], needed
