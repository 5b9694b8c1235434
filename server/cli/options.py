"""What our command lines share: flags from settings, exit codes, one line for every fault."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.logging import RichHandler

from flower_scheduling.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_USAGE,
    ConfigError,
    SchedulingError,
    fail,
)
from flower_scheduling.signals import EXIT_INTERRUPTED
from flower_scheduling.strategies.flower import LOGGER
from flower_scheduling.strategies.registry import runnable_policies
from flower_scheduling.usage import usage_text

from ..settings.base import Settings
from ..settings.run import options_help

_Command = TypeVar("_Command", bound=Callable[..., Any])


def run_command(command: click.Command, arguments: Sequence[str] | None, name: str) -> int:
    """Run a command line and return its exit code.

    Parameters
    ----------
    command : click.Command
        What to run.
    arguments : sequence of str, optional
        Instead of those of the process.
    name : str
        How help texts call the program.

    Returns
    -------
    int
        0 done, 1 the run failed, 2 wrong usage or settings, 130 interrupted. A fault is one line
        on standard error.
    """
    try:
        command.main(args=arguments, prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        return fail(usage_text(error), EXIT_USAGE)
    except SchedulingError as error:
        return fail(str(error), error.exit_code)
    except OSError as error:
        return fail(_without_number(error), EXIT_FAILED)
    except (click.Abort, KeyboardInterrupt):
        return fail("interrupted", EXIT_INTERRUPTED)
    return EXIT_DONE


def settings_options(
    settings: type[Settings],
    show_default: Callable[[str, object], str],
    *,
    without: Collection[str] = (),
) -> Callable[[_Command], _Command]:
    """Add a flag for every setting; a flag that is left out is ``None``.

    Parameters
    ----------
    settings : type of Settings
        Where flags, types and help texts come from.
    show_default : callable
        Takes key and default of a setting; returns the default as help texts show it.
    without : collection of str
        Keys of settings that have no flag, because the command sets them.
    """

    def decorate(command: _Command) -> _Command:
        for key, field in reversed(settings.settings().items()):
            if key in without:
                continue
            kind: Any = _NumberOr(field.kind, field.word) if field.word else field.kind
            text = field.help
            if key == "strategy":
                text += policies_help()
            if key == "strategy-option":
                text += " They are: " + options_help() + "."
            if shown := show_default(key, field.default):
                text += f"  [default: {shown}]"
            flag = f"--{key}/--no-{key}" if kind is bool else f"--{key}"
            repeated: dict[str, Any] = {}
            if key == "run-config":  # the flag several times, as flwr run takes it
                repeated = {"multiple": True, "callback": _spaced, "type": _WholeText()}
            if key.endswith("-option"):  # KEY=VALUE,KEY=VALUE, or the flag several times
                repeated = {"multiple": True, "callback": _joined}
            options = {"type": kind, "default": None, "help": text, **repeated}
            command = click.option(flag, field.name, **options)(command)
        return command

    return decorate


def policies_help() -> str:
    """Return the sentence that lists the policies that any run can have."""
    return " One of: " + ", ".join(runnable_policies()) + ", or MODULE:CLASS."


def _joined(context: click.Context, parameter: click.Parameter, values: Any) -> str | None:
    return ",".join(values) or None


class _NumberOr(click.ParamType):  # type: ignore[type-arg]  # generic in later versions of click
    """A number, or a word that stands for one."""

    name = "number"

    def __init__(self, kind: type[int | float | bool | str], word: str) -> None:
        self.kind, self.word = kind, word

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str:
        if value == self.word:
            return self.word
        try:
            return int(value) if self.kind is int else float(value)
        except ValueError:
            what = "whole number" if self.kind is int else "number"
            self.fail(f"{value!r} is no {what}, and not {self.word!r}.", param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"{'INTEGER' if self.kind is int else 'FLOAT'}|{self.word}"


class _WholeText(click.types.StringParamType):
    """A text that is one value in the environment too, whatever spaces it has."""

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        return [rv]


def _spaced(context: click.Context, parameter: click.Parameter, values: Any) -> str | None:
    return " ".join(values) or None


resume_option = click.option(
    "--resume",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Go on with the run in this folder, from its last checkpoint.",
)
"""Flag of the commands that run rounds."""


def given_settings(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that were given, by the keys of their settings.

    Raises
    ------
    ConfigError
        If the run directory is empty: that may be a variable of a script that was not set.
    """
    if flags.get("run_dir") == "":
        message = "must be a folder; without the flag it is a new one in runs/"
        raise ConfigError("run-dir", "", message)
    return {key.replace("_", "-"): value for key, value in flags.items() if value is not None}


def log_warnings_to(console: Console) -> None:
    """Send our warnings to the terminal, beside the progress; run directories keep every line.

    Where there is none each is one line, however long.
    """
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, show_time=False, markup=False)
    else:
        handler = logging.StreamHandler(console.file)
        handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    handler.setLevel(logging.WARNING)
    LOGGER.handlers = [handler]
    LOGGER.propagate = False
    LOGGER.setLevel(logging.INFO)


def _without_number(error: OSError) -> str:
    """Return the file and the words of a system's error."""
    if error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
