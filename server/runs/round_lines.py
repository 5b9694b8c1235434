"""The lines of ``rounds.jsonl``: written, and read with checks, since the file may be edited."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, TypeGuard

from flower_scheduling.strategies.flower import (
    MAX_CLIENT_METRICS,
    MAX_METRIC_NAME,
    ArmResult,
    Pick,
    RoundRecord,
)

from .scores import AVAILABLE, MAX_ARMS

SCHEMA: Final = 1
"""Version of the format."""
MAX_LISTED_ARMS: Final = 200
"""In larger fleets the available arms are counted, not listed."""
_MOST_ARMS: Final = 10**7
_MAX_ROWS: Final = 64  # of a round's scores
_LARGEST: Final = 2**53  # beyond it no offset and no time is


def line_of(record: RoundRecord) -> dict[str, Any]:
    """Return a round's line, in the order of its keys."""
    line: dict[str, Any] = {
        "schema": SCHEMA,
        "round": record.round,
        "time_s": record.time_s,
        "round_s": record.round_s,
        "num_arms": record.num_arms,
        "num_available": len(record.available),
    }
    if record.num_arms <= MAX_LISTED_ARMS:
        line |= {"available": record.available, "absent": record.absent}
    line["selected"] = record.selected
    for name in (*_COLUMNS, *(_BUFFERED_COLUMNS if record.buffered else ())):
        line[name] = [getattr(result, name) for result in record.results]
    line |= {
        "stepped": record.stepped,
        "no_step": record.no_step,
        "accuracy": record.accuracy,
        "loss": record.loss,
    }
    if record.diverged:
        line["diverged"] = True
    for name in _METRICS:
        if metrics := getattr(record, name):
            line[name] = dict(metrics)
    if record.buffered:
        line["buffered"] = True
    if record.late:
        line["late"] = record.late
    if record.late_updates:
        line["late_updates"] = [
            {"arm": result.arm, **{name: getattr(result, name) for name in _LATE_COLUMNS}}
            for result in record.late_updates
        ]
    if record.picks:
        line["picks"] = [{"arm": pick.arm, "begin_s": pick.begin_s} for pick in record.picks]
    known = {name: getattr(record, name) for name in (*_SIZES, "deadline_s")}
    return line | {name: value for name, value in known.items() if value is not None}


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
    count = len(line["selected"])
    if any(len(line[key]) != count for key in _ALL_COLUMNS if key in line):
        raise ValueError("its lists are not equally long")
    if any(ok and rtt is None for ok, rtt in zip(line["completed"], line["rtt_s"], strict=True)):
        raise ValueError("a client completed without a round-trip time")
    listed = (line.get(key, ()) for key in ("selected", "late", "available", "absent"))
    arms = [arm for each in listed for arm in each]
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
    columns = [f.name for f in fields(ArmResult) if f.name in _ALL_COLUMNS and f.name in line]
    results = [
        ArmResult(arm, names[arm], **{name: line[name][place] for name in columns})
        for place, arm in enumerate(selected)
    ]
    values = {f.name: line[f.name] for f in fields(RoundRecord) if f.name in line}
    values["picks"] = [Pick(pick["arm"], pick["begin_s"]) for pick in line.get("picks", ())]
    values["late_updates"] = [
        ArmResult(name=names[each["arm"]], arm=each["arm"], **_late_values(each))
        for each in line.get("late_updates", ())
    ]
    values.setdefault("available", list(range(line["num_available"])))
    return RoundRecord(**values, results=results)


def _refuse(constant: str) -> None:
    raise ValueError(f"it has a {constant}")


def _count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST


def _number(value: object) -> bool:
    # Whole numbers of any length are JSON; a flag is none.
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= _LARGEST  # not where it is NaN
    )


def _metric(value: object) -> bool:
    return (isinstance(value, float) and math.isfinite(value)) or _number(value)


def _seconds(value: object) -> bool:
    return isinstance(value, int | float) and _number(value) and value >= 0


