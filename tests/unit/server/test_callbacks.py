"""Callbacks start in order, follow and end in reverse, and end whatever happens."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from factories import round_record, small_model
from flwr.app import ArrayRecord

from flower_scheduling.server.callbacks import RoundCallback, Run, RunEnd, following
from flower_scheduling.server.runs.totals import RunTotals
from flower_scheduling.strategies.flower import RoundRecord


class Noting(RoundCallback):
    """Notes what it is called with; raises at what it is told to."""

    def __init__(
        self, name: str, noted: list[Any], fails: Mapping[str, BaseException] | None = None
    ) -> None:
        self._name, self._noted, self._fails = name, noted, fails or {}

    def _note(self, what: str, *more: Any) -> None:
        self._noted.append((self._name, what, *more))
        if what in self._fails:
            raise self._fails[what]

    def on_start(self, run: Run) -> None:
        self._note("start")

    def on_round(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        self._note("round", record.round)

    def on_end(self, status: RunEnd, summary: Mapping[str, Any]) -> None:
        self._note("end", status, summary["rounds"])


def a_run() -> Run:
    strategy: Any = SimpleNamespace(arms=SimpleNamespace(arms=[]), floors=None)
    grid: Any = None
    return Run({"tau-max-s": 5.0}, strategy, grid, small_model(), RunTotals())


def test_the_first_is_the_outermost() -> None:
    noted: list[Any] = []
    run = a_run()
    with following(run, [Noting("outer", noted), Noting("inner", noted)]) as hooks:
        run.totals.count(round_record(1))
        for hook in hooks:
            hook(round_record(1), run.arrays)
    assert noted == [
        ("outer", "start"),
        ("inner", "start"),
        ("inner", "round", 1),
        ("outer", "round", 1),
        ("inner", "end", RunEnd.FINISHED, 1),
        ("outer", "end", RunEnd.FINISHED, 1),
    ]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (KeyboardInterrupt(), RunEnd.KILLED),
        (SystemExit(143), RunEnd.KILLED),
        (OSError(28, "No space left on device"), RunEnd.FAILED),
        (ValueError(), RunEnd.FAILED),
    ],
)
def test_all_hear_how_it_ended(error: BaseException, status: RunEnd) -> None:
    noted: list[Any] = []
    with pytest.raises(type(error)) as caught, following(a_run(), [Noting("one", noted)]):
        raise error
    assert caught.value is error
    assert noted[-1] == ("one", "end", status, 0)


def test_what_cannot_start_ends_those_that_have_started() -> None:
    noted: list[Any] = []
    callbacks = [
        Noting("first", noted),
        Noting("second", noted, {"start": ValueError()}),
        Noting("third", noted),
    ]
    with pytest.raises(ValueError), following(a_run(), callbacks):  # noqa: PT011
        raise AssertionError("the run does not begin")
    assert noted == [("first", "start"), ("second", "start"), ("first", "end", RunEnd.FAILED, 0)]


def test_what_cannot_end_fails_the_run_for_the_others() -> None:
    noted: list[Any] = []
    callbacks = [Noting("outer", noted), Noting("inner", noted, {"end": OSError(28, "full")})]
    with pytest.raises(OSError, match="full"), following(a_run(), callbacks):
        pass
    assert noted[-2:] == [
        ("inner", "end", RunEnd.FINISHED, 0),
        ("outer", "end", RunEnd.FAILED, 0),
    ]


def test_a_second_fault_of_the_disk_does_not_hide_the_first() -> None:
    noted: list[Any] = []
    callbacks = [Noting("outer", noted), Noting("inner", noted, {"end": OSError(28, "second")})]
    with pytest.raises(OSError, match="first"), following(a_run(), callbacks):
        raise OSError(28, "first")
    assert noted[-1] == ("outer", "end", RunEnd.FAILED, 0)
