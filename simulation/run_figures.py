"""Figures of simulations as PNG files: accuracy, time, and the clients' shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flower_scheduling.palette import Look, looks
from flower_scheduling.strategies.base import FloatArray
from flower_scheduling.strategies.deadline import AUTO
from flower_scheduling.strategies.floors import LAG, buffered_lag

from . import plots
from .theory.missed_floors import missed_floor
from .wording import percent, plain, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from flower_scheduling.strategies.flower import RoundRecord

    from .engine.runner import SimulationResult

_LONGEST_NAME = 14
_LONGEST_LABEL = 40
# From this ratio of longest to median on, lengths of rounds are drawn on a logarithmic scale.
_LOGARITHMIC = 5.0
# A smallest share below this one is drawn on a logarithmic scale.
_RARE = 0.2
_TINY = 1e-12


def draw_figures(results: Sequence[SimulationResult], folder: Path) -> list[Path]:
    """Draw the figures of runs and return their files.

    Parameters
    ----------
    results : sequence of SimulationResult
        Runs to show together.
    folder : Path
        Where to; created if need be.

    Returns
    -------
    list of Path
        The files: accuracy, if there is any, against rounds and against time, time against rounds,
        and for each run the clients' shares, failures and round-trip times.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with plots.styled("runs"):
        if any(each.summary["accuracy"] is not None for each in results):
            paths.append(folder / "accuracy.png")
            plots.save(_accuracy(results), paths[-1])
        paths.append(folder / "time.png")
        plots.save(_time(results), paths[-1])
        for result in results:
            suffix = f"-{result.config.strategy}" if len(results) > 1 else ""
            paths.append(folder / f"clients{suffix}.png")
            plots.save(_clients(result), paths[-1])
    return paths


# --- accuracy -------------------------------------------------------------------------------------


def _accuracy(results: Sequence[SimulationResult]) -> Figure:
    figure, (by_round, by_time) = plots.new_figure((10, _height(results)), 1, 2)
    target = results[0].config.target_accuracy
    for axes, unit in ((by_round, "round"), (by_time, "time")):
        for number, (result, look) in enumerate(_with_looks(results)):
            evaluated = [r for r in result.records if r.accuracy is not None]
            x = [r.round if unit == "round" else r.time_s for r in evaluated]
            label = _name(result) + (f": {_reached(result)}" if target else "")
            curve = plots.curve_of(label, x, [[r.accuracy for r in evaluated]])
            plots.draw_curve(axes, curve, look, number=number, points=len(x) < 20)
        if target:
            plots.mark(axes, target, "target", f"target, {percent(target)}")
        axes.set_ylabel("test accuracy")
        plots.as_shares(axes)
    by_round.set_xlabel(_unit(results))
    by_time.set_xlabel("virtual time [s]")
    plots.legend_below(figure)
    figure.suptitle(_seen_in_accuracy(results))
    return figure


def _reached(result: SimulationResult) -> str:
    time_s = result.summary["target_time_s"]
    return "not reached" if time_s is None else seconds(time_s)


def _seen_in_accuracy(results: Sequence[SimulationResult]) -> str:
    """Return a title that says what is seen: who reached the target first, or the last values."""
    target = results[0].config.target_accuracy
    known = [each for each in results if each.summary["accuracy"] is not None]
    if target:
        there = [each for each in results if each.summary["target_time_s"] is not None]
        if not there:
            return f"The target of {percent(target)} was not reached"
        first = min(there, key=lambda each: float(each.summary["target_time_s"]))
        lead = " first," if len(results) > 1 else ""
        return f"{_name(first)} reached {percent(target)}{lead} after {_reached(first)}"
    best = max(known, key=lambda each: float(each.summary["accuracy"]))
    last = [each.round for each in best.records if each.accuracy is not None][-1]
    which = "the highest accuracy," if len(results) > 1 else "an accuracy of"
    accuracy = percent(float(best.summary["accuracy"]))
    return f"{_name(best)} ended with {which} {accuracy}, in {_unit([best])} {last:,}"


