"""Flower's configurations on a command line: ``key=value`` pairs, or a TOML file."""

from __future__ import annotations

import re
from typing import Final

from flwr.app import UserConfig

from ._flwr import parse_config_args
from .errors import ConfigError

__all__ = ["merged_overrides", "read_user_config"]

# What flwr 1.42 takes for a pair; it passes over whatever is none.
_QUOTED: Final = r"'[^']*'|\"[^\"]*\""
_PAIR: Final = re.compile(rf"\S+?=({_QUOTED}|\S+)")


def merged_overrides(key: str, earlier: str, later: str) -> str:
    """Return overrides that have the values of both, of a key in both the later one.

    Each is a text as :func:`read_user_config` takes it, or empty.
    """
    if not earlier or not later or earlier == later:
        return later or earlier
    both = {**read_user_config(key, earlier), **read_user_config(key, later)}
    return " ".join(f"{name}={_as_text(value)}" for name, value in both.items())


def _as_text(value: int | float | bool | str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"' if "'" in value else f"'{value}'"
    return repr(value)


def read_user_config(key: str, text: str) -> UserConfig:
    """Read a configuration as ``flwr run`` and ``flower-supernode`` do.

    Parameters
    ----------
    key : str
        The setting that holds it, for errors.
    text : str
        ``"dataset-path='part_1' n=3 flag=true"``, or the name of a TOML file.

    Returns
    -------
    dict
        Keys of nested tables are joined by dots.

    Raises
    ------
    ConfigError
        If the text is neither, or a value is no number, truth value or text.
    """
    comma = not text.endswith(".toml") and "," in re.sub(_QUOTED, "", text)
    blanks = ", with blanks between them and no commas" if comma else ""
    left = "" if text.endswith(".toml") else _PAIR.sub("", text).strip()
    if left:
        message = f"{left!r} is no KEY=VALUE; texts want quotes, key='a text'"
        if comma:
            message = f"must be KEY=VALUE pairs{blanks}"
        raise ConfigError(key, text, message)
    try:
        return parse_config_args([text])
    except OSError as error:
        raise ConfigError(key, text, f"must be a file that can be read ({error})") from None
    except Exception as error:  # Flower's parser raises click's and tomli's
        # Of its pairs Flower says but what would be right, in three sentences.
        why = f" ({error})" if isinstance(error, ValueError) else ""
        message = f"must be KEY=VALUE pairs{blanks}: numbers, true, false, or texts in quotes{why}"
        raise ConfigError(key, text, message) from None
