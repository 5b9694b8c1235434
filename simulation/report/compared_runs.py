"""HTML report of several runs, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flower_scheduling.palette import Look, looks

from .. import plots
from ..environments.recorded import RecordedRun
from ..html import installed_versions, listed_versions, render
from ..theory.time_to_target import TimeToTarget, ranking_sentence, saving_sentence
from ..wording import percent, plain, seconds
from .charts import ReportFigure, draw_picture
from .document import MARK, tied
from .run_group import (
    ComparedRun,
    base_of,
    common_target,
    differences,
    read_compared,
    run_at_random_beside,
    scheduling_differences,
)

_MOST_POINTS = 1000


@dataclass(frozen=True)
class Comparison:
    """Runs side by side, and what is compared.

    Attributes
    ----------
    runs : list of ComparedRun
        The runs, the one at random first.
    base : ComparedRun or None
        The one at random.
    target : float or None
        Accuracy to which they are compared.
    times : list of TimeToTarget
        Their times to it, if there is one.
    left_out : list of str
        Folders that hold no run that can be read, with the reason.
    """

    runs: list[ComparedRun]
    base: ComparedRun | None
    target: float | None
    times: list[TimeToTarget]
    left_out: list[str]

    @property
    def sentence(self) -> str:
        """What is saved by the time to the target."""
        if self.target is None:
            return "These runs were not evaluated: no accuracy says how far each has come."
        if all(each.reached_s is None for each in self.times):
            return f"{percent(self.target)} test accuracy was not reached by any of these runs."
        if self.base is None or len(self.runs) < 2:
            return ranking_sentence(self.times, self.target)
        base, *others = self.times
        # The best last: the sentence begins with it.
        others.sort(key=lambda each: (each.reached_s is not None, -(each.reached_s or 0.0)))
        return saving_sentence([base, *others], self.target)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, ready for JSON."""
        return {
            "sentence": self.sentence,
            "target": self.target,
            "base": None if self.base is None else self.base.name,
            "left_out": self.left_out,
            "runs": [self._numbers(i) for i in range(len(self.runs))],
        }

    def _numbers(self, index: int) -> dict[str, Any]:
        each = self.runs[index]
        found: dict[str, Any] = {
            "name": each.name,
            "policy": each.run.strategy,
            "buffered": each.buffered,
            "rounds": each.run.num_rounds,
            "time_s": float(each.time_s[-1]),
            "best_accuracy": each.best,
            "failures": each.failures,
            "reached_s": self.times[index].reached_s if self.times else None,
            "saved_to_target": self.saved_to_target(index),
            "saved_in_as_many_rounds": None,
            "as_many_rounds": None,
        }
        if (saved := self.saved_in_rounds(index)) is not None:
            found["saved_in_as_many_rounds"], found["as_many_rounds"] = saved
        return found

    def saved_to_target(self, index: int) -> float | None:
        """Return the share of the base's time to the target that a run saved."""
        if self.base is None or not self.times or self.runs[index] is self.base:
            return None
        return self.times[index].saved_share(self.times[self.runs.index(self.base)])

    def saved_in_rounds(self, index: int) -> tuple[float, int] | None:
        """Return the share of the base's time that a run saved in as many rounds, and how many."""
        each = self.runs[index]
        if self.base is None or each is self.base:
            return None
        return each.saved_in_as_many_rounds(self.base)


def compare_runs(runs: Sequence[ComparedRun], left_out: Sequence[str] = ()) -> Comparison:
    """Compare runs; the one at random becomes the first.

    Parameters
    ----------
    runs : sequence of ComparedRun
        One or more.
    left_out : sequence of str
        What could not be read, with the reason.
    """
    base, target = base_of(runs), common_target(runs)
    ordered = [each for each in runs if each is base] + [each for each in runs if each is not base]
    times = [] if target is None else [each.to_target(target) for each in ordered]
    return Comparison(ordered, base, target, times, list(left_out))


def compare_with_random_beside(run: RecordedRun) -> Comparison | None:
    """Compare a run with one at random in the same folder.

    ``None`` where there is none that differs in its scheduling alone, or no accuracy that both have
    reached.
    """
    beside = run_at_random_beside(run)
    if beside is None:
        return None
    found = compare_runs([beside, read_compared(run)])
    return found if any(each.reached_s is not None for each in found.times) else None


def comparison_page(folder: Path, found: Comparison, *, command: str) -> str:
    """Return the report of several runs, one file that needs no network.

    Parameters
    ----------
    folder : Path
        Where they are.
    found : Comparison
        The runs, compared.
    command : str
        The command that makes this report.
    """
    configs = [each.run.config for each in found.runs]
    other = differences(configs)
    keys = [*scheduling_differences(configs), *other]
    best = min((t.reached_s for t in found.times if t.reached_s is not None), default=None)
    return render(
        "report/compared_runs.html.j2",
        title=f"Runs side by side: {plain(folder.resolve().name)}",
        mark=MARK,
        tied=tied,
        sentence=found.sentence,
        kind=_kind(found),
        base=None if found.base is None else plain(found.base.name),
        target=None if found.target is None else percent(found.target),
        other=", ".join(plain(key) for key in other),
        left_out=[plain(line, 200) for line in found.left_out],
        buffered=any(each.buffered for each in found.runs),
        unit=_unit(found),
        rows=[_row(found, i, best) for i in range(len(found.runs))],
        figures=_figures(found),
        names=[plain(each.name) for each in found.runs],
        settings=[(key, [plain(config.get(key, ""), 200) for config in configs]) for key in keys],
        versions=listed_versions(installed_versions()),
        command=plain(command, 1000),
    )