def _flag(value: object) -> bool:
    return type(value) is bool


def _text(value: object) -> bool:
    return isinstance(value, str)


def _or_none(is_good: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or is_good(value)


def _list_of(is_good: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(is_good, value))


def _metrics(value: object) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= MAX_CLIENT_METRICS
        and all(len(key) <= MAX_METRIC_NAME and _metric(each) for key, each in value.items())
    )


def _picks(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(pick, dict) and _count(pick.get("arm")) and _seconds(pick.get("begin_s"))
        for pick in value
    )


def _late_updates(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, dict)
        and _count(each.get("arm"))
        and {"rtt_s", "reason"} <= each.keys()
        and all(_LATE_COLUMNS[key](value) for key, value in _late_values(each).items())
        and (each["reason"] is not None or each["rtt_s"] is not None)
        for each in value
    )


def _late_values(update: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a late update that its line's version had."""
    return {name: update[name] for name in _LATE_COLUMNS if name in update}


def _scores(value: object) -> bool:
    return _block(value) and _list_of(_or_none(_pick_block))(value.get("picks", []))


def _pick_block(value: object) -> bool:
    return _block(value) and _count(value.get("num_arms")) and value["num_arms"] <= MAX_ARMS


def _block(value: object) -> TypeGuard[dict[str, Any]]:
    return (
        isinstance(value, dict)
        and _count(value.get("at"))
        and _text(value.get("rule"))
        and _text(value.get("unit"))
        and _list_of(_text)(value.get("rows"))
        and 0 < len(value["rows"]) <= _MAX_ROWS
        and len(set(value["rows"])) == len(value["rows"])
        and AVAILABLE in value["rows"]
    )


# Attributes of an :class:`.ArmResult` that a line lists, in the order of ``selected``.
_COLUMNS: Final[Mapping[str, Callable[[object], bool]]] = {
    "rtt_s": _or_none(_seconds),
    "completed": _flag,
    "reason": _or_none(_text),
    "compute_s": _or_none(_seconds),
    "link_s": _or_none(_seconds),
}
_BUFFERED_COLUMNS: Final[Mapping[str, Callable[[object], bool]]] = {
    "staleness": _or_none(_count),
    "begin_s": _or_none(_seconds),
}
# Of a late update, beside its arm.
_LATE_COLUMNS: Final = {
    **{name: is_good for name, is_good in _COLUMNS.items() if name != "completed"},
    "staleness": _or_none(_count),
}
_ALL_COLUMNS: Final = {**_COLUMNS, **_BUFFERED_COLUMNS}
_SIZES: Final = ("sent_bytes", "received_bytes")
_METRICS: Final = ("client_metrics", "server_metrics")
_CHECKS: Final[Mapping[str, Callable[[object], bool]]] = {
    "round": _count,
    "time_s": _seconds,
    "round_s": _seconds,
    "num_arms": _count,
    "num_available": _count,
    "available": _list_of(_count),
    "absent": _list_of(_count),
    "selected": _list_of(_count),
    **{name: _list_of(is_good) for name, is_good in _ALL_COLUMNS.items()},
    "buffered": _flag,
    "stepped": _flag,
    "no_step": _or_none(_text),
    "accuracy": _or_none(_metric),
    "loss": _or_none(_metric),
    "diverged": _flag,
    **dict.fromkeys(_METRICS, _metrics),
    "scores": _or_none(_scores),
    **dict.fromkeys(_SIZES, _count),
    "deadline_s": _seconds,
    "late": _list_of(_count),
    "late_updates": _late_updates,
    "picks": _picks,
}
_LATER: Final = (*_METRICS, "scores", *_SIZES, "deadline_s", "late", "late_updates", "picks")
# Not listed above some number of arms, of few rounds, or not written by earlier versions
_OPTIONAL: Final = (
    *("available", "absent", "no_step", "diverged", *_LATER, "buffered"),
    *_BUFFERED_COLUMNS,
)
