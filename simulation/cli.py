"""Command line of the simulation."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from flower_scheduling.client.wire.frames import package_version
from flower_scheduling.extras import require_extra
from flower_scheduling.help_sections import HelpfulGroup
from flower_scheduling.server.cli.options import (
    given_settings,
    log_warnings_to,
    policies_help,
    resume_option,
    run_command,
    settings_options,
)
from flower_scheduling.server.page.process import DEFAULT_ADDRESS, page_process
from flower_scheduling.server.runs.directory import default_run_dir, ensure_empty, file_name
from flower_scheduling.server.runs.resume import resumed_settings
from flower_scheduling.server.runtimes.signals import stoppable
from flower_scheduling.server.settings.run import idle_settings
from flower_scheduling.startup import without_collection

from .engine.apps.settings import (
    AppConfig,
    AppSettings,
    app_config_of,
    is_app_run,
    names_app,
    resumed_app_config,
)
from .program import processes_option, program_name, strategies_option
from .settings import SCENARIOS, SimulationConfig
from .terminal.progress import RunProgress

# What ``compare`` runs by default, per scenario, and with ``--paper``: the paper's lists.
_COMPARED = {
    "ideal": ("random", "round-robin", "cs-ucb", "cs-ucb-adaptive"),
    "non-ideal": (
        "random",
        "round-robin",
        "modified-cs-ucb",
        "cs-ucb-q",
        "cs-ucb-q-adaptive",
        "cs-ucb-q-loss",
    ),
}
_OF_THE_PAPER = {
    "ideal": ("random", "round-robin", "local-accuracy", "cs-ucb"),
    "non-ideal": ("random", "round-robin", "local-accuracy", "modified-cs-ucb", "cs-ucb-q"),
}
_COMPARED_OF_APP = ("random", "cs-ucb-q", "cs-ucb-q-adaptive")
# Imported when they are called: a run needs none of them.
_COMMANDS = {
    "benchmark": ("benchmark.cli", "benchmark"),  # an earlier name of the league
    "demo": ("demo.cli", "demo"),
    "league": ("benchmark.cli", "benchmark"),
    "paper": ("paper.cli", "paper"),
    "paper-page": ("paper.cli", "paper_page"),
    "replay": ("replay", "replay_command"),
    "report": ("report.cli", "report_command"),
    "watch": ("watch", "watch"),
}


# Commands that may need less than the extra simulation: nothing, no training, what the app needs.
_NO_EXTRA = ("watch",)
_WITHOUT_TRAINING = ("replay", "report")
_BY_APP = ("benchmark", "compare", "league")


class _Commands(HelpfulGroup):
    """The commands of this module, and those of others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_COMMANDS} - {"benchmark"})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, name = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f".{module}", __package__), name)
        return command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return run_command(cli, arguments, program_name())


def _shown_default(key: str, default: object) -> str:
    presets = [f"{preset[key]} ({name})" for name, preset in SCENARIOS.items() if key in preset]
    return ", ".join(presets) or str(default)


def _options(without: Sequence[str] = ()) -> Callable[[Any], Any]:
    """Return a decorator that adds the settings of simulations, an app's among them."""
    of_app = settings_options(AppSettings, lambda key, default: str(default))
    others = settings_options(SimulationConfig, _shown_default, without=without)
    return lambda command: others(of_app(command))


_json = click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")


def _compared() -> str:
    listed = [f"{', '.join(names)} ({scenario})" for scenario, names in _COMPARED.items()]
    return f"  [default: {'; '.join(listed)}]"


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_version())
@_options()
@_json
@resume_option
@click.option(
    "--page",
    is_flag=False,
    flag_value=DEFAULT_ADDRESS,
    metavar="[HOST:PORT]",
    help="Show the run in the browser, and stay there at its end until Ctrl-C; "
    f"HOST:PORT may be left out: {DEFAULT_ADDRESS}.",
)
@click.pass_context
def cli(
    context: click.Context,
    /,
    as_json: bool,
    resume: Path | None,
    page: str | None,
    **flags: Any,
) -> None:
    """Schedule real Flower clients that train on real data, in one process and virtual time.

    Begin with the command demo. Without a command it is one run: CS-UCB-Q in the paper's non-ideal
    scenario, until a stated accuracy, or with --app FOLDER any other Flower app
    (docs/how-to/simulate-your-app.md).
    """
    if context.invoked_subcommand in _WITHOUT_TRAINING:
        require_extra(str(context.invoked_subcommand), "app-simulation")
    elif context.invoked_subcommand not in (None, *_NO_EXTRA, *_BY_APP):
        require_extra("the simulation", "simulation")
    if context.invoked_subcommand is not None:
        misplaced = [*given_settings(flags), *(["json"] if as_json else [])]
        misplaced += ["resume"] if resume else []
        misplaced += ["page"] if page else []
        if misplaced:
            raise click.UsageError(f"--{misplaced[0]} belongs behind {context.invoked_subcommand}")
        return
    given = given_settings(flags)
    _require_extra(names_app(given) if resume is None else is_app_run(resume))
    if resume is not None:
        config = _resume(resume, given)
        with _page(resume, page):
            _run([config], resume, as_json, resume=True)
        return
    config = _resolve(flags)
    run_dir = Path(config.run_dir or default_run_dir(config.label))
    ensure_empty(run_dir)
    _warn_of_idle(flags, [config.strategy])
    with _page(run_dir, page):
        _run([config.changed(run_dir=str(run_dir))], run_dir, as_json)


