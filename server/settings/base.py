"""Settings as frozen dataclasses: kebab-case keys, checked types, one clear error per fault."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from typing import Any, ClassVar, Final, Self, get_type_hints

from flower_scheduling.errors import ConfigError, nearest

_BEYOND_INT: Final = 2**63  # for Flower's messages and numpy alike
_LONGEST_KEY: Final = 100


@dataclass(frozen=True)
class Settings:
    """Base of configuration classes. A field ``tau_max_s`` is the key and flag ``tau-max-s``.

    Flower's run configuration carries only int, float, bool and str, and lets wrong types
    through (flwr 1.42): :meth:`from_mapping` turns whole numbers into floats where a float is
    due and refuses everything else by the key's name.
    """

    _types: ClassVar[dict[str, type]]

    @classmethod
    def settings(cls) -> dict[str, Field[Any]]:
        """Return the fields by their keys, in order."""
        return {_key(field.name): field for field in fields(cls)}

    @classmethod
    def type_of(cls, field: Field[Any]) -> type:
        """Return the type of a field: int, float, bool or str."""
        hint = get_type_hints(cls)[field.name]
        assert hint in (int, float, bool, str), f"{field.name} is {hint}"
        return hint  # type: ignore[no-any-return]

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> Self:
        """Build from kebab-case keys.

        Raises
        ------
        ConfigError
            If a key is unknown, a value has the wrong type or is out of range.
        """
        known = cls.settings()
        arguments: dict[str, Any] = {}
        for key, value in values.items():
            if key not in known:
                shown = key if key.isprintable() and len(key) <= _LONGEST_KEY else ascii(key)
                raise ConfigError(
                    shown[:_LONGEST_KEY],
                    value,
                    "is no setting",
                    nearest(key, known),
                )
            field = known[key]
            arguments[field.name] = _coerce(key, value, cls.type_of(field))
        return cls(**arguments)

    def to_mapping(self) -> dict[str, int | float | bool | str]:
        """Return every setting under its kebab-case key."""
        return {key: getattr(self, field.name) for key, field in self.settings().items()}

    def require(self, name: str, condition: bool, allowed: str) -> None:
        """Refuse a field unless a condition holds.

        Raises
        ------
        ConfigError
            If it does not.
        """
        if not condition:
            raise ConfigError(_key(name), getattr(self, name), f"must be {allowed}")


def _key(name: str) -> str:
    return name.replace("_", "-")


def _coerce(key: str, value: object, kind: type) -> int | float | bool | str:
    if type(value) is int and abs(value) >= _BEYOND_INT:
        raise ConfigError(key, value, "must be a number below 2^63")
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        raise ConfigError(key, value, f"must be {names[kind]}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(key, value, "must be a finite number")
    assert isinstance(value, int | float | str)
    return value
