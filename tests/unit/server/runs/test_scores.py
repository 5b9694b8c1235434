"""Why clients were selected, as it is written and read again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import round_record, small_model

from flower_scheduling.server.runs.directory import RunDirectory, read_rounds, written_rounds
from flower_scheduling.server.runs.round_lines import read_line
from flower_scheduling.server.runs.scores import (
    FILE,
    ScoreFile,
    end_of,
    read_pick_scores,
    read_scores,
)
from flower_scheduling.strategies import Explanation
from flower_scheduling.strategies.flower import Pick, RoundRecord

MODEL = small_model()


def explained(number: int, num_arms: int = 3, **changes: Any) -> RoundRecord:
    value = np.arange(num_arms, dtype=np.float64) + number
    explanation = Explanation(
        "largest", "", {"mean": value, "bonus": np.full(num_arms, np.inf)}, tie_break=-value
    )
    values = {"num_arms": num_arms, "available": [0, 2], "explanation": explanation}
    return round_record(number, [2], **{**values, "queue": value / 2, **changes})


def write(path: Path, *records: RoundRecord) -> list[dict[str, Any]]:
    directory = RunDirectory(path, {})
    for record in records:
        directory.write_round(record, MODEL)
    directory.close()
    return written_rounds(path)


def test_scores_come_back_as_they_were(tmp_path: Path) -> None:
    lines = write(tmp_path / "run", explained(1), explained(2, num_arms=4))
    for number, num_arms, line in zip((1, 2), (3, 4), lines, strict=True):
        scores = read_scores(tmp_path / "run", line)
        assert scores is not None
        assert (scores.rule, scores.unit) == ("largest", "")
        assert scores.available.tolist() == [True, False, True, False][:num_arms]
        assert list(scores.parts) == ["mean", "bonus"]
        np.testing.assert_array_equal(scores.parts["mean"], np.arange(num_arms) + number)
        assert np.isinf(scores.parts["bonus"]).all()
        assert scores.tie_break is not None
        assert scores.owed is not None
        np.testing.assert_array_equal(scores.tie_break, -np.arange(num_arms) - number)
        np.testing.assert_array_equal(scores.owed, (np.arange(num_arms) + number) / 2)


def test_rounds_without_an_explanation_have_no_scores(tmp_path: Path) -> None:
    huge = Explanation("drawn", "", {"chance": np.ones(10_001)})
    lines = write(
        tmp_path / "run",
        explained(1, explanation=None, queue=None),
        explained(2, num_arms=10_001, explanation=huge, queue=None),
        explained(3),
    )
    assert [line["scores"] is None for line in lines] == [True, True, False]
    assert read_scores(tmp_path / "run", lines[0]) is None
    assert read_scores(tmp_path / "run", lines[2]) is not None


def test_a_resumed_run_goes_on_where_its_last_round_ends(tmp_path: Path) -> None:
    path = tmp_path / "run"
    write(path, explained(1), explained(2), explained(3))
    directory = RunDirectory.reopen(path, {}, 2)
    directory.write_round(explained(3, num_arms=5), MODEL)
    directory.close()
    lines = written_rounds(path)
    sizes = [len(read_scores(path, line).available) for line in lines]  # type: ignore[union-attr]
    assert sizes == [3, 3, 5]
    assert (path / FILE).stat().st_size == end_of(lines[-1])


def test_scores_that_a_crash_has_lost_are_not_made_up(tmp_path: Path) -> None:
    path = tmp_path / "run"
    lines = write(path, explained(1), explained(2))
    (path / FILE).write_bytes((path / FILE).read_bytes()[: end_of(lines[0]) + 5])
    assert read_scores(path, lines[1]) is None
    directory = RunDirectory.reopen(path, {}, 2)
    directory.write_round(explained(3), MODEL)
    directory.close()
    found = [read_scores(path, line) for line in written_rounds(path)]
    assert [scores is None for scores in found] == [False, True, False]
    assert found[2] is not None
    assert found[2].parts["mean"].tolist() == [3, 4, 5]
    (path / FILE).unlink()
    assert read_scores(path, lines[0]) is None


def test_a_full_disk_costs_scores_and_leaves_the_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ScoreFile(tmp_path)
    log.append(explained(1))
    size = log.path.stat().st_size

    class Full:
        def __init__(self, file: Any) -> None:
            self.file = file

        def write(self, data: bytes) -> int:
            if len(data) < 40:
                raise OSError(28, "No space left on device")
            return int(self.file.write(data[:30]))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    monkeypatch.setattr(log, "_file", Full(log._file))
    with pytest.raises(OSError, match=r"No space left on device.*scores\.bin"):
        log.append(explained(2))
    monkeypatch.undo()
    assert log.path.stat().st_size == size
    found = log.append(explained(3))
    assert found is not None
    assert found["at"] == size
    log.close()


def step(number: int, picks: list[Pick]) -> RoundRecord:
    return explained(number, picks=picks, buffered=True)


def pick(arm: int, begin_s: float, num_arms: int = 3) -> Pick:
    idle = np.zeros(num_arms, dtype=np.bool_)
    idle[arm] = True
    explanation = Explanation("smallest", "s", {"mean": np.full(num_arms, begin_s)})
    return Pick(arm, begin_s, idle, explanation, np.arange(num_arms, dtype=np.float64))


def test_each_pick_of_a_buffered_step_has_scores_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "run"
    first = step(1, [Pick(1, 0.25), pick(0, 0.5, num_arms=2), pick(2, 0.75)])
    lines = write(path, first, explained(2))
    assert lines[0]["picks"] == [
        {"arm": 1, "begin_s": 0.25}, {"arm": 0, "begin_s": 0.5}, {"arm": 2, "begin_s": 0.75},
    ]  # fmt: skip
    none, early, last = read_pick_scores(path, lines[0])
    assert none is None
    assert early is not None
    assert last is not None
    assert (early.rule, early.unit, early.available.tolist()) == ("smallest", "s", [True, False])
    assert last.available.tolist() == [False, False, True]
    assert last.parts["mean"].tolist() == [0.75] * 3
    assert last.owed is not None
    assert last.owed.tolist() == [0.0, 1.0, 2.0]
    assert read_pick_scores(path, lines[1]) == []
    assert lines[1]["scores"]["at"] == end_of(lines[0])
    (record, _) = read_rounds(path, 2, ["a", "b", "c"])
    assert [(each.arm, each.begin_s) for each in record.picks] == [(1, 0.25), (0, 0.5), (2, 0.75)]
    directory = RunDirectory.reopen(path, {}, 1)
    directory.close()
    assert (path / FILE).stat().st_size == end_of(lines[0])


def test_arms_that_come_after_the_last_pick_have_no_score(tmp_path: Path) -> None:
    path = tmp_path / "run"
    grown = step(1, [pick(1, 0.25, num_arms=3)])
    last = explained(1).explanation
    grown = replace(grown, explanation=last, num_arms=5, available=[0, 4], queue=np.zeros(5))
    lines = write(path, grown, explained(2))
    scores = read_scores(path, lines[0])
    assert scores is not None
    assert scores.available.tolist() == [True, False, False, False, False]
    np.testing.assert_array_equal(scores.parts["mean"], [1.0, 2.0, 3.0, 0.0, 0.0])
    assert lines[1]["scores"]["at"] == end_of(lines[0])


def test_scores_of_picks_that_were_not_made_are_refused(tmp_path: Path) -> None:
    (line,) = write(tmp_path / "run", step(1, [pick(0, 0.5)]))
    data = json.dumps({**line, "picks": []}).encode()
    with pytest.raises(ValueError, match="picks that were not made"):
        read_line(data, 1)
    for wrong in ({"arm": 5, "begin_s": 1.0}, {"arm": 0, "begin_s": -1.0}, {"arm": 0}, 3):
        with pytest.raises(ValueError, match=r"picks|beyond"):
            read_line(json.dumps({**line, "picks": [wrong]}).encode(), 1)
