"""The lines of ``rounds.jsonl``: written, and read with checks, since the file may be edited."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

from flower_scheduling.columns import (
    IsValid,
    When,
    columns,
    count,
    flag,
    is_any,
    list_of,
    or_none,
    seconds,
    text,
)
from flower_scheduling.strategies.flower import ArmResult, Pick, RoundRecord

from .scores import AVAILABLE, MAX_ARMS

SCHEMA: Final = 1
"""Version of the format."""
MAX_LISTED_ARMS: Final = 200
"""In larger fleets the available arms are counted, not listed."""
_MOST_ARMS: Final = 10**7
_MAX_ROWS: Final = 64  # of a round's scores


def line_of(record: RoundRecord) -> dict[str, Any]:
    """Return a round's line, in the order of its keys."""
    now = {When.ALWAYS}
    if record.num_arms <= MAX_LISTED_ARMS:
        now.add(When.SMALL_FLEETS)
    if record.buffered:
        now.add(When.IN_STEPS)

    line: dict[str, Any] = {"schema": SCHEMA}
    for name, column in _COLUMNS.items():
        value = getattr(record, name)
        if column.when in now or (column.when is When.IF_ANY and is_any(value)):
            line[name] = value
    line |= {
        "num_available": len(record.available),
        "selected": record.selected,
        "completed": record.completed,
    }
    for name, column in _ARM_COLUMNS.items():
        if column.when in now or column.when is When.IF_ANY:
            values = [getattr(result, name) for result in record.results]
            if column.when in now or any(map(is_any, values)):
                line[name] = values
    if record.late_updates:
        line["late_updates"] = [
            {"arm": result.arm, **{name: getattr(result, name) for name in _late_columns(result)}}
            for result in record.late_updates
        ]
    if record.picks:
        line["picks"] = [{"arm": pick.arm, "begin_s": pick.begin_s} for pick in record.picks]
    return line


def read_line(data: bytes, number: int) -> dict[str, Any]:
    """Read a line, and check everything that a reader relies on.

    Parameters
    ----------
    data : bytes
        The line.
    number : int
        Round that it must be of.

    Returns
    -------
    dict
        As it was written.

    Raises
    ------
    ValueError
        If it is no such line; the text names the fault.
    """
    try:
        line = json.loads(data, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(line, dict):
        raise ValueError("it is no object")
    for key, is_good in _CHECKS.items():
        if key not in line and key in _OPTIONAL:
            continue
        if key not in line or not is_good(line[key]):
            raise ValueError(f"{key!r} is missing or wrong")
    if not line["num_available"] <= line["num_arms"] <= _MOST_ARMS:
        raise ValueError(f"it has {line['num_arms']} arms, {line['num_available']} available")
    if line.get("scores") and line["num_arms"] > MAX_ARMS:
        raise ValueError("it has scores of too many arms")
    entries = (line.get("scores") or {}).get("picks", ())
    if len(entries) > len(line.get("picks", ())):
        raise ValueError("it has scores of picks that were not made")
    if line["round"] != number:
        raise ValueError(f"it is of round {line['round']}")
    listed = ("completed", *_ARM_COLUMNS)
    if any(len(line[key]) != len(line["selected"]) for key in listed if key in line):
        raise ValueError("its lists are not equally long")
    if any(ok and rtt is None for ok, rtt in zip(line["completed"], line["rtt_s"], strict=True)):
        raise ValueError("a client completed without a round-trip time")
    lists = ("selected", "late", "available", "absent", "left_out")
    arms = [arm for key in lists for arm in line.get(key, ())]
    arms += [each["arm"] for key in ("picks", "late_updates") for each in line.get(key, ())]
    if max(arms, default=-1) >= line["num_arms"]:
        raise ValueError(f"it has an arm beyond its {line['num_arms']}")
    return line


def parse_round(data: bytes, number: int, names: Sequence[str]) -> RoundRecord:
    """Read a line as the record that was written.

    Parameters
    ----------
    data : bytes
        The line.
    number : int
        Round that it must be of.
    names : sequence of str
        What the arms are called, by index.

    Raises
    ------
    ValueError
        If it is no such line, or has arms without a name.
    """
    return record_of(read_line(data, number), names)


def record_of(line: Mapping[str, Any], names: Sequence[str]) -> RoundRecord:
    """Return the record of a line that :func:`read_line` has checked.

    Raises
    ------
    ValueError
        If an arm has no name.
    """
    selected = line["selected"]
    late = [each["arm"] for each in line.get("late_updates", ())]
    if max(selected + late, default=-1) >= len(names):
        raise ValueError("it has an arm without a name")
    # A column that the line's version did not have keeps its default.
    present = [name for name in _ARM_COLUMNS if name in line]
    results = [
        ArmResult(arm, names[arm], **{name: line[name][place] for name in present})
        for place, arm in enumerate(selected)
    ]
    values = {name: line[name] for name in _COLUMNS if name in line}
    values["picks"] = [Pick(pick["arm"], pick["begin_s"]) for pick in line.get("picks", ())]
    values["late_updates"] = [
        ArmResult(name=names[each["arm"]], arm=each["arm"], **_late_values(each))
        for each in line.get("late_updates", ())
    ]
    values.setdefault("available", list(range(line["num_available"])))
    return RoundRecord(**values, results=results)


def _refuse(constant: str) -> None:
    raise ValueError(f"it has a {constant}")


def _picks(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(pick, dict) and count(pick.get("arm")) and seconds(pick.get("begin_s"))
        for pick in value
    )


def _late_updates(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, dict)
        and count(each.get("arm"))
        and {"rtt_s", "reason"} <= each.keys()
        and all(_LATE_COLUMNS[key].is_valid(value) for key, value in _late_values(each).items())
        and (each["reason"] is not None or each["rtt_s"] is not None)
        for each in value
    )


