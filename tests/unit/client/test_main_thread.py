"""What a client says of its memory."""

from __future__ import annotations

from flower_scheduling.client.main_thread import MemoryWatch


def warnings(peaks_mib: list[int]) -> list[tuple[int, str]]:
    watch = MemoryWatch()
    found = [(number, watch.note(peak)) for number, peak in enumerate(peaks_mib, start=1)]
    return [(number, text) for number, text in found if text is not None]


def test_an_app_that_keeps_what_it_is_given_is_warned_of_with_its_growth() -> None:
    peaks = [300 + 20 * number for number in range(1, 61)]
    (number, text), *later = warnings(peaks)
    assert (number, text) == (
        20,
        "memory: 700 MB after 20 messages, 500 after 10: 20.0 MB more with each; "
        "if it goes on, see --restart-after",
    )
    assert [number for number, _ in later] == [56], "then when it has doubled again"


def test_growth_with_pauses_is_warned_of_when_the_process_has_doubled() -> None:
    peaks = [300 + 10 * (number // 3 * 3) for number in range(1, 61)]
    assert [number for number, _ in warnings(peaks)] == [51]


def test_what_an_app_loads_at_first_is_no_growth() -> None:
    loading = [100 * number for number in range(1, 11)]
    assert warnings([*loading, *[1000] * 100]) == []
    assert warnings([*loading, *[1000, 1500, 1501] * 30]) == []
