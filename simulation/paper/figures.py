"""Figures of the paper: each as numbers with intervals, then drawn and written as CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from flower_scheduling.palette import INK, Look, policy_look
from flower_scheduling.strategies.base import FloatArray

from .. import plots
from ..jobs import Arrays, Job
from ..plots import Curve, curve_of
from ..theory.estimate import mean_and_half_width, ratio_of_means
from ..theory.regret import cs_ucb_bound_s, cs_ucb_q_bound_s
from .experiments import (
    BASELINES,
    StudyCurves,
    StudyPlan,
    TrainingPlan,
    beta_label,
    channels_plan,
    ideal_plan,
    scale_plan,
    tradeoff_plan,
    training_plans,
)
from .settings import PaperConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Numbers of drops of the figure that shows how evidence grows; all of them besides.
_EVIDENCE: Final = (20, 100, 500)


@dataclass(frozen=True)
class Panel:
    """Panel of a figure: one pair of axes.

    Attributes
    ----------
    title, x_label, y_label : str
        What it shows, with units.
    curves : list of Curve
        In the order of the legend.
    kind : str
        ``lines``; ``points`` joined by lines; or ``forest``: points with horizontal intervals, one
        row per label.
    rows : list of str
        Names of a forest's rows; a curve's ``x`` counts them from 0.
    marks : list of float
        Values on the vertical axis (the horizontal one of a forest) that are marked.
    mark : str
        What these are: ``zero``, ``floor`` or ``target``.
    log_x, log_y : bool
        Logarithmic axes.
    shares : bool
        Whether the vertical axis is one of shares, from 0 % to 100 % at most.
    """

    title: str
    x_label: str
    y_label: str
    curves: list[Curve]
    kind: str = "lines"
    rows: list[str] = field(default_factory=list)
    marks: list[float] = field(default_factory=list)
    mark: plots.Mark = "zero"
    log_x: bool = False
    log_y: bool = False
    shares: bool = False


@dataclass(frozen=True)
class FigureData:
    """Figure as numbers: titles, caption and panels.

    Attributes
    ----------
    name : str
        Key in :data:`FIGURES`, and the stem of its files.
    title, caption : str
        What it is; the caption says how to read it, and what the paper has in its place.
    panels : list of Panel
        Side by side.
    """

    name: str
    title: str
    caption: str
    panels: list[Panel]


class Results:
    """Results of all jobs, by plan; only a study that was computed can be asked for."""

    def __init__(self, config: PaperConfig, arrays: Mapping[str, Arrays]) -> None:
        self.config = config
        self.arrays = arrays
        self._curves: dict[str, StudyCurves] = {}

    def study(self, plan: StudyPlan) -> StudyCurves:
        """Return the curves of a study."""
        if plan.name not in self._curves:
            self._curves[plan.name] = plan.curves(self.arrays)
        return self._curves[plan.name]


# --- what each shows ------------------------------------------------------------------------------


def _ideal_gap(results: Results) -> FigureData:
    study = results.study(ideal_plan(results.config))
    gaps = {label: study.gap_s(label) for label in BASELINES}
    return FigureData(
        "ideal-gap",
        "Ideal scenario: gap and failed clients",
        f"{_ideal(study)} Gap: time of the rounds minus rounds times the largest mean of the best "
        "set (the paper's definition). Bands are over drops; policies share their draws, so their "
        "differences are far less uncertain than the bands suggest.",
        [
            _panel("cumulative gap", "round", "gap [s]", study.rounds, gaps),
            _panel(
                "average gap",
                "round",
                "gap per round [s]",
                study.rounds,
                {label: gap / study.rounds for label, gap in gaps.items()},
                log_x=True,
            ),
            _panel(
                "failed clients",
                "round",
                "failed clients so far",
                study.rounds,
                {label: study.failures(label) for label in BASELINES},
            ),
        ],
    )


def _ideal_accuracy(results: Results) -> FigureData:
    plan = training_plans(results.config)["ideal"]
    return FigureData(
        "ideal-accuracy",
        "Ideal scenario: test accuracy against rounds",
        f"{_training(plan)} Equal i.i.d. shares of MNIST.",
        [_accuracy_by_round(results, plan)],
    )


def _channels_gap(results: Results) -> FigureData:
    config = results.config
    counts = config.channel_counts
    studies = [results.study(channels_plan(config, n)) for n in counts]
    gaps = {
        label: np.stack([study.gap_s(label)[:, -1] for study in studies], axis=1)
        for label in BASELINES
    }
    times = {
        f"{label} minus cs-ucb": np.stack(
            [study.time_s(label)[:, -1] - study.time_s("cs-ucb")[:, -1] for study in studies],
            axis=1,
        )
        for label in BASELINES[1:]
    }
    x = np.array(counts, dtype=np.float64)
    return FigureData(
        "channels-gap",
        "Ideal scenario: gap against the number of channels",
        f"K = {config.ideal_clients}, T = {config.ideal_rounds}, {config.sweep_drops} drops, the "
        "same for each N. Right: what CS-UCB saves, drop by drop.",
        [
            _panel("cumulative gap", "number of channels N", "gap [s]", x, gaps, kind="points"),
            _panel(
                "time saved",
                "number of channels N",
                "time [s]",
                x,
                times,
                kind="points",
                marks=[0.0],
            ),
        ],
    )


def _tradeoff(results: Results) -> FigureData:
    config = results.config
    study = results.study(tradeoff_plan(config))
    panels = []
    for truncate in (True, False):
        labels = _tradeoff_labels(config, truncate=truncate)
        kind = "as printed" if truncate else "untruncated"
        gaps = {shown: study.gap_s(label) for shown, label in labels.items()}
        average = {label: gap / study.rounds for label, gap in gaps.items()}
        panels += [
            _panel(f"cumulative gap, {kind}", "round", "gap [s]", study.rounds, gaps, marks=[0.0]),
            _panel(
                f"average gap, {kind}",
                "round",
                "gap per round [s]",
                study.rounds,
                average,
                log_x=True,
                marks=[0.0],
            ),
            _panel(
                f"selection fractions, {kind}",
                "client",
                "share of rounds",
                np.arange(1.0, len(config.floor_values) + 1),
                {shown: study.fraction(label)[:, -1] for shown, label in labels.items()},
                kind="points",
                marks=config.floor_values,
                mark="floor",
                shares=True,
            ),
        ]
    return FigureData(
        "fairness-tradeoff",
        "Non-ideal scenario: speed against fairness",
        f"{_non_ideal(study, config)} Gap against the optimum of the linear program, which meets "
        "the floors. The algorithm as printed truncates the index at 1, where clients stay tied "
        "for long; below, without truncation. Short thick lines in the right panels: the floor of "
        "each client.",
        panels,
    )


def _fractions(results: Results) -> FigureData:
    config = results.config
    study = results.study(tradeoff_plan(config))
    panels = []
    for truncate in (True, False):
        labels = _tradeoff_labels(config, truncate=truncate)
        kind = "as printed" if truncate else "untruncated"
        panels += [
            _panel(
                f"client {arm + 1}, {kind}",
                "round",
                "share of rounds",
                study.rounds,
                {shown: study.fraction(label)[:, :, arm] for shown, label in labels.items()},
                log_x=True,
                marks=[floor],
                mark="floor",
                shares=True,
            )
            for arm, floor in enumerate(config.floor_values)
        ]
    return FigureData(
        "selection-fractions",
        "Non-ideal scenario: how soon the floors are kept",
        f"{_non_ideal(study, config)} The thick line is the client's floor.",
        panels,
    )


def _non_ideal_accuracy(results: Results) -> FigureData:
    plans = training_plans(results.config)
    config = results.config
    panels = [
        _accuracy_by_round(results, plans["non-ideal"], "large shares for five digits"),
        _accuracy_by_round(results, plans["equal"], "equal shares"),
    ]
    return FigureData(
        "non-ideal-accuracy",
        "Non-ideal scenario: test accuracy against rounds",
        f"{_training(plans['non-ideal'])} Two clients hold five digits each, the others one. Left "
        f"they hold {config.large_share} and {config.small_share} examples, right "
        f"{config.equal_share} each; the paper gives no sizes.",
        panels,
    )


def _fairness_scale(results: Results) -> FigureData:
    config = results.config
    counts = config.scale_channel_counts
    x = np.array(counts, dtype=np.float64)
    panels = []
    for what, title in (("gap", "cumulative gap"), ("time", "time of all rounds")):
        for label in ("cs-ucb-q", "cs-ucb-q, untruncated"):
            by_rho = {}
            for rho in config.rho_values:
                studies = [results.study(scale_plan(config, n, rho)) for n in counts]
                values = [
                    study.gap_s(label)[:, -1] if what == "gap" else study.time_s(label)[:, -1]
                    for study in studies
                ]
                by_rho[f"rho = {rho:g}"] = np.stack(values, axis=1)
            kind = "untruncated" if "untruncated" in label else "as printed"
            panels.append(
                _panel(
                    f"{title}, {kind}",
                    "number of channels N",
                    f"{what} [s]",
                    x,
                    by_rho,
                    kind="points",
                )
            )
    return FigureData(
        "fairness-scale",
        "Non-ideal scenario: gap against channels, for several fairness scales",
        f"K = {config.scale_clients}, T = {config.scale_rounds}, availability "
        f"{config.availability:g}, c = rho s / sum s, {config.scale_drops} drops. A larger rho "
        "raises the optimum too, so the gap may fall while the time grows.",
        panels,
    )


def _accuracy_time(results: Results) -> FigureData:
    plans = training_plans(results.config)
    return FigureData(
        "accuracy-time",
        "Test accuracy against time",
        "The wall-clock time that the paper's link and computing model give, up to where the first "
        "run ends. " + _training(plans["ideal"]),
        [
            _accuracy_by_time(results, plans["ideal"], "ideal"),
            _accuracy_by_time(results, plans["non-ideal"], "non-ideal"),
        ],
    )


def _readings(results: Results) -> FigureData:
    study = results.study(ideal_plan(results.config))
    labels = (*BASELINES, "oracle")
    readings: dict[str, Callable[[str], FloatArray]] = {
        "literal: the paper's definition": study.gap_s,
        "pseudo: the paper's proof": study.pseudo_s,
        "honest: against the best set": study.honest_s,
    }
    return FigureData(
        "regret-readings",
        "Three readings of regret",
        f"{_ideal(study)} Literal compares realised maxima with a maximum of means, and grows even "
        "for the oracle; pseudo sees the slowest mean only; honest compares with the set that has "
        "the shortest mean round, and is what schedulers should be judged by.",
        [
            _panel(
                title,
                "round",
                "regret [s]",
                study.rounds,
                {label: reading(label) for label in labels},
                marks=[0.0],
            )
            for title, reading in readings.items()
        ],
    )


def _bounds(results: Results) -> FigureData:
    config = results.config
    ideal, tradeoff = results.study(ideal_plan(config)), results.study(tradeoff_plan(config))
    first = cs_ucb_bound_s(
        ideal.rounds, ideal.expected_time_s, config.ideal_selected, config.tau_max_s
    )
    panels = [
        _panel(
            "Theorem 1: CS-UCB",
            "round",
            "regret [s]",
            ideal.rounds,
            {
                "bound, median drop": np.tile(np.median(first, axis=0), (2, 1)),
                "pseudo-regret": ideal.pseudo_s("cs-ucb"),
                "tau_max in every round": np.tile(ideal.rounds * config.tau_max_s, (2, 1)),
            },
            log_x=True,
            log_y=True,
        )
    ]
    for beta in (max(config.beta_values), min(config.beta_values)):
        label = beta_label(beta, truncate=True)
        bound = cs_ucb_q_bound_s(
            tradeoff.rounds, config.floor_values, config.tradeoff_selected, config.tau_max_s, beta
        )
        panels.append(
            _panel(
                f"Theorem 2: beta = {beta:g}",
                "round",
                "regret [s]",
                tradeoff.rounds,
                {
                    "bound": np.tile(bound, (2, 1)),
                    "pseudo-regret": tradeoff.pseudo_s(label),
                    "tau_max in every round": np.tile(tradeoff.rounds * config.tau_max_s, (2, 1)),
                },
                log_x=True,
                log_y=True,
            )
        )
    return FigureData(
        "regret-bounds",
        "The two regret bounds against what is measured",
        "A bound above the line of tau_max in every round says nothing: no policy can lose more. "
        "Theorem 1's is orders of magnitude above it at these settings. Where the regret is "
        "negative a logarithmic axis shows nothing.",
        panels,
    )


def _evidence(results: Results) -> FigureData:
    config = results.config
    study = results.study(ideal_plan(config))
    labels = list(study.plan.contenders)
    best = study.arrays["best_set_s"] * config.ideal_rounds
    random = study.time_s("random")[:, -1]
    counts = [n for n in _EVIDENCE if n < len(best)] + [len(best)]
    ratio_curves, saved_curves = [], []
    for count in counts:
        ratios, saved = [], []
        for label in labels:
            total = study.time_s(label)[:count, -1]
            ratios.append(ratio_of_means(total, best[:count]))
            mean, half = mean_and_half_width((random[:count] - total)[:, np.newaxis])
            saved.append((float(mean[0]), float(half[0])))
        x = np.arange(float(len(labels)))
        ratio_curves.append(
            Curve(
                f"{count} drops",
                x,
                np.array([r.mean for r in ratios]),
                np.array([r.low for r in ratios]),
                np.array([r.high for r in ratios]),
            )
        )
        means, halves = np.array(saved).T
        saved_curves.append(Curve(f"{count} drops", x, means, means - halves, means + halves))
    return FigureData(
        "evidence",
        "Total time of every policy, and how sure we are",
        f"{_ideal(study)} Paired draws: each interval is of a difference or ratio drop by drop. "
        "local-accuracy needs training and is in the accuracy figures. cs-ucb-q keeps floors of "
        "half a fair share each.",
        [
            Panel(
                "time against the best fixed set",
                "ratio of total times",
                "policy",
                ratio_curves,
                kind="forest",
                rows=labels,
                marks=[1.0],
            ),
            Panel(
                "time saved against random",
                "time [s]",
                "policy",
                saved_curves,
                kind="forest",
                rows=labels,
                marks=[0.0],
            ),
        ],
    )


# --- which there are, and what they need ----------------------------------------------------------


@dataclass(frozen=True)
class FigureSpec:
    """Figure that can be asked for, and the plans that it needs.

    Attributes
    ----------
    show : callable
        Returns the figure as numbers.
    plans : callable
        Returns the plans whose results it needs.
    """

    show: Callable[[Results], FigureData]
    plans: Callable[[PaperConfig], Sequence[StudyPlan | TrainingPlan]]


def _channels_plans(config: PaperConfig) -> list[StudyPlan]:
    return [channels_plan(config, n) for n in config.channel_counts]


def _scale_plans(config: PaperConfig) -> list[StudyPlan]:
    return [
        scale_plan(config, n, rho) for rho in config.rho_values for n in config.scale_channel_counts
    ]


def _of_training(*names: str) -> Callable[[PaperConfig], list[TrainingPlan]]:
    return lambda config: [training_plans(config)[name] for name in names]


# By name, in the order of the report: the paper's seven, then ours.
FIGURES: Final[Mapping[str, FigureSpec]] = {
    "ideal-gap": FigureSpec(_ideal_gap, lambda c: [ideal_plan(c)]),
    "ideal-accuracy": FigureSpec(_ideal_accuracy, _of_training("ideal")),
    "channels-gap": FigureSpec(_channels_gap, _channels_plans),
    "fairness-tradeoff": FigureSpec(_tradeoff, lambda c: [tradeoff_plan(c)]),
    "selection-fractions": FigureSpec(_fractions, lambda c: [tradeoff_plan(c)]),
    "non-ideal-accuracy": FigureSpec(_non_ideal_accuracy, _of_training("non-ideal", "equal")),
    "fairness-scale": FigureSpec(_fairness_scale, _scale_plans),
    "accuracy-time": FigureSpec(_accuracy_time, _of_training("ideal", "non-ideal")),
    "regret-readings": FigureSpec(_readings, lambda c: [ideal_plan(c)]),
    "regret-bounds": FigureSpec(_bounds, lambda c: [ideal_plan(c), tradeoff_plan(c)]),
    "evidence": FigureSpec(_evidence, lambda c: [ideal_plan(c)]),
}


def jobs_of(names: Sequence[str], config: PaperConfig) -> list[Job]:
    """Return the jobs that some figures need, each once."""
    plans = {plan.name: plan for name in names for plan in FIGURES[name].plans(config)}
    return [job for plan in plans.values() for job in plan.jobs()]


# --- parts ----------------------------------------------------------------------------------------


def _panel(
    title: str,
    x_label: str,
    y_label: str,
    x: FloatArray | np.ndarray[Any, np.dtype[np.int64]],
    samples: Mapping[str, FloatArray],
    **options: Any,
) -> Panel:
    """Return a panel of curves from samples of shape (num_repetitions, len(x))."""
    bounds = (0.0, 1.0) if options.get("shares") else None
    curves = [curve_of(label, x, values, bounds=bounds) for label, values in samples.items()]
    return Panel(title, x_label, y_label, curves, **options)


def _accuracy_by_round(results: Results, plan: TrainingPlan, title: str = "") -> Panel:
    labels = list(plan.policies)
    rounds = plan.curve(results.arrays, labels[0], "rounds")[0]
    samples = {label: plan.curve(results.arrays, label, "accuracy") for label in labels}
    return _panel(title, "round", "test accuracy", rounds, samples, shares=True)


def _accuracy_by_time(results: Results, plan: TrainingPlan, title: str) -> Panel:
    """Return accuracies at common times: each run's last evaluation up to then."""
    labels = list(plan.policies)
    times = {label: plan.curve(results.arrays, label, "time_s") for label in labels}
    # From where every run was evaluated once to where the first one ends.
    begin_s = max(float(time[:, 0].max()) for time in times.values())
    end_s = min(float(time[:, -1].min()) for time in times.values())
    grid = np.linspace(begin_s, max(begin_s, end_s), 100)
    samples = {}
    for label in labels:
        accuracy = plan.curve(results.arrays, label, "accuracy")
        samples[label] = np.stack(
            [
                values[np.searchsorted(time, grid, side="right") - 1]
                for time, values in zip(times[label], accuracy, strict=True)
            ]
        )
    return _panel(title, "virtual time [s]", "test accuracy", grid, samples, shares=True)


