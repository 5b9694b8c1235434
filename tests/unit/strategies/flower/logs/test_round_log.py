"""Lines about rounds, and the shares at the end."""

from __future__ import annotations

import logging
import math

import pytest
from factories import half_failed, round_record, three_arms

from flower_scheduling.strategies.flower import LOGGER
from flower_scheduling.strategies.flower.logs.round_log import RoundLog, round_text


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.set_level(logging.INFO, logger=LOGGER.name)

    class Lines(list[str]):
        def __eq__(self, other: object) -> bool:
            return [record.getMessage() for record in caplog.records] == other

        __hash__ = None  # type: ignore[assignment]

    return Lines()


def test_every_round_has_a_line_with_its_clients_and_what_became_of_them(lines: list[str]) -> None:
    log = RoundLog(3)
    log.on_round(half_failed(1))
    log.on_round(half_failed(2, accuracy=0.5))
    log.on_round(
        round_record(3, selected=[], available=[], stepped=False, no_step="nobody-available")
    )
    assert lines == [
        "[ROUND 1/3] selected a 1.50 s, c timeout; new model from 1 of 2; "
        "3 available, after 1.50 s",
        "[ROUND 2/3] selected a 1.50 s, c timeout; new model from 1 of 2; accuracy 0.5000; "
        "3 available, after 1.50 s",
        "[ROUND 3/3] selected none; no step: nobody-available; 0 available, after 3.00 s",
    ]


def test_a_quiet_log_speaks_of_evaluated_rounds_and_breaks_long_silences(
    monkeypatch: pytest.MonkeyPatch, lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(
        "flower_scheduling.strategies.flower.logs.round_log.time.monotonic", lambda: now_s[0]
    )
    log = RoundLog(9, every_s=10.0)
    log.on_round(half_failed(round=1))
    log.on_round(half_failed(round=2))
    log.on_round(half_failed(round=3, accuracy=0.5))
    now_s[0] += 10.0
    log.on_round(half_failed(round=4, rtt_s=[None, None], reason=["timeout"] * 2))
    assert [r.getMessage()[:11] for r in caplog.records] == [
        "[ROUND 1/9]",
        "[ROUND 3/9]",
        "[ROUND 4/9]",
    ]


def test_an_infinite_pause_is_silence(lines: list[str]) -> None:
    log = RoundLog(1, every_s=math.inf)
    log.on_round(half_failed(1, accuracy=0.5))
    log.on_end(three_arms(), None)
    assert lines == []


def test_the_line_of_many_clients_names_those_that_failed_and_the_slowest() -> None:
    count = 200
    text = round_text(
        round_record(
            1,
            selected=range(count),
            names=[f"dev-{arm}" for arm in range(count)],
            rtt_s=[0.01 * arm for arm in range(count - 1)] + [None],
            reason=[None] * (count - 1) + ["client error: " + "x" * 300],
            num_arms=count,
        )
    )
    assert "dev-199 client error: xxx" in text
    assert "dev-198 1.98 s" in text
    assert "and 190 more" in text
    assert "failed: client error 1" in text
    assert len(text) < 400


def test_a_failure_that_a_client_repeats_in_a_step_is_written_once() -> None:
    error = "client error: ValueError: shapes (3,) and (4,) not aligned"
    none: list[None] = [None] * 3
    failed = {"rtt_s": none, "compute_s": none, "link_s": none, "reason": [error] * 3}
    text = round_text(half_failed(1, selected=[0, 0, 2], buffered=True, **failed))
    assert f"a {error}, a client error again, c {error};" in text


def test_the_end_has_shares_against_floors(
    lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    log = RoundLog(12)
    for number in (11, 12):  # a resumed run knows what it has seen
        log.on_round(half_failed(number))
    caplog.clear()
    log.on_end(three_arms(), [0.25, 0.5, 0.25])
    assert lines == [
        "shares of rounds against their floors, rounds 11 to 12: b 0.00 (floor 0.50), "
        "a 1.00 (floor 0.25), c 1.00 (floor 0.25, failed 2 of 2)"
    ]


def test_the_end_of_a_run_of_many_clients_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    arms = [arm for _ in range(40) for arm in three_arms()]
    for index, arm in enumerate(arms):
        arm.index = index
    log = RoundLog(1)
    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        log.on_round(half_failed(1))
        log.on_end(arms, None)
    assert caplog.records[-1].getMessage().endswith("and 100 more")


def test_shares_are_of_the_whole_run_that_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def last_line(log: RoundLog, first: int) -> str:
        caplog.clear()
        with caplog.at_level(logging.INFO, logger=LOGGER.name):
            for number in range(first, 7):
                log.on_round(half_failed(number))
            log.on_end(three_arms(), None)
        return caplog.messages[-1]

    whole = last_line(RoundLog(6), 1)
    assert whole.startswith("shares of rounds, rounds 1 to 6: ")
    earlier = iter([half_failed(number) for number in range(1, 5)])
    assert last_line(RoundLog(6, earlier=earlier), 5) == whole
    assert len(caplog.messages) == 3, "a line for each new round, and the shares"


def test_an_evaluation_on_clients_is_in_the_line_of_its_round() -> None:
    metrics = {"eval_acc": 0.51234, "eval_loss": 1.0, "f1": 0.25, "recall": 0.5}
    text = round_text(half_failed(1, client_metrics=metrics))
    assert "; on clients eval_acc 0.5123, eval_loss 1, f1 0.25, 1 more; 3 available" in text
