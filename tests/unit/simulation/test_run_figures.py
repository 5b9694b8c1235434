"""The figures of runs: failures, spread and floors are in them, and many clients stay legible."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from factories import round_record
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flower_scheduling.server.runs.totals import RunTotals
from flower_scheduling.simulation import plots, run_figures
from flower_scheduling.simulation.engine.runner import SimulationResult
from flower_scheduling.simulation.settings import SimulationConfig
from flower_scheduling.strategies.flower import Arm, ArmResult


def a_result(
    num_clients: int,
    *,
    strategy: str = "cs-ucb-q",
    failing: float = 0.0,
    floor: float | None = None,
    rounds: int = 40,
    target: float = 0.0,
    gain: float = 1.0,
) -> SimulationResult:
    rng = np.random.default_rng(7)
    speed_s = rng.uniform(0.1, 2.0, num_clients)
    chosen = max(2, num_clients // 10)
    totals = RunTotals(target_accuracy=target)
    records = []
    for number in range(1, rounds + 1):
        selected = sorted(rng.choice(num_clients, chosen, replace=False).tolist())
        results = []
        for arm in selected:
            late = rng.random() < failing
            taken_s = None if late else float(speed_s[arm] * rng.uniform(0.7, 1.5))
            name = f"client-{arm + 1}"
            results.append(ArmResult(arm, name, taken_s, "timeout" if late else None))
        record = round_record(
            number, (), num_arms=num_clients, available=list(range(num_clients)),
            round_s=max(each.rtt_s or 5.0 for each in results), time_s=2.0 * number,
            accuracy=min(0.99, gain * number / 50) if number % 5 == 0 else None,
        )  # fmt: skip
        record.results.extend(results)
        totals.count(record)
        records.append(record)
    arms = [Arm(i, f"key{i}", i, f"client-{i + 1}", 10) for i in range(num_clients)]
    floors = None if floor is None else [floor] * num_clients
    summary = totals.summary(arms, floors, tau_max_s=5.0)
    config = SimulationConfig(strategy=strategy, target_accuracy=target)
    return SimulationResult(config, summary, records)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    """Return the figures by the names of their files; they are laid out as on paper."""
    found: dict[str, Figure] = {}

    def keep(figure: Figure, *paths: Path) -> None:
        figure.draw_without_rendering()
        found.update({path.name: figure for path in paths})

    monkeypatch.setattr(plots, "save", keep)
    return found


def check_legible(figure: Figure) -> None:
    """Every axis has a title, its labels are few, and no text lies on another."""
    assert figure.get_suptitle()
    texts = []
    for axes in figure.axes:
        assert axes.get_xlabel()
        assert axes.get_ylabel()
        low, high = axes.get_xlim()
        within = [
            label
            for place, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
            if low <= place <= high and label.get_text()
        ]
        assert len(within) <= 20
        texts += [*within, axes.xaxis.label, axes.yaxis.label, axes.title]
    legends = [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]
    texts += [text for legend in legends for text in legend.get_texts()]
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    shown = [text.get_text() for text in texts if text.get_text()]
    for place, box in enumerate(boxes):
        for other, name in zip(boxes[:place], shown, strict=False):
            assert not box.shrunk(0.98, 0.9).overlaps(other), (shown[place], name)


def labels(axes: Axes) -> list[str]:
    return axes.get_legend_handles_labels()[1]


@pytest.mark.parametrize("count", [6, 40, 1000])
def test_figures_are_legible_with_few_clients_and_many(
    count: int, drawn: dict[str, Figure], tmp_path: Path
) -> None:
    result = a_result(count, failing=0.1, floor=0.05)
    paths = run_figures.draw_figures([result], tmp_path)
    names = ["accuracy.png", "time.png", "clients.png"]
    assert [path.name for path in paths] == names == list(drawn)
    for figure in drawn.values():
        check_legible(figure)
    shares, failures, times = drawn["clients.png"].axes
    bars = count if count <= plots.MOST_BARS else plots.GROUPS
    assert len(failures.patches) == len(times.patches) == bars
    assert {"delivered", "failed", "floor"} <= set(labels(shares))
    assert "10 % to 90 % of them" in labels(times), "spread beside medians"
    assert ("10 % to 90 % of a group" in labels(shares)) == (count > plots.MOST_BARS)
    total = sum(patch.get_height() for patch in shares.patches)
    expected = sum(arm["share"] for arm in result.summary["arms"]) * bars / count
    assert total == pytest.approx(expected)
    for axes in shares, failures:
        assert axes.get_ylim()[0] == 0
        assert axes.get_ylim()[1] <= 1


def test_missed_floors_and_failures_are_in_the_title(
    drawn: dict[str, Figure], tmp_path: Path
) -> None:
    run_figures.draw_figures([a_result(6, failing=0.2, floor=0.9, rounds=100)], tmp_path)
    title = drawn["clients.png"].get_suptitle()
    assert title.startswith("cs-ucb-q: 6 of 6 clients missed the floor; ")
    assert title.endswith(" requests failed")


def test_no_failures_are_said_to_be_none(drawn: dict[str, Figure], tmp_path: Path) -> None:
    run_figures.draw_figures([a_result(6)], tmp_path)
    for name, place in (("clients.png", 1), ("time.png", 2)):
        (text,) = drawn[name].axes[place].texts
        assert text.get_text() == "no request failed"
    assert drawn["clients.png"].get_suptitle().startswith("cs-ucb-q: shares from ")


def test_a_policy_looks_the_same_in_every_figure(drawn: dict[str, Figure], tmp_path: Path) -> None:
    results = [a_result(6, strategy=name) for name in ("random", "cs-ucb-adaptive", "oort")]
    run_figures.draw_figures(results, tmp_path)
    assert "clients-random.png" in drawn
    check_legible(drawn["time.png"])
    looks = {}
    for axes in (*drawn["accuracy.png"].axes, *drawn["time.png"].axes):
        for line in axes.lines[:3]:  # after them comes the deadline
            look = (line.get_color(), line.get_linestyle(), line.get_marker())
            assert looks.setdefault(line.get_label(), look) == look
    assert len(set(looks.values())) == len(looks) == 3


def test_a_target_that_was_not_reached_is_said_so(drawn: dict[str, Figure], tmp_path: Path) -> None:
    results = [
        a_result(6, strategy="random", target=0.5, gain=0.4),
        a_result(6, strategy="cs-ucb", target=0.5),
    ]
    run_figures.draw_figures(results, tmp_path)
    figure = drawn["accuracy.png"]
    assert figure.get_suptitle() == "cs-ucb reached 50 % first, after 50.0 s"
    assert labels(figure.axes[0]) == ["random: not reached", "cs-ucb: 50.0 s", "target, 50 %"]


def test_accuracies_are_shown_between_zero_and_one(
    drawn: dict[str, Figure], tmp_path: Path
) -> None:
    run_figures.draw_figures([a_result(6, rounds=60)], tmp_path)
    for axes in drawn["accuracy.png"].axes:
        low, high = axes.get_ylim()
        assert 0 <= low < high <= 1