def _tradeoff_labels(config: PaperConfig, *, truncate: bool) -> dict[str, str]:
    """Return the study's labels by what panels call them, the same with and without truncation."""
    labels = {
        beta_label(beta, truncate=True): beta_label(beta, truncate=truncate)
        for beta in config.beta_values
    }
    return labels | {name: name for name in ("modified-cs-ucb", "random")}


def _ideal(study: StudyCurves) -> str:
    plan = study.plan
    return (
        f"K = {plan.environment.keywords['num_arms']}, N = {plan.num_selected}, "
        f"T = {plan.num_rounds}, {plan.num_drops} drops."
    )


def _non_ideal(study: StudyCurves, config: PaperConfig) -> str:
    where = "drawn" if config.distance_values is None else f"at {config.tradeoff_distances_m} m"
    return (
        f"K = {len(config.floor_values)}, N = {study.plan.num_selected}, c = ({config.floors}), "
        f"availability {config.availability:g}, clients {where}, {study.plan.num_drops} runs."
    )


def _training(plan: TrainingPlan) -> str:
    settings = plan.settings
    spread = "thin lines are the runs, the thick one is their mean"
    if plan.num_seeds > plots.FEW_RUNS:
        spread = "bands are 95 % intervals of the mean"
    return (
        f"K = {settings['num-clients']}, N = {settings['num-selected']}, "
        f"{settings['rounds']} rounds, {plan.num_seeds} runs per policy: {spread}."
    )