@contextmanager
def _page(run_dir: Path, address: str | None) -> Iterator[None]:
    """Serve the page of a run while it goes, and after its end until Ctrl-C."""
    if address is None:
        yield
        return
    with page_process(run_dir, address):
        yield
        with suppress(KeyboardInterrupt), stoppable():
            Console(stderr=True).print("the run has ended; its page stays until Ctrl-C")
            threading.Event().wait()


@cli.command(short_help="Run several policies on the same draws, side by side.")
@strategies_option(policies_help().strip() + _compared(), old="--strategies", commas=True)
@click.option(
    "--paper",
    is_flag=True,
    help="The paper's own comparison: without our policies, and with local-accuracy, which takes "
    "minutes, as it measures all data of its clients in each round.",
)
@_options(without=["strategy"])
@_json
@processes_option
def compare(
    strategies: list[str], paper: bool, as_json: bool, processes: int, **flags: Any
) -> None:
    """Run several policies on the same channel, compute and availability draws, side by side.

    With a target accuracy a run ends when it is reached, and the policies are compared by the time
    that they took to it.
    """
    if paper and strategies:
        raise click.UsageError("--paper names the policies by itself: leave out --strategy")
    _require_extra(names_app(given_settings(flags)))
    config = _resolve(flags)
    default = (_OF_THE_PAPER if paper else _COMPARED)[config.scenario]
    if isinstance(config, AppConfig):
        config.require_same_draws()
        default = _COMPARED_OF_APP
    names = strategies or list(default)
    base = Path(config.run_dir or default_run_dir("compare"))
    configs = [
        _resolve({**flags, "strategy": name, "run_dir": str(base / file_name(name))})
        for name in names
    ]
    _warn_of_idle(flags, names)
    _run(configs, base, as_json, processes=processes)


def _require_extra(of_app: bool) -> None:
    """Refuse to simulate without what it takes: an app brings what it learns with."""
    require_extra("the simulation", "app-simulation" if of_app else "simulation")


def _warn_of_idle(flags: dict[str, Any], policies: list[str]) -> None:
    """Print a warning for each of the given settings that has no effect."""
    for line in idle_settings(given_settings(flags), policies):
        click.echo(f"warning: {line}", err=True)


def _resume(run_dir: Path, given: dict[str, Any]) -> SimulationConfig:
    """Return the settings of a run that is to go on."""
    if is_app_run(run_dir):
        return resumed_app_config(run_dir, given)
    settings = resumed_settings(run_dir, given, SimulationConfig)
    return SimulationConfig.from_mapping(settings)


def _resolve(flags: dict[str, Any]) -> SimulationConfig:
    """Lay the flags over the scenario over the defaults."""
    given = given_settings(flags)
    if names_app(given):
        return app_config_of(given)
    preset = SCENARIOS.get(given.get("scenario", SimulationConfig().scenario), {})
    return SimulationConfig.from_mapping({**preset, **given})


def _run(
    configs: list[SimulationConfig],
    folder: Path,
    as_json: bool,
    *,
    resume: bool = False,
    processes: int = 1,
) -> None:
    """Run simulations, draw figures into the folder and print the results."""
    if not resume:
        ensure_empty(folder)
    errors = Console(stderr=True)
    log_warnings_to(errors)
    of_app = isinstance(configs[0], AppConfig)
    apart = len(configs) > 1 and (of_app or processes > 1)
    what = "the app" if of_app else "the data set and the clients"
    with errors.status(f"loading {what}"), without_collection():
        from .engine.simulations import create_simulation

        # All of them first: what is wrong is refused before anything is written. Of an app each is
        # loaded in its own process.
        simulations = [
            create_simulation(config, resume=resume) for config in configs if not (of_app and apart)
        ]
    results = []
    rounds = {each.label: None if of_app else each.rounds for each in configs}
    with RunProgress(errors, rounds) as progress:
        if apart:
            from .engine.side_by_side import simulate_side_by_side

            results = simulate_side_by_side(configs, processes, progress, apart=of_app)
        else:
            for simulation in simulations:
                with stoppable(between_rounds=not of_app) as stop:
                    hooks = [progress.hook(simulation.config.label), stop]
                    results.append(simulation.run(hooks, resume=resume))

    from .engine.apps.written_files import overwritten
    from .terminal.tables import print_tables

    if told := overwritten([result.written for result in results]):
        click.echo(f"warning: {told}", err=True)
    figures: list[Path] = []
    faults: list[Exception] = [each.error for each in results if each.error is not None]
    if any(len(result.records) > 1 for result in results):  # a curve needs two rounds
        from .run_figures import draw_figures

        try:
            figures = draw_figures(results, folder / "figures")
        except OSError as error:  # a full disk: the results are shown all the same
            faults.append(error)
    if as_json:
        summaries = [
            {**({"run_dir": r.config.run_dir} if r.scheduled else {}), **r.summary} for r in results
        ]
        single = configs[0].run_dir == str(folder)
        print(json.dumps(summaries[0] if single else summaries))
    elif not results[0].scheduled:  # nothing is recorded
        numbers = results[0].summary
        rounds, time_s = numbers["rounds"], numbers["time_s"]
        click.echo(f"by the app's own sampling: {rounds} rounds of training, {time_s:.1f} s in all")
    else:
        print_tables(results, figures, Console())
        if isinstance(config := configs[0], AppConfig):
            click.echo(f"times    {config.times_text()}")
    if faults:
        raise faults[0]
