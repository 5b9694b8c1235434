"""HTML report of a run: savings estimate, numbers, figures, clients, settings."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from flower_scheduling.server.settings.base import Settings
from flower_scheduling.server.settings.fleet import OF_ANY_APP, WRAPPED, FleetConfig

from ..engine.apps.settings import AppConfig, app_keys
from ..environments.recorded import FEW, RecordedRun
from ..html import installed_versions, listed_versions, render
from ..program import program_name
from ..settings import SCENARIOS, SimulationConfig
from ..wording import percent, plain, seconds
from .charts import draw_all
from .run_statistics import ClientStatistics, RunStatistics
from .savings import SavingsEstimate

# Tells our reports from other files.
MARK: Final = '<meta name="generator" content="flower-client-scheduling report">'
_ALL_ROWS: Final = 200
_SLOWEST_ROWS: Final = 100
_MOST_KINDS: Final = 6
_MOST_METRICS: Final = 12


@dataclass(frozen=True)
class _Row:
    """Row of the table of clients, as it is shown."""

    name: str
    cells: Sequence[str]
    missed: bool


def report_page(
    run: RecordedRun,
    savings: SavingsEstimate,
    stats: RunStatistics,
    to_target: str | None,
    *,
    command: str,
) -> str:
    """Return the report of a run, one file that needs no network.

    Parameters
    ----------
    run : RecordedRun
        The run.
    savings : SavingsEstimate
        What scheduling saved.
    stats : RunStatistics
        The run in numbers.
    to_target : str or None
        What it saved by the time to an accuracy, in a sentence, if there is a run at random beside
        it.
    command : str
        The command that makes this report.
    """
    target = stats.summary["target_accuracy"]
    rows = _chosen(stats.clients)
    return render(
        "report/report.html.j2",
        title=f"What scheduling saved: {plain(run.path.resolve().name)}",
        mark=MARK,
        savings=savings,
        to_target=to_target,
        tied=tied,
        state=_state(run, stats),
        buffered=stats.buffered,
        unit=stats.unit,
        share_of=stats.share_of,
        lag=f"{stats.clients[0].lag} updates" if stats.buffered else "six rounds",
        numbers=_numbers(run, stats),
        figures=draw_all(stats, tau_max_s=_deadline_s(run, stats), target=target),
        headings=[each.format(unit=stats.unit) for each in _headings(stats)],
        rows=[_row(client, stats) for client in rows],
        num_clients=len(stats.clients),
        settings={plain(key): plain(value, 200) for key, value in _flat_settings(run.config)},
        versions=listed_versions(installed_versions()),
        run_command=plain(_command(run), 2000),
        command=plain(command, 1000),
    )


def _flat_settings(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return keys and values of settings; those of another app's own have the app's keys too."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from ((f"{key} {inner}", each) for inner, each in value.items())
        else:
            yield key, value


def _state(run: RecordedRun, stats: RunStatistics) -> str:
    """Return a sentence on how far a run is, by its files."""
    last_s = (run.path / "rounds.jsonl").stat().st_mtime
    when = datetime.fromtimestamp(last_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    planned = run.config.get("rounds", 0)
    of = f" of {planned:,}" if isinstance(planned, int) and planned else ""
    aim = ", where its target was reached" if stats.summary["target_round"] else ""
    if _ended(run):
        return f"The run ended after {run.num_rounds:,}{of} {stats.unit}s{aim}, on {when}."
    return (
        f"The run has not ended, or was cut off: {run.num_rounds:,}{of} {stats.unit}s so far, the "
        f"last one on {when}."
    )


def _ended(run: RecordedRun) -> bool:
    """Whether there are results, of just these rounds: more came while they were read."""
    try:
        summary = json.loads((run.path / "summary.json").read_text(encoding="utf-8"))
        return bool(summary["rounds"] == run.num_rounds)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _numbers(run: RecordedRun, stats: RunStatistics) -> list[tuple[str, str]]:
    summary = stats.summary
    num_rounds = run.num_rounds
    length_s = float(stats.round_s.sum())
    joined = sum(1 for client in stats.clients if (client.joined or 1) > 1)
    rare = sum(1 for client in stats.clients if client.selections < FEW)
    when = "at work at a time" if stats.buffered else "per round"
    clients = f"{len(stats.clients):,}, of which {run.num_selected:,} {when} at most"
    if stats.num_asked > run.num_selected:
        asked = f"{stats.num_asked:,} were asked per round at most"
        clients = f"{len(stats.clients):,}, of which {asked} and {run.num_selected:,} waited for"
    if joined:
        clients += f"; joined after the first {stats.unit}: {joined:,}"
    if rare:
        clients += f"; selected fewer than {FEW} times: {rare:,}"
    steps = f"every {stats.unit} changed the model"
    if summary["rounds_without_step"]:
        steps = f"{summary['rounds_without_step']:,} of {num_rounds:,}: {_kinds(stats.no_step)}"
    failures = f"none in {stats.num_requests:,} requests"
    if summary["failures"]:
        reasons: Counter[str] = Counter(summary["failure_reasons"])
        share = percent(summary["failures"] / stats.num_requests)
        requests = f"{summary['failures']:,} of {stats.num_requests:,} requests"
        failures = f"{requests} ({share}): {_kinds(reasons)}"
    deadline = seconds(_deadline_s(run, stats))
    if run.finds_deadline:
        deadline += f" in the last {stats.unit}; it was found from measured times"
    if suggested := summary["suggested_tau_max_s"]:
        deadline += f"; the measured round trips suggest {seconds(suggested)}"
    lost = f"no round {stats.not_compared}"
    if stats.compared:
        lost = (
            f"{seconds(stats.lost_s)}, {percent(stats.lost_s / length_s)} of the time: so much "
            "shorter the rounds would have been without the slowest client of each"
        )
    unchanged = "Steps that changed nothing" if stats.buffered else "Rounds without a step"
    rows = [
        ("Scheduled by", plain(run.strategy)),
        (
            f"{stats.unit.title()}s",
            f"{num_rounds:,}, {seconds(length_s / num_rounds)} each on average",
        ),
        (
            "Time",
            f"{seconds(length_s)} in {stats.unit}s; {seconds(summary['time_s'])} from the first "
            f"{stats.unit} on, all included",
        ),
        ("Test accuracy", _accuracy(stats)),
        ("Clients", clients),
        ("Failures", failures),
        *([("Late clients", _late(stats))] if stats.num_late else []),
        (unchanged, steps if summary["rounds_without_step"] else f"none: {steps}"),
        ("Deadline", deadline),
        *([] if stats.buffered else [("Lost to stragglers", lost)]),
    ]
    if stats.on_clients:
        rows.insert(4, ("On clients", _on_clients(stats)))
    return rows


def _late(stats: RunStatistics) -> str:
    """Return how many spare clients were not waited for, and what became of their updates."""
    asked = sum(client.selections for client in stats.clients) + stats.num_late
    used = sum(client.served - client.selections for client in stats.clients)
    waited = f"{stats.num_late:,} of {asked:,} requests were not waited for"
    return f"{waited}; updates used in later steps: {f'{used:,}' if used else 'none'}"


def _deadline_s(run: RecordedRun, stats: RunStatistics) -> float:
    """Return the deadline that was given, or that of the last round if it was found [s]."""
    return stats.summary.get("deadline_s") or run.tau_max_s


def _on_clients(stats: RunStatistics) -> str:
    """Return the metrics of the last evaluation on clients, beside those of the first."""
    (first, before), (last, metrics) = stats.on_clients[0], stats.on_clients[-1]
    shown = []
    for key, value in list(metrics.items())[:_MOST_METRICS]:
        was = f" ({before[key]:.4g})" if key in before and last > first else ""
        shown.append(f"{plain(key)} {value:.4g}{was}")
    if len(metrics) > len(shown):
        shown.append(f"{len(metrics) - len(shown)} more")
    of = f" (in {stats.unit} {first:,})" if last > first else ""
    return f"{', '.join(shown)} in {stats.unit} {last:,}{of}"


def _accuracy(stats: RunStatistics) -> str:
    if stats.best is None:
        return "not evaluated"
    summary = stats.summary
    number, best = stats.best
    last = stats.evaluations[-1]
    unit = stats.unit
    text = f"{_precise(last[2])} in {unit} {last[0]:,}; best {_precise(best)} in {unit} {number:,}"
    if summary["target_round"]:
        text += (
            f"; the target of {_precise(summary['target_accuracy'])} was reached in {unit} "
            f"{summary['target_round']:,}, after {seconds(summary['target_time_s'])}"
        )
    elif summary["target_accuracy"]:
        text += f"; the target of {_precise(summary['target_accuracy'])} was not reached"
    return text


def tied(text: str) -> str:
    """Keep numbers and their units on one line."""
    return re.sub(r"(?<=\d) (?=%|s\b)", "\N{NO-BREAK SPACE}", text)


def _precise(accuracy: float) -> str:
    return f"{100 * accuracy:.2f} %"


def _kinds(counts: Counter[str]) -> str:
    common = counts.most_common(_MOST_KINDS)
    text = ", ".join(f"{plain(kind)} {count:,}" for kind, count in common)
    rest = counts.total() - sum(count for _, count in common)
    return text + (f", others {rest:,}" if rest else "")


# --- the table of clients -------------------------------------------------------------------------

_HEADINGS: Final = (
    "client",
    "examples",
    "since {unit}",
    "selected",
    "share",
    "floor",
    "median [s]",
    "10 % [s]",
    "90 % [s]",
    "slowest",
    "lost [s]",
    "failures",
)
_OF_ROUNDS: Final = ("slowest", "lost [s]")  # no buffered step waits for its slowest client


def _headings(stats: RunStatistics) -> list[str]:
    return [each for each in _HEADINGS if not (stats.buffered and each in _OF_ROUNDS)]


def _chosen(clients: Sequence[ClientStatistics]) -> list[ClientStatistics]:
    """Return the clients of the table: all, or the slowest and those that missed their floor."""
    if len(clients) <= _ALL_ROWS:
        return list(clients)
    slow = sorted(clients, key=lambda client: -(client.median_s or 0.0))[:_SLOWEST_ROWS]
    slowest = {id(client) for client in slow}
    return slow + [each for each in clients if each.missed and id(each) not in slowest]


def _row(client: ClientStatistics, stats: RunStatistics) -> _Row:
    times = [client.quantile_s(level) for level in (0.5, 0.1, 0.9)]
    return _Row(
        plain(client.name),
        [
            "" if client.num_examples is None else f"{client.num_examples:,}",
            "" if client.joined is None else f"{client.joined:,}",
            f"{client.selections:,}",
            "" if client.share is None else f"{client.share:.3f}",
            "" if client.floor is None else f"{client.floor:.3f}",
            *("" if value is None else f"{value:.3f}" for value in times),
            *([] if stats.buffered else [f"{client.slowest:,}", f"{client.lost_s:,.2f}"]),
            _kinds(client.failures),
        ],
        client.missed,
    )


# --- how to do it again ---------------------------------------------------------------------------


def _command(run: RecordedRun) -> str:
    """Return the command that starts such a run: what differs from the defaults."""
    if "scenario" in run.config:
        preset = SCENARIOS.get(str(run.config["scenario"]), {})
        return shlex.join([*program_name().split(), *_flags(run.config, SimulationConfig, preset)])
    if WRAPPED in run.config and "num-clients" in run.config:
        keys = app_keys(run.config) - {"overridden"}
        concerned = {key: value for key, value in run.config.items() if key in keys}
        return shlex.join([*program_name().split(), *_flags(concerned, AppConfig, {})])
    if WRAPPED not in run.config:
        return shlex.join(["flower-server", *_flags(run.config, FleetConfig, {})])
    if run.config.get("app"):
        concerned = {key: value for key, value in run.config.items() if key in OF_ANY_APP}
        return shlex.join(["flower-server", *_flags(concerned, FleetConfig, {})])
    known = ("num-selected", "tau-max-s", "fairness", "seed")
    arguments = [
        f"{key.replace('-', '_')}={run.config[key]!r}" for key in known if key in run.config
    ]
    start = f"start(..., num_rounds={run.config.get('rounds')})"
    wrapped = [run.config[WRAPPED], repr(run.strategy), *arguments]
    return f"ScheduledStrategy({', '.join(map(str, wrapped))}).{start}"


def _flags(
    config: Mapping[str, Any], settings: type[Settings], preset: Mapping[str, object]
) -> list[str]:
    flags = []
    for key, field in settings.settings().items():
        value = config.get(key, field.default)
        if key == "run-dir" or value == preset.get(key, field.default):
            continue
        if isinstance(value, bool):
            flags.append(f"--{key}" if value else f"--no-{key}")
        else:
            flags += [f"--{key}", str(value)]
    return flags