def _unit(found: Comparison) -> str:
    """Return what the runs have; where some have rounds and some have steps, rounds."""
    return "step" if all(each.buffered for each in found.runs) else "round"


def _kind(found: Comparison) -> str:
    """Return the class of the answer: whether something was saved."""
    shares = [found.saved_to_target(i) for i in range(len(found.runs))]
    known = [share for share in shares if share is not None]
    return "open" if not known else "cost" if max(known) < 0 else ""


def _row(found: Comparison, index: int, best_s: float | None) -> dict[str, Any]:
    each = found.runs[index]
    reached_s = found.times[index].reached_s if found.times else None
    unit = " steps" if each.buffered and _unit(found) == "round" else ""
    in_rounds = found.saved_in_rounds(index)
    cells = [
        plain(each.run.strategy),
        f"{each.run.num_rounds:,}{unit}",
        seconds(float(each.time_s[-1])),
        "–" if each.best is None else f"{100 * each.best:.2f} %",
        f"{each.failures:,} of {each.requests:,}",
    ]
    if found.times:
        cells.append("not reached" if reached_s is None else seconds(reached_s))
    if found.base is not None:
        if found.times:
            cells.append(_share(found.saved_to_target(index)))
        text = _share(None if in_rounds is None else in_rounds[0])
        cells.append(text if in_rounds is None else f"{text}, {in_rounds[1]:,} rounds")
    best = reached_s is not None and reached_s == best_s and len(found.runs) > 1
    return {"name": plain(each.name), "cells": cells, "best": best}


def _share(share: float | None) -> str:
    return "–" if share is None else percent(share)


# --- figures --------------------------------------------------------------------------------------


def _looks(runs: Sequence[ComparedRun]) -> list[Look]:
    """Return a look for each run: its policy's, or one of its own where a policy comes again."""
    keys: list[str] = []
    for each in runs:
        keys.append(each.run.strategy if each.run.strategy not in keys else each.name)
    found = looks(keys)
    return [found[key] for key in keys]


def _figures(found: Comparison) -> list[ReportFigure]:
    shown = list(zip(found.runs, _looks(found.runs), strict=True))
    evaluated = [(each, look) for each, look in shown if each.evaluations]

    def accuracy(column: int, label: str) -> Any:
        def draw(axes: Any) -> None:
            for number, (each, look) in enumerate(evaluated):
                points = _thinned(each.evaluations)
                x, y = [point[column] for point in points], [point[2] for point in points]
                curve = plots.curve_of(plain(each.name, 30), x, [y])
                plots.draw_curve(axes, curve, look, number=number, points=len(x) < 20)
            if found.target is not None:
                plots.mark(axes, found.target, "target")
            axes.set(xlabel=label, ylabel="test accuracy")
            plots.as_shares(axes)

        return draw

    def spent(axes: Any) -> None:
        for number, (each, look) in enumerate(shown):
            rounds = range(1, len(each.round_s) + 1)
            points = _thinned(list(zip(rounds, each.time_s.tolist(), strict=True)))
            x, y = zip(*points, strict=True)
            curve = plots.curve_of(plain(each.name, 30), x, [y])
            plots.draw_curve(axes, curve, look, number=number)
        axes.set(xlabel=unit, ylabel="time so far [s]")

    unit = _unit(found)
    names = ", ".join(plain(each.name, 30) for each in found.runs)
    figures = []
    if evaluated:
        aim = ""
        if found.target is not None:
            aim = f" The line of dashes and dots: {percent(found.target)}."
        figures.append(
            ReportFigure(
                "accuracy",
                f"Accuracy, against time and against {unit}s",
                f"Test accuracy of the model on the server.{aim} A policy saves time where its "
                f"curve against time is further left; against {unit}s is what its {unit}s teach.",
                [
                    draw_picture(
                        accuracy(1, "time since the start [s]"),
                        f"Test accuracy by time of {names}. {found.sentence}",
                        legend=True,
                    ),
                    draw_picture(
                        accuracy(0, unit), f"Test accuracy by {unit} of {names}.", legend=True
                    ),
                ],
            )
        )
    figures.append(
        ReportFigure(
            "time",
            f"Time, against {unit}s",
            f"The flatter, the shorter the {unit}s.",
            [draw_picture(spent, f"Time so far by {unit} of {names}.", legend=True)],
        )
    )
    return figures


def _thinned(points: Sequence[Any]) -> Sequence[Any]:
    step = -(-len(points) // _MOST_POINTS)
    return points if step <= 1 else [*points[:-1:step], points[-1]]