# --- drawing and writing --------------------------------------------------------------------------


def write_figure(
    data: FigureData, folder: Path, data_folder: Path, *, mark: str = ""
) -> list[Path]:
    """Draw a figure as PNG and SVG, and write the numbers behind it as CSV.

    Parameters
    ----------
    data : FigureData
        What to show.
    folder, data_folder : Path
        Where figures and CSV files go; created if need be.
    mark : str
        Put on the figure, for instance that it is a quick look.

    Returns
    -------
    list of Path
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data_folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{data.name}.{kind}" for kind in ("png", "svg")]
    with plots.styled(data.name):
        plots.save(_draw(data, mark), *paths)
    paths.append(data_folder / f"{data.name}.csv")
    with paths[-1].open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("panel", "curve", "x", "mean", "low", "high"))
        writer.writerows(_rows(data))
    return paths


def _rows(data: FigureData) -> Iterator[tuple[object, ...]]:
    for panel in data.panels:
        for curve in panel.curves:
            for i, x in enumerate(curve.x):
                where = panel.rows[int(x)] if panel.rows else f"{x:.10g}"
                values = (curve.mean[i], curve.low[i], curve.high[i])
                yield (panel.title, curve.label, where, *(f"{value:.10g}" for value in values))


def _draw(data: FigureData, mark: str) -> Figure:
    columns = 2 if len(data.panels) == 4 else min(3, len(data.panels))
    rows = -(-len(data.panels) // columns)
    size = (max(6.0, 4.6 * columns), 3.6 * rows + 0.8)
    figure, axes = plots.new_figure(size, rows, columns)
    looks = _looks(list(dict.fromkeys(c.label for panel in data.panels for c in panel.curves)))
    for panel, where in zip(data.panels, axes, strict=False):
        _draw_panel(panel, where, looks)
    for spare in axes[len(data.panels) :]:
        spare.set_axis_off()
    plots.legend_below(figure, 2 if columns == 1 else 4)
    figure.suptitle(data.title + (f"   [{mark}]" if mark else ""))
    return figure


def _looks(labels: Sequence[str]) -> dict[str, Look]:
    """Return a policy's own look, and for all else looks in the order of the labels."""
    looks = {label: look for label in labels if (look := policy_look(label))}
    looks |= {label: Look(INK, (4, 1.5), "") for label in labels if label.startswith("bound")}
    looks |= {label: Look(INK, (1, 1.5), "") for label in labels if label.startswith("tau_max")}
    return looks | plots.ordered_looks([label for label in labels if label not in looks])


