"""Every error that this project raises on purpose: its text is one line for the user.

::

    SchedulingError
     ├── ConfigError (ValueError)              a setting is wrong or does not fit another
     │    ├── InfeasibleFloorsError            no policy meets the floors; in simulation.theory
     │    └── UnknownPolicyError (KeyError)    no policy of that name
     ├── ClientConfigError (ValueError)        a client was set up wrongly
     ├── RoundOrderError                       a round was asked or told out of order
     ├── TooFewClientsError                    a strategy waits for more clients than it can get
     ├── ArrayError (ValueError)               an array of the wrong shape or content
     ├── WireError (ValueError)                a frame is not what the protocol says
     ├── InvalidReplyError                     a reply must not enter the model
     ├── ConnectionRefused                     the server does not take this client
     │    └── VersionMismatch                  it speaks another protocol
     ├── CertificateTimeError (ConnectionError)   a certificate is not valid at this time
     ├── DataUnavailableError (RuntimeError)   a data set cannot be had
     ├── TrainingDivergedError (ArithmeticError)  the local loss is no longer finite
     ├── MissingExtraError (ImportError)       an optional part is not installed
     ├── TrackerError (RuntimeError)           a tracker cannot be used
     ├── ServerAppError (ChildProcessError)    the ServerApp of a fleet failed
     │    └── NoStepError                      no round has changed the model
     ├── NotSavedError                         a run is over and its results could not be written
     ├── WorkerError (ChildProcessError)       a process that computes was killed
     └── SuperLinkError (ChildProcessError)    Flower's runtime or the app on it failed
"""

from __future__ import annotations

import difflib
import reprlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
"""The run failed."""
EXIT_USAGE: Final = 2
"""The program was called or configured wrongly."""

_REPR: Final = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 100
_LONGEST_LINE: Final = 1500
_SHOWN_FAILURES: Final = 3


class SchedulingError(Exception):
    """Base of every error of this project.

    Attributes
    ----------
    exit_code : int
        What a program ends with that this error ends.
    """

    exit_code: ClassVar[int] = EXIT_USAGE


class ConfigError(SchedulingError, ValueError):
    """A setting is out of range or does not fit another.

    Parameters
    ----------
    key : str
        Name of the setting as the user writes it.
    value : object
        What was given.
    message : str
        What is wrong or would be right, e.g. ``"must be a number in [0, 1]"``.
    hint : str
        What may help, e.g. ``"did you mean cs-ucb?"``.
    """

    def __init__(self, key: str, value: object, message: str, hint: str = "") -> None:
        text = f"{key} = {_REPR.repr(value)}: {message}" + (f" ({hint})" if hint else "")
        super().__init__(one_line(text))  # arrays print on several lines; keys come from files too
        self.key = key
        self.value = value
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[type[ConfigError], tuple[object, ...]]:
        # Without it an error raised in a worker process could not be sent back.
        return type(self), (self.key, self.value, self.message, self.hint)


class ClientConfigError(SchedulingError, ValueError):
    """A client was set up wrongly."""


class UnknownPolicyError(ConfigError, KeyError):
    """No policy of that name is registered."""

    __str__ = Exception.__str__  # KeyError would print the text in quotes


class RoundOrderError(SchedulingError):
    """A round was asked or told out of order, or told twice."""


class TooFewClientsError(SchedulingError):
    """A wrapped strategy waits for more clients than were selected for it."""


class ArrayError(SchedulingError, ValueError):
    """An array handed to a policy has the wrong shape, type or content."""


class WireError(SchedulingError, ValueError):
    """A frame is not what the protocol says."""


class InvalidReplyError(SchedulingError):
    """A reply must not enter the model; the text is ``kind: details``.

    Parameters
    ----------
    kind : str
        What failures are counted and logged by: one of a fixed list, never text of a client, which
        could make up ever new kinds.
    details : str
        What is wrong in this reply.
    """

    def __init__(self, kind: str, details: str) -> None:
        super().__init__(one_line(f"{kind}: {details}"))


class ConnectionRefused(SchedulingError):
    """The server does not take this client.

    Attributes
    ----------
    code : str
        One of :class:`.Refusal`.
    """

    exit_code: ClassVar[int] = EXIT_FAILED

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class VersionMismatch(ConnectionRefused):
    """Server and client speak different versions of the protocol."""


class CertificateTimeError(SchedulingError, ConnectionError):
    """A certificate is not valid at this time; unlike a wrong setting that may pass by itself.

    A device without a clock of its own believes to be in the past until it hears of the time.
    """

    exit_code: ClassVar[int] = EXIT_FAILED


