"""Command line of the simulation: ``python -m simulation``."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.logging import RichHandler

from client.errors import ClientConfigError, MnistUnavailableError
from server.run_directory import refuse_existing
from strategies import POLICIES, SchedulingError
from strategies.flower import LOGGER

from .config import SCENARIOS, SimulationConfig
from .progress import RunProgress

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_COMPARED = {
    "ideal": "cs-ucb,random,round-robin,local-accuracy",
    "non-ideal": "cs-ucb-q,modified-cs-ucb,random,round-robin,local-accuracy",
}
"""What ``compare`` runs by default, per scenario: the paper's lists."""


def _runnable() -> list[str]:
    """Return the policies that need nothing but what a run can give them."""
    common = {"num_arms", "num_selected", "tau_max_s", "rng"}
    return [
        name
        for name, spec in POLICIES.items()
        if all(key in common for key, required in spec.parameters().items() if required)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code: 0 done, 1 failed, 2 wrong usage."""
    try:
        cli.main(args=arguments, prog_name="python -m simulation", standalone_mode=False)
    except click.ClickException as error:
        return _fail(error.format_message(), EXIT_USAGE)
    except SchedulingError as error:
        return _fail(str(error), EXIT_USAGE)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", EXIT_INTERRUPTED)
    except ClientConfigError as error:
        return _fail(str(error), EXIT_USAGE)
    except (MnistUnavailableError, OSError) as error:
        return _fail(str(error), EXIT_FAILED)
    return 0


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add a flag for every setting; defaults stay with the settings and the scenario."""
    for key, field in reversed(SimulationConfig.settings().items()):
        kind = SimulationConfig.type_of(field)
        text = field.metadata["help"]
        if key == "strategy":
            text += " One of: " + ", ".join(_runnable()) + "."
        flag = f"--{key}/--no-{key}" if kind is bool else f"--{key}"
        shown = _shown_default(key, field.default)
        command = click.option(flag, field.name, type=kind, default=None, help=text + shown)(
            command
        )
    return click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")(
        command
    )


def _shown_default(key: str, default: object) -> str:
    """Return a default as help texts show it; scenarios may set their own."""
    presets = [f"{preset[key]} ({name})" for name, preset in SCENARIOS.items() if key in preset]
    if presets:
        return f"  [default: {', '.join(presets)}]"
    return f"  [default: {default}]" if default != "" else ""


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@_options
@click.pass_context
def cli(context: click.Context, /, as_json: bool, **given: Any) -> None:
    """Schedule real Flower clients that train on MNIST, in one process and virtual time.

    Without arguments: CS-UCB-Q in the paper's non-ideal scenario, until a stated accuracy.
    """
    if context.invoked_subcommand is not None:
        used = [
            key for key, value in {**given, "json": as_json or None}.items() if value is not None
        ]
        if used:
            flag = "--" + used[0].replace("_", "-")
            raise click.UsageError(f"{flag} belongs behind {context.invoked_subcommand}")
        return
    config = _resolve(given)
    run_dir = Path(config.run_dir or _default_run_dir(config.strategy))
    _run([config.strategy], config, [run_dir], as_json)


@cli.command()
@click.option("--strategies", help="Policies to compare, separated by commas.")
@_options
def compare(strategies: str | None, as_json: bool, **given: Any) -> None:
    """Run several policies on the same channel, compute and availability draws."""
    if given["strategy"] is not None:
        raise click.UsageError("compare takes --strategies A,B,... instead of --strategy")
    config = _resolve(given)
    names = [
        name.strip()
        for name in (strategies or _COMPARED[config.scenario]).split(",")
        if name.strip()
    ]
    if not names:
        raise click.UsageError("--strategies must name at least one policy")
    if len(set(names)) != len(names):
        raise click.UsageError("--strategies names a policy twice")
    base = Path(config.run_dir or _default_run_dir("compare"))
    _run(names, config, [base / name for name in names], as_json, base=base)


def _resolve(given: dict[str, Any]) -> SimulationConfig:
    """Lay the flags over the scenario over the defaults."""
    flags = {key.replace("_", "-"): value for key, value in given.items() if value is not None}
    scenario = flags.get("scenario", SimulationConfig.scenario)
    preset = SCENARIOS.get(scenario, {})
    return SimulationConfig.from_mapping({**preset, **flags})


def _default_run_dir(what: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = Path("runs") / f"{stamp}-{what}"
    number = 2
    while path.exists():
        path = path.with_name(f"{stamp}-{what}-{number}")
        number += 1
    return path


def _run(
    strategies: list[str],
    config: SimulationConfig,
    run_dirs: list[Path],
    as_json: bool,
    base: Path | None = None,
) -> None:
    refuse_existing(base or run_dirs[0])
    configs = [
        replace(config, strategy=name, run_dir=str(path))
        for name, path in zip(strategies, run_dirs, strict=True)
    ]
    from .runner import Simulation  # takes seconds: torch

    errors = Console(stderr=True)
    _log_to(errors)
    with errors.status("loading MNIST and the clients"):
        simulations = [Simulation(each) for each in configs]
    results = []
    for simulation in simulations:
        with RunProgress(errors, simulation.config.strategy, simulation.config.rounds) as progress:
            results.append(simulation.run([progress.update]))

    from .figures import draw_figures
    from .tables import print_tables

    figures = draw_figures(results, (base or run_dirs[0]) / "figures")
    if as_json:
        summaries = [{"run_dir": r.config.run_dir, **r.summary} for r in results]
        print(json.dumps(summaries[0] if base is None else summaries))
    else:
        print_tables(results, figures, Console())


def _log_to(console: Console) -> None:
    """Send warnings to the terminal, beside the progress; the run directory keeps all lines."""
    handler = RichHandler(
        level=logging.WARNING, console=console, show_path=False, show_time=False, markup=False
    )
    LOGGER.handlers = [handler]
    LOGGER.propagate = False
    LOGGER.setLevel(logging.INFO)


def _fail(text: str, code: int) -> int:
    print("error: " + " ".join(text.split()), file=sys.stderr)
    return code
