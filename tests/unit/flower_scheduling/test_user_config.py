"""Flower's configurations on a command line: as Flower reads them, and one line where it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_scheduling.errors import ConfigError
from flower_scheduling.user_config import merged_overrides, read_user_config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "dataset-path='part_1' n=3 flag=true rate=0.5",
            {"dataset-path": "part_1", "n": 3, "flag": True, "rate": 0.5},
        ),
        ("a=\"two words\"  b='x y'", {"a": "two words", "b": "x y"}),
        ("opt.name='sgd'", {"opt.name": "sgd"}),
        ("", {}),
    ],
)
def test_pairs(text: str, expected: dict[str, object]) -> None:
    assert read_user_config("node-config", text) == expected


@pytest.mark.parametrize(
    ("earlier", "later", "expected"),
    [
        ("n=3 rate=0.5", "n=5", {"n": 5, "rate": 0.5}),
        ("a='two words' b=true", 'c="it\'s"', {"a": "two words", "b": True, "c": "it's"}),
        ("n=3", "", {"n": 3}),
        ("", "n=3", {"n": 3}),
    ],
)
def test_of_overrides_the_later_ones_count_and_the_others_stay(
    earlier: str, later: str, expected: dict[str, object]
) -> None:
    merged = merged_overrides("run-config", earlier, later)
    assert read_user_config("run-config", merged) == expected


def test_file(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("n = 3\n[opt]\nname = 'sgd'\n")
    assert read_user_config("node-config", str(file)) == {"n": 3, "opt.name": "sgd"}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("n=3 verbose", "'verbose' is no KEY=VALUE"),  # Flower passes it over
        ("name=x", "texts in quotes"),
        ("n=3 n=4", "KEY=VALUE"),
        ("n=[1]", "texts in quotes"),
        ("missing.toml", "No such file"),
        ("n=3 missing.toml", "No such file"),
    ],
)
def test_what_is_wrong_is_one_line(text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault) as caught:
        read_user_config("node-config", text)
    assert str(caught.value).startswith(f"node-config = {text!r}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["a=1,b=2", "path='x', n=3", "a=1, b=true"])
def test_commas_between_pairs_are_pointed_out(text: str) -> None:
    with pytest.raises(ConfigError, match="with blanks between them and no commas"):
        read_user_config("node-config", text)


def test_a_comma_in_a_text_is_a_comma() -> None:
    assert read_user_config("node-config", "a='1,2' n=3") == {"a": "1,2", "n": 3}
    with pytest.raises(ConfigError, match="KEY=VALUE pairs: numbers"):
        read_user_config("node-config", "a='1,2' n=x")
