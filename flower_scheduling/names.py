"""Names of clients, as people write them in lists and settings."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Collection, Iterable
from typing import Final

from .errors import did_you_mean, one_line

_NAMES_SHOWN: Final = 5
_SIGNS: Final = re.compile(r"[\W_]+")
_ZEROS: Final = re.compile(r"(?<!\d)0+(?=\d)")
_DIGITS: Final = re.compile(r"\d+")


@functools.lru_cache(maxsize=1 << 14)  # asked of every client of a fleet, every two seconds
def folded(name: str) -> str:
    """Return what two spellings of a name have in common: no case, one Unicode form.

    It is Unicode's compatibility caseless matching (NFKC and case folding), without characters
    that cannot be seen, such as a byte order mark or a soft hyphen.
    """
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return "".join(c for c in text if unicodedata.category(c) != "Cf").strip()


def unknown_names(names: Iterable[str], known: Iterable[str]) -> str:
    """Return a sentence about names that no client has, with those that may be meant.

    Parameters
    ----------
    names : iterable of str
        The names; there is at least one.
    known : iterable of str
        Names of clients that may be meant.
    """
    known = sorted(known)
    names = sorted(names)
    shown = [name + _meant(name, known) for name in names[:_NAMES_SHOWN]]
    if len(names) > _NAMES_SHOWN:
        shown.append(f"{len(names) - _NAMES_SHOWN} more")
    listed = " or ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
    return one_line(f"no client is called {listed}")


def _meant(name: str, known: Collection[str]) -> str:
    """Return the known name that may be meant, as a hint in brackets; nothing if there is none.

    The devices of a fleet are often numbered: ``dev-2`` does not stand for ``dev-1``.
    """
    plain = _plain(name)
    alike = [other for other in known if _plain(other) == plain]
    numbers = _DIGITS.findall(plain)
    numbered = [other for other in known if _DIGITS.findall(_plain(other)) == numbers]
    return f" (did you mean {alike[0]}?)" if alike else did_you_mean(name, numbered)


def _plain(name: str) -> str:
    """Return the letters and numbers of a name."""
    return _SIGNS.sub("", _ZEROS.sub("", folded(name)))
