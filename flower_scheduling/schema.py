"""Values from outside, checked by pydantic: types, ranges, and one line for what is wrong."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from .errors import ConfigError, nearest

_TYPES = {
    "int": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
}
_BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
_LONGEST_KEY = 100


class Strict(BaseModel):
    """Base of checked values: frozen, no unknown keys, no silent conversion but int to float.

    A fault raises :class:`.ConfigError` instead of pydantic's error of several lines.
    """

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True
    )
    where: ClassVar[str] = ""
    """What errors put before a key, e.g. ``"node config "``."""

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise config_error(error, type(self)) from None


def kebab(name: str) -> str:
    """Return a field's name as users write it: ``tau_max_s`` is ``tau-max-s``."""
    return name.replace("_", "-")


def config_error(error: ValidationError, model: type[Strict]) -> ConfigError:
    """Return the first fault that pydantic found as one line, with what would be right."""
    found = error.errors(include_url=False)[0]
    cause = found.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):  # of a check of ours
        return cause
    key = ".".join(str(part) for part in found["loc"])
    key = key if key.isprintable() and len(key) <= _LONGEST_KEY else ascii(key)[:_LONGEST_KEY]
    key, value, hint = model.where + kebab(key), found["input"], ""
    if found["type"] == "extra_forbidden":
        message = "is no setting"
        hint = nearest(kebab(str(found["loc"][-1])), map(kebab, model.model_fields))
    elif found["type"] == "missing":
        return ConfigError(key, None, "is missing")
    elif found["type"] in _TYPES:
        message = "must be " + _TYPES[found["type"]]
    elif found["type"] == "literal_error":
        message = "must be " + found["ctx"]["expected"].replace("'", "")
    elif bounds := _bounds(model, str(found["loc"][0])):
        message = "must be " + bounds
    else:
        message = found["msg"]
    return ConfigError(key, value, message, hint)


def _bounds(model: type[Strict], name: str) -> str:
    """Return the range of a field in words, ``"at least 0 and at most 1"``."""
    metadata = model.model_fields[name].metadata if name in model.model_fields else ()
    return " and ".join(
        f"{word} {getattr(bound, sign):.16g}"
        for bound in metadata
        for sign, word in _BOUNDS.items()
        if hasattr(bound, sign)
    )
