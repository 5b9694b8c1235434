"""Another app than ours: its ServerApp and run configuration are found, and it is run."""

from __future__ import annotations

import errno
import logging
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

from flwr.app import Context, UserConfig
from flwr.serverapp import Grid, ServerApp

from flower_scheduling._flwr import flatten_dict
from flower_scheduling.errors import ConfigError, SchedulingError, ServerAppError, nearest
from flower_scheduling.loading import load_object
from flower_scheduling.process_exit import ProcessExit, exits_raised
from flower_scheduling.strategies.flower import LOGGER, followed_by
from flower_scheduling.strategies.flower.wrapped import is_round_line
from flower_scheduling.user_config import read_user_config

from ..runs.recording import Recording
from ..runs.resume import read_settings
from ..settings.fleet import APP_FOLDER

PYPROJECT: Final = "pyproject.toml"
"""File of a Flower app's settings."""
UNSCHEDULED: Final = (
    "%s trains without ScheduledStrategy: nothing is scheduled or recorded. Wrap its "
    "strategy: ScheduledStrategy(strategy, num_selected=..., tau_max_s=...); of Flower's old API "
    "ScheduledServer(strategy, ...) or ScheduledWorkflow(workflow, ...)"
)
"""Warning about an app whose strategy is not wrapped."""
_FULL_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class FlowerLines(logging.Handler):
    """Flower's lines, those of the app among them, go where ours go: to the run's log as well."""

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a line on, unless ours says the same."""
        if not is_round_line(record):
            LOGGER.handle(record)


def load_server_app(
    path: str, run_dir: Path | None, *, key: str = "app", folder: Path | None = None
) -> ServerApp:
    """Import another app; a run that goes on may have begun in another folder.

    Parameters
    ----------
    path : str
        ``MODULE:ATTRIBUTE``.
    run_dir : Path or None
        Run that goes on.
    key : str
        The setting that names it, for errors.
    folder : Path, optional
        Where its modules are, beside the current folder.

    Raises
    ------
    ConfigError
        If it cannot be imported, or is none.
    """
    try:
        app: ServerApp = load_object(path, ServerApp, key, folder)
    except ConfigError as error:
        began = "" if run_dir is None else str(read_settings(run_dir).get(APP_FOLDER, ""))
        if began in ("", str(Path.cwd())):  # earlier versions did not note it
            raise
        raise ConfigError(key, path, f"{error.message}, the run began in {began}") from None
    return app


def run_server_app(
    server_app: ServerApp, path: str, grid: Grid, context: Context, recording: Recording
) -> None:
    """Run a ServerApp whose code is not ours, ``path``, and record it: a fault of it is one line.

    Raises
    ------
    ServerAppError
        If it raised, or ended the process with an error, or by ``os._exit`` before its runs were
        over.
    NotSavedError
        If results could not be written.
    """
    try:
        with followed_by(recording), exits_raised():
            server_app(grid, context)
    except SystemExit as error:
        finished = 0 < recording.num_started == recording.num_finished
        if error.code or (isinstance(error, ProcessExit) and not finished):
            raise _app_error(path, error, context.run_config) from None
    except SchedulingError:  # it says what is wrong
        raise
    except OSError as error:
        if error.errno in _FULL_DISK:  # the app has no part in it
            raise
        raise _app_error(path, error, context.run_config) from None
    except Exception as error:
        raise _app_error(path, error, context.run_config) from None
    recording.require_saved()


def _app_error(path: str, error: BaseException, run_config: UserConfig) -> ServerAppError:
    LOGGER.error("the ServerApp failed", exc_info=error)
    if isinstance(error, ProcessExit):
        return ServerAppError(f"{path} ended the process with {error}")
    text = f"{path} raised {type(error).__name__}: {error}"
    if isinstance(error, KeyError) and not run_config:
        text += f" ({_no_config(Path.cwd())}, so the run configuration is empty)"
    return ServerAppError(text)


def file_of(app: str) -> Path | None:
    """Return the file of an app that was loaded, ``MODULE:ATTRIBUTE`` or ``FILE.py:ATTRIBUTE``."""
    name = app.rpartition(":")[0]
    file = name if name.endswith(".py") else getattr(sys.modules.get(name), "__file__", None)
    return Path(file) if file else None


def app_config(folder: Path, overrides: str = "", code: Path | None = None) -> UserConfig:
    """Return the run configuration of the Flower app in a folder, as ``flwr run`` would.

    Parameters
    ----------
    folder : Path
        With the app's ``pyproject.toml``, if there is one.
    overrides : str
        As ``--run-config`` takes it: values for keys that the file names.
    code : Path, optional
        File of the ServerApp: without a Flower app in ``folder`` that counts in which it is.

    Returns
    -------
    dict
        ``[tool.flwr.app.config]`` of the file, nested keys joined by dots; empty where there is
        none.

    Raises
    ------
    ConfigError
        If the file cannot be read, a value is no number, truth value or text, or a key is
        overridden that the file does not name.
    """
    folder = folder.resolve()
    file = folder / PYPROJECT
    config: UserConfig = {}
    for place in [folder, *(code.resolve().parents if code is not None else ())]:
        if (found := _read_app(place / PYPROJECT)) is not None:
            file, config = place / PYPROJECT, found
            break
    if not config:
        LOGGER.info("%s: the run configuration is empty", _no_config(folder))
    elif file.parent != folder:
        LOGGER.info("run configuration of %s", file)
    given = read_user_config("run-config", overrides) if overrides else {}
    for key in sorted(given.keys() - config.keys()):
        message = f"{key} is not in [tool.flwr.app.config] of {file}"
        raise ConfigError("run-config", overrides, message, nearest(key, config))
    return {**config, **given}


def _read_app(file: Path) -> UserConfig | None:
    """Return the configuration of the Flower app of a project; ``None``: it is of no such app."""
    try:
        found: Any = tomllib.loads(file.read_text(encoding="utf-8"))
        for key in ("tool", "flwr", "app"):
            found = found.get(key, {})
        return flatten_dict(found.get("config")) if found else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, AttributeError) as error:  # AttributeError: a table is none
        raise ConfigError(
            PYPROJECT, str(file), f"must be a Flower app's settings ({error})"
        ) from None


def _no_config(folder: Path) -> str:
    return f"no [tool.flwr.app.config] was found in {folder}"