def _draw_panel(panel: Panel, axes: Axes, looks: Mapping[str, Look]) -> None:
    if panel.kind == "forest":
        _draw_forest(panel, axes, looks)
    else:
        points = panel.kind == "points"
        for number, curve in enumerate(panel.curves):
            look = looks[curve.label]
            plots.draw_curve(axes, curve, look, number=number, points=points, positive=panel.log_y)
        if points and panel.mark == "floor":
            plots.draw_floors(axes, panel.marks, first=1.0, width=0.3)
        else:
            for mark in panel.marks:
                plots.mark(axes, mark, panel.mark)
        if points:
            axes.set_xticks(panel.curves[0].x)
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.log_x:
        plots.powers_log(axes, on="x")
    if panel.log_y:
        plots.powers_log(axes)
    if panel.shares:
        plots.as_shares(axes)


def _draw_forest(panel: Panel, axes: Axes, looks: Mapping[str, Look]) -> None:
    for number, curve in enumerate(panel.curves):
        look = looks[curve.label]
        height = curve.x + 0.15 * (number - (len(panel.curves) - 1) / 2)
        ends = np.stack([curve.mean - curve.low, curve.high - curve.mean])
        axes.errorbar(
            curve.mean,
            height,
            xerr=ends,
            fmt=look.marker,
            markersize=4,
            capsize=2,
            label=curve.label,
            color=look.colour.light,
        )
    for mark in panel.marks:
        plots.mark(axes, mark, panel.mark, on="x")
    plots.label_rows(axes, panel.rows)
