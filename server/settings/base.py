"""Settings of programs: fields that are kebab-case keys and flags, checked, one line per fault."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    Self,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import Field, PlainValidator, ValidationInfo, model_validator

from flower_scheduling.client.wire.compression import Compression
from flower_scheduling.errors import ConfigError
from flower_scheduling.schema import Strict, kebab
from flower_scheduling.strategies.deadline import AUTO, GivenDeadline
from flower_scheduling.strategies.over_asking import GivenSpares

_BEYOND_INT: Final = 2**63  # for Flower's messages and numpy alike


def setting(default: Any, help_text: str, **bounds: Any) -> Any:
    """Declare a setting: its default, its line in help texts, and pydantic's bounds."""
    return Field(default, description=help_text, **bounds)


def _deadline(value: object, info: ValidationInfo) -> GivenDeadline:
    """Return a number of seconds above 0, or the word for one that is found."""
    if value == AUTO:
        return "auto"
    key = kebab(info.field_name or "")
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ConfigError(key, value, f"must be a number or {AUTO}")
    if not math.isfinite(value):
        raise ConfigError(key, value, "must be a finite number")
    if value <= 0:
        raise ConfigError(key, value, "must be above 0")
    return float(value)


Deadline: TypeAlias = Annotated[GivenDeadline, PlainValidator(_deadline)]
"""Type of a setting that is a deadline [s], or ``auto``."""


def _spares(value: object, info: ValidationInfo) -> GivenSpares:
    """Return a number of clients, or the word for the policy's own."""
    if value == AUTO:
        return "auto"
    key = kebab(info.field_name or "")
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(key, value, f"must be a whole number or {AUTO}")
    if value < 0:
        raise ConfigError(key, value, "must be at least 0")
    return value


Spares: TypeAlias = Annotated[GivenSpares, PlainValidator(_spares)]
"""Type of a setting that is a number of spare clients, or ``auto``."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as command lines and tables show it."""

    name: str
    kind: type[int | float | bool | str]
    default: int | float | bool | str
    help: str
    word: str = ""
    """What may stand for a number; empty: nothing."""


class Settings(Strict):
    """Base of configuration classes. A field ``tau_max_s`` is the key and flag ``tau-max-s``.

    Flower's run configuration carries only int, float, bool and str, and lets wrong types
    through (flwr 1.42): whole numbers become floats where a float is due, everything else is
    refused by the key's name.
    """

    @classmethod
    def settings(cls) -> dict[str, Setting]:
        """Return the fields by their keys, in order."""
        hints = get_type_hints(cls)
        found = {}
        for name, field in cls.model_fields.items():
            kind, word = hints[name], ""
            if get_origin(kind) is Literal:
                kind = type(get_args(kind)[0])
            elif choices := get_args(kind):  # a number, or a word
                kind, word = choices[0], get_args(choices[1])[0]
            found[kebab(name)] = Setting(name, kind, field.default, field.description or "", word)
        return found

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> Self:
        """Build from kebab-case keys.

        Raises
        ------
        ConfigError
            If a key is unknown, a value has the wrong type or is out of range.
        """
        for key, value in values.items():
            if type(value) is int and abs(value) >= _BEYOND_INT:
                raise ConfigError(key, value, "must be a number below 2^63")
        names = {key: one.name for key, one in cls.settings().items()}
        return cls(**{names.get(key, key): value for key, value in values.items()})

    def to_mapping(self) -> dict[str, int | float | bool | str]:
        """Return every setting under its kebab-case key."""
        return {key: getattr(self, one.name) for key, one in self.settings().items()}

    def changed(self, **values: Any) -> Self:
        """Return these settings with others for some fields, checked."""
        return type(self)(
            **{name: getattr(self, name) for name in type(self).model_fields} | values
        )

    def require(self, name: str, condition: bool, allowed: str) -> None:
        """Refuse a field unless a condition holds.

        Raises
        ------
        ConfigError
            If it does not.
        """
        if not condition:
            raise ConfigError(kebab(name), getattr(self, name), f"must be {allowed}")


class CompressionSettings(Settings):
    """The setting of what carries messages, a fleet's streams or a simulation: fewer bytes."""

    compress: str = setting(
        "",
        "Send fewer bytes: bfloat16, zstd, or up=KIND,down=KIND; int8 is for up alone "
        "(default: arrays as they are).",
    )

    @property
    def compression(self) -> Compression:
        """The setting, read."""
        return Compression.parse(self.compress)

    @model_validator(mode="after")
    def _check_compression(self) -> Self:
        Compression.parse(self.compress)
        return self
