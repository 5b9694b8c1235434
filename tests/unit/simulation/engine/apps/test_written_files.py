"""Files that several runs of an app write: found without knowing how they were written."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from flower_scheduling.simulation.engine.apps.settings import app_config_of
from flower_scheduling.simulation.engine.apps.written_files import files_since, overwritten

EARLIER_NS = 10**18


def write(path: Path, *, age_ns: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    os.utime(path, ns=(EARLIER_NS - age_ns,) * 2)


def test_files_are_found_by_when_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "app"
    for name in ("new.json", "inner/new.pt", ".hidden/x", "__pycache__/x.pyc", ".git/index"):
        write(here / name)
    write(here / "old.csv", age_ns=1)
    for name in ("rounds.jsonl", "summary.json", "figures/a.png"):
        write(here / "runs/random" / name)
    write(elsewhere / "beside.txt")
    (here / "link").symlink_to(here / "old.csv")
    os.utime(here / "link", ns=(0, 0), follow_symlinks=False)
    monkeypatch.chdir(here)
    found = files_since(EARLIER_NS, [here, elsewhere, here / "inner"])
    beside = str(elsewhere / "beside.txt")
    assert found == dict.fromkeys(["new.json", "inner/new.pt", beside], EARLIER_NS)


def test_where_the_process_prints_to_is_no_file_of_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begin_ns = time.time_ns() - 10**9
    saved = os.dup(2)
    try:
        with open("out.log", "w") as log:
            os.dup2(log.fileno(), 2)
            assert files_since(begin_ns, [tmp_path]) == {}
    finally:
        os.dup2(saved, 2)
        os.close(saved)
    assert list(files_since(begin_ns, [tmp_path])) == ["out.log"]


def test_what_was_written_once_is_not_named() -> None:
    assert overwritten([{"cache": 5}, {"cache": 5}, {"own": 7}]) == ""
    told = overwritten([{f"{n}.pt": n for n in range(7)}, {f"{n}.pt": n + 1 for n in range(7)}])
    assert "counts: 0.pt, 1.pt, 2.pt, 3.pt, 4.pt and 2 more; " in told
    assert overwritten([{"a\nb": 1}, {"a\nb": 2}]).isprintable()


def test_runs_of_other_policies_and_seeds_have_other_ids() -> None:
    def run_id(**given: object) -> int:
        return app_config_of({"app": "x", **given}).run_id

    ids = [run_id(), run_id(strategy="random"), run_id(strategy="cs-ucb"), run_id(seed=2)]
    assert len({*ids}) == len(ids)
    assert all(0 < each < 2**63 for each in ids)
    assert run_id(strategy="random") == ids[1]
