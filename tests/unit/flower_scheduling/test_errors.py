from __future__ import annotations

import pickle

import numpy as np
import pytest

from flower_scheduling.errors import ConfigError, fail, one_line
from flower_scheduling.strategies.registry import find_policy


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("beta", np.zeros((40, 40)), "must be a number"),
        ("x\ny", "1", "is no setting"),
        ("strategy", "a", "cannot be imported: " + "no module\n" * 900),
        ("strategy", "a", "\x1b[31mred\x1b[0m \u200b"),
    ],
)
def test_a_wrong_setting_is_one_printable_line(key: str, value: object, message: str) -> None:
    text = str(ConfigError(key, value, message, "did you mean y?"))
    assert text.isprintable()
    assert len(text) < 1600
    assert text.endswith("(did you mean y?)")


def test_a_policy_of_a_long_name_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="cannot be imported") as raised:
        find_policy(",".join(["1:1"] * 1000))
    assert len(str(raised.value)) < 1600


def test_the_beginning_and_the_end_of_a_long_line_are_kept() -> None:
    line = one_line("begin " + "x" * 10_000 + " end")
    assert line.startswith("begin x")
    assert line.endswith("x end")


def test_a_failure_is_one_line_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail("no file\n'\x00'", 2) == 2
    assert capsys.readouterr().err == "error: no file '\\x00'\n"


def test_a_wrong_setting_of_a_worker_process_can_be_sent_back() -> None:
    error = pickle.loads(pickle.dumps(ConfigError("beta", 2, "must be below 1", "hint")))
    assert (error.key, error.value, error.message, error.hint) == (
        "beta",
        2,
        "must be below 1",
        "hint",
    )
