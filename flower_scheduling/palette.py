"""Palette: one colour, dash and marker for each meaning, in figures, reports and the page."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Colour:
    """A colour, as it is drawn on light and on dark ground.

    Attributes
    ----------
    light, dark : str
        ``#rrggbb``, with a contrast of three or more to the ground.
    """

    light: str
    dark: str


@dataclass(frozen=True, slots=True)
class Look:
    """The look of a curve, which tells it from others in grey and where curves coincide.

    Attributes
    ----------
    colour : Colour
        Its colour.
    dash : tuple of float
        Lengths of strokes and gaps in widths of the line; empty: solid.
    marker : str
        Shape of its points, as matplotlib calls it.
    wide : bool
        Whether the line is drawn wider than others: it is one of our policies.
    """

    colour: Colour
    dash: tuple[float, ...]
    marker: str
    wide: bool = False


# Hues of Okabe and Ito, which differ to colour-blind readers as well, in steps of lightness that
# remain in grey. On dark ground the steps are reversed: what is dark on white is bright there.
INK: Final = Colour("#1c1c1c", "#e6e4e0")
NAVY: Final = Colour("#03336d", "#cdd5fe")
UMBER: Final = Colour("#4c463f", "#d2c7bf")
PURPLE: Final = Colour("#813588", "#e3a6e5")
BROWN: Final = Colour("#815b01", "#d8a23a")
BLUE: Final = Colour("#0074af", "#3ca5ed")
VERMILLION: Final = Colour("#d25200", "#ef671a")
GREEN: Final = Colour("#0d9971", "#04966e")
GREY: Final = Colour("#929292", "#777777")
AMBER: Final = Colour("#c28702", "#fcc843")
TEAL: Final = Colour("#0c7d73", "#0cc0aa")
RUST: Final = Colour("#a12600", "#feb696")
PAPER: Final = Colour("#ffffff", "#17181a")
RULE: Final = Colour("#808080", "#818181")
"""Axes and grids."""

MEANINGS: Final[Mapping[str, Colour]] = {
    "ok": TEAL,
    "failed": RUST,
    "open": BROWN,
    "accuracy": BLUE,
    # What stragglers cost.
    "lost": VERMILLION,
    "slowest": BLUE,
    # What a round trip is made of.
    "compute": BLUE,
    "link": AMBER,
    "network": PURPLE,
    "unreported": GREY,
    # What a score is made of, in ``Explanation.parts``.
    "part-mean": BLUE,
    "part-time": BLUE,
    "part-failures": RUST,
    "part-bonus": AMBER,
    "part-draw": PURPLE,
    "part-queue": GREEN,
    "part-floor": GREEN,
    "part-accuracy": NAVY,
    "part-loss": VERMILLION,
    "part-turn": UMBER,
    "part-staleness": UMBER,
    "part-chance": GREY,
    "part-weight": BROWN,
}
"""Colours by what they stand for. Floors, deadlines and targets are drawn in :data:`INK`."""

FAILURES: Final = (VERMILLION, AMBER, GREY)
"""Colours of further kinds of failures in one figure, the more frequent kind first."""

SERIES: Final = (BLUE, VERMILLION, GREEN, PURPLE, BROWN, NAVY, GREY)
"""Colours of curves that stand for nothing else, in turn."""

HEAT: Final = ("#00204d", "#31446b", "#666970", "#958f78", "#cbba69", "#ffea46")
"""Stops of a heat map from low to high (cividis): its lightness rises evenly."""

_POLICIES: Final[Mapping[str, Look]] = {
    "random": Look(GREY, (3.5, 1.5), "o"),
    "round-robin": Look(UMBER, (1, 1.5), "s"),
    "local-accuracy": Look(PURPLE, (5, 1.5, 1, 1.5), "^"),
    "cs-ucb": Look(VERMILLION, (6, 1.5), "D"),
    "cs-ucb-q": Look(GREEN, (5, 1, 1, 1, 1, 1), "v"),
    "modified-cs-ucb": Look(BROWN, (2, 1), "P"),
    "cs-ucb-adaptive": Look(BLUE, (), "h", wide=True),
    "cs-ucb-q-adaptive": Look(NAVY, (), "X", wide=True),
    "cs-ucb-q-loss": Look(PURPLE, (10, 1), "d", wide=True),
    "proportional-fair": Look(GREEN, (10, 1, 1.5, 1), "p", wide=True),
    "oracle": Look(INK, (1, 2.5), "*"),
}
# Their looks go by their places here. Any other policy, newer ones too, has its look by its name.
_COMPARATORS: Final = (
    "bsfl",
    "d-ucb",
    "e3cs",
    "fedcs",
    "kl-ucb",
    "oort",
    "pisces",
    "pyramidfl",
    "rbcs-f",
    "sw-ucb",
    "tifl",
    "tscsf-b",
    "ucb-tuned",
)
_NAMED: Final = (*_POLICIES, *_COMPARATORS)
_OTHER_COLOURS: Final = (VERMILLION, BLUE, BROWN, PURPLE, GREEN, NAVY, GREY)
_OTHER_DASHES: Final = ((7.0, 1.0), (2.5, 1.0), (3.0, 1.0, 1.0, 1.0), (6.0, 1.0, 2.0, 1.0))
_OTHER_MARKERS: Final = ("<", ">", "8", "H", "1", "2", "3", "4", "+")
# Looks that are left; the lengths of the three have no factor in common.
_OTHERS: Final = len(_OTHER_COLOURS) * len(_OTHER_DASHES) * len(_OTHER_MARKERS) - len(_COMPARATORS)


def policy_look(name: str) -> Look | None:
    """Return the look that is kept for a policy; ``None``: :func:`looks` gives it one by its name.

    What is compared with another, called ``NAME minus OTHER``, looks like the first.
    """
    policy = name.partition(" minus ")[0]
    if policy in _COMPARATORS:
        return _other(_COMPARATORS.index(policy))
    return _POLICIES.get(policy)


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return the looks of policies by name.

    A policy for which a look is kept looks the same in every figure, another one as far as two in
    one figure do not share a look.
    """
    found: dict[str, Look] = {}
    for name in dict.fromkeys(names):
        look = policy_look(name)
        number = len(_COMPARATORS) + zlib.crc32(name.encode()) % _OTHERS
        while look is None or look in found.values():
            look = _other(number)
            number += 1
        found[name] = look
    return found


def _other(number: int) -> Look:
    return Look(
        _OTHER_COLOURS[number % len(_OTHER_COLOURS)],
        _OTHER_DASHES[number % len(_OTHER_DASHES)],
        _OTHER_MARKERS[number % len(_OTHER_MARKERS)],
    )


def css_colours() -> str:
    """Return the palette as CSS: ``--failed``, ``--policy-random``, with other values in the dark.

    What is printed is on light ground, whatever the screen is like; so is a page that is marked
    ``data-paper``, since canvases are drawn before they are printed.
    """
    policies = {f"policy-{name}": look.colour for name, look in looks(_NAMED).items()}
    named = {**MEANINGS, **{f"series-{i}": each for i, each in enumerate(SERIES)}, **policies}
    light, dark = (
        "; ".join(f"--{name}: {getattr(colour, ground)}" for name, colour in named.items())
        for ground in ("light", "dark")
    )
    heat = "; ".join(f"--heat-{i}: {stop}" for i, stop in enumerate(HEAT))
    return (
        f":root {{ {light}; {heat} }}\n"
        "@media screen and (prefers-color-scheme: dark) "
        f"{{ :root:not([data-paper]) {{ {dark} }} }}\n"
    )
