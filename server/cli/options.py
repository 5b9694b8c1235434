"""What our command lines share: flags from settings, exit codes, one line for every fault."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

import click
from flwr.app import ArrayRecord
from rich.console import Console
from rich.logging import RichHandler

from flower_scheduling.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    SchedulingError,
    fail,
)
from flower_scheduling.strategies.flower import LOGGER, RoundHook, RoundRecord

from ..settings.base import Settings
from ..settings.run import options_help, runnable_policies

_SAME_STOP_S: Final = 1.0

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
        return fail(error.format_message(), EXIT_USAGE)
    except SchedulingError as error:
        return fail(str(error), error.exit_code)
    except OSError as error:
        return fail(_without_number(error), EXIT_FAILED)
    except (click.Abort, KeyboardInterrupt):
        return fail("interrupted", EXIT_INTERRUPTED)
    return EXIT_DONE


def settings_options(
    settings: type[Settings], show_default: Callable[[str, object], str]
) -> Callable[[_Command], _Command]:
    """Add a flag for every setting; a flag that is left out is ``None``.

    Parameters
    ----------
    settings : type of Settings
        Where flags, types and help texts come from.
    show_default : callable
        Takes key and default of a setting; returns the default as help texts show it.
    """

    def decorate(command: _Command) -> _Command:
        for key, field in reversed(settings.settings().items()):
            kind, text = field.kind, field.help
            if key == "strategy":
                text += " One of: " + ", ".join(runnable_policies()) + ", or MODULE:CLASS."
            if key == "strategy-option":
                text += " They are: " + options_help() + "."
            if shown := show_default(key, field.default):
                text += f"  [default: {shown}]"
            flag = f"--{key}/--no-{key}" if kind is bool else f"--{key}"
            repeated: dict[str, Any] = {}
            if key.endswith("-option"):  # KEY=VALUE,KEY=VALUE, or the flag several times
                repeated = {"multiple": True, "callback": _joined}
            command = click.option(
                flag, field.name, type=kind, default=None, help=text, **repeated
            )(command)
        return command

    return decorate


def _joined(context: click.Context, parameter: click.Parameter, values: Any) -> str | None:
    return ",".join(values) or None


resume_option = click.option(
    "--resume",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Go on with the run in this folder, from its last checkpoint.",
)
"""Flag of the commands that run rounds."""


def given_settings(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that were given, by the keys of their settings."""
    return {key.replace("_", "-"): value for key, value in flags.items() if value is not None}


@contextmanager
def stoppable(*, between_rounds: bool = False) -> Iterator[RoundHook]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into KeyboardInterrupt, and let a later one kill.

    A signal that is ignored stays so: a shell's background jobs ignore SIGINT, nohup's SIGHUP.
    Signals of the same second are one: who ends a session, or a whole group, sends several.

    Parameters
    ----------
    between_rounds : bool
        Whether the round that is under way ends first, so that nothing of the next has happened.

    Yields
    ------
    RoundHook
        To be called after each round, last of all hooks, for `between_rounds`.
    """
    asked_s: float | None = None

    def stop(signum: int, frame: FrameType | None) -> None:
        nonlocal asked_s
        if asked_s is None:
            asked_s = time.monotonic()
            if not between_rounds:
                raise KeyboardInterrupt
        elif time.monotonic() - asked_s > _SAME_STOP_S:
            for each in saved:
                signal.signal(each, signal.SIG_DFL)
            signal.raise_signal(signum)

    def check(record: RoundRecord, arrays: ArrayRecord) -> None:
        if asked_s is not None:
            raise KeyboardInterrupt

    saved = {
        each: signal.getsignal(each)
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(each) is not signal.SIG_IGN
    }
    for each in saved:
        signal.signal(each, stop)
    try:
        yield check
    finally:
        for each, handler in saved.items():
            if signal.getsignal(each) is stop:
                signal.signal(each, handler)


def log_warnings_to(console: Console) -> None:
    """Send our warnings to the terminal, beside the progress; run directories keep every line."""
    handler = RichHandler(
        level=logging.WARNING, console=console, show_path=False, show_time=False, markup=False
    )
    LOGGER.handlers = [handler]
    LOGGER.propagate = False
    LOGGER.setLevel(logging.INFO)


def _without_number(error: OSError) -> str:
    """Return the file and the words of a system's error."""
    if error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
