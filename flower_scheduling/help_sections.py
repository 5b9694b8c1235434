"""Help texts of our programs: options in sections by purpose, where there are many."""

from __future__ import annotations

from typing import Final

import click

# Fewer options than this are one list.
_FEW: Final = 14
_GENERAL: Final = "General"
_UNBROKEN: Final = "\N{NON-BREAKING HYPHEN}"
# The options of each section, in the order of the help texts; all others are general.
SECTIONS: Final = {
    "App": (
        "app",
        "server-app",
        "client-app",
        "run-config",
        "node-config",
        "restart-after",
    ),
    "Scheduling": (
        "strategy",
        "strategy-option",
        "paper",
        "num-selected",
        "fairness",
        "max-share",
        "beta",
        "truncate",
    ),
    "Waiting for clients": (
        "tau-max-s",
        "num-spare",
        "late-updates",
        "mode",
        "buffer-size",
        "max-staleness",
        "staleness-discount",
        "even-weights",
    ),
    "Training": (
        "rounds",
        "target-accuracy",
        "model",
        "initial-model",
        "batch-size",
        "learning-rate",
        "local-steps",
        "local-work",
        "least-work",
        "most-work",
        "aggregation",
        "aggregation-option",
        "max-update-norm",
        "accept-unchanged",
        "eval-every",
        "client-eval-every",
        "seed",
    ),
    "Data": ("dataset", "partitioner", "data-dir", "partition-id", "num-partitions", "slots"),
    "Fleet": (
        "scenario",
        "num-clients",
        "availability",
        "failure-probability",
        "joins",
        "late",
        "min-clients",
        "wait-s",
        "max-clients",
        "deny-list",
    ),
    "Link and computing": (
        "link",
        "compute",
        "compute-factor",
        "times",
        "base-rate",
        "compute-law",
        "compute-shape",
        "samples-per-round",
        "slowdowns",
        "compress",
        "payload-bits",
        "distance-m",
        "distances-m",
        "bandwidth-hz",
        "cell-radius-m",
        "path-loss-intercept-db",
        "path-loss-slope-db",
        "tx-power-dbm",
        "noise-dbm",
    ),
    "Network": (
        "address",
        "server",
        "name",
        "tls",
        "insecure",
        "max-message-mb",
        "runtime",
    ),
    "Run directory": (
        "run-dir",
        "resume",
        "continue",
        "explain",
        "checkpoint-every",
        "checkpoint-required",
    ),
    "Watching": ("page", "metrics", "tracker"),
}
_SECTION_OF: Final = {key: title for title, keys in SECTIONS.items() for key in keys}


def section_of(option: click.Parameter) -> str:
    """Return the title of the section in which help texts list an option."""
    names = (name.lstrip("-") for name in option.opts)
    return next((_SECTION_OF[name] for name in names if name in _SECTION_OF), _GENERAL)


class HelpfulCommand(click.Command):
    """Command whose help text lists its options by purpose, if they are many."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section."""
        write_options(self, ctx, formatter)


class HelpfulGroup(click.Group):
    """Group of commands whose help texts list their options by purpose, if they are many."""

    command_class = HelpfulCommand

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section, and the commands."""
        self.format_commands(ctx, formatter)  # seldom more than a screen; the options may be many
        write_options(self, ctx, formatter)


def write_options(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """Write a command's options, section by section."""
    shown = [
        (parameter, record)
        for parameter in command.get_params(ctx)
        if (record := parameter.get_help_record(ctx)) is not None
    ]
    if len(shown) < _FEW:
        _write(formatter, "Options", [record for _, record in shown])
        return
    for title, keys in [*SECTIONS.items(), (_GENERAL, ())]:
        places = {f"--{key}": place for place, key in enumerate(keys)}
        found = [(each.opts, record) for each, record in shown if section_of(each) == title]
        found.sort(key=lambda each: places.get(each[0][0], 0))
        if found:
            _write(formatter, title, [record for _, record in found])


def _write(formatter: click.HelpFormatter, title: str, rows: list[tuple[str, str]]) -> None:
    """Write a section in which no name is broken at its hyphens."""
    begin = len(formatter.buffer)
    with formatter.section(title):
        formatter.write_dl([(names, text.replace("-", _UNBROKEN)) for names, text in rows])
    formatter.buffer[begin:] = [part.replace(_UNBROKEN, "-") for part in formatter.buffer[begin:]]
