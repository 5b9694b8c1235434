"""Command ``league``, also ``benchmark``: all policies over the suite of scenarios."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from flower_scheduling.errors import ConfigError, DataUnavailableError
from flower_scheduling.extras import require_extra
from flower_scheduling.help_sections import HelpfulCommand
from flower_scheduling.server.cli.options import given_settings, settings_options
from flower_scheduling.server.settings.run import ServerConfig
from flower_scheduling.strategies.registry import find_policy, must_be_one_of

from ..cluster import Cluster
from ..engine.apps.settings import AppConfig
from ..program import cluster_option, processes_option, strategies_option
from ..terminal.job_progress import fetch_data, run_shown
from . import app_track, training_track
from . import results as report
from .scenario import Scenario, suite
from .tasks import eligible_policies, jobs_of, results_of

_QUICK_SEEDS: Final = 10
_app_options = settings_options(
    AppConfig,
    lambda key, default: str(default),
    without=AppConfig.settings().keys() - app_track.SETTINGS,
)


@click.command(
    "league", cls=HelpfulCommand, short_help="Benchmark policies against a clairvoyant oracle."
)
@click.option(
    "--scenario",
    "names",
    multiple=True,
    metavar="NAME",
    help="One of the suite, or a TOML file; may be given several times. Default: all.",
)
@strategies_option(
    "Default: all that can do with times alone, or with --training the leading ones and those to "
    "beat.",
    old="--policy",
)
@click.option("--training", is_flag=True, help="Seconds to an accuracy instead.")
@click.option(
    "--task",
    "tasks",
    multiple=True,
    type=click.Choice(list(training_track.TASKS)),
    help="With --training: this one; may be given several times. Default: all.",
)
@click.option(
    "--mode",
    type=click.Choice(["rounds", "buffered"]),
    help="With --training: of one mode alone. Default: both. With --app: in place of the app's.",
)
@click.option("--quick", is_flag=True, help=f"{_QUICK_SEEDS} seeds: wide intervals.")
@click.option("--seeds", type=click.IntRange(min=2), help="Instead of the scenarios' own numbers.")
@click.option(
    "--first-seed",
    type=click.IntRange(min=0),
    help="With --training or --app: seeds from this one on. Default: 0.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder (default: runs/league).")
@_app_options
@processes_option
@cluster_option
def benchmark(
    names: Sequence[str],
    strategies: Sequence[str],
    training: bool,
    tasks: Sequence[str],
    mode: str | None,
    quick: bool,
    seeds: int | None,
    first_seed: int | None,
    out: Path | None,
    processes: int,
    cluster: Cluster | None,
    **flags: Any,
) -> None:
    """Benchmark scheduling policies against a clairvoyant oracle, scenario by scenario.

    With --app FOLDER it is another Flower app that is run, once for each policy and seed, and what
    counts are the seconds to --target-accuracy.

    What was computed is kept: an interrupted run goes on, and another policy computes only itself.
    """
    out = out or Path("runs") / ("league-quick" if quick else "league")
    of_app = given_settings(flags)
    require_extra("the simulation", "app-simulation" if of_app else "simulation")
    if of_app:
        if "app" not in of_app:
            raise click.UsageError(f"--{next(iter(of_app))} is for --app FOLDER, the app to run")
        for flag, unfit in (
            ("--scenario", names),
            ("--training", training),
            ("--task", tasks),
            ("--cluster", cluster),  # whose workers need not have the app
        ):
            if unfit:
                raise click.UsageError(f"{flag} is not for --app: leave it out")
        first = first_seed or 0
        chosen_seeds = range(first, first + (seeds or _QUICK_SEEDS))
        _run_app(app_track.settings_of(of_app, mode), strategies, chosen_seeds, out, processes)
        return
    if training:
        if names:
            raise click.UsageError("--training has data of its own: leave out --scenario")
        first = first_seed or 0
        chosen_seeds = range(first, first + (seeds or _QUICK_SEEDS))
        _train(tasks, strategies, mode, chosen_seeds, out, processes, cluster)
        return
    for flag, unfit in (
        ("--mode", mode is not None),
        ("--task", bool(tasks)),
        ("--first-seed", first_seed is not None),
    ):
        if unfit:
            needed = "--training" if flag == "--task" else "--training or --app"
            raise click.UsageError(
                f"{flag} needs {needed}: what is compared here is time in rounds"
            )
    scenarios = [Scenario.load(name) for name in dict.fromkeys(names or suite())]
    stems = [each.name for each in scenarios]
    if twice := sorted({stem for stem in stems if stems.count(stem) > 1}):
        raise click.UsageError(f"two scenarios are called {twice[0]}: rename a file")
    if seeds or quick:
        few = seeds or _QUICK_SEEDS
        scenarios = [
            each.changed(seeds=few if seeds else min(few, each.seeds)) for each in scenarios
        ]
    chosen = {each.name: _chosen(each, strategies, asked=bool(names)) for each in scenarios}
    scenarios = [each for each in scenarios if chosen[each.name]]
    jobs = [job for each in scenarios for job in jobs_of(each, chosen[each.name])]
    found = results_of(scenarios, chosen, run_shown(jobs, out, processes, cluster))
    console = Console()
    console.print(report.table(found))
    for path in report.write(found, out):
        console.print(f"written  {path}", highlight=False, markup=False, soft_wrap=True)


def _run_app(
    settings: Mapping[str, Any],
    policies: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    processes: int,
) -> None:
    policies = policies or app_track.POLICIES
    jobs = app_track.jobs_of(settings, policies, seeds)
    results = run_shown(jobs, out, processes, apart=True)
    found = app_track.rows(settings, policies, seeds, results)
    _show(found, out / "app.json")


def _show(found: list[dict[str, Any]], path: Path) -> None:
    """Print a table of seconds to an accuracy, and write it."""
    console = Console()
    console.print(training_track.table(found))
    path.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    console.print(f"written  {path}", highlight=False, markup=False, soft_wrap=True)


def _train(
    tasks: Sequence[str],
    policies: Sequence[str],
    mode: str | None,
    seeds: Sequence[int],
    out: Path,
    processes: int,
    cluster: Cluster | None,
) -> None:
    for name in policies:
        ServerConfig(strategy=name)  # refuses what a run refuses
    wanted = training_track.contestants_of(policies, mode)
    chosen = tasks or tasks_with_data()
    for dataset in {training_track.TASKS[task].dataset for task in chosen}:
        fetch_data(dataset)
    jobs = training_track.jobs_of(chosen, wanted, seeds)
    results = run_shown(jobs, out, processes, cluster)
    _show(training_track.rows(chosen, wanted, seeds, results), out / "training.json")


def tasks_with_data() -> list[str]:
    """Return the tasks whose data can be had, and say of each other one why it is left out."""
    found = []
    for name, task in training_track.TASKS.items():
        try:
            fetch_data(task.dataset)
        except DataUnavailableError as error:
            if task.dataset == "mnist":
                raise
            click.echo(f"task {name} is left out: {error}", err=True)
        else:
            found.append(name)
    return found


def _chosen(scenario: Scenario, wanted: Sequence[str], *, asked: bool) -> list[str]:
    """Return the policies to run in a scenario, in the order of the registry.

    Floors leave out policies that do not take them. Where none is left the scenario is refused if
    it was asked for by name; else, as one of the whole suite, it has nothing to run.
    """
    own = [name for name in wanted if ":" in name]
    for name in own:
        ServerConfig(strategy=name)  # refuses what a run refuses
    eligible = eligible_policies(scenario, own)
    known = eligible_policies(scenario.changed(floors=[]), own)
    for name in wanted:
        find_policy(name, "strategy", eligible)
        if name not in known:
            raise ConfigError("strategy", name, must_be_one_of(eligible))
    found = [name for name in eligible if not wanted or name in wanted]
    if not found and asked:
        raise click.UsageError(
            f"--strategy {wanted[0]!r} takes no floors, as scenario {scenario.name} has them: "
            f"must be one of {', '.join(eligible)}"
        )
    return found
