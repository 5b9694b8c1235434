"""Where a Flower app is: its folder, its two objects and its run configuration."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flwr.app import UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from flower_scheduling.errors import ConfigError
from flower_scheduling.loading import load_object
from flower_scheduling.server.runs.resume import read_settings
from flower_scheduling.server.runtimes.other_app import (
    PYPROJECT,
    app_config,
    file_of,
    load_server_app,
)
from flower_scheduling.server.settings.fleet import APP_FOLDER

from .settings import AppConfig

_COMPONENTS: Final = "[tool.flwr.app.components]"


@dataclass(frozen=True)
class AppSource:
    """A Flower app that is not imported yet.

    Attributes
    ----------
    server_app, client_app : str
        Its objects, ``MODULE:ATTRIBUTE``.
    folder : Path or None
        The app's own folder, where there is one.
    """

    server_app: str
    client_app: str
    folder: Path | None

    @classmethod
    def of(cls, config: AppConfig) -> AppSource:
        """Find the app that settings name.

        Raises
        ------
        ConfigError
            If there is none.
        """
        if not config.app:
            return cls(config.server_app, config.client_app, None)
        folder = Path(config.app)
        parts = _components(folder)
        return cls(str(parts["serverapp"]), str(parts["clientapp"]), folder)

    def load(self, overrides: str) -> tuple[ServerApp, ClientApp, UserConfig]:
        """Import both objects; return them and the run configuration.

        Parameters
        ----------
        overrides : str
            Of the run configuration, as ``flwr run`` takes them.

        Raises
        ------
        ConfigError
            If one cannot be imported or is of another kind, or the configuration is wrong.
        """
        whole = self.folder is not None
        if whole:  # before seconds of imports
            app_config(self.folder or Path(), overrides)
        server = load_server_app(
            self.server_app, None, key="app" if whole else "server-app", folder=self.folder
        )
        key = "app" if whole else "client-app"
        client: ClientApp = load_object(self.client_app, ClientApp, key, self.folder)
        config = app_config(self.folder or Path(), overrides, file_of(self.server_app))
        return server, client, config


def _components(folder: Path) -> dict[str, Any]:
    """Return what a project says where its ServerApp and ClientApp are."""
    if not folder.is_dir():
        message = (
            f"must be a folder with the {PYPROJECT} of a Flower app; two objects are named by "
            "--server-app MODULE:ATTRIBUTE and --client-app MODULE:ATTRIBUTE"
        )
        raise ConfigError("app", str(folder), message)
    file = folder / PYPROJECT
    try:
        found: Any = tomllib.loads(file.read_text(encoding="utf-8"))
        for key in ("tool", "flwr", "app", "components"):
            found = found.get(key, {})
        parts = dict(found)
    except FileNotFoundError:
        raise ConfigError(
            "app", str(folder), f"has no {PYPROJECT}: must be the folder of a Flower app"
        ) from None
    except (OSError, ValueError, AttributeError, TypeError) as error:
        message = f"must be a Flower app's settings ({error})"
        raise ConfigError(PYPROJECT, str(file), message) from None
    for kind in ("serverapp", "clientapp"):
        if not isinstance(parts.get(kind), str):
            message = f'must name the app\'s objects, {kind} = "MODULE:ATTRIBUTE" in {_COMPONENTS}'
            raise ConfigError(PYPROJECT, str(file), message)
    return parts


def where_it_began(run_dir: Path, error: ConfigError) -> ConfigError:
    """Return the error with the folder in which a run that goes on was started, if another."""
    began = str(read_settings(run_dir).get(APP_FOLDER, ""))
    if began in ("", str(Path.cwd())):
        return error
    return ConfigError(
        error.key, error.value, f"{error.message}, the run began in {began}", error.hint
    )