def _late_values(update: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a late update that its line's version had."""
    return {name: update[name] for name in _LATE_COLUMNS if name in update}


def _late_columns(result: ArmResult) -> list[str]:
    """Return the columns of a late update's line."""
    return [
        name
        for name, column in _LATE_COLUMNS.items()
        if column.when is not When.IF_ANY or is_any(getattr(result, name))
    ]


def _scores(value: object) -> bool:
    return _block(value) and list_of(or_none(_pick_block))(value.get("picks", []))


def _pick_block(value: object) -> bool:
    return _block(value) and count(value.get("num_arms")) and value["num_arms"] <= MAX_ARMS


def _block(value: object) -> TypeGuard[dict[str, Any]]:
    return (
        isinstance(value, dict)
        and count(value.get("at"))
        and text(value.get("rule"))
        and text(value.get("unit"))
        and list_of(text)(value.get("rows"))
        and 0 < len(value["rows"]) <= _MAX_ROWS
        and len(set(value["rows"])) == len(value["rows"])
        and AVAILABLE in value["rows"]
    )


_COLUMNS: Final = columns(RoundRecord)
# Lists in the order of ``selected``
_ARM_COLUMNS: Final = columns(ArmResult)
# Of a late update, beside its arm
_LATE_COLUMNS: Final = {name: c for name, c in _ARM_COLUMNS.items() if name != "begin_s"}
_CHECKS: Final[Mapping[str, IsValid]] = {
    **{name: column.is_valid for name, column in _COLUMNS.items()},
    **{name: list_of(column.is_valid) for name, column in _ARM_COLUMNS.items()},
    "num_available": count,
    "selected": list_of(count),
    "completed": list_of(flag),
    "scores": or_none(_scores),
    "late_updates": _late_updates,
    "picks": _picks,
}
_OPTIONAL: Final = (
    *("scores", "late_updates", "picks"),
    *(name for name, column in {**_COLUMNS, **_ARM_COLUMNS}.items() if column.optional),
)
