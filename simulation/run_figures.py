"""Figures of simulations as PNG files: accuracy, time, and the clients' shares."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flower_scheduling.strategies.deadline import AUTO

from .plots import LINE_STYLES, new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .engine.runner import SimulationResult

_MAX_TICKS = 20
# Above this many clients the bars would be a grey mass: the slowest are shown.
_MAX_BARS = 60


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
        The files: accuracy against rounds and against time, time against rounds, and for each
        run the clients' shares and round-trip times.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "accuracy.png", folder / "time.png"]
    save(_accuracy(results), paths[0])
    save(_time(results), paths[1])
    for result in results:
        suffix = f"-{result.config.strategy}" if len(results) > 1 else ""
        paths.append(folder / f"clients{suffix}.png")
        save(_clients(result), paths[-1])
    return paths


def _accuracy(results: Sequence[SimulationResult]) -> Figure:
    figure, (by_round, by_time) = new_figure((10, 4), 1, 2)
    for result, style in zip(results, cycle(LINE_STYLES), strict=False):
        evaluated = [r for r in result.records if r.accuracy is not None]
        accuracy = [r.accuracy or 0.0 for r in evaluated]
        label = result.config.strategy
        by_round.plot([r.round for r in evaluated], accuracy, label=label, linestyle=style)
        by_time.plot([r.time_s for r in evaluated], accuracy, label=label, linestyle=style)
    target = results[0].config.target_accuracy
    for axes in (by_round, by_time):
        if target:
            axes.axhline(target, color="0.5", linewidth=1, linestyle=":")
        axes.set_ylabel("test accuracy")
        axes.grid(alpha=0.3)
    by_round.set_xlabel("round")
    by_time.set_xlabel("virtual wall-clock time [s]")
    by_round.legend()
    figure.suptitle("What training costs: rounds, and time")
    return figure


def _time(results: Sequence[SimulationResult]) -> Figure:
    figure, (total, per_round) = new_figure((10, 4), 1, 2)
    for result, style in zip(results, cycle(LINE_STYLES), strict=False):
        rounds = [r.round for r in result.records]
        label = result.config.strategy
        total.plot(rounds, [r.time_s for r in result.records], label=label, linestyle=style)
        lengths = np.sort([r.round_s for r in result.records])
        exceeded = 1 - np.arange(len(lengths)) / max(len(lengths), 1)
        per_round.step(lengths, exceeded, label=label, linestyle=style)
    total.set_xlabel("round")
    total.set_ylabel("time so far [s]")
    total.legend()
    per_round.set_xlabel("length of a round [s]")
    per_round.set_ylabel("share of rounds that take longer")
    per_round.set_yscale("log")
    if (tau_max_s := results[0].config.tau_max_s) != AUTO:
        per_round.axvline(tau_max_s, color="0.5", linewidth=1, linestyle=":")
    for axes in (total, per_round):
        axes.grid(alpha=0.3)
    figure.suptitle("Where the time goes")
    return figure


def _clients(result: SimulationResult) -> Figure:
    arms = result.summary["arms"]
    title = f"{result.config.strategy}: clients"
    if len(arms) > _MAX_BARS:
        arms = sorted(arms, key=lambda arm: -(arm["mean_rtt_s"] or 0.0))[:_MAX_BARS]
        title += f", the {_MAX_BARS} slowest"
    figure, (shares, times) = new_figure((10, 4), 1, 2)
    places = np.arange(len(arms))
    names = [arm["name"].removeprefix("client-") for arm in arms]
    shares.bar(places, [arm["share"] for arm in arms], label="share of rounds")
    if any(arm["floor"] for arm in arms):
        floors = [arm["floor"] for arm in arms]
        shares.hlines(floors, places - 0.5, places + 0.5, color="black", label="floor")
    figure.legend(*shares.get_legend_handles_labels(), loc="outside upper left")
    shares.set_ylabel("share of rounds")
    times.bar(places, [arm["mean_rtt_s"] or 0.0 for arm in arms], color="tab:orange")
    times.set_ylabel("mean round-trip time [s]")
    for axes in (shares, times):
        axes.set_xlabel("client")
        step = -(-len(arms) // _MAX_TICKS)
        axes.set_xticks(places[::step], names[::step])
        axes.grid(axis="y", alpha=0.3)
    figure.suptitle(title)
    return figure
