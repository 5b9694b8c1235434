"""The record of a run: its directory, checkpoints and trackers, whatever app has started it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from flower_scheduling.errors import ConfigError, NotSavedError
from flower_scheduling.strategies.flower import LOGGER, StartedRun

from ..callbacks import RoundCallback, Run, following
from ..monitoring.trackers import Trackers
from ..monitoring.trackers.catalog import require_trackers, tracker_names
from ..settings.fleet import APP_CONFIG, APP_FOLDER, OF_ANY_APP
from ..settings.run import ServerConfig
from .directory import RunDirectory, load_model, start_folder
from .model_files import describe_model
from .recorder import RunRecorder
from .resume import Checkpointer, load_checkpoint, read_settings, restore
from .totals import RunTotals

_FINISHED: Final[Counter[Path]] = Counter()  # runs of this process, by the folder that was asked


@dataclass
class RunPlan:
    """The plan of a run: what is recorded, and where.

    Attributes
    ----------
    settings : dict
        All settings, for ``config.toml``.
    essential : dict
        Those that a resumed run must have too, up to those that may differ.
    folder : Path or None
        The run directory.
    base : Path or None
        The folder that was asked for, if it is to be told which run of this process is the second.
    resume : bool
        Whether to go on with the run in it.
    tracker : str
        Where rounds are reported as well.
    checkpoint_every : int
        Rounds between two checkpoints; 0: never.
    disk_required : bool
        Whether a fault of the disk ends the run.
    target_accuracy : float
        Accuracy at which the run ends; 0: there is none.
    initial_model : str
        File of the model to begin with.
    """

    settings: dict[str, Any]
    essential: dict[str, Any]
    folder: Path | None = None
    base: Path | None = None
    resume: bool = False
    tracker: str = ""
    checkpoint_every: int = 0
    disk_required: bool = True
    target_accuracy: float = 0.0
    initial_model: str = ""


@dataclass
class Recording:
    """A follower of runs (:data:`.Follower`) that records each, and has callbacks follow it.

    Parameters
    ----------
    plan : callable
        Returns the plan of a run that was started.
    callbacks : callable
        Returns what follows a run, made anew for each.

    Attributes
    ----------
    num_started, num_finished : int
        Runs so far, and those of them that have come to their end.
    """

    plan: Callable[[StartedRun], RunPlan]
    callbacks: Callable[[], Sequence[RoundCallback]] = tuple
    num_started: int = field(default=0, init=False)
    num_finished: int = field(default=0, init=False)
    _unsaved: list[Run] = field(default_factory=list, init=False)

    @contextmanager
    def __call__(self, started: StartedRun) -> Iterator[None]:
        """Record a run: from its last checkpoint or its initial model to its end.

        Raises
        ------
        ConfigError
            If the run directory is in use, or the run in it does not fit.
        OSError
            If it cannot be written.
        NotSavedError
            If the run was stopped, and its results cannot be written.
        """
        self.num_started += 1
        plan = self.plan(started)
        run = Run(
            plan.essential,
            started.strategy,
            started.grid,
            started.arrays,
            RunTotals(target_accuracy=plan.target_accuracy),
            num_rounds=started.num_rounds,
            checkpoint_every=plan.checkpoint_every if plan.folder else 0,
            initial=describe_model(started.arrays),
        )
        saved = None
        if plan.resume and plan.folder is not None:
            saved = load_checkpoint(plan.folder, plan.essential, started.num_rounds)
        if saved is not None and saved.round:
            assert plan.folder is not None
            restore(saved, plan.folder, run)
        elif plan.initial_model:
            run.arrays = load_model(Path(plan.initial_model), like=run.arrays)
        with (
            self._noting_unsaved(run),
            _open_directory(plan, run) as run.directory,
            following(run, [*self.callbacks(), *_own_callbacks(plan, run)]) as hooks,
        ):
            started.arrays = run.arrays
            # A run that was killed when it had reached its end has but to write its results.
            started.num_rounds = run.done if run.totals.target_reached else started.num_rounds
            started.hooks += hooks
            started.earlier = run.earlier_rounds()
            yield
        self.num_finished += 1
        if plan.base is not None:
            _FINISHED[plan.base] += 1

    def require_saved(self) -> None:
        """Refuse to end as if all were well where results of runs could not be written.

        It is asked when the app is done, which may keep its results by itself.

        Raises
        ------
        NotSavedError
            If it is so.
        """
        if self._unsaved:
            lost = [what for run in self._unsaved for what in run.unsaved]
            folders = {str(run.directory.path): run for run in self._unsaved if run.directory}
            raise NotSavedError(lost, {path: run.summary() for path, run in folders.items()})

    @contextmanager
    def _noting_unsaved(self, run: Run) -> Iterator[None]:
        """Keep in mind what of a run could not be saved; beside another fault it is a line."""
        fault: BaseException | None = None
        try:
            yield
        except BaseException as error:
            fault = error
            raise
        finally:
            if run.unsaved:
                self._unsaved.append(run)
                if isinstance(fault, KeyboardInterrupt):
                    self.require_saved()
                elif isinstance(fault, Exception):
                    LOGGER.error("could not be saved: %s", ", ".join(run.unsaved))


@contextmanager
def _open_directory(plan: RunPlan, run: Run) -> Iterator[RunDirectory | None]:
    """Open the run directory, if there is to be one."""
    if (path := plan.folder) is None:
        yield None
        return
    required = plan.disk_required
    with (
        RunDirectory.reopen(path, plan.settings, run.done, disk_required=required)
        if plan.resume
        else RunDirectory(path, plan.settings, disk_required=required)
    ) as directory:
        if plan.resume:
            unit = "step" if run.strategy.buffered else "round"
            LOGGER.info("goes on after %s %d", unit, run.done)
        # On a SuperLink the ServerApp runs where the SuperLink was started.
        LOGGER.info("results go to %s", path.resolve())
        yield directory


def _own_callbacks(plan: RunPlan, run: Run) -> Iterator[RoundCallback]:
    """Return the callbacks that a plan asks for, the innermost last."""
    if run.directory is not None:
        if plan.tracker:
            yield Trackers(tracker_names(plan.tracker))
        if run.checkpoint_every:
            yield Checkpointer()
    yield RunRecorder()


# --- our own app ----------------------------------------------------------------------------------


def record_own(
    config: ServerConfig, callbacks: Callable[[], Sequence[RoundCallback]], *, resume: bool
) -> Recording:
    """Return the follower of our own app's run.

    Parameters
    ----------
    config : ServerConfig
        Settings, possibly of a subclass: all of them go to ``config.toml``.
    callbacks : callable
        Returns what follows the run.
    resume : bool
        Whether to go on with the run in its ``run-dir``.
    """
    plan = RunPlan(
        config.to_mapping(),
        config.server_config().to_mapping(),
        Path(config.run_dir) if config.run_dir else None,
        resume=resume and bool(config.run_dir),
        tracker=config.tracker,
        checkpoint_every=config.checkpoint_every,
        disk_required=config.checkpoint_required,
        target_accuracy=config.target_accuracy,
        initial_model=config.initial_model,
    )

    return Recording(lambda started: plan, callbacks)


# --- another app ----------------------------------------------------------------------------------


def record_app(
    config: ServerConfig | None = None,
    run_config: Mapping[str, Any] | None = None,
    callbacks: Callable[[], Sequence[RoundCallback]] = tuple,
    *,
    resume: bool = False,
    concerned: Collection[str] = OF_ANY_APP,
) -> Recording:
    """Return the follower of the runs of another app.

    A second run of the same app has a folder of its own, ``start-2`` in that of the first.

    Parameters
    ----------
    config : ServerConfig, optional
        Settings of the program that runs the app; without them what the app has asked for with
        ``run_dir`` counts.
    run_config : mapping, optional
        Run configuration of the app, where it is known.
    callbacks : callable
        Returns what follows a run.
    resume : bool
        Whether to go on with the run in that program's ``run-dir``.
    concerned : collection of str
        Keys of those of its settings that concern the app, for ``config.toml``.
    """
    home = Path.cwd()  # an app may go elsewhere

    def plan_run(started: StartedRun) -> RunPlan:
        asked = started.strategy.recording
        if config is None:
            own, wanted, base = ServerConfig(), asked.resume, Path(asked.run_dir).absolute()
            number = _FINISHED[base] + 1
        else:
            own, wanted, base = config, resume, Path(config.run_dir)
            number = recording.num_started
            if asked.run_dir:
                text = "run_dir = %r of the app has no effect: --run-dir is %s"
                LOGGER.warning(text, asked.run_dir, base)
        folder = start_folder(base, number)
        place = home / folder
        going_on = wanted and (place / "config.toml").exists()
        tracker = own.tracker or asked.tracker
        require_trackers(tracker, str(folder))
        every = own.checkpoint_every
        if every == ServerConfig().checkpoint_every:
            every = asked.checkpoint_every
        try:
            started.strategy.require_savable()
        except ConfigError as error:
            if every:
                LOGGER.warning("no checkpoints, this run cannot be resumed: %s", error)
            every = 0
        if started.explain is None:
            started.explain = own.explain
        essential = {
            **started.strategy.asked_settings,
            "rounds": started.num_rounds,
            "run-dir": str(folder),
            "explain": started.explain,
            "tracker": tracker,
            "checkpoint-every": every,
            "checkpoint-required": own.checkpoint_required,
        }
        given = {} if config is None else config.to_mapping()
        settings: dict[str, Any] = {key: given[key] for key in given if key in concerned}
        settings |= essential
        if config is not None:
            settings[APP_FOLDER] = str(home)
        if run_config:
            settings[APP_CONFIG] = dict(run_config)
            if going_on:
                _log_changes(read_settings(place).get(APP_CONFIG, {}), run_config)
        return RunPlan(
            settings,
            essential,
            place,
            base if config is None else None,
            resume=going_on,
            tracker=tracker,
            checkpoint_every=every,
            disk_required=own.checkpoint_required,
            target_accuracy=own.target_accuracy,
        )

    recording = Recording(plan_run, callbacks)
    return recording


def _log_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Log where the run configuration of a resumed run is another."""
    changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    if changed:
        listed = ", ".join(f"{key} = {now.get(key)!r}, not {before.get(key)!r}" for key in changed)
        LOGGER.warning("the run goes on with another run configuration: %s", listed)
