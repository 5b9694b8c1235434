"""Command ``demo``: the same fleet under three policies, on one screen."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from flower_scheduling.help_sections import HelpfulCommand
from flower_scheduling.server.cli.options import given_settings, log_warnings_to
from flower_scheduling.server.runs.directory import default_run_dir, ensure_empty, file_name
from flower_scheduling.startup import without_collection

from ..program import processes_option, program_name
from ..settings import SCENARIOS, SimulationConfig

# Policy and mode: at random, the paper's, and those of ours that reach an accuracy soonest where
# clients hold different data.
_RUNS: Final = (("random", "rounds"), ("cs-ucb-q", "rounds"), ("cs-ucb-q-loss", "buffered"))
_SCENARIO: Final = "non-ideal"
# More than any of them has needed: the runs end with the target.
_ROUNDS: Final = 20_000


@click.command(cls=HelpfulCommand, short_help="See on one screen what scheduling is worth.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all draws."
)
@click.option("--run-dir", help="Folder for the results; must not exist yet.")
@click.option("--data-dir", help="Folder of MNIST (default: the user's cache).")
@processes_option
def demo(seed: int, run_dir: str | None, data_dir: str | None, processes: int) -> None:
    """See on one screen what scheduling is worth, in less than a minute.

    Ten clients train on MNIST, four at a time, in the paper's non-ideal scenario: in rounds of
    clients that are selected at random, in rounds of the paper's CS-UCB-Q, and by cs-ucb-q-loss in
    buffered mode, which waits for no client. All run to the same accuracy.
    """
    given = given_settings({"seed": seed, "run_dir": run_dir, "data_dir": data_dir})
    preset = {**SCENARIOS[_SCENARIO], "scenario": _SCENARIO, "rounds": _ROUNDS}
    config = SimulationConfig.from_mapping({**preset, **given})
    folder = Path(config.run_dir or default_run_dir("demo"))
    ensure_empty(folder)
    configs = [config.changed(strategy=name, mode=mode) for name, mode in _RUNS]
    configs = [each.changed(run_dir=str(folder / file_name(each.label))) for each in configs]
    console, errors = Console(), Console(stderr=True)
    log_warnings_to(errors)
    with errors.status("loading MNIST"), without_collection():
        from flower_scheduling.client.learning.mnist import load_mnist

        load_mnist(config.data_dir or None)  # before several processes want it at once
        from ..engine.side_by_side import simulate_side_by_side
        from .race import Race
    with Race(errors, [each.label for each in configs], config.target_accuracy) as race:
        results = simulate_side_by_side(configs, processes, race)
    from .figure import draw_accuracy
    from .outcome import print_outcome

    png, svg = draw_accuracy(results, folder / "figures")
    print_outcome(results, console)
    program = program_name().split()
    for what, text in (
        ("figure", f"{png} (and {svg.suffix})"),
        ("report", shlex.join([*program, "report", str(folder)])),
        ("page", shlex.join([*program, "watch", results[-1].config.run_dir])),
    ):
        console.print(f"{what:7} {text}", highlight=False, markup=False, soft_wrap=True)
