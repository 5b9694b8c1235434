"""Formatting of numbers and of untrusted text for reports."""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 60


def seconds(value: float, *, like: float | None = None, unit: bool = True) -> str:
    """Return a time with three digits or all before the point.

    Parameters
    ----------
    value : float
        The time [s].
    like : float, optional
        A time that has as many decimals, such as the middle of an interval.
    unit : bool
        Whether it ends in its unit.
    """
    size = abs(value if like is None else like)
    decimals = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    return f"{value:,.{decimals}f}".replace("-", "−") + (" s" if unit else "")


def percent(share: float) -> str:
    """Return a share in percent, small ones with one decimal."""
    value = 100.0 * share
    decimals = 1 if 0.05 <= abs(value) < 9.95 else 0
    text = f"{value:.{decimals}f}"
    return ("0" if float(text) == 0 else text.replace("-", "−")) + " %"


def plain(text: object, longest: int = _LONGEST) -> str:
    """Return an untrusted text on one line: short, and without what steers a display."""
    shown = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(text)
    )
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"
