"""Totals of a run: its summary by hand, and the deadline that it suggests."""

from __future__ import annotations

import pytest
from factories import half_failed, three_arms

from flower_scheduling.server.runs.totals import RunTotals
from flower_scheduling.strategies.flower import ArmResult


def test_summary_by_hand() -> None:
    totals = RunTotals(target_accuracy=0.8)
    totals.count(half_failed(accuracy=0.5, loss=2.0))
    totals.count(
        half_failed(
            round=2,
            time_s=4.0,
            selected=[0, 1],
            rtt_s=[2.5, 0.5],
            reason=[None, None],
            accuracy=0.9,
            loss=1.0,
        )
    )
    totals.count(
        half_failed(
            round=3, time_s=9.0, stepped=False, reason=["client error: code 2, x", "timeout"]
        )
    )
    summary = totals.summary(three_arms(), [0.5, 0.25, 0.0], tau_max_s=5.0)
    assert (summary["rounds"], summary["time_s"]) == (3, 9.0)
    assert (summary["accuracy"], summary["best_accuracy"], summary["loss"]) == (0.9, 0.9, 1.0)
    assert (summary["target_round"], summary["target_time_s"]) == (2, 4.0)
    assert summary["rounds_without_step"] == 1
    assert summary["failures"] == 3
    assert summary["failure_reasons"] == {"timeout": 2, "client error": 1}
    a, b, c = summary["arms"]
    assert a == {
        "index": 0,
        "name": "a",
        "num_examples": 10,
        "floor": 0.5,
        "share": 1.0,
        "mean_rtt_s": 2.0,
        "failures": 1,
    }
    assert (b["share"], b["mean_rtt_s"]) == (pytest.approx(1 / 3), 0.5)
    assert (c["share"], c["mean_rtt_s"], c["failures"]) == (pytest.approx(2 / 3), None, 2)
    assert summary["suggested_tau_max_s"] == 10.0, "half of the answers are cut off: allow more"


def test_late_updates_that_were_used_count_for_shares() -> None:
    totals = RunTotals()
    late = [ArmResult(1, "b", 9.0, staleness=1), ArmResult(0, "a", None, "timeout", staleness=1)]
    totals.count(half_failed(late_updates=late))
    totals.count(half_failed(round=2))
    summary = totals.summary(three_arms(), None, tau_max_s=5.0)
    assert [arm["share"] for arm in summary["arms"]] == [1.0, 0.5, 1.0]
    assert (totals.arms[1].selected, totals.arms[1].served) == (0, 1)
    assert [arm.requests for arm in totals.arms] == [3, 1, 2]
    assert summary["failure_reasons"] == {"timeout": 3}, "one of them came to light after its round"
    assert [arm["failures"] for arm in summary["arms"]] == [1, 0, 2]
    assert [arm["mean_rtt_s"] for arm in summary["arms"]] == [1.5, 9.0, None], "its true time"
    assert totals.arms[1].last_completed == 1


def test_the_last_evaluation_by_any_metric_is_in_the_summary() -> None:
    totals = RunTotals()
    totals.count(half_failed(loss=2.0, server_metrics={"perplexity": 7.5}))
    totals.count(half_failed(round=2))
    summary = totals.summary(three_arms(), None, tau_max_s=5.0)
    assert (summary["accuracy"], summary["loss"]) == (None, 2.0)
    assert summary["server_metrics"] == {"perplexity": 7.5}
    totals.count(half_failed(round=3, diverged=True))
    summary = totals.summary(three_arms(), None, tau_max_s=5.0)
    assert (summary["loss"], summary["server_metrics"]) == (None, None), "not an earlier model's"


def test_of_a_deadline_that_is_found_the_last_is_told_and_none_suggested() -> None:
    totals = RunTotals()
    for t in range(200):
        totals.count(half_failed(round=t + 1, deadline_s=float(t)))
    summary = totals.summary(three_arms(), None, tau_max_s="auto")
    assert (summary["tau_max_s"], summary["deadline_s"]) == ("auto", 199.0)
    assert summary["suggested_tau_max_s"] is None
    assert "deadline_s" not in totals.summary(three_arms(), None, tau_max_s=5.0)


def test_deadline_far_above_the_answers_is_suggested_down() -> None:
    totals = RunTotals()
    for t in range(200):
        totals.count(half_failed(round=t + 1, selected=[0], rtt_s=[0.2], reason=[None]))
    summary = totals.summary(three_arms(), None, tau_max_s=5.0)
    assert summary["suggested_tau_max_s"] == pytest.approx(0.3, rel=0.01)
    empty = RunTotals().summary(three_arms(), None, tau_max_s=5.0)
    assert empty["suggested_tau_max_s"] is None


def test_only_answers_that_were_late_raise_the_suggested_deadline() -> None:
    def suggested(reason: str) -> float:
        totals = RunTotals()
        for number in range(1, 11):
            totals.count(half_failed(round=number, rtt_s=[1.0, None], reason=[None, reason]))
        return float(totals.summary(three_arms(), None, tau_max_s=4.0)["suggested_tau_max_s"])

    assert suggested("client error: ValueError: no") == 1.5
    assert suggested("connection lost") == 1.5
    assert suggested("timeout") == 8.0


@pytest.mark.parametrize(("dead", "then"), [(2, 6.0), (1, 0.105)])
def test_work_that_never_comes_back_does_not_suggest_a_longer_deadline(
    dead: int, then: float
) -> None:
    """Whether it is that of a client which is dead or of one that answers at other times."""
    totals = RunTotals()
    for number in range(1, 201):
        fails = number % 20 == 0
        rtt_s, reason = ([0.07, None], [None, "timeout"]) if fails else ([0.07, 0.05], [None, None])
        selected = [0, dead] if fails else [0, 1]
        totals.count(half_failed(round=number, selected=selected, rtt_s=rtt_s, reason=reason))
    summary = totals.summary(three_arms(), None, tau_max_s=3.0)
    assert summary["suggested_tau_max_s"] == pytest.approx(0.105, rel=0.02)
    totals.count(half_failed(round=201, selected=[2], rtt_s=[0.08], reason=[None]))
    summary = totals.summary(three_arms(), None, tau_max_s=3.0)
    # If a client that was always too late can answer, the deadline may be what is short.
    assert summary["suggested_tau_max_s"] == pytest.approx(then, rel=0.02)