# --- time and failures ----------------------------------------------------------------------------


def _time(results: Sequence[SimulationResult]) -> Figure:
    figure, (total, lengths, failures) = plots.new_figure((13, _height(results)), 1, 3)
    longest, middle, rarest = 0.0, 0.0, 1.0
    for number, (result, look) in enumerate(_with_looks(results)):
        rounds = [r.round for r in result.records]
        name = _name(result)
        spent = plots.curve_of(name, rounds, [[r.time_s for r in result.records]])
        plots.draw_curve(total, spent, look, number=number)
        sizes = np.sort(np.round([r.round_s for r in result.records], 6))
        values, first = np.unique(sizes, return_index=True)
        shares = 1 - first / len(sizes)
        lengths.step(values, shares, where="post", label=name, **plots.line(look), markevery=0.15)
        longest, middle = max(longest, float(sizes[-1])), max(middle, float(np.median(sizes)))
        rarest = min(rarest, float(shares[-1]))
        failed = np.cumsum([_failed(r) for r in result.records])
        curve = plots.curve_of(name, rounds, [failed])
        plots.draw_curve(failures, curve, look, number=number)
    unit = _unit(results)
    total.set(xlabel=unit, ylabel="time so far [s]", title="time")
    lengths.set(
        xlabel=f"length of a {unit} [s]",
        ylabel=f"share of {unit}s that take as long or longer",
        title=f"lengths of the {unit}s",
    )
    if rarest < _RARE:
        plots.plain_log(lengths)
    else:
        lengths.set_ylim(bottom=0)
    plots.as_shares(lengths)
    if longest > _LOGARITHMIC * middle:
        plots.plain_log(lengths, on="x")
    if (tau_max_s := results[0].config.tau_max_s) != AUTO and longest > 0.3 * tau_max_s:
        plots.mark(lengths, tau_max_s, "deadline", f"deadline, {seconds(tau_max_s)}", on="x")
    failures.set(xlabel=unit, ylabel="failed requests so far", title="failures")
    failures.set_ylim(bottom=0)
    if not any(result.summary["failures"] for result in results):
        _say_none_failed(failures)
    plots.legend_below(figure, 6)
    figure.suptitle(_seen_in_time(results))
    return figure


def _failed(record: RoundRecord) -> int:
    return sum(not completed for completed in record.completed)


def _say_none_failed(axes: Axes) -> None:
    axes.set_ylim(0, 1)
    axes.set_yticks([0])
    axes.text(0.5, 0.5, "no request failed", ha="center", transform=axes.transAxes)


def _seen_in_time(results: Sequence[SimulationResult]) -> str:
    def mean_s(result: SimulationResult) -> float:
        return float(np.mean([each.round_s for each in result.records]))

    ordered = sorted(results, key=mean_s)
    first, last = ordered[0], ordered[-1]
    if last is first:
        return f"{_name(first)}: {seconds(mean_s(first))} a {_unit(results)} on average"
    shortest = f"Shortest {_unit(results)}s: {_name(first)}, {seconds(mean_s(first))} on average"
    return f"{shortest}; longest: {_name(last)}, {seconds(mean_s(last))}"


# --- clients --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Client:
    """A client of a run: its share, that of its failed requests, floor and round trips."""

    name: str
    share: float
    failed: float
    floor: float
    missed: bool
    times_s: FloatArray


def _clients_of(result: SimulationResult) -> list[_Client]:
    arms = result.summary["arms"]
    times_s: list[list[float]] = [[] for _ in arms]
    requests = np.zeros(len(arms))
    for record in result.records:
        for each in record.results:
            requests[each.arm] += 1
            if each.completed and each.rtt_s is not None:
                times_s[each.arm].append(each.rtt_s)
    lag = LAG
    if result.config.mode == "buffered":
        num_floors = sum((arm["floor"] or 0.0) > 0.0 for arm in arms)
        lag = buffered_lag(num_floors, result.config.num_selected)
    found = []
    for arm, own_s, count in zip(arms, times_s, requests.tolist(), strict=True):
        share = arm["share"] or 0.0
        failed = share * arm["failures"] / max(count, 1.0)
        name = plain(arm["name"].removeprefix("client-"), _LONGEST_NAME)
        turns = round(count / share) if share else sum(each.turns for each in result.records)
        missed = missed_floor(share, arm["floor"], turns, lag)
        found.append(_Client(name, share, failed, arm["floor"] or 0.0, missed, np.array(own_s)))
    return found


