"""Command ``replay``: other policies on the round trips that a run has recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flower_scheduling.errors import ConfigError
from flower_scheduling.help_sections import HelpfulCommand
from flower_scheduling.server.runtimes.signals import stoppable
from flower_scheduling.server.settings.run import options_help
from flower_scheduling.strategies import POLICIES

from .engine.replayer import RECORDED, Replayed, caveats, plays_again, replay, replayable
from .environments.recorded import RunRecord, read_record
from .program import strategies_option
from .terminal.name_table import name_table
from .terminal.round_bar import RoundBar
from .terminal.sentences import print_sentence

_DEFAULT: Final = ("random", "cs-ucb-q", "cs-ucb-q-adaptive")


@click.command(
    "replay", cls=HelpfulCommand, short_help="Replay other policies on the times recorded in RUN."
)
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@strategies_option(
    "One of: "
    + ", ".join(filter(replayable, POLICIES))
    + f", or MODULE:CLASS.  [default: {', '.join(_DEFAULT)}]"
)
@click.option(
    "--strategy-option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="Parameters of --strategy; several with commas between. They are: "
    f"{options_help(replayable)}.",
)
@click.option("--seeds", type=click.IntRange(min=2), default=100, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="All of it, for scripts.")
def replay_command(
    run: Path, strategies: Sequence[str], options: Sequence[str], seeds: int, as_json: bool
) -> None:
    """Replay policies on the round trips recorded in RUN: what they would have cost.

    The run's own policy is always among them, as it was set there.
    """
    if options and not strategies:
        raise click.UsageError("--strategy-option wants the --strategy that has the parameter")
    record = read_record(run)
    if not record.delivered:
        message = "must be a run in which a client delivered: nothing tells how long one takes"
        raise ConfigError("run", str(run), message)
    option, names = ",".join(options), list(strategies or _DEFAULT)
    if not option and plays_again(record):  # it is there already
        names = [name for name in names if name != record.policy]
    with stoppable(), RoundBar(Console(stderr=True), "replaying") as bar:
        found = replay(record, names, num_seeds=seeds, option=option, on_round=bar)
    if as_json:
        shown = {
            "recorded_policy": record.policy,
            "recorded_s": record.time_s,
            "replayed": [
                {
                    "policy": each.policy,
                    "time_s": asdict(each.time_s),
                    "little_known": each.little_known,
                }
                for each in found
            ],
            "caveats": caveats(record, found),
        }
        click.echo(json.dumps(shown))
        return
    console = Console()
    console.print(_table(record, found))
    for line in caveats(record, found):
        print_sentence(console, line)


def _title(record: RunRecord) -> str:
    recorded = f"recorded with {escape(record.policy)}: {record.time_s:.1f} s"
    clients = f"{record.num_selected} of {len(record.names)} clients"
    if record.has_spares:
        asked = f"{record.num_selected} of {record.num_asked} that were asked"
        of = f"of {len(record.names)} clients"
        return f"{record.num_rounds} rounds, {asked}, {of}, {recorded}; replayed: {clients}"
    if not record.buffered:
        return f"{record.num_rounds} rounds, {clients}, {recorded}"
    return (
        f"{record.num_steps} buffered steps, {clients} at work, {recorded}; "
        "replayed: rounds with as many updates"
    )


def _table(record: RunRecord, found: Sequence[Replayed]) -> Table:
    labels = [
        f"{record.policy}, again" if each.policy == RECORDED else each.policy for each in found
    ]
    table = name_table(
        "policy",
        labels,
        ("time [s]", "95 %", "against the record", "of clients hardly known"),
        title=_title(record),
    )
    for label, each in zip(labels, found, strict=True):
        time_s = each.time_s
        table.add_row(
            escape(label),
            f"{time_s.mean:.1f}",
            f"{time_s.low:.1f} to {time_s.high:.1f}",
            f"{time_s.mean / record.time_s - 1:+.0%}" if record.time_s else "",
            f"{each.little_known:.0%}",
        )
    return table
