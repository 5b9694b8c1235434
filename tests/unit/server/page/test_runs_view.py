"""The runs of a folder, as they are listed and compared."""

from __future__ import annotations

import shutil
from pathlib import Path

from page_runs import Run, record

from flower_scheduling.server.page.runs_view import RunsView


def looked(view: RunsView) -> dict[str, dict[str, object]]:
    view.refresh()
    return {run["name"]: run for run in view.state()["runs"]}


def test_runs_are_listed_two_levels_deep_with_what_they_came_to(tmp_path: Path) -> None:
    first, second = Run(tmp_path / "first"), Run(tmp_path / "compare" / "random")
    first.write(*(record(i, accuracy=i / 10, loss=1.0) for i in range(1, 6)))
    first.directory.write_summary({})
    second.write(record(1))
    (tmp_path / "no-run").mkdir()
    view = RunsView(tmp_path)
    runs = looked(view)
    assert set(runs) == {"first", "compare/random"}
    found = runs["first"]
    assert (found["state"], found["policy"], found["round"]) == ("ended", "cs-ucb-q", 5)
    assert (found["best_accuracy"], found["time_s"], found["num_clients"]) == (0.5, 10.0, 3)
    curve = {"round": [1, 2, 3, 4, 5], "time_s": [2, 4, 6, 8, 10]}
    assert found["curve"] == {**curve, "accuracy": [0.1, 0.2, 0.3, 0.4, 0.5]}
    assert found["settings"]["num-selected"] == 2  # type: ignore[index]
    assert view.folder_of(str(found["id"])) == tmp_path / "first"
    assert view.folder_of("../first") is None
    for run in (first, second):
        run.directory.close()


def test_it_follows_runs_that_go_on_come_and_vanish(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    run.write(record(1))
    view = RunsView(tmp_path)
    assert looked(view)["one"]["round"] == 1
    assert not view.refresh()
    run.write(record(2))
    assert looked(view)["one"]["round"] == 2
    other = Run(tmp_path / "two")
    other.write(record(1))
    assert set(looked(view)) == {"one", "two"}
    other.directory.close()
    shutil.rmtree(other.path)
    assert set(looked(view)) == {"one"}
    run.directory.close()


def test_a_run_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    run = Run(tmp_path / "good")
    run.write(record(1))
    run.directory.close()
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "config.toml").write_text("num-selected = 'many'\n")
    runs = looked(RunsView(tmp_path))
    assert runs["good"]["round"] == 1
    assert "error" in runs["bad"]