def _clients(result: SimulationResult) -> Figure:
    clients = _clients_of(result)
    speed_s = [float(np.median(each.times_s)) if each.times_s.size else np.inf for each in clients]
    groups = plots.grouped([each.name for each in clients], speed_s)
    share, failed, floor = (
        np.array([getattr(each, name) for each in clients]) for name in ("share", "failed", "floor")
    )
    means = [
        np.array([float(values[m].mean()) for m in groups.members])
        for values in (share - failed, failed, floor)
    ]
    figure, (shares, failures, times) = plots.new_figure((14, 4.4), 1, 3)
    plots.draw_bars(shares, means[0], "ok", "delivered")
    if failed.any():
        plots.draw_bars(shares, means[1], "failed", "failed", after=means[0])
    if not groups.single:
        low, high = np.transpose([np.quantile(share[m], (0.1, 0.9)) for m in groups.members])
        plots.draw_ranges(shares, low, high, "10 % to 90 % of a group")
    if floor.any():
        plots.draw_floors(shares, means[2])
    of = "updates" if result.config.mode == "buffered" else "rounds"
    shares.set(ylabel=f"share of {of}", title="how often a client was selected")
    plots.as_shares(shares)
    broken = np.array([failed[m].sum() / max(share[m].sum(), _TINY) for m in groups.members])
    plots.draw_bars(failures, broken, "failed", "failed")
    failures.set(ylabel="share of its requests", title="how many of its requests failed")
    plots.as_shares(failures)
    if not failed.any():
        _say_none_failed(failures)
    pooled = [np.concatenate([clients[i].times_s for i in m]) for m in groups.members]
    low, middle, high = np.transpose(
        [np.quantile(own, (0.1, 0.5, 0.9)) if own.size else np.zeros(3) for own in pooled]
    )
    plots.draw_bars(times, middle, "compute", "median round trip")
    plots.draw_ranges(times, low, high, "10 % to 90 % of them")
    times.set(ylabel="round trip [s]", title="how long its round trips took")
    for axes in (shares, failures, times):
        axes.set_xlabel(groups.title)
        plots.label_bars(axes, groups.labels)
    plots.legend_under(shares)
    plots.legend_under(times)
    figure.suptitle(f"{_name(result)}: {_seen_of_clients(result, clients)}")
    return figure


def _seen_of_clients(result: SimulationResult, clients: Sequence[_Client]) -> str:
    """Return what there is to see: floors that were missed, failures, and the range of shares."""
    failures = result.summary["failures"]
    broken = f"; {failures:,} requests failed" if failures else ""
    if any(each.floor for each in clients):
        missed = sum(each.missed for each in clients)
        kept = f"{missed:,} of {len(clients):,} clients" if missed else "no client"
        return f"{kept} missed the floor{broken}"
    shares = [each.share for each in clients]
    return f"shares from {percent(min(shares))} to {percent(max(shares))}{broken}"


# --- parts ----------------------------------------------------------------------------------------


def _name(result: SimulationResult) -> str:
    return plain(result.config.strategy, _LONGEST_LABEL)


def _with_looks(
    results: Sequence[SimulationResult],
) -> list[tuple[SimulationResult, Look]]:
    found = looks(_name(result) for result in results)
    return [(result, found[_name(result)]) for result in results]


def _unit(results: Sequence[SimulationResult]) -> str:
    """Return what the records of some runs are of; where there are both, rounds."""
    return "step" if all(each.config.mode == "buffered" for each in results) else "round"


def _height(results: Sequence[SimulationResult]) -> float:
    """Return the height of a figure with a legend below [inch]."""
    return 4.2 + 0.18 * -(-len(results) // 4)
