"""The palette: what differs in meaning differs in grey, and to colour-blind readers."""

from __future__ import annotations

import re
from itertools import combinations, pairwise

import pytest
from paths import ROOT

from flower_scheduling import palette
from flower_scheduling.palette import HEAT, MEANINGS, Colour, css_colours, looks, policy_look
from flower_scheduling.strategies import POLICIES, Explanation

# Policies for which a look is kept.
OURS = [*palette._POLICIES, *palette._COMPARATORS]
GROUNDS = {"light": "#ffffff", "dark": "#1b212a"}
# What the paper's figures and comparisons show together.
TOGETHER = (
    "random",
    "round-robin",
    "local-accuracy",
    "cs-ucb",
    "cs-ucb-q",
    "modified-cs-ucb",
    "cs-ucb-adaptive",
    "cs-ucb-q-adaptive",
    "oracle",
)


def linear(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return tuple(  # type: ignore[return-value]
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (red, green, blue)
    )


def luminance(colour: str) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def lightness(colour: str) -> float:
    """Return CIE L*, 0 to 100: what remains of a colour in grey."""
    level = luminance(colour)
    return 116 * level ** (1 / 3) - 16 if level > 0.008856 else 903.3 * level


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def named_colours() -> dict[str, Colour]:
    return {name: each for name, each in vars(palette).items() if isinstance(each, Colour)}


@pytest.mark.parametrize("ground", GROUNDS)
def test_colours_stand_out_from_the_ground(ground: str) -> None:
    for name, colour in named_colours().items():
        if name != "PAPER":
            assert contrast(getattr(colour, ground), GROUNDS[ground]) >= 3, name
    for meaning in ("ok", "failed", "open"):  # words are written in these
        assert contrast(getattr(MEANINGS[meaning], ground), GROUNDS[ground]) >= 4.5, meaning


def test_a_colour_of_light_ground_names_one_of_dark_ground() -> None:
    light = [colour.light for colour in named_colours().values()]
    assert len(set(light)) == len(light), "themed figures exchange one for the other"


@pytest.mark.parametrize("ground", GROUNDS)
def test_policies_that_are_shown_together_differ_in_grey(ground: str) -> None:
    levels = sorted(
        lightness(getattr(look.colour, ground)) for look in map(policy_look, TOGETHER) if look
    )
    assert len(levels) == len(TOGETHER)
    assert min(b - a for a, b in pairwise(levels)) > 4


@pytest.mark.parametrize("ground", GROUNDS)
def test_success_and_failure_differ_in_grey(ground: str) -> None:
    ok, failed = (lightness(getattr(MEANINGS[name], ground)) for name in ("ok", "failed"))
    assert abs(ok - failed) > 9


def test_heat_grows_evenly_lighter() -> None:
    levels = [lightness(stop) for stop in HEAT]
    steps = [b - a for a, b in pairwise(levels)]
    assert min(steps) > 0.7 * max(steps) > 0


def test_looks_are_kept_for_policies_alone() -> None:
    assert set(OURS) <= set(POLICIES), "a policy was renamed: its look, runs and checkpoints too?"
    assert len(set(looks(POLICIES).values())) == len(POLICIES), "also those without one"


def test_a_look_that_is_kept_has_a_dash_and_marker_that_no_other_has() -> None:
    found = {name: policy_look(name) for name in OURS}
    for one, other in combinations(found, 2):
        a, b = found[one], found[other]
        assert a, one
        assert b, other
        assert (a.dash, a.marker) != (b.dash, b.marker), (one, other)
    assert policy_look("random minus cs-ucb") == policy_look("random")


def test_policies_of_others_look_alike_in_every_figure_and_like_no_other_in_one() -> None:
    names = [f"my_policies.py:Policy{number}" for number in range(100)]
    found = looks([*OURS, *names])
    assert len(set(found.values())) == len(OURS) + 100
    assert looks(names[3:4])[names[3]] == looks([*OURS, names[3]])[names[3]]
    assert looks(["random"]) == {"random": policy_look("random")}


def test_the_page_uses_colours_that_the_palette_has() -> None:
    """Every custom property that is read is defined there or in the style sheet itself."""
    folder = ROOT / "server" / "page" / "static"
    style = (folder / "page.css").read_text()
    defined = set(re.findall(r"(--[\w-]+):", css_colours() + style))
    used = set(re.findall(r"var\((--[\w-]+)\)", style))
    for script in folder.glob("*.js"):
        if script.name != "echarts.min.js":
            used |= set(re.findall(r'"(--[\w-]+)"', script.read_text()))
    assert used
    assert used <= defined


def test_every_part_of_a_score_has_a_colour() -> None:
    _, _, notes = (Explanation.__doc__ or "").partition("Notes")
    parts = set(re.findall(r"``(\w+)``", notes))
    assert "bonus" in parts
    assert {f"part-{part}" for part in parts} <= MEANINGS.keys()