class DataUnavailableError(SchedulingError, RuntimeError):
    """A data set is neither in its folder nor to be had; the text says what to do."""

    exit_code: ClassVar[int] = EXIT_FAILED


class TrainingDivergedError(SchedulingError, ArithmeticError):
    """The local loss is no longer a finite number."""

    exit_code: ClassVar[int] = EXIT_FAILED


class MissingExtraError(SchedulingError, ImportError):
    """An optional part of the installation is needed and missing."""


class TrackerError(SchedulingError, RuntimeError):
    """A tracker cannot be used, and trying again is of no use."""

    exit_code: ClassVar[int] = EXIT_FAILED


class ServerAppError(SchedulingError, ChildProcessError):
    """The ServerApp of a fleet failed."""

    exit_code: ClassVar[int] = EXIT_FAILED


class NoStepError(ServerAppError):
    """Rounds were run, and none changed the model.

    Parameters
    ----------
    why : str
        Why the last round made no step.
    failures : sequence of (str, str or None)
        The clients of the last round, and why each did not deliver.
    advice : str
        What would help, if it is known.
    unit : str
        What the rounds are called: steps in buffered mode.

    Attributes
    ----------
    result : flwr.serverapp.strategy.Result or None
        What the run would have returned.
    """

    result: Any = None

    def __init__(
        self,
        why: str,
        failures: Sequence[tuple[str, str | None]] = (),
        advice: str = "",
        unit: str = "round",
    ) -> None:
        self.why, self.failures, self.advice, self.unit = why, list(failures), advice, unit
        listed = [f"{name} {reason}" for name, reason in failures if reason][:_SHOWN_FAILURES]
        details = f" ({'; '.join(listed)})" if listed else ""
        advice = f": {advice}" if advice else ""
        text = f"no {unit} has changed the model, the last: {why}{details}{advice}"
        super().__init__(one_line(text))

    def __reduce__(self) -> tuple[type[NoStepError], tuple[object, ...]]:
        return type(self), (self.why, self.failures, self.advice, self.unit)


class NotSavedError(SchedulingError):
    """Runs are over, and there was no room for all of their results.

    Parameters
    ----------
    lost : sequence of str
        What could not be written, each with file and reason.
    summaries : mapping
        These runs in numbers, by their folders.
    """

    exit_code: ClassVar[int] = EXIT_FAILED

    def __init__(self, lost: Sequence[str], summaries: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(one_line(f"could not be saved: {', '.join(lost)}"))
        self.lost, self.summaries = list(lost), dict(summaries)

    def __reduce__(self) -> tuple[type[NotSavedError], tuple[object, ...]]:
        return type(self), (self.lost, self.summaries)


class WorkerError(SchedulingError, ChildProcessError):
    """A process that computes was killed."""

    exit_code: ClassVar[int] = EXIT_FAILED

    def __init__(self) -> None:
        super().__init__(
            "a process that computes was killed, perhaps for lack of memory: "
            "fewer --processes need less"
        )


class ClusterError(SchedulingError, ConnectionError):
    """A cluster cannot be reached, or cannot do the work."""

    exit_code: ClassVar[int] = EXIT_FAILED


class SuperLinkError(SchedulingError, ChildProcessError):
    """Flower's runtime or the app on it failed."""

    exit_code: ClassVar[int] = EXIT_FAILED


def one_line(text: str) -> str:
    """Return a text from anywhere as one printable line; a very long one loses its middle."""
    line = " ".join(text.split())
    if not line.isprintable():
        line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    half = _LONGEST_LINE // 2
    return line if len(line) <= _LONGEST_LINE else f"{line[:half]} ... {line[-half:]}"


def fail(text: str, code: int) -> int:
    """Print an error as one line on standard error; return the exit code, to be passed on."""
    print("error: " + one_line(text), file=sys.stderr)
    return code


def nearest(word: object, known: Iterable[str]) -> str:
    """Return ``"did you mean x?"`` with the nearest of the known words, or nothing: a hint.

    Upper and lower case are alike.
    """
    folded = {each.casefold(): each for each in known}
    close = difflib.get_close_matches(str(word).casefold(), list(folded), n=1)
    return f"did you mean {folded[close[0]]}?" if close else ""


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return :func:`nearest` in brackets, to be put behind a sentence."""
    hint = nearest(word, known)
    return f" ({hint})" if hint else ""
