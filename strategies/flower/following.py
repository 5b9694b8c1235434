"""What a runtime does to the runs of an app: follow them, and have them set up otherwise."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeAlias

from flwr.app import ArrayRecord

from flower_scheduling.errors import ConfigError

from .record import RoundHook, RoundRecord
from .timed_grid import TimedExchange

if TYPE_CHECKING:
    from .strategy import ScheduledStrategy


@dataclass(frozen=True, slots=True)
class RecordingOptions:
    """What an app asks for with the ``run_dir`` of its :class:`.ScheduledStrategy`.

    Attributes
    ----------
    run_dir : str
        Folder for the results; empty: none.
    resume : bool
        Whether to go on with the run in that folder, if there is one.
    tracker : str
        Where rounds are reported as well; several with commas between.
    checkpoint_every : int
        Rounds between two checkpoints; 0: never.
    """

    run_dir: str = ""
    resume: bool = False
    tracker: str = ""
    checkpoint_every: int = 1

    def require_folder(self) -> None:
        """Refuse what needs a run directory if there is none.

        Raises
        ------
        ConfigError
            If it is so.
        """
        for key, value in (("resume", self.resume), ("tracker", self.tracker)):
            if value and not self.run_dir:
                raise ConfigError(key, value, "needs run_dir")


@dataclass
class StartedRun:
    """A call of :meth:`.ScheduledStrategy.start` before its first round; a follower may change it.

    Attributes
    ----------
    strategy : ScheduledStrategy
        What was started.
    grid : TimedExchange
        The grid that it runs on.
    arrays : ArrayRecord
        The model to begin with.
    num_rounds : int
        The last round; 0 where a ``start`` of its own has no such argument.
    explain : bool or None
        Whether records explain the selection; ``None``: the app does not mind.
    hooks : list of callable
        Called after each round, before the strategy's own.
    earlier : iterable of RoundRecord
        The rounds that a resumed run has behind it.
    """

    strategy: ScheduledStrategy
    grid: TimedExchange
    arrays: ArrayRecord
    num_rounds: int
    explain: bool | None = None
    hooks: list[RoundHook] = field(default_factory=list)
    earlier: Iterable[RoundRecord] = ()


Follower: TypeAlias = Callable[[StartedRun], AbstractContextManager[Any]]
"""Follows a run from before its first round to its end, whatever ends it."""

_Parameters = ParamSpec("_Parameters")
_POLICY: Final = "policy"
_STOP: Final = "stop_when"
_overrides: list[Mapping[str, Any]] = []  # the last one counts, as of the next
_followers: list[Follower] = []  # the last one counts; of all threads: an app may start in any


@contextmanager
def followed_by(follower: Follower) -> Iterator[None]:
    """Have every run of this process that is started inside the context followed."""
    _followers.append(follower)
    try:
        yield
    finally:
        _followers.remove(follower)


def follow(run: StartedRun, options: RecordingOptions) -> AbstractContextManager[Any]:
    """Return what follows a run: the runtime's follower, else the record that the app asks for."""
    if _followers:
        return _followers[-1](run)
    options.require_folder()
    if not options.run_dir:
        return nullcontext()
    # The server's package, for the format and the life of a run directory: an app without
    # run_dir does without it.
    from flower_scheduling.server.runs.recording import record_app

    return record_app()(run)


# --- other settings ------------------------------------------------------------------------------


@contextmanager
def overriding(settings: Mapping[str, Any]) -> Iterator[None]:
    """Build each :class:`.ScheduledStrategy` inside the context with other settings.

    Parameters
    ----------
    settings : mapping
        Arguments of :class:`.ScheduledStrategy` by name; what is none of these is the policy's.
        With another ``policy`` the parameters of the app's own are dropped. A ``stop_when`` is
        asked beside the app's.
    """
    _overrides.append(settings)
    try:
        yield
    finally:
        _overrides.remove(settings)


def overridable(init: Callable[_Parameters, None]) -> Callable[_Parameters, None]:
    """Let :func:`overriding` have its way with the arguments of a strategy's ``__init__``."""
    signature = inspect.signature(init)
    own = next(each.name for each in signature.parameters.values() if each.kind is each.VAR_KEYWORD)

    @wraps(init)
    def changed(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> None:
        if not _overrides:
            init(*args, **kwargs)
            return
        call, settings = signature.bind(*args, **kwargs), dict(_overrides[-1])
        given: dict[str, Any] = call.arguments
        params = {} if _POLICY in settings else dict(given.get(own, {}))
        if _STOP in settings and given.get(_STOP) is not None:
            settings[_STOP] = _either(given[_STOP], settings[_STOP])
        for key, value in settings.items():
            if key in signature.parameters:
                given[key] = value
            else:
                params[key] = value
        given[own] = params
        init(*call.args, **call.kwargs)

    return changed


def _either(first: Callable[..., bool], second: Callable[..., bool]) -> Callable[..., bool]:
    return lambda record: first(record) or second(record)
